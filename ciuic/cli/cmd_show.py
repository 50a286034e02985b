"""``ciuic show``."""

import sys
from typing import Final

import click

from ciuic.catalog import list_snapshots
from ciuic.chains import SnapshotChain, snapshot_chains
from ciuic.cli.candidates import SNAPSHOT, stored_path
from ciuic.cli.error_output import hinted
from ciuic.cli.opening import find_snapshot, opened, warn_of_mark
from ciuic.cli.options import (
    ShortOptionsCommand,
    absolute,
    given,
    json_option,
)
from ciuic.cli.render import brief, labels, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.documents import Document
from ciuic.errors import DAMAGE, UsageError
from ciuic.maintain.label import NOTE_MAX
from ciuic.model import BEING_WRITTEN, PathWarning, Root, SnapshotSummary, path_text
from ciuic.report.entries import STATES
from ciuic.store.records.manifest import Manifest
from ciuic.system.clock import local_time_text
from ciuic.units import counted, format_bytes
from ciuic.view.left_out import rules_text

__all__ = ["command"]

_CAPTURES: Final = {
    "in place": "in place",
    "memory": "from the memory of a training program",
    "reflink": "by reflink",
    "subvolume": "as a subvolume",
    "unchanged": "without a scan: its subvolume had not changed since the parent",
}


@click.command("show", cls=ShortOptionsCommand)
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.option("--chunks", is_flag=True, help="Show how each file is stored, chunk by chunk.")
@click.option(
    "-p", "--path", "paths", metavar="PATH", multiple=True, callback=given,
    shell_complete=stored_path,
    help="With --chunks: only this file, or what is below this directory.",
)  # fmt: skip
@json_option
@click.pass_obj
def command(
    session: Session, *, snapshot_id: str, chunks: bool, paths: tuple[str, ...], as_json: bool
) -> None:
    """Show a snapshot's roots, sizes and warnings.

    'chain' is the number of snapshots since the last full snapshot. With --chunks, ciuic shows for
    each chunk of each file its offset in the file, its ID, its codec and pack, and its share of its
    frame. If a chunk is stored as a delta, ciuic also shows its delta base, the length of its delta
    chain, and how many bytes must be read to rebuild it.
    """
    if paths and not chunks:
        raise UsageError("-p requires --chunks", hint="Add --chunks; 'ciuic ls' lists a path.")
    with opened(session) as store:
        summary = find_snapshot(session, store, snapshot_id)
        warn_of_mark(summary)
        manifest = store.manifest(summary.id).with_summary(summary)
        chain = snapshot_chains([*list_snapshots(store), manifest.summary])[manifest.summary.id]
        document = _manifest_json(session, manifest, chain) if as_json else None
        if chunks:
            from ciuic.cli.chunks import print_chunks

            wanted = [absolute(path) for path in paths]
            if print_chunks(store, manifest, wanted, document=document):
                sys.exit(DAMAGE)
        elif document is not None:
            print_json(document)
        else:
            _print_manifest(manifest, chain)


def _manifest_json(session: Session, manifest: Manifest, chain: SnapshotChain) -> Document:
    return manifest.summary.as_json() | {
        **chain.as_json(),
        "host": manifest.host,
        "writer": manifest.writer,
        "read_bytes": manifest.read_bytes,
        "freeze_s": manifest.capture_s,
        **manifest.exclude.as_json(),
        "roots": [
            {
                "path": path_text(root.path),
                "tree": root.tree.hex(),
                "missing": root.missing,
                "capture": root.capture,
            }
            for root in manifest.roots
        ],
        "trouble": [warning.as_json() for warning in manifest.trouble],
        "damaged_snapshots": session.damaged_snapshots,
    }


def _print_manifest(manifest: Manifest, chain: SnapshotChain) -> None:
    for key, value in [*_summary_lines(manifest, chain), *_path_lines(manifest)]:
        print_pair(key, value, 10)


def _summary_lines(manifest: Manifest, chain: SnapshotChain) -> list[tuple[str, str]]:
    summary = manifest.summary
    when = local_time_text(summary.taken_ns)
    lines = [
        ("snapshot", summary.id),
        ("kind", brief(summary.kind)),
        ("parent", brief(summary.parent or "none")),
        ("chain", _chain_text(chain)),
        ("taken", f"{when} on {brief(manifest.host)} by {brief(manifest.writer)}"),
        ("origin", _origin_text(summary)),
        ("files", f"{summary.files:,}, {format_bytes(summary.logical_bytes)}"),
        ("read", f"{format_bytes(manifest.read_bytes)} in {manifest.capture_s:.2f} s"),
        ("new", f"{format_bytes(summary.new_bytes)} that the store did not have before"),
        ("stored", f"{format_bytes(summary.stored_bytes)} added to the store"),
    ]
    lines += [
        (
            "follows",
            f"{brief(followed.snapshot)}, from which {printable(followed.path)} was restored",
        )
        for followed in summary.follows
    ]
    if summary.tags:
        lines.append(("tags", labels(summary.tags, pinned=False)))
    if summary.pinned:
        lines.append(("pinned", "yes"))
    if summary.note:
        lines.append(("note", brief(summary.note, NOTE_MAX)))
    return lines


def _origin_text(summary: SnapshotSummary) -> str:
    """Return what asked for the snapshot, and for which schedule."""
    schedule = f"schedule {summary.schedule}" if summary.schedule else "no schedule"
    return f"{summary.origin or 'not recorded'}, {schedule}"


def _path_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the lines about roots and warnings."""
    lines = [("root", _root_text(root)) for root in manifest.roots]
    if excluded := rules_text(manifest.exclude):
        lines.append(("left out", excluded))
    lines += [_trouble_line(warning) for warning in manifest.trouble]
    named = sum(not warning.harmless for warning in manifest.trouble)
    unnamed = manifest.summary.trouble_count - named
    if unnamed > 0:
        marked = f"'ciuic ls -R {manifest.summary.id}' marks them all"
        text = f"and {counted(unnamed, 'more path')}; {marked}"
        lines.append(("trouble", hinted(text)))
    return lines


def _chain_text(chain: SnapshotChain) -> str:
    if not chain.length:
        return "none: this is a full snapshot"
    if chain.is_known:
        return f"{chain.length:,} after its full snapshot"
    gone = "one between them, or the full one, is no longer listed"
    return f"{chain.length:,} or more after its full snapshot: {gone}"


def _root_text(root: Root) -> str:
    if root.missing:
        return f"{path_text(root.path)}: {root.missing}"
    how = _CAPTURES.get(root.capture)
    return f"{path_text(root.path)}, captured {how}" if how else path_text(root.path)


def _trouble_line(warning: PathWarning) -> tuple[str, str]:
    being_written = f"{STATES[BEING_WRITTEN]}: "
    key = STATES[BEING_WRITTEN] if warning.what.startswith(being_written) else "trouble"
    return key, f"{path_text(warning.path)}: {warning.what.removeprefix(being_written)}"

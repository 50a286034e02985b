"""``ciuic list``, ``show``, ``ls``, ``cat``, ``find`` and ``diff``: looking into snapshots."""

import os
import sys
from typing import Any

import click

from ciuic.cli.render import mode_text, print_json, print_table, printable
from ciuic.cli.session import (
    DAMAGE,
    SNAPSHOT,
    Session,
    absolute,
    found_snapshot,
    given,
    json_option,
)
from ciuic.clock import local_time_text, rfc3339
from ciuic.errors import CiuicError, UsageError
from ciuic.model import FLUX, SKIPPED, UNREADABLE, Entry, Root, SnapshotSummary, Trouble, path_text
from ciuic.units import format_bytes

__all__ = ["cat", "change_json", "diff", "find", "list_", "ls", "show"]

_STATES = {FLUX: "in flux", UNREADABLE: "unreadable", SKIPPED: "left out"}
_LEGEND = {
    FLUX: "somebody was writing it: it may hold a mixture of old and new",
    UNREADABLE: "it could not be read: the snapshot has no content of it",
    SKIPPED: "left out on purpose, with all that is in it",
}
_CAPTURES = {"in place": "in place", "reflink": "by reflink", "subvolume": "as a subvolume"}
_SIGNS = {
    "+": "added",
    "-": "removed",
    "M": "changed",
    "m": "metadata",
    "T": "type",
    "?": "unknown",
}


@click.command("list")
@click.option("--machine-readable", is_flag=True, help="ID|YYYY-mm-dd HH:MM:SS|SIZE in bytes.")
@click.option("--path", metavar="P", callback=given, help="Only snapshots that hold this path.")
@click.option("--tag", metavar="T", help="Only snapshots with this tag.")
@click.option("--trash", is_flag=True, help="Forgotten snapshots that can be brought back.")
@json_option
@click.pass_obj
def list_(
    session: Session,
    *,
    machine_readable: bool,
    path: str | None,
    tag: str | None,
    trash: bool,
    as_json: bool,
) -> None:
    """List snapshots, newest first.

    CHAIN counts the snapshots since its base, as far as they are there. SIZE is that of all its
    files, NEW what the store did not have before, STORED what was added to the store. TROUBLE
    counts paths that are not as they should be; FLUX those of them that somebody was writing.
    """
    from ciuic.catalog import chain_lengths, damaged_manifests, list_snapshots

    if machine_readable and as_json:
        raise UsageError("--machine-readable and --json exclude each other")
    if trash:
        if machine_readable or path is not None or tag is not None:
            raise UsageError("--trash goes with --json only")
        _list_trash(session, as_json=as_json)
        return
    with session.opened() as store:
        snapshots = list_snapshots(store)
        damaged = damaged_manifests(store)
        chains = chain_lengths(snapshots)
        if tag is not None:
            snapshots = [one for one in snapshots if tag in one.tags]
        if path is not None:
            wanted = absolute(path)
            snapshots = [one for one in snapshots if _holds(store, one, wanted)]
    if as_json:
        print_json([{**one.as_json(), "chain_length": chains[one.id]} for one in snapshots])
    elif machine_readable:
        for one in snapshots:
            click.echo(f"{one.id}|{local_time_text(one.taken_ns)}|{one.logical_bytes}")
    elif snapshots or not damaged:
        _print_snapshots(snapshots, chains, _filtered_by(path, tag))
    for name, what in sorted(damaged.items()):
        click.echo(f"ciuic: {name} can't be read: {printable(what)}", err=True)
    if damaged:
        sys.exit(DAMAGE)


def _list_trash(session: Session, *, as_json: bool) -> None:
    from ciuic.clock import rfc3339

    with session.opened() as store:
        found, damaged = store.survey_trash()
    found.reverse()
    if as_json:
        print_json(
            [
                {**one.manifest.summary.as_json(), "forgotten": rfc3339(one.forgotten_ns)}
                for one in found
            ]
        )
    elif found:
        rows = [
            (
                one.id,
                local_time_text(one.manifest.summary.taken_ns),
                local_time_text(one.forgotten_ns),
                format_bytes(one.manifest.summary.logical_bytes),
                _labels(one.manifest.summary),
            )
            for one in found
        ]
        print_table(("ID", "TAKEN", "FORGOTTEN", "SIZE", "TAGS"), rows, right=frozenset({3}))
    elif not damaged:
        click.echo("the trash is empty", err=True)
    for name, error in damaged.items():
        click.echo(f"ciuic: {name} can't be read: {printable(error.message)}", err=True)
    if damaged:
        click.echo("       'ciuic repair' tells what can be done.", err=True)
        sys.exit(DAMAGE)


def _labels(summary: SnapshotSummary) -> str:
    return ",".join([*summary.tags, *(["(pinned)"] if summary.pinned else [])])


def _filtered_by(path: str | None, tag: str | None) -> str:
    """What to say when nothing is listed."""
    if path is not None:
        return f"no snapshot holds {printable(absolute(path))}"
    if tag is not None:
        return f"no snapshot has the tag '{printable(tag)}'"
    return "no snapshot yet; take one with 'ciuic snapshot'"


def _holds(store: Any, snapshot: SnapshotSummary, path: bytes) -> bool:
    from ciuic.errors import PathNotFoundError
    from ciuic.verbs.browse import locate

    try:
        locate(store, store.manifest(snapshot.id), path)
    except PathNotFoundError:
        return False
    return True


def _print_snapshots(
    snapshots: list[SnapshotSummary], chains: dict[str, int], otherwise: str
) -> None:
    if not snapshots:
        click.echo(otherwise, err=True)
        return
    header = (
        *("ID", "TAKEN", "KIND", "CHAIN", "FILES", "SIZE", "NEW", "STORED", "TROUBLE", "FLUX"),
        "TAGS",
    )
    rows = [
        (
            one.id,
            local_time_text(one.taken_ns),
            one.kind,
            f"{chains[one.id]:,}",
            f"{one.files:,}",
            format_bytes(one.logical_bytes),
            format_bytes(one.new_bytes),
            format_bytes(one.stored_bytes),
            str(one.trouble_count or ""),
            str(one.flux_count or ""),
            _labels(one),
        )
        for one in snapshots
    ]
    print_table(header, rows, right=frozenset(range(3, 10)))


@click.command()
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.option("--chunks", is_flag=True, help="Show how each file is stored, chunk by chunk.")
@click.option(
    "-p", "--path", "paths", metavar="PATH", multiple=True, callback=given,
    help="With --chunks: only this file, or what is below this directory.",
)  # fmt: skip
@json_option
@click.pass_obj
def show(
    session: Session, *, snapshot_id: str, chunks: bool, paths: tuple[str, ...], as_json: bool
) -> None:
    """Show what a snapshot says of itself: roots, sizes, trouble.

    CHAIN counts the snapshots since its base. With --chunks, for each chunk of each file: where
    in the file it lies, its ID, codec and pack, what it takes of its frame, and, if it is stored
    as a difference, from which chunk, how many there are below it and how many bytes must be read
    to have it.
    """
    from ciuic.catalog import chain_lengths, list_snapshots

    if paths and not chunks:
        raise UsageError("-p goes with --chunks", hint="'ciuic ls' lists a path.")
    with session.opened() as store:
        manifest = store.manifest(found_snapshot(store, snapshot_id).id)
        chain = chain_lengths(list_snapshots(store)).get(manifest.summary.id, 0)
        if not chunks:
            _print_manifest(manifest, chain, as_json=as_json)
            return
        from ciuic.cli.chunks import print_chunks

        wanted = [absolute(one) for one in paths]
        document = _manifest_json(manifest, chain) if as_json else None
        if print_chunks(store, manifest, wanted, document=document):
            sys.exit(DAMAGE)


def _manifest_json(manifest: Any, chain: int) -> dict[str, Any]:
    summary = manifest.summary
    document: dict[str, Any] = summary.as_json() | {
        "chain_length": chain,
        "host": manifest.host,
        "writer": manifest.writer,
        "read_bytes": manifest.read_bytes,
        "freeze_s": manifest.capture_s,
        "exclude": list(manifest.exclude),
        "roots": [
            {
                "path": path_text(one.path),
                "tree": one.tree.hex(),
                "missing": one.missing,
                "capture": one.capture,
            }
            for one in manifest.roots
        ],
        "trouble": [one.as_json() for one in manifest.trouble],
    }
    return document


def _print_manifest(manifest: Any, chain: int, *, as_json: bool) -> None:
    summary = manifest.summary
    if as_json:
        print_json(_manifest_json(manifest, chain))
        return
    lines = [
        ("snapshot", summary.id),
        ("kind", summary.kind),
        ("parent", summary.parent or "none"),
        ("chain", f"{chain:,} after its base" if chain else "stands alone"),
        ("taken", f"{local_time_text(summary.taken_ns)} on {manifest.host} by {manifest.writer}"),
        ("files", f"{summary.files:,}, {format_bytes(summary.logical_bytes)}"),
        ("read", f"{format_bytes(manifest.read_bytes)} in {manifest.capture_s:.2f} s"),
        ("new", f"{format_bytes(summary.new_bytes)} that the store did not have before"),
        ("stored", f"{format_bytes(summary.stored_bytes)} added to the store"),
    ]
    if summary.tags:
        lines.append(("tags", ", ".join(summary.tags)))
    if summary.pinned:
        lines.append(("pinned", "yes"))
    lines += [("root", _root_text(root)) for root in manifest.roots]
    lines += [_trouble_line(one) for one in manifest.trouble]
    unnamed = summary.trouble_count - sum(not one.harmless for one in manifest.trouble)
    if unnamed > 0:
        lines.append(("trouble", f"and {unnamed} more paths; 'ciuic ls -R' marks them"))
    for key, value in lines:
        click.echo(f"{key:10}{printable(value)}")


def _root_text(root: Root) -> str:
    if root.missing:
        return f"{path_text(root.path)}: {root.missing}"
    how = _CAPTURES.get(root.capture)
    return f"{path_text(root.path)}, captured {how}" if how else path_text(root.path)


def _trouble_line(trouble: Trouble) -> tuple[str, str]:
    flux = f"{_STATES[FLUX]}: "
    key = _STATES[FLUX] if trouble.what.startswith(flux) else "trouble"
    return key, f"{path_text(trouble.path)}: {trouble.what.removeprefix(flux)}"


@click.command()
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.argument("path", required=False, callback=given)
@click.option("-R", "--recursive", is_flag=True, help="Also list what directories hold.")
@json_option
@click.pass_obj
def ls(
    session: Session, *, snapshot_id: str, path: str | None, recursive: bool, as_json: bool
) -> None:
    """List a path of a snapshot; without PATH its roots.

    A file that is not as it should be is marked: [in flux] if somebody was writing it when the
    snapshot was taken, [unreadable] or [left out] if the snapshot has no content of it.
    """
    from ciuic.verbs.browse import Located, children, locate, root_entry, walk

    with session.opened() as store:
        manifest = store.manifest(found_snapshot(store, snapshot_id).id)
        if path is None:
            tops = [
                Located(root.path, root_entry(store, root)) for root in manifest.roots if root.tree
            ]
            found = [one for top in tops for one in (walk(store, top) if recursive else [top])]
        else:
            top = locate(store, manifest, absolute(path))
            if recursive:
                found = list(walk(store, top))
            elif top.entry.is_directory:
                found = list(children(store, top))
            else:
                found = [top]
    if as_json:
        print_json([_entry_json(one.path, one.entry) for one in found])
        return
    whole = recursive or path is None
    for one in found:
        _print_entry(one.path if whole else os.path.basename(one.path), one.entry)
    for state in sorted({one.entry.state for one in found} & _LEGEND.keys()):
        click.echo(f"[{_STATES[state]}]: {_LEGEND[state]}", err=True)


def _entry_json(path: bytes, entry: Entry) -> dict[str, Any]:
    return {
        "path": path_text(path),
        "type": _type_name(entry),
        "mode": f"{entry.mode & 0o7777:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "size_bytes": entry.size_bytes,
        "mtime": rfc3339(entry.mtime_ns),
        "state": _STATES.get(entry.state, "whole"),
        "target": path_text(entry.content) if entry.is_symlink else None,
    }


def _type_name(entry: Entry) -> str:
    names = {"d": "directory", "-": "file", "l": "symlink", "p": "fifo", "c": "char", "b": "block"}
    return names.get(mode_text(entry.mode)[0], "unknown")


def _print_entry(name: bytes, entry: Entry) -> None:
    target = f" -> {printable(entry.content)}" if entry.is_symlink else ""
    click.echo(
        f"{mode_text(entry.mode)} {entry.uid:>6} {entry.gid:>6} {entry.size_bytes:>14,}"
        f" {local_time_text(entry.mtime_ns)} {printable(name)}{target}{_mark(entry)}"
    )


def _mark(entry: Entry) -> str:
    return f"  [{_STATES[entry.state]}]" if entry.state in _STATES else ""


@click.command()
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.argument("path", callback=given)
@click.pass_obj
def cat(session: Session, *, snapshot_id: str, path: str) -> None:
    """Write a file of a snapshot to stdout."""
    from ciuic.verbs.browse import locate, read_file

    with session.opened() as store:
        manifest = store.manifest(found_snapshot(store, snapshot_id).id)
        located = locate(store, manifest, absolute(path))
        if not located.entry.is_file:
            kind = _type_name(located.entry)
            raise UsageError(
                f"{printable(located.path)} is a {kind}, not a file",
                hint="'ciuic ls' lists a directory.",
            )
        if located.entry.state == UNREADABLE:
            raise CiuicError(
                f"{printable(located.path)} could not be read when the snapshot was taken",
                hint="Try an older snapshot; 'ciuic list --path' shows which have it.",
            )
        for part in read_file(store, located.entry):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()


@click.command()
@click.argument("pattern")
@click.option("-s", "--snapshot", "snapshot_id", type=SNAPSHOT, help="Look only in this one.")
@json_option
@click.pass_obj
def find(session: Session, *, pattern: str, snapshot_id: str | None, as_json: bool) -> None:
    """Find paths by a glob in all snapshots, newest first.

    A PATTERN without '/' is matched against names, any other against whole paths. A path that
    is the same in several snapshots is shown for the newest of them.
    """
    from ciuic.catalog import list_snapshots
    from ciuic.verbs.browse import find as find_paths

    with session.opened() as store:
        if snapshot_id is None:
            chosen = list_snapshots(store)
        else:
            chosen = [found_snapshot(store, snapshot_id)]
        found = find_paths(store, chosen, os.fsencode(pattern))
        if as_json:
            print_json(
                [{"snapshot": name, **_entry_json(one.path, one.entry)} for name, one in found]
            )
            return
        for name, one in found:
            when = local_time_text(one.entry.mtime_ns)
            click.echo(f"{name}  {when}  {printable(one.path)}{_mark(one.entry)}")


@click.command()
@click.argument("before", type=SNAPSHOT, metavar="A")
@click.argument("after", type=SNAPSHOT, metavar="B")
@click.option("--tensors", is_flag=True, help="Also tell which tensors changed, and how much.")
@json_option
@click.pass_obj
def diff(session: Session, *, before: str, after: str, tensors: bool, as_json: bool) -> None:
    """Show what changed from snapshot A to snapshot B.

    + added, - removed, M content changed, m metadata changed, T became another type,
    ? a root that could not be read when one of them was taken.

    With --tensors also for each tensor of files by torch.save, distributed checkpoints,
    safetensors, numpy, GGUF, HDF5 and Keras: how many of its elements have the same bits, and how
    far it moved, as a share of its length (L2).
    8-bit floats are compared as the numbers they mean; elements of an unknown type, such as
    quantized blocks, as bytes and without a distance. A new file is compared with that of the
    step before: step_600.pt with step_500.pt. Nothing in a file is executed.
    """
    from ciuic.verbs.browse import diff as compare

    with session.opened() as store:
        old = store.manifest(found_snapshot(store, before).id)
        new = store.manifest(found_snapshot(store, after).id)
        if tensors:
            from ciuic.cli.tensors import print_tensor_changes

            if print_tensor_changes(store, old, new, as_json=as_json):
                sys.exit(DAMAGE)
            return
        changes = compare(store, old, new)
        if as_json:
            print_json([change_json(one) for one in changes])
            return
        for one in changes:
            click.echo(f"{one.sign} {printable(one.path)}")


def change_json(change: Any) -> dict[str, Any]:
    """One element of the document of ``ciuic diff --json``."""
    return {
        "change": _SIGNS[change.sign],
        "path": path_text(change.path),
        "size_before_bytes": change.size_before,
        "size_after_bytes": change.size_after,
    }

"""``ciuic restore``."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from ciuic.catalog import LATEST, passed_over
from ciuic.cli.candidates import SNAPSHOT, stored_path
from ciuic.cli.copies import CHECK_BUCKET, print_bucket_advice, print_holders
from ciuic.cli.error_output import advise
from ciuic.cli.expected import counting
from ciuic.cli.interrupt import interruptible
from ciuic.cli.opening import CLOSER, NEWER, find_on, note_machine, opened
from ciuic.cli.options import (
    ShortOptionsCommand,
    absolute,
    copies_option,
    given,
    host_option,
    json_option,
    local_directory,
    local_file,
)
from ciuic.cli.progress import Reporter, progress
from ciuic.cli.read_copies import reading_copies
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.errors import DAMAGE, DONE, FAILED, TROUBLE, CiuicError, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import PathWarning, path_text
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    format_files,
    inflected,
)

__all__ = ["command", "print_done", "print_restored", "restore_exit_code"]

_REMEDIES: Final = (
    "--fallback takes damaged files from older snapshots\n"
    "'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it"
)


@click.command("restore", cls=ShortOptionsCommand)
@click.option(
    "-s",
    "--snapshot",
    "snapshot_id",
    required=True,
    type=SNAPSHOT,
    metavar="ID",
    help="The snapshot: an ID or the start of one, 'latest', 'latest-valid', a tag, or a time.",
)
@host_option
@click.option(
    "-p",
    "--path",
    "paths",
    multiple=True,
    required=True,
    metavar="PATH",
    callback=given,
    shell_complete=stored_path,
    help="Path in the snapshot to restore; may be repeated.",
)
@click.option(
    "-d",
    "--destination",
    metavar="DIR",
    callback=given,
    shell_complete=local_directory,
    help="Write PATH into DIR, under the last part of its name.  [default: its original path]",
)
@click.option(
    "--as",
    "place",
    metavar="PLACE",
    callback=given,
    shell_complete=local_file,
    help="Restore the only PATH as PLACE: a path or, with -d, a name in DIR.",
)
@click.option(
    "--include",
    multiple=True,
    metavar="GLOB",
    callback=given,
    help="Restore only what GLOB matches; may be repeated.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    callback=given,
    help="Exclude what GLOB matches; may be repeated.",
)
@click.option("--overwrite", is_flag=True, help="Replace files at the target that differ.")
@click.option("--delete", is_flag=True, help="Also remove files that the snapshot does not have.")
@click.option(
    "--force", is_flag=True, help="Replace and delete files that a program is writing, too."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--fallback",
    is_flag=True,
    help="For each file that is damaged or was being written, use the newest older snapshot that"
    " has it intact.",
)
@click.option("--no-hot", is_flag=True, help="Read the store even if there is a reflink copy.")
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_id: str,
    host: str | None,
    paths: tuple[str, ...],
    destination: str | None,
    place: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    overwrite: bool,
    delete: bool,
    force: bool,
    dry_run: bool,
    fallback: bool,
    no_hot: bool,
    as_json: bool,
) -> None:
    """Restore files or directories from a snapshot.

    Each file appears complete, or not at all; files that are already right are left alone. If a
    target exists, ciuic changes nothing unless you give --overwrite. With --overwrite, it changes
    nothing if it would replace or delete a file that a running program has open for writing,
    because the program would go on writing to the old file, which has no name anymore; --force
    replaces it. ciuic sees the programs of other users only as root. A second restore of a
    directory waits while the first one is at work; after 30 seconds, it is refused. The lock is
    that of flock(1), so 'flock DIR ciuic restore ...' works. You can run an interrupted restore
    again. If the snapshot still has reflink copies, ciuic restores large files from them without
    copying data. ciuic takes damaged chunks from the configured copies, and checks them as always.

    GLOBs use the syntax of exclude_patterns: *.pt matches a name at any depth; run7/*.pt matches
    the end of a path; /data/run7/** matches from the root. * and ? stop at a /, ** does not, and
    [abc] is a set. A match includes everything below it, and --exclude overrides --include. ciuic
    neither writes nor deletes what they exclude. It creates missing directories on the way to a
    match; existing ones keep their mode, owner and times.

    If several machines share the store, 'latest' is the newest snapshot of any of them that holds
    PATH. If it is of another machine, ciuic says so; --host chooses one.

    Exits with 4 if anything is damaged, with 1 if a target path could not be written as the
    snapshot has it, and with 3 if the snapshot itself lacks a path or a program was writing it. The
    summary counts what was actually done.
    """
    request = RestoreRequest(
        paths=tuple(map(absolute, paths)),
        destination=None if destination is None or place else absolute(destination),
        place=_place(place, destination),
        include=include,
        exclude=exclude,
        overwrite=overwrite,
        delete=delete,
        dry_run=dry_run,
        fallback=fallback,
        hot=not no_hot,
        refuses_being_written=overwrite and not force,
        is_noted=True,
    )
    with (
        interruptible() as cancelled,
        opened(session) as store,
        reading_copies(session, store) as taken,
        progress("restore") as shown,
    ):
        chosen = find_on(store, snapshot_id, host, holding=request.paths)
        newer = passed_over(store, snapshot_id, chosen)
        if host is None:
            note_machine(store, snapshot_id, chosen, holding=request.paths)
        manifest = store.manifest(chosen.id)
        report = _restore(session, store, manifest, request, cancelled=cancelled, shown=shown)
    asked = taken()
    report.copies = [one.as_json() for one in asked]
    if newer:
        _name_damaged(report, newer, NEWER if snapshot_id == LATEST else CLOSER)
    if as_json:
        print_json(report.as_json())
    else:
        _print(
            session,
            store,
            chosen.id,
            report,
            asked=[one.address for one in asked],
            fallback=fallback,
        )
    sys.exit(restore_exit_code(report))


def _restore(
    session: Session,
    store: Store,
    manifest: Manifest,
    request: RestoreRequest,
    *,
    cancelled: Callable[[], bool],
    shown: Reporter,
) -> RestoreReport:
    """Restore with a progress bar; if that ends with an error, first say what was written."""

    def warn(warning: PathWarning) -> None:
        with shown.away():
            _print_note(warning)

    # With GLOBs the total is not known until every path has been compared with them.
    expected = () if request.include or request.exclude else request.paths
    try:
        with counting(session, manifest, expected, shown):
            return restore(
                store,
                manifest,
                request,
                clock=SystemClock(),
                cancelled=cancelled,
                progress=shown,
                warn=None if request.dry_run else warn,
            )
    except CiuicError as error:
        print_done(error)
        raise


def _print(
    session: Session,
    store: Store,
    snapshot_id: SnapshotId,
    report: RestoreReport,
    *,
    asked: Sequence[str],
    fallback: bool,
) -> None:
    """Print the outcome; after damage, say what helps, and which copies may have the files."""
    in_bucket = store.bucket is not None
    print_restored(snapshot_id, report, in_bucket=in_bucket)
    if report.damaged:
        if in_bucket:
            print_bucket_advice()
        elif not fallback and len(report.failed) > len(report.unwritten):
            advise(_REMEDIES)
        print_holders(session, store.path, [snapshot_id], except_for=asked)


def _name_damaged(report: RestoreReport, snapshots: Mapping[SnapshotId, str], why: str) -> None:
    """Report damage, and name the snapshots that the user meant and that cannot be read."""
    report.damaged = True
    report.notes += [
        PathWarning(os.fsencode(snapshot_id), f"{why}: {what}")
        for snapshot_id, what in snapshots.items()
    ]


def restore_exit_code(report: RestoreReport) -> int:
    """Return the most severe code: damage, then failed targets, then warnings of the snapshot."""
    if report.damaged:
        return DAMAGE
    if report.unwritten:
        return FAILED
    return TROUBLE if report.failed or report.flux else DONE


def print_done(error: CiuicError) -> None:
    """Print what a restore did before it failed: the error says only what stopped it."""
    written = error.done.get("written_files", 0)
    if written and not error.done["dry_run"]:
        size = format_bytes(error.done["written_bytes"])
        click.echo(f"wrote {format_files(written)} ({size}) before it stopped", err=True)
    for bad in error.done.get("failed", ()):
        click.echo(f"not restored: {printable(bad['path'])}: {printable(bad['what'])}", err=True)


def _place(place: str | None, destination: str | None) -> bytes | None:
    """Return the place that ``--as`` means, with or without ``-d``; None without ``--as``."""
    if place is None:
        return None
    if place.endswith("/"):
        raise UsageError(
            f"--as '{printable(place)}' does not end in a name",
            hint="Use -d DIR to put a path into a directory.",
        )
    if destination is None:
        return absolute(place)
    if "/" in place or place in {".", ".."}:
        raise UsageError(
            f"--as '{printable(place)}' is not a name in {printable(destination)}",
            hint="With -d, give a name without '/', or leave -d out.",
        )
    return absolute(os.path.join(destination, place))


def _owner_remedy() -> str:
    if os.geteuid():
        return "only root can restore the owner"
    return (
        "here root cannot restore the owner either: it lacks CAP_CHOWN, or the file system refuses"
    )


def print_restored(snapshot_id: str, report: RestoreReport, *, in_bucket: bool = False) -> None:
    """Print what a restore did, or would do."""
    for place in report.would_delete:
        click.echo(f"would delete {printable(path_text(place))}")
    unnamed = report.deleted_files - len(report.would_delete) if report.dry_run else 0
    if unnamed:
        click.echo(f"would delete {format_files(unnamed)} more, which are too many to name")
    write, keep, delete, correct = "wrote", "kept", "deleted", "corrected"
    if report.dry_run:
        write, keep, delete, correct = "would write", "keep", "delete", "correct"
    more = f", {delete} {report.deleted_files:,}" if report.deleted_files else ""
    if report.corrected:
        more += f", {correct} the metadata of {counted(report.corrected, 'path')}"
    click.echo(
        f"{snapshot_id}: {write} {format_files(report.written_files)}"
        f" ({format_bytes(report.written_bytes)}), {keep} {report.kept_files:,}{more},"
        f" {format_duration(report.total_s)}"
    )
    for pattern in report.unmatched:
        click.echo(f"ciuic: {printable(pattern)} matched nothing", err=True)
    if report.owner_refused:
        click.echo(
            f"ciuic: {counted(report.owner_refused, 'path')} had"
            f" {inflected(report.owner_refused, 'another owner', 'other owners')} and now"
            f" {inflected(report.owner_refused, 'belongs', 'belong')} to you; {_owner_remedy()}",
            err=True,
        )
    if report.repaired_frames:
        advise(
            f"ciuic: the store is damaged: {counted(report.repaired_frames, 'frame')} had to be"
            " read with parity or from another copy; the restored files are right\n"
            "       Run 'ciuic repair' to see the damage, and"
            f" {CHECK_BUCKET if in_bucket else 'check the disk'}."
        )
    for note in report.notes:
        _print_note(note)
    for bad in report.failed:
        click.echo(f"not restored: {printable(bad.path)}: {printable(bad.what)}", err=True)


def _print_note(note: PathWarning) -> None:
    click.echo(f"{printable(note.path)}: {printable(note.what)}", err=True)

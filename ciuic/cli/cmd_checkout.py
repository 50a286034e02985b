"""``ciuic checkout``."""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from ciuic.catalog import LATEST, LATEST_VALID, list_snapshots
from ciuic.catalog.whose import is_elsewhere, newest_here
from ciuic.cli.candidates import SNAPSHOT, stored_path
from ciuic.cli.cmd_restore import print_done, print_restored, restore_exit_code
from ciuic.cli.interrupt import interruptible
from ciuic.cli.opening import find_snapshot, opened
from ciuic.cli.options import (
    absolute,
    copies_option,
    given,
    host_option,
    json_option,
    wait_option,
)
from ciuic.cli.progress import progress
from ciuic.cli.read_copies import reading_copies
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import CiuicError, CorruptionError, UsageError
from ciuic.ids import SnapshotId
from ciuic.maintain.label import change_tags
from ciuic.model import SnapshotSummary, path_text
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.hooks import Hooks, refuse_in_hook, take_with_hooks
from ciuic.snapshot.report import TakeReport
from ciuic.store.place.keys import is_url
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import counted, format_bytes, format_files, listed
from ciuic.verify.paths import Readable, read_paths

__all__ = ["command"]

_TAG: Final = "before-checkout"
_NAMED_MAX: Final = 5
_REFUSALS: Final = (os.strerror(errno.EACCES), os.strerror(errno.EPERM))


@click.command("checkout")
@click.argument("snapshot_id", type=SNAPSHOT, metavar="ID")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", callback=given, shell_complete=stored_path
)
@host_option
@click.option("--delete", is_flag=True, help="Also remove files that the snapshot does not have.")
@click.option("--dry-run", is_flag=True, help="Verify, show what would be done, and do nothing.")
@copies_option
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    snapshot_id: str,
    paths: tuple[str, ...],
    host: str | None,
    delete: bool,
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Roll PATHs back to a snapshot, in place, after saving what is there.

    First, ciuic reads and checks every byte that the snapshot has of PATHs. If any is damaged, it
    changes nothing. Then it takes a snapshot of what is there now, with the tag 'before-checkout'.
    If a program is writing there, so that this snapshot lacks something, ciuic restores nothing,
    and takes the tag off again. Otherwise it restores PATHs with --overwrite. To go back, check out
    the snapshot that it has taken. If PATHs already match the snapshot, it takes none. ciuic takes
    damaged chunks from the configured copies. 'latest' passes over snapshots with that tag.

    If several machines share the store, and 'latest', a time or a tag means a snapshot of another
    machine although this one has any snapshot of PATHs, ciuic refuses: name the snapshot by its
    ID, or the machine with --host. The exit codes are those of 'ciuic restore'.
    """
    if not dry_run:
        refuse_in_hook(os.environ)
    wanted = tuple(absolute(path) for path in paths)
    with opened(session) as store:
        found = find_snapshot(
            session,
            store,
            snapshot_id,
            holding=wanted,
            listed=_meant(store, snapshot_id),
            host=host,
        )
        if host is None:
            _refuse_other_machine(store, snapshot_id, found, wanted)
        chosen = found.id
        is_there = bool(_roots(store.manifest(chosen), wanted))
    plan = _restore(session, chosen, wanted, delete=delete, dry_run=True)
    checked = _verify(session, chosen, wanted)
    before, report = None, plan
    if not dry_run:
        if plan.changes:
            before = _save(session, chosen, wanted, wait_s)
        try:
            report = _restore(session, chosen, wanted, delete=delete, dry_run=False)
        except CiuicError as error:
            if before is not None:
                click.echo(_named(before), err=True)
            print_done(error)
            error.done = _document(chosen, checked, before, dict(error.done))
            raise
    if as_json:
        print_json(_document(chosen, checked, before, report.as_json()))
    else:
        if before is not None:
            before_line = _named(before)
        elif dry_run and plan.changes and is_there:
            before_line = f"would take a snapshot of what is there, with the tag '{_TAG}'"
        else:
            before_line = ""
        _print(chosen, checked, before_line, report, in_bucket=is_url(session.store_path()))
    sys.exit(restore_exit_code(report))


def _meant(store: Store, text: str) -> list[SnapshotSummary] | None:
    """Return the snapshots that ``latest`` may mean; None: all.

    A checkout that is run again, perhaps after it was killed, must mean the same snapshot, and not
    the one that the first run took of what it replaces.
    """
    if text not in {LATEST, LATEST_VALID}:
        return None
    snapshots = list_snapshots(store)
    return [one for one in snapshots if _TAG not in one.tags] or snapshots


def _refuse_other_machine(
    store: Store, text: str, found: SnapshotSummary, paths: Sequence[bytes]
) -> None:
    """Refuse what rolls nothing back: this machine has a snapshot, and another's is meant.

    Raises:
        UsageError: That is so. A user may still name the snapshot, or its machine.
    """
    if not is_elsewhere(text, found):
        return
    # What an earlier checkout has put by was not taken to be kept.
    kept = (one for one in list_snapshots(store) if _TAG not in one.tags)
    own = newest_here(kept, paths)
    if own is not None:
        raise UsageError(
            f"'{text}' is a snapshot of another machine, and a checkout replaces what is here",
            hint=f"Name a snapshot by its ID, as {own.id}, or a machine with --host.",
        )


def _restore(
    session: Session,
    snapshot_id: SnapshotId,
    paths: tuple[bytes, ...],
    *,
    delete: bool,
    dry_run: bool,
) -> RestoreReport:
    """Restore, or find out what that would do: its refusals come before anything else."""
    request = RestoreRequest(
        paths,
        overwrite=True,
        delete=delete,
        dry_run=dry_run,
        refuses_being_written=True,
        is_noted=True,
        stays_in_roots=True,
    )
    with (
        interruptible() as cancelled,
        opened(session) as store,
        reading_copies(session, store, is_told=False),
        progress("restore") as shown,
    ):
        return restore(
            store,
            store.manifest(snapshot_id),
            request,
            clock=SystemClock(),
            cancelled=cancelled,
            progress=shown,
        )


def _verify(session: Session, snapshot_id: SnapshotId, paths: tuple[bytes, ...]) -> Readable:
    """Read what the restore will need.

    Raises:
        CorruptionError: A part of it is damaged.
    """
    with (
        interruptible() as cancelled,
        opened(session) as store,
        reading_copies(session, store),
        progress("verify") as shown,
    ):
        found = read_paths(
            store, store.manifest(snapshot_id), paths, cancelled=cancelled, progress=shown
        )
    if found.damaged:
        names = [path_text(damaged.path) for damaged in found.damaged]
        raise CorruptionError(
            f"{snapshot_id} has {counted(len(names), 'damaged path')}, so nothing was changed:"
            f" {listed(names[:_NAMED_MAX], len(names))}",
            hint="'ciuic repair' may repair it, 'ciuic log PATH' shows other versions, and"
            " 'ciuic restore -s ID -p PATH --overwrite --fallback' takes damaged files from older"
            " snapshots.",
        )
    return found


def _save(
    session: Session, snapshot_id: SnapshotId, paths: Sequence[bytes], wait_s: float
) -> TakeReport | None:
    """Take a snapshot of what is at the roots of a snapshot now; None if nothing is there.

    Raises:
        CiuicError: It could not store one of the paths as it is.
    """
    # Imported here because it knows the whole configuration.
    from ciuic.cli.taking import take_request

    with opened(session) as store:
        manifest = store.manifest(snapshot_id)
    roots = _roots(manifest, paths)
    if not roots:
        return None
    settings = session.take_settings(names_paths=True)
    # Its own rules: what this snapshot left out is not replaced, and need not be saved.
    request = take_request(
        settings,
        roots,
        manifest.exclude,
        base=False,
        tags=(_TAG,),
        schedule=settings.schedule_of(roots, manifest.exclude),
    )
    with interruptible() as cancelled, progress("snapshot") as shown:
        report = take_with_hooks(
            lambda: opened(session, write=True, wait_s=wait_s, cancelled=cancelled),
            request,
            Hooks(settings.before, settings.after, settings.hook_timeout_s),
            clock=SystemClock(),
            say=lambda line: click.echo(printable(line), err=True),
            cancelled=cancelled,
            progress=shown,
        )
    lacking = [
        warning
        for warning in report.trouble
        if not warning.harmless and any(_is_in(warning.path, path) for path in paths)
    ]
    if lacking or report.trouble_count > len(report.trouble):
        which = f", such as {path_text(lacking[0].path)}: {lacking[0].what}" if lacking else ""
        # It stays, as it has what could be saved. The tag would say that a checkout came after it.
        with (
            contextlib.suppress(CiuicError),
            opened(session, write=True, adds=False, wait_s=wait_s) as store,
        ):
            change_tags(store, report.id, remove=(_TAG,))
        is_refused = lacking and lacking[0].what.endswith(_REFUSALS)
        do = "Run it as a user who may read" if is_refused else "Stop the program that writes"
        raise CiuicError(
            f"{report.id} could not save everything that is there now{which}; nothing was restored",
            hint=f"{do} there, and try again. 'ciuic restore -s ID -p PATH --overwrite --force'"
            " replaces the files without saving them.",
        )
    return report


def _roots(manifest: Manifest, paths: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the roots that hold paths and are there."""
    return tuple(
        root.path
        for root in manifest.roots
        if any(_is_in(path, root.path) for path in paths) and os.path.isdir(root.path)
    )


def _is_in(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")


def _document(
    snapshot_id: SnapshotId,
    checked: Readable,
    before: TakeReport | None,
    restored: Document,
) -> Document:
    return {
        "id": snapshot_id,
        "verified_files": checked.files,
        "verified_bytes": checked.read_bytes,
        "before": None if before is None else before.as_json(),
        "restore": restored,
    }


def _named(before: TakeReport) -> str:
    return f"{before.id}: what was there before, with the tag '{_TAG}'"


def _print(
    snapshot_id: SnapshotId,
    checked: Readable,
    before_line: str,
    report: RestoreReport,
    *,
    in_bucket: bool,
) -> None:
    click.echo(
        f"{snapshot_id}: verified {format_files(checked.files)}"
        f" ({format_bytes(checked.read_bytes)})"
    )
    if before_line:
        click.echo(before_line)
    print_restored(snapshot_id, report, in_bucket=in_bucket)

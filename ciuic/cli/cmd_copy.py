"""``ciuic copy``."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Final

import click

from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.error_output import advise
from ciuic.cli.interrupt import interruptible
from ciuic.cli.opening import find_snapshot, opened, warn_damaged
from ciuic.cli.options import given, json_option, local_directory, size_bytes, wait_option
from ciuic.cli.progress import Reporter, progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.copy.copy import CopyRequest, copy_snapshots, foresee_copy, send_again
from ciuic.copy.keep import Keeping
from ciuic.copy.report import CopiedSnapshot, CopyReport
from ciuic.errors import DAMAGE, DONE, FAILED, CiuicError, MissingError, StoreError, UsageError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.store.addressed import absolute_address
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header, refuse_unmounted
from ciuic.store.place.keys import is_url
from ciuic.store.place.location import PlaceOptions
from ciuic.store.store import Store, open_store
from ciuic.system import nofollow
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.units import counted, format_bytes, format_duration, inflected, listed
from ciuic.verify.report import VerifyReport
from ciuic.verify.verify import verify_snapshots

__all__ = ["command"]


_LIMIT_BYTES_MIN: Final = 1024


def _limit_bytes(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    limit_bytes = size_bytes(context, parameter, value)
    if 0 < (limit_bytes or 0) < _LIMIT_BYTES_MIN:  # most likely a number without its unit
        what = f"'{value}' is less than 1 KiB a second; write a unit, such as 5MiB"
        raise click.BadParameter(what, context, parameter)
    return limit_bytes


@click.command("copy")
@click.argument("ids", nargs=-1, type=SNAPSHOT, metavar="[ID]...")
@click.option(
    "--to", "place", metavar="PLACE", required=True, callback=given, shell_complete=local_directory,
    help="The store to copy to: a directory, s3://BUCKET/PREFIX, or a configured copy's name.",
)  # fmt: skip
@click.option("--init", is_flag=True, help="Create that store if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option(
    "--limit",
    "limit_bytes",
    metavar="SIZE",
    callback=_limit_bytes,
    help="Send at most SIZE in a second, on average: at least 1KiB; 0: no limit.",
)
@click.option(
    "--verify",
    "verifies",
    is_flag=True,
    help="Afterward, read every chunk of these snapshots in the copy; send again what is lost.",
)
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    ids: tuple[str, ...],
    place: str,
    init: bool,
    dry_run: bool,
    limit_bytes: int | None,
    verifies: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Copy snapshots to another store: those named, or all that it does not have.

    A snapshot keeps its ID, times, tags, pin and note. ciuic sends only the chunks that the copy
    lacks, as they are stored. The copy is a store like any other: it restores alone, and has a
    retention policy of its own. ciuic does not send a snapshot again that the copy has forgotten.
    If you name a snapshot that the copy has, ciuic sends the chunks of it that the copy lost. You
    can interrupt copy at any moment, and run it again: it continues.
    """
    configured = session.find_copy(place)
    path = configured.address if configured is not None else absolute_address(place)
    configured = configured or session.find_copy(path)
    if limit_bytes is None:
        limit_bytes = 0 if configured is None else configured.settings.copy_limit_bytes
    options = (
        session.store_settings() if configured is None else configured.settings
    ).place_options
    report = CopyReport(copy=path, dry_run=dry_run)
    checked: VerifyReport | None = None
    try:
        with interruptible() as cancelled, opened(session) as source:
            _refuse_place(session, source, path, init=init)
            request = CopyRequest(_named(session, source, ids), session.parity(), limit_bytes)
            _prepare(options, path, source, init=init, dry_run=dry_run)
            if dry_run:
                with _opened_if_there(options, path, init=init) as copy:
                    foresee_copy(source, copy, request, report, clock=SystemClock())
            else:
                with _opened(options, path, write=True, wait_s=wait_s, cancelled=cancelled) as copy:
                    keeping = _keeping(source, path, options, is_configured=configured is not None)
                    keeping.note_store(copy)
                    with (
                        keeping.recorded(report, is_all=not request.named),
                        progress("copy") as shown,
                    ):
                        copy_snapshots(
                            source,
                            copy,
                            request,
                            report,
                            clock=SystemClock(),
                            sent=keeping.sent(),
                            cancelled=cancelled,
                            progress=_Shown(shown),
                            on_copied=_Lines(shown, as_json=as_json),
                        )
                        keeping.note_differences(copy, report)
                    report.notes += keeping.record.differences
                    if verifies:
                        checked = _verified(
                            source, copy, request, report, keeping, cancelled=cancelled
                        )
    except CiuicError as error:
        error.done = {**report.as_json(), **error.done}
        raise
    _print(report, checked, as_json=as_json, session=session)
    sys.exit(_code(report, checked))


def _keeping(source: Store, path: str, options: PlaceOptions, *, is_configured: bool) -> Keeping:
    return Keeping(source, path, options, SystemClock(), is_configured=is_configured)


def _refuse_place(session: Session, source: Store, path: str, *, init: bool) -> None:
    _refuse_itself(source, path)
    if init:
        _refuse_in_root(session, path)


def _refuse_itself(source: Store, copy_path: str) -> None:
    """Refuse a copy that is the store itself, or a directory in it."""
    if is_url(copy_path):
        if source.name == copy_path:
            raise UsageError(
                f"{copy_path} is the store itself", hint="Name another bucket or prefix with --to."
            )
        return
    source_path, inside = source.path, nofollow.resolved(copy_path)
    is_inside = os.path.commonpath([source_path, inside]) == source_path
    with contextlib.suppress(OSError):
        is_inside |= os.path.samestat(nofollow.status(source_path), nofollow.status(inside))
    if is_inside:
        raise UsageError(
            f"{copy_path} is the store itself, or a directory in it",
            hint="Name another directory with --to, best on another disk.",
        )


def _refuse_in_root(session: Session, path: str) -> None:
    """Refuse to create a copy that would become a part of the snapshots that it gets."""
    from ciuic.config.load import why_fed

    settings = session.store_settings()
    # Without a configuration, the roots are not known: those of the defaults are everything.
    is_known = bool(settings.path)
    fed = why_fed(path, settings.schedules) if is_known and not is_url(path) else None
    # A copy that is there already is not made: it may be the one that is restored from.
    if fed is not None and _can_be_created(path):
        raise UsageError(fed[0], hint=fed[1])


def _named(session: Session, source: Store, ids: tuple[str, ...]) -> frozenset[SnapshotId]:
    if not ids:
        warn_damaged(session, source)
    return frozenset([find_snapshot(session, source, text).id for text in ids])


def _prepare(options: PlaceOptions, path: str, source: Store, *, init: bool, dry_run: bool) -> None:
    """Create the copy if that was asked for; refuse what is not a store.

    Raises:
        StoreError: There is no store at the path.
    """
    if is_url(path):
        if init and not dry_run:
            # Imported here because the client of object stores is heavy.
            from ciuic.store.addressed import create_at_address

            create_at_address(path, os.environ, SystemClock(), source.header.chunking, options)
    elif init and not dry_run:
        refuse_unmounted(path, os.environ)
        cut = source.header.chunking
        create_store(
            path,
            SystemClock(),
            chunk_bytes=cut.size_bytes,
            chunking=cut.kind,
            average_bytes=cut.average_bytes,
            least_bytes=cut.least_bytes,
        )
    elif not (init and not nofollow.exists(path)):
        try:
            read_header(path)
        except StoreError as error:
            if type(error) is not StoreError or not _can_be_created(path):
                raise
            hint = (
                "If it is on a disk that is not mounted, mount that first; otherwise --init creates"
                " a store that cuts files like this one."
            )
            raise StoreError(error.message, hint=hint) from error


def _can_be_created(path: str) -> bool:
    """Return whether --init could create a store there: on nothing, or an empty directory."""
    return not nofollow.exists(path) or (os.path.isdir(path) and not nofollow.list_names(path))


def _opened(
    options: PlaceOptions,
    path: str,
    *,
    write: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> contextlib.AbstractContextManager[Store]:
    """Open the copy."""
    if not is_url(path):
        return open_store(path, write=write, only_adds=write, wait_s=wait_s, cancelled=cancelled)
    from ciuic.store.addressed import open_at_address

    return _in_bucket(
        open_at_address(
            path,
            os.environ,
            options,
            write=write,
            only_adds=write,
            wait_s=wait_s,
            cancelled=cancelled,
        )
    )


@contextlib.contextmanager
def _in_bucket(copy: contextlib.AbstractContextManager[Store]) -> Iterator[Store]:
    """Open a copy in a bucket; if there is no store, say how this command creates one."""
    with contextlib.ExitStack() as stack:
        try:
            opened_copy = stack.enter_context(copy)
        except StoreError as error:
            if not isinstance(error.__cause__, MissingError):
                raise
            hint = "--init creates a store that cuts files like this one."
            raise StoreError(error.message, hint=hint) from error.__cause__
        yield opened_copy


@contextlib.contextmanager
def _opened_if_there(options: PlaceOptions, path: str, *, init: bool) -> Iterator[Store | None]:
    """Open the copy for reading; yield None if it does not exist yet."""
    with contextlib.ExitStack() as stack:
        copy: Store | None = None
        if is_url(path) or nofollow.exists(path):
            try:
                copy = stack.enter_context(_opened(options, path))
            except StoreError as error:
                if not (init and isinstance(error.__cause__, MissingError)):
                    raise
        yield copy


class _Shown:
    """Shows the progress of a copy."""

    def __init__(self, shown: Reporter) -> None:
        self._shown = shown

    def __call__(self, snapshot_id: SnapshotId, done: int, total: int, sent_bytes: int) -> None:
        """Show the snapshot that is sent, and the bytes so far."""
        self._shown.update(0, sent_bytes, snapshot_id.encode())
        self._shown.fraction(done, total)


class _Lines:
    """Prints a line for each snapshot that was copied, beside the progress."""

    def __init__(self, shown: Reporter, *, as_json: bool) -> None:
        self._shown = shown
        self._as_json = as_json

    def __call__(self, copied: CopiedSnapshot) -> None:
        """Print the line of a snapshot."""
        if not self._as_json:
            with self._shown.away():
                _print_copied(copied)


def _verified(
    source: Store,
    copy: Store,
    request: CopyRequest,
    report: CopyReport,
    keeping: Keeping,
    *,
    cancelled: Callable[[], bool],
) -> VerifyReport:
    """Read every chunk of the snapshots that the command is about; send again what is lost.

    What was sent is read too: what a damaged tree names shows only when the tree is there again. A
    chunk is sent once: if it is damaged again, the disk there is failing.
    """
    clock = SystemClock()
    checked = _read_back(copy, request, report)
    tried: set[ChunkId] = set()
    while lost := set(checked.bad) - tried:
        tried |= lost
        with keeping.recorded(report, is_all=not request.named):
            sent = send_again(source, copy, lost, request, report, clock=clock, cancelled=cancelled)
        if not sent:
            break
        report.notes.append(
            f"the copy was damaged: {counted(sent, 'chunk')} that could not be read there"
            f" {inflected(sent, 'was', 'were')} sent again; check its disk or server"
        )
        checked = _read_back(copy, request, report)
    return checked


def _read_back(copy: Store, request: CopyRequest, report: CopyReport) -> VerifyReport:
    """Read every chunk of the snapshots that the command is about."""
    wanted = {*[snapshot.id for snapshot in report.copied], *report.present, *request.named}
    there = [
        copy.manifest(snapshot_id).summary for snapshot_id in sorted(wanted & copy.listed_ids())
    ]
    clock = SystemClock()
    with progress("verify") as shown:
        return verify_snapshots(copy, there, {}, checksum=True, clock=clock, progress=shown.amount)


def _print_copied(copied: CopiedSnapshot) -> None:
    click.echo(
        f"{copied.id}  {local_time_text(copied.taken_ns)}  {counted(copied.chunks, 'chunk')},"
        f" {format_bytes(copied.sent_bytes)}"
    )


def _print(
    report: CopyReport, checked: VerifyReport | None, *, as_json: bool, session: Session
) -> None:
    if as_json:
        verified = {} if checked is None else {"verify": checked.as_json()}
        damaged = {"damaged_snapshots": session.damaged_snapshots}
        print_json({**report.as_json(), **verified, **damaged})
        return
    if report.dry_run:
        for copied in report.copied:
            _print_copied(copied)
    for snapshot_id, what in report.refused.items():
        click.echo(f"{snapshot_id} was not copied: {printable(what)}", err=True)
    if report.is_damaged:
        advise("'ciuic verify --all --checksum' names the damaged paths")
    for note in report.notes:
        click.echo(f"ciuic: {printable(note)}", err=True)
    for snapshot in checked.snapshots if checked is not None else ():
        for bad in snapshot.damaged:
            where = printable(os.fsdecode(bad.path))
            click.echo(f"{snapshot.id} in the copy: {where}: {printable(bad.what)}", err=True)
    _print_summary(report, checked)


def _print_summary(report: CopyReport, checked: VerifyReport | None) -> None:
    would = "would be " if report.dry_run else ""
    parts = [
        f"{counted(len(report.copied), 'snapshot')} {would}copied",
        f"{len(report.present):,} there already",
    ]
    if report.forgotten:
        parts.append(f"{len(report.forgotten):,} forgotten there")
    if report.resent_chunks:
        parts.append(f"{counted(report.resent_chunks, 'lost chunk')} {would}sent again")
    if report.damaged_there:
        click.echo(
            f"{listed(report.damaged_there[:5], len(report.damaged_there))} in the copy"
            f" {inflected(len(report.damaged_there), 'stays', 'stay')} damaged: this store lacks"
            f" the lost chunks too; 'ciuic --store {printable(shlex.quote(report.copy))} repair'"
            " says what can be repaired",
            err=True,
        )
    parts.append(f"{format_bytes(report.sent_bytes)} {would}sent")
    if checked is not None:
        sound = sum(snapshot.ok for snapshot in checked.snapshots)
        parts.append(f"{sound:,} verified")
        if damaged := len(checked.snapshots) - sound:
            parts.append(f"{damaged:,} damaged in the copy")
    click.echo(f"{', '.join(parts)}, {format_duration(report.total_s)}", err=True)


def _code(report: CopyReport, checked: VerifyReport | None) -> int:
    if report.is_damaged or report.damaged_there or (checked is not None and not checked.ok):
        return DAMAGE
    return FAILED if report.refused else DONE

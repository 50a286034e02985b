"""``ciuic verify``."""

import os
import sys
from collections.abc import Mapping, Sequence

import click

from ciuic.catalog import HOW_TO_TAKE, LATEST, list_snapshots, passed_over
from ciuic.catalog.removed import REMOVED
from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.copies import print_bucket_advice, print_holders
from ciuic.cli.error_output import advise, hinted
from ciuic.cli.opening import find_on, note_machine, of_configuration, opened
from ciuic.cli.options import host_option, json_option
from ciuic.cli.progress import Reporter, progress
from ciuic.cli.render import brief, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.errors import DAMAGE, DONE, FAILED, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.system.machine import names_of
from ciuic.units import counted, format_bytes, format_duration
from ciuic.verify.report import VerifyReport, VerifySnapshot
from ciuic.verify.verify import verify_all, verify_snapshots

__all__ = ["command"]


@click.command("verify")
@click.argument("ids", nargs=-1, type=SNAPSHOT, metavar="[ID]...")
@host_option
@click.option("--all", "every", is_flag=True, help="Verify every snapshot of the store.")
@click.option("--checksum", is_flag=True, help="Read, decode and hash every chunk as well.")
@click.option("--hot", is_flag=True, help="Read the reflink copies instead, and compare them.")
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    ids: tuple[str, ...],
    host: str | None,
    every: bool,
    checksum: bool,
    hot: bool,
    as_json: bool,
) -> None:
    """Check that snapshots can be restored: the newest one, those named, or --all.

    Without --checksum, ciuic reads the manifest and the trees, and checks that every chunk is in
    the chunk index and in a pack that is long enough. With --checksum, ciuic reads, decodes and
    hashes every chunk. With --hot, ciuic reads the reflink copies that a restore would use, and
    compares them with the store. If the store has no snapshots, ciuic exits with 1, or with 0 if
    you gave --all.
    """
    if ids and every:
        raise UsageError("--all cannot be combined with IDs", hint="Use either --all or IDs.")
    if every and host is not None:
        raise UsageError("--all cannot be combined with --host", hint="Use either one.")
    if hot and checksum:
        raise UsageError(
            "--hot cannot be combined with --checksum", hint="Run 'ciuic verify' once with each."
        )
    if hot:
        # Imported here: most verifications read no reflink copies.
        from ciuic.cli.reflink_checks import verify_hot

        code = DONE if verify_hot(session, ids, host, every=every, as_json=as_json) else DAMAGE
    else:
        code = _verify(session, ids, host, every=every, checksum=checksum, as_json=as_json)
    sys.exit(code)


def _verify(
    session: Session,
    ids: tuple[str, ...],
    host: str | None,
    *,
    every: bool,
    checksum: bool,
    as_json: bool,
) -> int:
    """Verify what the store holds, print the report, and return the exit code."""
    with opened(session) as store, progress("verify") as shown:
        if every:
            report = verify_all(
                store, checksum=checksum, clock=SystemClock(), progress=shown.amount
            )
        else:
            listed = None if ids else of_configuration(session, store, LATEST, host)
            report = _verify_named(
                store, ids or (LATEST,), host, shown, checksum=checksum, listed=listed
            )
        if not report.ok:
            from ciuic.verify.alternatives import with_alternatives

            report = with_alternatives(store, report)
        whose = {} if report.ok else _whose(store)
    if as_json:
        print_json(report.as_json())
    else:
        _print_damage(report, whose)
        if not ids and not every:
            click.echo("only the newest; --all verifies every snapshot", err=True)
        in_bucket = store.bucket is not None
        _print_summary(report, checksum=checksum, in_bucket=in_bucket)
        print_holders(
            session, store.path, [snapshot.id for snapshot in report.snapshots if snapshot.damaged]
        )
    if not report.ok:
        return DAMAGE
    return FAILED if report.removed and not every else DONE


def _verify_named(
    store: Store,
    ids: tuple[str, ...],
    host: str | None,
    shown: Reporter,
    *,
    checksum: bool,
    listed: Sequence[SnapshotSummary] | None,
) -> VerifyReport:
    found = [(text, find_on(store, text, host, listed=listed)) for text in ids]
    for text, summary in found if host is None else ():
        note_machine(store, text, summary, listed=listed)
    unreadable = {
        snapshot_id: what
        for text, summary in found
        for snapshot_id, what in passed_over(store, text, summary).items()
    }
    return verify_snapshots(
        store,
        {summary.id: summary for _, summary in found}.values(),
        unreadable,
        checksum=checksum,
        clock=SystemClock(),
        progress=shown.amount,
    )


def _whose(store: Store) -> dict[SnapshotId, str]:
    """Map each snapshot to its machine, or the library on it; empty if all are of one.

    For a damaged snapshot, only others of the same owner count as valid.
    """
    snapshots = list_snapshots(store)
    owners = {one.owner for one in snapshots}
    names = names_of(owner.machine for owner in owners)
    return {
        one.id: ("the library on " if one.owner.is_library else "") + names[one.owner.machine]
        for one in (snapshots if len(owners) > 1 else ())
    }


def _print_damage(report: VerifyReport, whose: Mapping[SnapshotId, str]) -> None:
    for snapshot in report.snapshots:
        click.echo(f"{snapshot.id}: {_state(snapshot, whose.get(snapshot.id, ''))}")
        for bad in snapshot.damaged:
            older = snapshot.intact_in.get(bad.path)
            instead = f"; intact in {older}" if older not in {None, snapshot.id} else ""
            click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}{instead}")
    for snapshot_id in report.removed:
        click.echo(f"{snapshot_id}: it {REMOVED}")
    for bad in report.unreachable:
        click.echo(f"{printable(os.fsdecode(bad.path))}: DAMAGED: {printable(bad.what)}")
    for copy in report.copies:
        click.echo(f"{printable(os.fsdecode(copy.path))}: {hinted(printable(copy.what))}")


def _print_remedies(report: VerifyReport, *, in_bucket: bool) -> None:
    remedy = (
        "'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it"
        if _has_lost_content(report)
        else "nothing is lost: run 'ciuic repair --apply' before the damage grows"
    )
    if not in_bucket or not _has_lost_content(report):
        print_pair("", hinted(remedy), 0, err=True)
    if _has_lost_content(report):
        advice = "'ciuic restore -s ID -p PATH --fallback' takes damaged paths from older snapshots"
        print_pair("", hinted(advice), 0, err=True)
        if in_bucket:
            print_bucket_advice()


def _print_summary(report: VerifyReport, *, checksum: bool, in_bucket: bool) -> None:
    if not report.ok:
        _print_remedies(report, in_bucket=in_bucket)
    if not (report.snapshots or report.removed):
        advise(f"ciuic: nothing was verified: the store has no snapshot. {HOW_TO_TAKE}")
    read = f", {format_bytes(report.read_bytes)} read" if checksum else ", content not read"
    click.echo(
        f"{len(report.snapshots)} verified, {counted(report.chunks, 'chunk')}{read},"
        f" {format_duration(report.total_s)}",
        err=True,
    )


def _has_lost_content(report: VerifyReport) -> bool:
    """Return whether some damaged content is lost, as far as the report shows."""
    damaged = [snapshot for snapshot in report.snapshots if not snapshot.ok]
    return bool(report.unreachable) or any(
        snapshot.nearest_valid != snapshot.id for snapshot in damaged
    )


def _state(snapshot: VerifySnapshot, owner: str) -> str:
    if snapshot.ok:
        return "ok"
    if snapshot.nearest_valid is None:
        return f"DAMAGED; no snapshot {f'of {printable(brief(owner))} ' if owner else ''}is valid"
    if snapshot.nearest_valid == snapshot.id:
        return "DAMAGED, but can still be restored in full, from parity or other copies"
    return f"DAMAGED; the nearest valid snapshot is {snapshot.nearest_valid}"

"""``ciuic scrub``."""

import os
import sys
from typing import Final

import click

from ciuic.cli.copies import CHECK_BUCKET
from ciuic.cli.error_output import advise
from ciuic.cli.interrupt import interrupted_code, interruptible
from ciuic.cli.lists import shown_part
from ciuic.cli.options import given, json_option
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.errors import DAMAGE, DONE, FAILED, UsageError
from ciuic.maintain.scrub.budget import Budget, parse_budget
from ciuic.maintain.scrub.damage_cost import DamagedFile
from ciuic.maintain.scrub.report import DamagedPack, ScrubReport
from ciuic.maintain.scrub.scrub import scrub
from ciuic.maintain.scrub.subject import Subject, subject_at
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    inflected,
    listed,
)

__all__ = ["command"]

_NAMED_MAX = 5
_HINT: Final = (
    "'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it; if files"
    " still hold lost chunks, 'ciuic snapshot' stores them again"
)
_IN_BUCKET: Final = (
    "'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it from other"
    f" packs and from live files; with '--from PLACE', also from a copy. Also {CHECK_BUCKET}"
)


@click.command("scrub")
@click.option(
    "--budget",
    metavar="AMOUNT",
    callback=given,
    help="How much to read: a time (10m, 2h) or a size (10GiB).  [default: everything, once]",
)
@json_option
@click.pass_obj
def command(session: Session, *, budget: str | None, as_json: bool) -> None:
    """Read packs in full and check them, to find damage while it can still be repaired.

    ciuic reads the packs that were checked longest ago first, and records the results: you can
    interrupt a scrub at any time, and the next scrub continues. For damage, ciuic names the packs,
    files and snapshots. The next snapshot stores lost chunks again if its files still hold them.
    """
    try:
        amount = Budget() if budget is None else parse_budget(budget)
    except ValueError as error:
        raise UsageError(f"--budget: {error}", hint="Nothing was read.") from error
    with interruptible() as cancelled, progress("scrub") as shown:
        report = scrub(
            _subject(session),
            clock=SystemClock(),
            budget=amount,
            cancelled=cancelled,
            progress=shown.amount,
        )
    if as_json:
        print_json(report.as_json())
    else:
        _print_damage(report)
        _print_summary(report, _IN_BUCKET if is_url(session.store_path()) else _HINT)
    if not report.ok:
        sys.exit(DAMAGE)
    was_interrupted = report.stopped == "asked"
    sys.exit((interrupted_code() or FAILED) if was_interrupted else DONE)


def _subject(session: Session) -> Subject:
    address = session.store_path()
    if not is_url(address):
        return subject_at(address, os.environ, owner=session.store_owner())
    # Imported here because most stores are directories.
    from ciuic.cli.addresses import place_options

    return subject_at(address, os.environ, place_options(session, address))


def _print_damage(report: ScrubReport) -> None:
    for bad in (*report.manifests, *report.unreachable):
        click.echo(f"{printable(os.fsdecode(bad.path))}: DAMAGED: {printable(bad.what)}")
    for pack in report.damaged:
        _print_pack(pack)
    for file in report.missing:
        _print_file(file, "")
    now_ns = SystemClock().now_ns()
    for known in report.known:
        age = _age(now_ns, known.checked_ns)
        click.echo(f"pack {known.pack_id.hex()[:12]}: DAMAGED since {age} ago: {known.what}")
    for unread in report.unread:
        click.echo(f"not read: {printable(unread.path)}: {printable(unread.what)}", err=True)


def _print_summary(report: ScrubReport, hint: str) -> None:
    health = report.health
    click.echo(
        f"{report.read_packs:,} of {counted(health.packs, 'pack')} read,"
        f" {format_bytes(report.read_bytes)},"
        f" {format_duration(report.total_s)}: {'no damage' if report.ok else 'DAMAGE'}",
        err=True,
    )
    if report.stopped:
        turn = "were never read" if health.unchecked else "were read longest ago"
        click.echo(
            f"stopped {'at the budget' if report.stopped == 'budget' else 'on request'};"
            f" the next scrub continues with packs that {turn}",
            err=True,
        )
    if report.not_remembered:
        click.echo(f"the results could not be saved: {printable(report.not_remembered)}", err=True)
    if not report.ok:
        advise(hint)


def _print_pack(damage: DamagedPack) -> None:
    check = damage.check
    click.echo(f"pack {check.pack_id.hex()[:12]}: DAMAGED: {check.what}")
    shown = shown_part(check.bad, shown_max=_NAMED_MAX)
    for bad in shown:
        click.echo(f"  {counted(bad.length_bytes, 'byte')} at {bad.offset_bytes:,}: {bad.what}")
    if more := len(check.bad) - len(shown):
        click.echo(f"  and {more:,} more {inflected(more, 'stretch', 'stretches')}; --json has all")
    if damage.saved:
        click.echo(f"  {counted(damage.saved, 'chunk')} damaged here can still be read")
    if damage.lost:
        cost = ":" if damage.files else "; no other file is affected"
        click.echo(f"  {counted(len(damage.lost), 'chunk')} lost{cost}")
    for file in damage.files:
        _print_file(file, "    ")


def _print_file(file: DamagedFile, indent: str) -> None:
    shown = shown_part(file.snapshots, shown_max=_NAMED_MAX)
    where = listed(shown, len(file.snapshots))
    click.echo(f"{indent}{printable(os.fsdecode(file.path))}: {printable(file.what)}; in {where}")


def _age(now_ns: int, then_ns: int) -> str:
    return format_duration(max(0.0, (now_ns - then_ns) / 1e9))

"""``ciuic verify`` and ``ciuic scrub``."""

import os
import sys
from typing import Any, NoReturn

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import (
    DAMAGE,
    FAILED,
    SNAPSHOT,
    Session,
    found_snapshot,
    given,
    interruptible,
    json_option,
)
from ciuic.errors import UsageError
from ciuic.units import format_bytes, format_duration

__all__ = ["scrub", "verify"]

_NAMED_MAX = 5


@click.command(short_help="Prove that snapshots can be restored.")
@click.argument("ids", nargs=-1, type=SNAPSHOT, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Verify every snapshot of the store.")
@click.option("--checksum", is_flag=True, help="Read, decode and hash every chunk as well.")
@click.option("--hot", is_flag=True, help="Read every hot copy instead, and compare it.")
@json_option
@click.pass_obj
def verify(
    session: Session,
    *,
    ids: tuple[str, ...],
    every: bool,
    checksum: bool,
    hot: bool,
    as_json: bool,
) -> None:
    """Prove that snapshots can be restored: the newest one, those named, or --all.

    Without --checksum the manifest and the trees are read, and every chunk must be indexed and
    lie in a pack that is long enough. With it every chunk is read, decoded and hashed. With --hot
    the copy-on-write copies that restore takes first are read and compared with the store.
    """
    from ciuic.catalog import LATEST, damaged_since, find_snapshot
    from ciuic.clock import SystemClock
    from ciuic.verbs.valid import with_alternatives
    from ciuic.verbs.verify import verify_all, verify_snapshots

    if ids and every:
        raise UsageError("--all and an ID say different things", hint="Give one of them.")
    if hot and checksum:
        raise UsageError(
            "--hot and --checksum read different things", hint="Verify with one, then the other."
        )
    if hot:
        _verify_hot(session, ids, every=every, as_json=as_json)
    with session.opened() as store, progress("verify") as shown:
        if every:
            report = verify_all(
                store, checksum=checksum, clock=SystemClock(), progress=shown.fraction
            )
        else:
            found = [find_snapshot(store, text) for text in ids or [LATEST]]
            broken = damaged_since(store, found[0]) if not ids or LATEST in ids else {}
            report = verify_snapshots(
                store,
                {one.id: one for one in found}.values(),
                broken,
                checksum=checksum,
                clock=SystemClock(),
                progress=shown.fraction,
            )
        report = with_alternatives(store, report)
    if as_json:
        print_json(report.as_json())
    else:
        for one in report.snapshots:
            click.echo(f"{one.id}: {_state(one)}")
            for bad in one.damaged:
                older = one.intact_in.get(bad.path)
                instead = f"; intact in {older}" if older not in {None, one.id} else ""
                click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}{instead}")
        for bad in report.unreachable:
            click.echo(f"{printable(os.fsdecode(bad.path))}: DAMAGED: {printable(bad.what)}")
        read = f", {format_bytes(report.read_bytes)} read" if checksum else ""
        if not ids and not every:
            click.echo("only the newest; --all verifies every snapshot", err=True)
        if not report.ok:
            # A verify reads beside whoever writes, and writes nothing down itself.
            later = "; 'latest-valid' knows of it after 'ciuic scrub'" if checksum else ""
            click.echo(
                "'ciuic restore --fallback' takes what is damaged from older snapshots;"
                f" 'ciuic repair' shows what can be mended{later}",
                err=True,
            )
        click.echo(
            f"{len(report.snapshots)} verified, {report.chunks:,} chunks{read},"
            f" {format_duration(report.total_s)}",
            err=True,
        )
    sys.exit(0 if report.ok else DAMAGE)


def _state(one: Any) -> str:
    if one.ok:
        return "ok"
    if one.nearest_valid is None:
        return "DAMAGED; no snapshot is valid"
    if one.nearest_valid == one.id:
        return "DAMAGED, and can be restored whole all the same: 'ciuic repair' mends it"
    return f"DAMAGED; the nearest valid one is {one.nearest_valid}"


def _verify_hot(session: Session, ids: tuple[str, ...], *, every: bool, as_json: bool) -> NoReturn:
    """``ciuic verify --hot``; ends the command."""
    from ciuic.catalog import LATEST, list_snapshots
    from ciuic.clock import SystemClock
    from ciuic.verbs.hot import verify_hot

    with session.opened() as store:
        if every:
            chosen = list_snapshots(store)
        else:
            found = [found_snapshot(store, text) for text in ids or [LATEST]]
            chosen = list({one.id: one for one in found}.values())
        report = verify_hot(store, chosen, clock=SystemClock())
    if as_json:
        print_json(report.as_json())
    else:
        for one in report.snapshots:
            state = "DAMAGED" if one.damaged else "ok" if one.copies else "no hot copies"
            click.echo(f"{one.id}: {state}")
            for bad in one.damaged:
                click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
        if not report.ok:
            click.echo("restore with --no-hot; 'ciuic snapshot --base' makes new copies", err=True)
        elif not report.copies:
            click.echo("there are no hot copies to verify: restore takes the store's", err=True)
        if not ids and not every:
            click.echo("only the newest; --all verifies every snapshot", err=True)
        click.echo(
            f"{report.copies:,} hot copies, {report.chunks:,} chunks,"
            f" {format_bytes(report.read_bytes)} read, {format_duration(report.total_s)}",
            err=True,
        )
    sys.exit(0 if report.ok else DAMAGE)


@click.command(short_help="Read the store's packs and remember what was sound when.")
@click.option(
    "--budget",
    metavar="AMOUNT",
    callback=given,
    help="How much to read: a time (10m, 2h) or a size (10GiB); otherwise everything, once.",
)
@json_option
@click.pass_obj
def scrub(session: Session, *, budget: str | None, as_json: bool) -> None:
    """Read packs in full and compare them with their checksums, to find rot while it can be mended.

    Packs that were checked longest ago come first, and what was found is remembered: a scrub can
    be stopped at any time, and the next one goes on. Damage is told as packs, files and
    snapshots. The next snapshot stores again what is lost and still stands in its files.
    """
    from ciuic.clock import SystemClock
    from ciuic.verbs.scrub import Budget, parse_budget
    from ciuic.verbs.scrub import scrub as read_packs

    try:
        amount = Budget() if budget is None else parse_budget(budget)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with interruptible() as cancelled, progress("scrub") as shown:
        report = read_packs(
            session.store_path(),
            clock=SystemClock(),
            budget=amount,
            cancelled=cancelled,
            progress=shown.fraction,
        )
    if as_json:
        print_json(report.as_json())
    else:
        _print_scrub(report)
    sys.exit(DAMAGE if not report.ok else FAILED if report.stopped == "asked" else 0)


def _print_scrub(report: Any) -> None:
    from ciuic.clock import SystemClock

    for one in (*report.manifests, *report.unreachable):
        click.echo(f"{printable(os.fsdecode(one.path))}: DAMAGED: {printable(one.what)}")
    for one in report.damaged:
        _print_pack(one)
    for file in report.missing:
        _print_file(file, "")
    now_ns = SystemClock().now_ns()
    for known in report.known:
        age = _age(now_ns, known.checked_ns)
        click.echo(f"pack {known.pack.hex()[:12]}: DAMAGED since {age} ago: {known.what}")
    for one in report.unread:
        click.echo(f"not read: {printable(one.path)}: {printable(one.what)}", err=True)
    health = report.health
    click.echo(
        f"{report.read_packs:,} of {health.packs:,} packs read, {format_bytes(report.read_bytes)},"
        f" {format_duration(report.total_s)}: {'no damage' if report.ok else 'DAMAGE'}",
        err=True,
    )
    if report.stopped:
        turn = "were never read" if health.unchecked else "were read longest ago"
        click.echo(
            f"stopped {'at the budget' if report.stopped == 'budget' else 'as asked'};"
            f" the next scrub goes on with packs that {turn}",
            err=True,
        )
    if report.not_remembered:
        click.echo(
            f"what was found is not remembered: {printable(report.not_remembered)}", err=True
        )
    if not report.ok:
        click.echo(
            "'ciuic repair' shows what can be mended; 'ciuic snapshot' stores again what still"
            " stands in its files",
            err=True,
        )


def _print_pack(one: Any) -> None:
    click.echo(f"pack {one.check.pack.hex()[:12]}: DAMAGED: {one.check.what}")
    for bad in one.check.bad[:_NAMED_MAX]:
        click.echo(f"  {bad.length_bytes:,} bytes at {bad.offset_bytes:,}: {bad.what}")
    if len(one.check.bad) > _NAMED_MAX:
        click.echo(f"  and {len(one.check.bad) - _NAMED_MAX} stretches more")
    if one.saved:
        click.echo(f"  {_chunks(one.saved)} damaged here can be had all the same")
    if one.lost:
        cost = ":" if one.files else ", which costs no further file"
        click.echo(f"  {_chunks(len(one.lost))} lost{cost}")
    for file in one.files:
        _print_file(file, "    ")


def _print_file(file: Any, indent: str) -> None:
    some = ", ".join(file.snapshots[:_NAMED_MAX])
    more = len(file.snapshots) - _NAMED_MAX
    where = f"{some} and {more} more" if more > 0 else some
    click.echo(f"{indent}{printable(os.fsdecode(file.path))}: {printable(file.what)}; in {where}")


def _chunks(count: int) -> str:
    return "1 chunk" if count == 1 else f"{count:,} chunks"


def _age(now_ns: int, then_ns: int) -> str:
    return format_duration(max(0.0, (now_ns - then_ns) / 1e9))

"""``ciuic repair``."""

import os
import sys
from typing import Any

import click

from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import DAMAGE, Session, interruptible, json_option, wait_option
from ciuic.errors import UnreachableError
from ciuic.units import format_bytes, format_duration

__all__ = ["repair"]

_SHOWN_MAX = 20


@click.command(short_help="Mend what is damaged in the store.")
@click.option("--apply", is_flag=True, help="Do it; otherwise only say what would be done.")
@wait_option
@json_option
@click.pass_obj
def repair(session: Session, *, apply: bool, wait_s: float, as_json: bool) -> None:
    """Find what is damaged in the store, and with --apply mend it.

    Every pack is read. What is damaged is computed from its parity, or taken from another pack,
    from a hot copy, or from the live file if it still has the same bytes. What was damaged is set
    aside in the store's directory quarantine, and nothing is deleted. May be stopped at any
    moment, and run again.
    """
    from ciuic.clock import SystemClock
    from ciuic.verbs.mend import apply_repair, mend_entrance
    from ciuic.verbs.repair import RepairReport, plan_repair

    clock = SystemClock()
    began_s = clock.monotonic_s()
    entrance = mend_entrance(session.store_path(), apply=apply)
    if entrance and not apply:
        _stop_at_entrance(entrance, as_json=as_json)
    parity = session.parity()
    quarantined: tuple[str, ...] = ()
    with (
        interruptible() as cancelled,
        session.opened(write=apply, wait_s=wait_s) as store,
        progress("repair") as shown,
    ):
        plan = plan_repair(store, parity=parity, cancelled=cancelled, progress=shown.stage)
        if apply:
            quarantined = apply_repair(
                store, plan, parity=parity, clock=clock, cancelled=cancelled, progress=shown.stage
            )
    report = RepairReport(plan, apply, quarantined, clock.monotonic_s() - began_s)
    if as_json:
        print_json({**report.as_json(), "entrance": list(entrance)})
    else:
        for sentence in entrance:
            click.echo(f"put back from its copy: {printable(sentence)}")
        _tell(report)
    sys.exit(0 if report.ok else DAMAGE)


def _stop_at_entrance(entrance: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "applied": False, "entrance": list(entrance)})
    else:
        for sentence in entrance:
            click.echo(f"{printable(sentence)}: its copy would be put back")
        click.echo("run 'ciuic repair --apply'; the packs are looked at then", err=True)
    sys.exit(DAMAGE)


def _tell(report: Any) -> None:
    from ciuic.verbs.repair import chunk_counts

    plan, would = report.plan, "" if report.applied else "would be "
    for one in plan.packs[:_SHOWN_MAX]:
        click.echo(f"pack {one.pack.hex()[:12]}: {one.what}: {would}{_remedy(one)}")
        for how, count in sorted(chunk_counts(one, plan).items()):
            click.echo(f"  {count:,} of its chunks: {_origin(how)}")
    _more(len(plan.packs), "packs")
    if plan.origins:
        click.echo(f"{len(plan.origins):,} chunks {would}stored again from files that have them")
    for bad in plan.manifests:
        _tell_manifest(bad, would)
    _tell_unreachable(plan)
    if plan.retired:
        click.echo(f"{printable(plan.retired)}: {would}set aside")
    if plan.stale_catalog:
        click.echo(f"the catalog {would}made anew from the packs")
    if plan.bare:
        click.echo(f"{len(plan.bare):,} packs without sound parity {would}given one")
    if plan.uncopied:
        click.echo(f"{len(plan.uncopied):,} manifests without a copy {would}given one")
    _tell_remaining(plan)
    for name in report.quarantined[:_SHOWN_MAX]:
        click.echo(f"set aside: quarantine/{name}", err=True)
    click.echo(
        f"{plan.pack_count:,} packs, {format_bytes(plan.read_bytes)} read,"
        f" {format_duration(report.total_s)}",
        err=True,
    )
    if not plan.is_damaged and not plan.has_work:
        click.echo("nothing is damaged")
    elif not report.applied and plan.has_work:
        click.echo("nothing was changed; run 'ciuic repair --apply' to do it", err=True)
    elif plan.remaining:
        click.echo(
            "what is left can be restored; a snapshot of files that still have the lost bytes"
            " mends the rest",
            err=True,
        )


def _tell_manifest(bad: Any, would: str) -> None:
    if bad.has_remedy:
        remedy = "put back from its copy" if bad.has_copy else "set aside, as it has no copy"
        click.echo(f"{printable(bad.what)}: {would}{remedy}")
    else:
        click.echo(f"{printable(bad.what)}, and there is no copy of it")
        click.echo(f"  {printable(bad.hint)}", err=True)


def _tell_unreachable(plan: Any) -> None:
    for path, what in sorted(plan.unreachable.items()):
        click.echo(f"{printable(path)}: {printable(what)}")
    if plan.unreachable:
        click.echo(f"  {UnreachableError.default_hint}", err=True)


def _tell_remaining(plan: Any) -> None:
    for one in plan.remaining[:_SHOWN_MAX]:
        click.echo(
            f"{one.id} stays damaged: {one.damaged_count:,}"
            f" {'path' if one.damaged_count == 1 else 'paths'} can't be had,"
            f" {one.files_left:,} of its {one.files:,} files can"
        )
        for bad in one.damaged[:_SHOWN_MAX]:
            click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
        _more(one.damaged_count, "paths")
    _more(len(plan.remaining), "snapshots")


def _more(count: int, of_what: str) -> None:
    if count > _SHOWN_MAX:
        click.echo(f"  and {count - _SHOWN_MAX:,} more {of_what}; --json names them")


def _remedy(one: Any) -> str:
    return "mended by its parity" if one.whole else "written anew without what is damaged"


def _origin(how: str) -> str:
    return "nobody has them" if how == "lost" else f"from {how}"

"""``ciuic repair``."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click
from click.core import ParameterSource

from ciuic.cli.error_output import advise
from ciuic.cli.interrupt import interruptible
from ciuic.cli.lists import print_rest, shown_part
from ciuic.cli.opening import opened
from ciuic.cli.options import (
    given,
    json_option,
    local_directory,
    wait_option,
)
from ciuic.cli.progress import progress
from ciuic.cli.render import print_json, printable
from ciuic.cli.repair_sources import (
    Source,
    header_entrance,
    print_copy_repairs,
    refuse_absent,
    repair_from,
    sources_of,
)
from ciuic.cli.session import Session
from ciuic.copy.repair import CopyRepair
from ciuic.errors import DAMAGE, AccessDeniedError, UnknownFormatError, UnreachableError
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.entrance import repair_entrance
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.repair.report import (
    BadManifest,
    BadPack,
    RepairPlan,
    RepairReport,
    chunk_counts,
)
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    format_files,
    inflected,
    listed,
)

__all__ = ["command"]

_LEASES_SHOWN: Final = 3


@click.command("repair")
@click.option(
    "--from", "place", metavar="PLACE", callback=given, shell_complete=local_directory,
    help="Also take lost data from this copy: a directory, s3://BUCKET/PREFIX, or a name.",
)  # fmt: skip
@click.option("--apply", is_flag=True, help="Repair; without it, only show what would be done.")
@wait_option
@json_option
@click.pass_obj
def command(
    session: Session, *, place: str | None, apply: bool, wait_s: float, as_json: bool
) -> None:
    """Find damage in the store, and repair it with --apply.

    ciuic reads every pack. It computes damaged chunks from the pack's parity, or takes them from
    another pack, from a reflink copy, or from the live file if that still has the same bytes. It
    takes the chunks that are still lost from the configured copies, or from the store of --from,
    and compares each with its ID before it stores the chunk. It keeps the damaged files in the
    store's directory quarantine. You can interrupt repair at any moment, and run it again.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s()
    if is_url(session.store_path()):
        sources = sources_of(session, place)
        _repair_bucket(session, place, sources, apply=apply, wait_s=wait_s, as_json=as_json)
    entrance = repair_entrance(session.store_path(), apply=apply, owner=session.store_owner())
    if entrance and not apply:
        _stop_at_entrance(entrance, place, as_json=as_json)
    parity = session.parity()
    sources = sources_of(session, place)
    quarantined: tuple[str, ...] = ()
    with (
        interruptible() as cancelled,
        opened(session, write=apply, wait_s=wait_s, cancelled=cancelled) as store,
        progress("repair") as shown,
    ):
        refuse_absent(sources, store)
        plan = plan_repair(store, parity=parity, cancelled=cancelled, progress=shown.stage)
        if apply:
            plan, quarantined = apply_repair(
                store, plan, parity=parity, clock=clock, cancelled=cancelled, progress=shown.stage
            )
        plan, repairs = repair_from(
            sources, store, plan, apply=apply, parity=parity, cancelled=cancelled, shown=shown
        )
    report = RepairReport(plan, apply, quarantined, clock.monotonic_s() - began_s)
    _print(report, repairs, entrance, place, as_json=as_json)
    sys.exit(0 if report.ok else DAMAGE)


def _repair_bucket(
    session: Session,
    place: str | None,
    sources: Sequence[Source],
    *,
    apply: bool,
    wait_s: float,
    as_json: bool,
) -> NoReturn:
    # Imported here because most stores are directories.
    from ciuic.maintain.prune.bucket.prune import finish_condemned
    from ciuic.maintain.prune.bucket.waiting import Patience
    from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
    from ciuic.maintain.repair.manifests import put_back_manifests

    clock = SystemClock()
    began_s = clock.monotonic_s()
    entrance = header_entrance(session, sources, apply=apply)
    if entrance and not apply:
        _stop_at_entrance(entrance, place, as_json=as_json)
    quarantined: tuple[str, ...] = ()
    left: list[str] = []
    with (
        interruptible() as cancelled,
        opened(session, write=apply, removes=apply, wait_s=wait_s, cancelled=cancelled) as store,
        progress("repair") as shown,
    ):
        refuse_absent(sources, store)
        plan = plan_in_bucket(store, cancelled=cancelled, progress=shown.stage)
        if apply:
            plan, quarantined = apply_in_bucket(store, plan, cancelled=cancelled)
        if apply and (quarantined or plan.condemned):
            patience = Patience(wait_s)
            leases = finish_condemned(store, clock=clock, patience=patience, cancelled=cancelled)
            left = [lease.about for lease in leases]
    repairs: list[CopyRepair] = []
    has_copies = apply and any(bad.has_copy for bad in plan.manifests)
    if has_copies or (sources and plan.is_damaged):
        # A session of its own, which adds: it relies on no pack that was condemned before.
        with (
            interruptible() as cancelled,
            opened(session, write=apply, wait_s=wait_s, cancelled=cancelled) as store,
            progress("repair") as shown,
        ):
            if has_copies:
                plan = put_back_manifests(store, plan, cancelled=cancelled)
            plan, repairs = repair_from(
                sources, store, plan, apply=apply, parity=0.0, cancelled=cancelled, shown=shown
            )
    report = RepairReport(plan, apply, quarantined, clock.monotonic_s() - began_s)
    _print(report, repairs, entrance, place, as_json=as_json)
    if left:
        names = listed(left[:_LEASES_SHOWN], len(left))
        advise(
            f"{counted(len(left), 'session')} of other writers may rely on the damaged packs:"
            f" {printable(names)}; 'ciuic prune' removes these packs when they have ended, and"
            " with --revoke-after TIME also if they seem to be dead"
        )
    sys.exit(0 if report.ok else DAMAGE)


def _stop_at_entrance(entrance: tuple[str, ...], place: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "applied": False, "entrance": list(entrance)})
    else:
        for sentence in entrance:
            click.echo(f"would repair: {printable(sentence)}")
        advise(f"run {_with_apply(place)}, which then checks the packs as well")
    sys.exit(DAMAGE)


def _with_apply(place: str | None) -> str:
    """Return the command that makes these repairs, with the options that were given."""
    context = click.get_current_context()
    options = ["--apply"] if place is None else ["--apply", "--from", place]
    if context.get_parameter_source("wait_s") is ParameterSource.COMMANDLINE:
        options += ["--wait", f"{context.params['wait_s']:g}s"]
    return f"'ciuic repair {printable(shlex.join(options))}'"


def _print(
    report: RepairReport,
    repairs: Sequence[CopyRepair],
    entrance: Sequence[str],
    place: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what was repaired: at the entrance of the store, in it, and from copies."""
    if as_json:
        copies = [copy.as_json() for copy in repairs]
        print_json({**report.as_json(), "copies": copies, "entrance": list(entrance)})
        return
    for sentence in entrance:
        click.echo(f"repaired: {printable(sentence)}")
    _print_report(report, repairs, place)


def _print_report(report: RepairReport, repairs: Sequence[CopyRepair], place: str | None) -> None:
    plan, would = report.plan, "" if report.applied else "would be "
    wrote = "wrote" if report.applied else "would write"
    for pack in shown_part(plan.packs):
        click.echo(f"pack {pack.pack_id.hex()[:12]}: {pack.what}: {_remedy(pack, would)}")
        for how, count in sorted(chunk_counts(pack, plan).items()):
            click.echo(f"  {count:,} of its chunks: {_origin(how)}")
    print_rest(len(plan.packs), len(plan.packs), "pack", indent="  ")
    _print_condemned(plan)
    if plan.origins:
        count = len(plan.origins)
        have = f"files that have {inflected(count, 'it', 'them')}"
        click.echo(f"{counted(count, 'chunk')} {would}stored again from {have}")
    _print_documents(plan, would)
    _print_unreachable(plan)
    if plan.stale_catalog:
        click.echo(f"the chunk index {would}rebuilt from the packs")
    _print_additions(plan, wrote)
    print_copy_repairs(repairs, applied=report.applied)
    _print_remaining(plan)
    for name in shown_part(report.quarantined, err=True):
        click.echo(f"set aside: quarantine/{name}", err=True)
    count = len(report.quarantined)
    print_rest(count, count, "file", indent="  ", err=True)
    click.echo(
        f"{counted(plan.pack_count, 'pack')}, {format_bytes(plan.read_bytes)} read,"
        f" {format_duration(report.total_s)}",
        err=True,
    )
    if not plan.is_damaged and not plan.has_work:
        click.echo("no snapshot is damaged" if plan.condemned else "nothing is damaged")
    elif not report.applied and plan.has_work:
        advise(f"nothing was changed; run {_with_apply(place)} to make these repairs")
    elif plan.remaining:
        copy = "" if place else ", 'ciuic repair --apply --from COPY' takes it from a copy"
        advise(
            "all other paths can be restored; 'ciuic snapshot' stores lost data again if a live"
            f" file still holds it, or if a directory has not changed since{copy}"
        )


def _print_condemned(plan: RepairPlan) -> None:
    """Name the damaged packs that a prune deletes: nothing more is to be done about them."""
    for pack in shown_part(plan.condemned):
        lost = len(plan.lost.intersection(pack.lost))
        cost = f"; snapshots need {counted(lost, 'chunk')} that it has lost" if lost else ""
        click.echo(
            f"pack {pack.pack_id.hex()[:12]}: {pack.what}: it is condemned already, and a prune"
            f" deletes it{cost}"
        )
    print_rest(len(plan.condemned), len(plan.condemned), "condemned pack", indent="  ")


def _print_additions(plan: RepairPlan, wrote: str) -> None:
    if plan.bare:
        click.echo(f"{wrote} parity for {counted(len(plan.bare), 'pack')} without sound parity")
    if plan.uncopied:
        click.echo(f"{wrote} copies for {counted(len(plan.uncopied), 'manifest')} without one")
    if plan.marks.uncopied:
        click.echo(f"{wrote} copies for {counted(len(plan.marks.uncopied), 'mark')} without one")


def _print_documents(plan: RepairPlan, would: str) -> None:
    for bad in plan.manifests:
        _print_manifest(bad, would)
    for mark in plan.marks.damaged:
        known = "a pin with the last tags and the last note that are known"
        remedy = "put back from its copy" if mark.has_copy else f"replaced by {known}"
        remedy = f"it stays: {mark.stays}" if mark.stays else f"{would}{remedy}"
        click.echo(printable(f"{mark.what}: {remedy}"))
    for what in plan.retired.values():
        click.echo(f"{printable(what)}: {would}set aside")


def _print_manifest(bad: BadManifest, would: str) -> None:
    if bad.has_remedy:
        remedy = "put back from its copy" if bad.has_copy else "set aside, as it has no copy"
        click.echo(f"{printable(bad.what)}: {would}{remedy}")
    else:
        click.echo(f"{printable(bad.what)}, and there is no copy of it")
        advise(f"  {printable(bad.hint)}")


def _print_unreachable(plan: RepairPlan) -> None:
    for path, what in sorted(plan.unreachable.items()):
        click.echo(f"{printable(path)}: {printable(what)}")
    if plan.unreachable:
        session = click.get_current_context().ensure_object(Session)
        kind = AccessDeniedError if is_url(session.store_path()) else UnreachableError
        advise(f"  {kind.default_hint}")
    for path, what in sorted(plan.unread.items()):
        click.echo(f"left as it is: {printable(path)}: {printable(what)}", err=True)
    if plan.unread:
        click.echo(f"  {UnknownFormatError.default_hint}", err=True)


def _print_remaining(plan: RepairPlan) -> None:
    for snapshot in shown_part(plan.remaining):
        click.echo(
            f"{snapshot.id} stays damaged: {counted(snapshot.damaged_count, 'path')} cannot be"
            f" restored, {snapshot.files_left:,} of its {format_files(snapshot.files)} can"
        )
        for bad in shown_part(snapshot.damaged):
            click.echo(f"  {printable(os.fsdecode(bad.path))}: {printable(bad.what)}")
        print_rest(snapshot.damaged_count, len(snapshot.damaged), "path", indent="  ")
    print_rest(len(plan.remaining), len(plan.remaining), "snapshot", indent="  ")


def _remedy(pack: BadPack, would: str) -> str:
    if pack.stays:
        return "it stays as it is, because a newer ciuic wrote part of it"
    how = "repaired by its parity" if pack.is_repairable else "rewritten without the damaged parts"
    return f"{would}{how}"


def _origin(how: str) -> str:
    return "lost" if how == "lost" else f"from {how}"

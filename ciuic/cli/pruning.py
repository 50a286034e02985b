"""Prunes an open store and reports it, for ``ciuic prune`` and ``ciuic forget --prune``."""

from collections.abc import Callable, Collection
from dataclasses import replace

import click

from ciuic.cli.error_output import advise
from ciuic.cli.lists import print_rest, shown_part
from ciuic.cli.progress import progress
from ciuic.cli.render import printable
from ciuic.ids import SnapshotId
from ciuic.maintain.prune.apply import apply_prune, foresee_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneCounts, PruneReport
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    freed_in_words,
    inflected,
)

__all__ = ["print_prune_report", "prune_store"]


def prune_store(
    store: Store,
    cancelled: Callable[[], bool],
    *,
    trash_s: float,
    parity: float,
    dry_run: bool,
    leaving: Collection[SnapshotId] = (),
    given_up: Collection[SnapshotId] = (),
    wait_s: float = 0.0,
    revoke_after_s: float | None = None,
) -> PruneReport:
    """Prune an open store.

    Args:
        store: Open for writing.
        cancelled: Whether to stop.
        trash_s: How long forgotten snapshots stay in the trash.
        parity: Parity's share of each new pack, 0 to 1.
        dry_run: Change nothing, and report what would be done.
        leaving: Snapshots to treat as forgotten: a dry run of ``forget`` has not forgotten them.
        given_up: Snapshots without a manifest whose data is given up.
        wait_s: In a bucket: how long to wait for other writers.
        revoke_after_s: In a bucket: see ``Patience``; None: the default.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s()
    with progress("prune") as shown:
        if store.bucket is not None:
            # Imported late: what is for buckets is heavy.
            from ciuic.maintain.prune.bucket.prune import prune_bucket
            from ciuic.maintain.prune.bucket.waiting import REVOKE_AFTER_S, Patience

            after_s = REVOKE_AFTER_S if revoke_after_s is None else revoke_after_s
            report = prune_bucket(
                store,
                trash_s=trash_s,
                now_ns=clock.now_ns(),
                clock=clock,
                patience=Patience(wait_s, after_s),
                dry_run=dry_run,
                leaving=leaving,
                given_up=given_up,
                cancelled=cancelled,
                progress=shown.stage,
            )
            return replace(report, total_s=clock.monotonic_s() - began_s)
        plan = plan_prune(
            store,
            trash_s=trash_s,
            now_ns=clock.now_ns(),
            leaving=leaving,
            given_up=given_up,
            cancelled=cancelled,
            progress=shown.stage,
        )
        carry_out = foresee_prune if dry_run else apply_prune
        report = carry_out(
            store,
            plan,
            parity=parity,
            clock=clock,
            cancelled=cancelled,
            progress=shown.stage,
        )
    return replace(report, total_s=clock.monotonic_s() - began_s)


def print_prune_report(report: PruneReport) -> None:
    """Print what a prune has done, or would do."""
    would = "would be " if report.dry_run else ""
    if report.expired:
        click.echo(f"{_snapshots(len(report.expired))} {would}removed for good")
    if report.freed_bytes < 0:
        click.echo(f"{would}{freed_in_words(report.freed_bytes)}")
    else:
        click.echo(f"{would}freed: {format_bytes(report.freed_bytes)}")
    rows = (
        ("removed", report.removed, ""),
        ("rewritten", report.rewritten, f" into {_packs(report.written)}{_small(report.merged)}"),
        ("kept", report.kept, ""),
    )
    for what, counts, more in rows:
        click.echo(f"  {what + ':':10} {_packs(counts)}{more if counts.packs else ''}")
    click.echo(
        f"{counted(report.needed_chunks, 'chunk')}"
        f" {inflected(report.needed_chunks, 'is', 'are')} needed, {report.dead_chunks:,}"
        f" {inflected(report.dead_chunks, 'is', 'are')} not,"
        f" {format_duration(report.total_s)}",
        err=True,
    )
    for lease in shown_part(report.revoked, err=True):
        click.echo(f"{lease} was revoked: it cannot commit any more", err=True)
    if report.waiting_for:
        _print_waiting(report)
    if report.in_trash:
        advise(
            f"{_snapshots(report.in_trash)} in the trash still take space;"
            " 'ciuic prune --trash 0' frees it"
        )
    for pack in shown_part(report.damaged, err=True):
        click.echo(f"pack {pack.hex()[:12]} is damaged and was left alone", err=True)
    print_rest(len(report.damaged), len(report.damaged), "pack", err=True)
    if report.damaged:
        advise("'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it")


def _print_waiting(report: PruneReport) -> None:
    count = len(report.waiting_for)
    # Without any of its own, it waits to finish what an earlier prune or repair began.
    own = f"{_packs(report.condemned)}," if report.condemned.packs else "packs of earlier prunes"
    click.echo(
        f"{own} can be removed when {counted(count, 'session')}"
        f" {inflected(count, 'has', 'have')} ended:",
        err=True,
    )
    for lease in shown_part(report.waiting_for, err=True):
        click.echo(f"  {printable(lease)}", err=True)
    print_rest(count, count, "session", err=True)
    advise(
        "the next 'ciuic prune' removes them; --wait TIME waits longer, and --revoke-after TIME"
        " revokes sessions that seem to be dead"
    )
    # Imported here because most stores are directories.
    from ciuic.store.place.sessions.leases import hint_about

    for hint in filter(None, map(hint_about, report.waiting_for)):
        click.echo(hint, err=True)


def _small(merged: PruneCounts) -> str:
    return f"; {merged.packs:,} of them only because they are small" if merged.packs else ""


def _snapshots(count: int) -> str:
    return counted(count, "forgotten snapshot")


def _packs(counts: PruneCounts) -> str:
    return f"{counted(counts.packs, 'pack')}, {format_bytes(counts.size_bytes)}"

"""Has a repair take lost data from copies: the store of --from, or the configured copies."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import click

from ciuic.cli.progress import Reporter
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.copy.read_through import source_of
from ciuic.copy.record import recorded_copies
from ciuic.copy.repair import CopyRepair, foresee_repair, repair_from_copy
from ciuic.errors import CancelledError, CiuicError, MissingError, StoreError, UsageError
from ciuic.ids import ChunkId, SnapshotId
from ciuic.maintain.repair.report import RepairPlan
from ciuic.store.addressed import absolute_address, open_at_address
from ciuic.store.place.keys import is_url
from ciuic.store.place.location import PlaceOptions
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock
from ciuic.units import counted, listed

__all__ = [
    "Source",
    "header_entrance",
    "print_copy_repairs",
    "refuse_absent",
    "repair_from",
    "sources_of",
]


_NO_SOURCE: Final = (
    "Name a store that has the same snapshots: a copy of this one, or the one that this is a copy"
    " of."
)
_UNMOUNTED: Final = " If it is on a disk that is not mounted, mount that first."


class Source(NamedTuple):
    """A store that may have what is lost here.

    Attributes:
        address: Its directory or URL.
        options: How to reach it.
        is_named: The command line names it: it must be there.
    """

    address: str
    options: PlaceOptions
    is_named: bool


def sources_of(session: Session, place: str | None) -> tuple[Source, ...]:
    """Return the store of --from, or without it the configured copies."""
    settings = session.store_settings()
    if place is None:
        return tuple(
            Source(one.address, one.settings.place_options, is_named=False)
            for one in settings.copies
        )
    copy = session.find_copy(place) or session.find_copy(absolute_address(place))
    if copy is not None:
        return (Source(copy.address, copy.settings.place_options, is_named=True),)
    address = absolute_address(place)
    options = settings.place_options
    if options == PlaceOptions():
        options = _recorded(session, address) or options
    return (Source(address, options, is_named=True),)


def _recorded(session: Session, address: str) -> PlaceOptions | None:
    """Return how a copy that no configuration names was reached, if this machine has made it."""
    if not is_url(address) or is_url(session.store_path()):
        return None
    made = [one for one in recorded_copies(session.store_path()) if one.address == address]
    options: PlaceOptions | None = source_of(made[0]).options if made else None
    return options


@contextlib.contextmanager
def _reachable(source: Source) -> Iterator[Store]:
    with contextlib.ExitStack() as stack:
        try:
            opening = open_at_address(source.address, os.environ, source.options)
            other = stack.enter_context(opening)
        except StoreError as error:
            # A missing source must not become an empty directory.
            if type(error) is StoreError or isinstance(error.__cause__, MissingError):
                hint = _NO_SOURCE + ("" if is_url(source.address) else _UNMOUNTED)
                raise StoreError(error.message, hint=hint) from error
            raise
        yield other


@contextlib.contextmanager
def _opened(source: Source, store: Store) -> Iterator[Store]:
    """Open such a store.

    Raises:
        UsageError: It is the damaged store itself.
        StoreError: It cannot be read.
    """
    with _reachable(source) as other:
        if other.name == store.name:
            raise UsageError(
                f"{source.address} is the store itself", hint="Name another store with --from."
            )
        yield other


def header_entrance(session: Session, sources: Sequence[Source], *, apply: bool) -> tuple[str, ...]:
    """Write the header of a store in a bucket again, if it is gone: see ``repair_header``.

    Raises:
        StoreError: Nothing has it, or a store cannot be read.
    """
    # Imported here because most stores are directories.
    from ciuic.maintain.repair.header import repair_header
    from ciuic.store.place.address import open_place

    place = open_place(session.store_path(), os.environ, session.store_settings().place_options)
    with contextlib.ExitStack() as stack:
        other = None
        for source in sources:
            if source.is_named and source.address != place.name:
                other = stack.enter_context(_reachable(source)).header
        return repair_header(place, os.environ, other, SystemClock(), apply=apply)


def refuse_absent(sources: Sequence[Source], store: Store) -> None:
    """Refuse a store of --from that is not there, before anything is changed.

    Raises:
        UsageError: It is the damaged store itself.
        StoreError: It cannot be read.
    """
    for source in sources:
        if source.is_named:
            with _opened(source, store):
                pass


def repair_from(
    sources: Sequence[Source],
    store: Store,
    plan: RepairPlan,
    *,
    apply: bool,
    parity: float,
    cancelled: Callable[[], bool],
    shown: Reporter,
) -> tuple[RepairPlan, list[CopyRepair]]:
    """Take what a repair cannot find in the store from others, or show which have it.

    Returns:
        The plan without what they repaired, and what each store gave.

    Raises:
        CiuicError: The store failed, or that of --from.
    """
    found: list[CopyRepair] = []
    for source in sources:
        damaged = _damaged(plan)
        if not damaged:
            break
        try:
            with _opened(source, store) as other:
                if apply:
                    given = repair_from_copy(
                        store,
                        other,
                        damaged,
                        _lost(plan),
                        parity=parity,
                        clock=SystemClock(),
                        cancelled=cancelled,
                        progress=lambda _, done, count, __: shown.stage("copies", done, count),
                    )
                else:
                    given = foresee_repair(store, other, damaged, _lost(plan))
                plan = _without(plan, given, store if apply else other)
        except CancelledError:
            raise
        except CiuicError as error:
            if source.is_named:
                raise
            given = CopyRepair(source.address, problem=error.message)
        found.append(given)
    return plan, found


def print_copy_repairs(found: Sequence[CopyRepair], *, applied: bool) -> None:
    """Print what other stores gave, or have."""
    for one in found:
        where = printable(one.address)
        if one.repaired:
            click.echo(
                f"taken from {where}: {counted(one.chunks, 'chunk')};"
                f" {listed(one.repaired[:5], len(one.repaired))} can be restored in full again"
            )
        elif one.has and not applied:
            click.echo(
                f"{where} has {listed(one.has[:5], len(one.has))}: what is lost here would be taken"
                " from there"
            )
        if one.problem:
            click.echo(f"{where}: {printable(one.problem)}", err=True)


def _damaged(plan: RepairPlan) -> list[SnapshotId]:
    """Return the snapshots that a repair leaves damaged, each once."""
    without = [bad.id for bad in plan.manifests if not bad.has_copy and not bad.in_trash]
    return list(dict.fromkeys([*[remaining.id for remaining in plan.remaining], *without]))


def _without(plan: RepairPlan, given: CopyRepair, holder: Store) -> RepairPlan:
    """Return a plan without what was repaired. ``holder`` has the chunks that count as found."""
    places = holder.reader.places(sorted(_lost(plan)))
    helped = {*given.would_repair, *given.repaired}
    return replace(
        plan,
        from_copies=plan.from_copies | frozenset(places),
        lost=plan.lost - places.keys(),
        repaired_by_copies=(*plan.repaired_by_copies, *sorted(helped)),
        remaining=tuple([remaining for remaining in plan.remaining if remaining.id not in helped]),
        manifests=tuple([bad for bad in plan.manifests if bad.id not in given.repaired]),
    )


def _lost(plan: RepairPlan) -> set[ChunkId]:
    """Return the chunks that neither this store nor its live files have."""
    lost = {*plan.lost, *[chunk_id for pack in plan.packs for chunk_id in pack.lost]}
    return lost - plan.origins.keys()

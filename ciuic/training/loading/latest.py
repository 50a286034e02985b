"""Load the newest undamaged snapshot, or a given one."""

import warnings
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from ciuic.catalog import damaged_manifests
from ciuic.errors import (
    CorruptionError,
    ResourceError,
    SnapshotNotFoundError,
    UnknownFormatError,
    UsageError,
)
from ciuic.hints import aimed
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.system.machine import this_machine
from ciuic.training.completeness import warn_program
from ciuic.training.finding import FULL, WEIGHTS, begun_snapshots, run_of
from ciuic.training.loading.places import FindPlaces
from ciuic.training.loading.state import LoadedState, load
from ciuic.training.ranks.job import Job
from ciuic.training.values.arguments import shown
from ciuic.units import counted

__all__ = ["LoadOptions", "RemovedError", "check_mixture", "newest_state", "read_listed"]

_NAMED_MAX: Final = 3
_OPTIMIZER: Final = "optimizer_state_dict"
_OF_OPTIMIZER: Final = frozenset([_OPTIMIZER, "scheduler_state_dict", "scaler_state_dict", "step"])
"""The sections that a state takes from an older one, and the older step."""


class RemovedError(SnapshotNotFoundError):
    """A snapshot was removed while it was read: what has replaced it is listed now."""


class LoadOptions(NamedTuple):
    """How a state is loaded.

    Attributes:
        map_location: The device for tensors of torch; None: the CPU.
        job: Which of several ranks reads its state; None: there are no others.
        find_places: See ``load``.
        fills: Take damaged and missing layers from older snapshots.
    """

    map_location: object
    job: Job | None
    find_places: FindPlaces
    fills: bool = False


def check_mixture(
    job: Job | None, channel: str | None, *, fill_layers: bool, join_optimizer: bool
) -> None:
    """Check that the arguments of a load go together.

    Raises:
        UsageError: They do not.
    """
    if job is not None and (fill_layers or join_optimizer):
        raise UsageError(
            "fill_layers and join_optimizer cannot be combined with ranks yet",
            hint="Leave them out, or load in one process without ranks.",
        )
    if channel is not None and join_optimizer:
        raise UsageError(
            "join_optimizer cannot be combined with channel",
            hint="Leave channel out: the newest weights of all channels are loaded.",
        )


def newest_state(
    store: Store, run: str | None, channel: str | None, options: LoadOptions, *, joins: bool
) -> LoadedState | None:
    """Read the newest state of a run that is undamaged; None: there is no snapshot.

    Args:
        store: The open store.
        run: The run.
        channel: ``full`` or ``weights``; None: ``full``, or ``weights`` if all of ``full`` fail.
        options: How to load it.
        joins: Take the newest weights, and the optimizer of an older full state.

    Raises:
        CorruptionError: There are snapshots, and none can be read.
        RemovedError: See ``read_listed``.
    """
    begun = [one for one in begun_snapshots(store) if run_of(one.tags) == run]
    full = [one for one in begun if one.is_complete and FULL in one.tags]
    others = [one for one in begun if one not in full and (one.is_complete or options.fills)]
    words = ["--store", store.name]
    skipped = {one: aimed(what, words) for one, what in damaged_manifests(store).items()}
    if joins:
        candidates = [one for one in begun if one in full or one in others]
    else:
        candidates = {None: [*full, *others], FULL: full, WEIGHTS: others}[channel]
    for summary in candidates:
        try:
            state = read_listed(store, summary, skipped, options)
        except (CorruptionError, UnknownFormatError) as error:
            skipped[summary.id] = error.message
            continue
        _warn_of_another_machine(summary, begun)
        if joins and _OPTIMIZER not in state:
            older = begun[begun.index(summary) :]
            _join(store, state, [one for one in older if one in full], options)
        _warn_of_skipped(state)
        return state
    if not skipped:
        return None
    first, what = next(iter(skipped.items()))
    raise CorruptionError(
        f"no snapshot in {store.name} is undamaged; {first}: {what}",
        hint="Run 'ciuic verify --all --checksum'."
        " An object that was to be loaded may hold a part of a damaged state.",
    )


def _warn_of_another_machine(loaded: SnapshotSummary, begun: Iterable[SnapshotSummary]) -> None:
    """Warn if another machine saved the state after an older one of this machine.

    A scheduler may have moved the training, so the newest state is the right one. But another
    training without a name for its run, or with the same name, looks alike.
    """
    here = this_machine()
    own = next((one for one in begun if one.owner.machine.is_same(here)), None)
    if own is not None and not loaded.owner.machine.is_same(here):
        warnings.warn(
            f"ciuic: {loaded.id} was saved on {loaded.host}, and the newest state of this machine"
            f" is {own.id}. If these are two trainings, name their runs differently: run='NAME'",
            RuntimeWarning,
            stacklevel=8,
        )


def _warn_of_skipped(state: LoadedState) -> None:
    """Warn of the snapshots that could not be loaded: the training goes on from an older state."""
    if not state.skipped:
        return
    said = [f"{one}: {what}" for one, what in state.skipped.items()]
    if len(said) > _NAMED_MAX:
        said[_NAMED_MAX:] = [f"and {len(said) - _NAMED_MAX} more: see 'skipped' of the state"]
    counts = [f"{name} {state[name]}" for name in ("epoch", "step") if state.get(name) is not None]
    which = f" ({', '.join(counts)})" if counts else ""
    warn_program(
        f"{counted(len(state.skipped), 'snapshot')} could not be loaded, and the state is that of"
        f" {state.snapshot_id}{which}: {'; '.join(said)}"
    )


def _join(
    store: Store, state: LoadedState, full: Iterable[SnapshotSummary], options: LoadOptions
) -> None:
    """Add the optimizer of the first undamaged one of these full states."""
    for summary in full:
        try:
            other = read_listed(store, summary, {}, options, sections=_OF_OPTIMIZER)
        except (CorruptionError, UnknownFormatError) as error:
            state.skipped[summary.id] = error.message
            continue
        state.join(other)
        return


def read_listed(
    store: Store,
    summary: SnapshotSummary,
    skipped: dict[SnapshotId, str],
    options: LoadOptions,
    sections: Collection[str] | None = None,
) -> LoadedState:
    """Read a state; the arguments and errors are those of ``read_state``.

    A program may load while the process that wrote for an earlier one is at work: it commits a
    state, and removes older ones. A snapshot that is removed meanwhile is not damage.

    Raises:
        RemovedError: Another process has removed the snapshot. Open the store again.
    """
    try:
        return read_state(store, summary, skipped, options, sections)
    except (CorruptionError, SnapshotNotFoundError) as error:
        if store.bucket is not None:
            store.bucket.fetch()
        if summary.id in store.listed_ids():
            raise
        raise RemovedError(
            f"another process has removed {summary.id} while it was read", hint="Load again."
        ) from error


def read_state(
    store: Store,
    summary: SnapshotSummary,
    skipped: dict[SnapshotId, str],
    options: LoadOptions,
    sections: Collection[str] | None = None,
) -> LoadedState:
    """Read a state.

    Args:
        store: The open store.
        summary: The snapshot.
        skipped: Snapshots that could not be loaded before this one, and why.
        options: How to load it.
        sections: Read only these; None: all.

    Raises:
        CorruptionError: A byte of the snapshot is damaged or missing.
        UnknownFormatError: A later version of ciuic wrote it.
        ResourceError: A tensor cannot be moved to ``map_location``.
    """
    where = options.map_location

    def place(tensor: Any) -> Any:
        try:
            return tensor if where is None else tensor.to(where)
        except Exception as error:
            # Not the error of torch: a RuntimeError of a read would mean that the state is damaged.
            raise ResourceError(
                f"a tensor of {tensor.nbytes:,} bytes cannot be moved to"
                f" map_location={shown(where)}: {error}",
                hint="Give a device that this machine has, with enough free memory.",
            ) from error

    rank, rank_count = (0, 1) if options.job is None else options.job[:2]
    return load(
        store,
        summary,
        skipped=skipped,
        place=place,
        rank=rank,
        rank_count=rank_count,
        find_places=options.find_places,
        older=_older(store, summary) if options.fills else (),
        sections=sections,
    )


def _older(store: Store, summary: SnapshotSummary) -> list[SnapshotSummary]:
    """Return the older snapshots of the same run, newest first."""
    run = run_of(summary.tags)
    begun = [one for one in begun_snapshots(store) if run_of(one.tags) == run]
    ids = [one.id for one in begun]
    return begun[ids.index(summary.id) + 1 :]

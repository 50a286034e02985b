"""Load the newest snapshot that is undamaged, or a certain one."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ciuic.catalog import damaged_manifests
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.store import Store
from ciuic.training.loading.places import FindPlaces
from ciuic.training.loading.state import LoadedState, load
from ciuic.training.ranks.job import Job

__all__ = ["LoadOptions", "newest_state", "read_state"]


class LoadOptions(NamedTuple):
    """How a state is loaded.

    Attributes:
        map_location: The device for tensors of torch; None: the CPU.
        job: Which of several ranks reads its state; None: there are no others.
        find_places: See ``load``.
    """

    map_location: object
    job: Job | None
    find_places: FindPlaces


def newest_state(
    store: Store, candidates: Iterable[SnapshotSummary], options: LoadOptions
) -> LoadedState | None:
    """Read the first of some snapshots that is undamaged; None: there is no snapshot.

    Args:
        store: The open store.
        candidates: The snapshots, the best first.
        options: How to load it.

    Raises:
        CorruptionError: There are snapshots, and all are damaged.
    """
    skipped = dict(damaged_manifests(store))
    for summary in candidates:
        try:
            return read_state(store, summary, skipped, options)
        except (CorruptionError, UnknownFormatError) as error:
            skipped[summary.id] = error.message
    if not skipped:
        return None
    first, what = next(iter(skipped.items()))
    raise CorruptionError(
        f"no snapshot in {store.path} is undamaged; {first}: {what}",
        hint=f"Run 'ciuic --store {store.path} verify --all --checksum'."
        " An object that was to be loaded may hold a part of a damaged state.",
    )


def read_state(
    store: Store,
    summary: SnapshotSummary,
    skipped: dict[SnapshotId, str],
    options: LoadOptions,
) -> LoadedState:
    """Read a state.

    Args:
        store: The open store.
        summary: The snapshot.
        skipped: Snapshots that could not be loaded before this one, and why.
        options: How to load it.

    Raises:
        CorruptionError: A byte of the snapshot is damaged or missing.
    """

    def place(tensor: Any) -> Any:
        return tensor if options.map_location is None else tensor.to(options.map_location)

    rank, rank_count = (0, 1) if options.job is None else options.job[:2]
    return load(
        store,
        summary,
        skipped=skipped,
        place=place,
        rank=rank,
        rank_count=rank_count,
        find_places=options.find_places,
    )

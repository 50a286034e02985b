"""The loads of one manager: which snapshot, read by this process or agreed on by all ranks."""

import contextlib
from collections.abc import Callable
from typing import Final

from ciuic.errors import SnapshotNotFoundError
from ciuic.ids import SnapshotId
from ciuic.store.store import Store
from ciuic.training.finding import find_saved
from ciuic.training.loading.latest import (
    LoadOptions,
    RemovedError,
    newest_state,
    read_listed,
)
from ciuic.training.loading.opening import opened_with_copies
from ciuic.training.loading.places import place_finder
from ciuic.training.loading.state import LoadedState
from ciuic.training.ranks.agreement import Agreement
from ciuic.training.ranks.job import Job
from ciuic.training.saves import Saves

__all__ = ["Loads"]

_TRIES_MAX: Final = 10
"""How many attempts a load makes; each but the last met a snapshot that another process removed."""


class Loads:
    """Finds and reads snapshots, after the save that is under way.

    Args:
        store_path: The store.
        run: The run whose snapshots a step or tag means.
        job: Which of several ranks this is; None: there are no others.
        saves: The saves of the manager; the next one is told what was loaded.
    """

    def __init__(self, store_path: str, run: str | None, job: Job | None, saves: Saves) -> None:
        self._path = store_path
        self._run = run
        self._job = job
        self._saves = saves
        self._agreement = None if job is None else Agreement(job, saves.ask)

    def options(
        self, model: object, optimizer: object, map_location: object, *, strict: bool, fills: bool
    ) -> LoadOptions:
        """Return how to load a state for these objects; see ``SnapshotManager``."""
        find = place_finder(model, optimizer, map_location, strict=strict)
        return LoadOptions(map_location, self._job, find, fills)

    def newest(
        self, channel: str | None, options: LoadOptions, *, joins: bool
    ) -> LoadedState | None:
        """Load the newest undamaged snapshot of the run; see ``newest_state``."""
        return self._load(
            lambda store: newest_state(store, self._run, channel, options, joins=joins), options
        )

    def named(self, ref: int | str, options: LoadOptions) -> LoadedState:
        """Load a given snapshot; see ``find_saved``.

        Raises:
            SnapshotNotFoundError: There is none.
            CorruptionError: It is damaged.
        """
        state = self._load(
            lambda store: read_listed(store, find_saved(store, ref, self._run), {}, options),
            options,
        )
        if state is None:
            raise SnapshotNotFoundError(f"rank 0 has found no snapshot for {ref!r}")
        return state

    def reading(self) -> contextlib.AbstractContextManager[Store]:
        """Open the store to read it, when the save that is under way has ended."""
        self._saves.go_on()
        return opened_with_copies(self._path)

    def id_of(self, ref: int | str) -> SnapshotId:
        """Return the ID of a snapshot; see ``find_saved``."""
        with self.reading() as store:
            return find_saved(store, ref, self._run).id

    def _load(
        self, choose: Callable[[Store], LoadedState | None], options: LoadOptions
    ) -> LoadedState | None:
        """Load the snapshot that ``choose`` chooses; of several ranks, only rank 0 calls it."""

        def chosen() -> LoadedState | None:
            for _ in range(_TRIES_MAX - 1):
                with self.reading() as store, contextlib.suppress(RemovedError):
                    return choose(store)
            with self.reading() as store:
                return choose(store)

        def read(snapshot_id: SnapshotId) -> LoadedState:
            with self.reading() as store:
                summary = find_saved(store, snapshot_id, self._run)
                return read_listed(store, summary, {}, options)

        state = chosen() if self._agreement is None else self._agreement.load(chosen, read)
        return self._saves.loaded(state)

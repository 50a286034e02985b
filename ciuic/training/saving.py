"""Store a state; on a full disk, as much of it as fits."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ciuic.errors import CiuicError, StoreFullError
from ciuic.ids import SnapshotId
from ciuic.snapshot.memory import FULL_KIND, MemoryRequest, next_full_ns
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.addressed import open_at_address
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.training.files import STATE_NAME, encoded
from ciuic.training.finding import FULL, run_of
from ciuic.training.layers.commits import take_in_order
from ciuic.training.layers.groups import Layer
from ciuic.training.layers.sessions import Sessions
from ciuic.training.ranks.job import rank_directory
from ciuic.training.reducing import weights_alone
from ciuic.training.retention.keeping import Keeper
from ciuic.training.retention.planning import Rules, reduced_tags
from ciuic.training.retention.removing import remove_older

__all__ = ["Saved", "Saver"]

_LOCK_WAIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Saved:
    """The outcome of a save.

    Attributes:
        id: The snapshot.
        notes: What failed after the commit, and what is missing.
        stored_bytes: What it added to the store.
        is_reduced: Only the weights of a full state were saved.
        frozen_until_ns: The next full snapshot is due then, and looks at the frozen layers; 0: look
            at them in the next save.
    """

    id: SnapshotId
    notes: tuple[str, ...]
    stored_bytes: int
    is_reduced: bool
    frozen_until_ns: int = 0


class Saver:
    """Saves states to one store.

    Args:
        store_path: The store.
        clock: Gives the time.
    """

    def __init__(self, store_path: str, clock: Clock) -> None:
        self._store_path = store_path
        self._clock = clock
        self._keeper = Keeper(clock)

    def save(
        self,
        request: MemoryRequest,
        channel: str,
        rules: Rules,
        layers: Sequence[Layer] = (),
        *,
        copied_frozen: bool = True,
    ) -> Saved:
        """Commit a state, then remove what is too old.

        If the disk is full, a prune makes room, and the oldest snapshot of the channel goes if this
        save would remove it anyway. If a snapshot went, this tries the state again. If a full state
        still does not fit, this saves its weights alone. Layers that were committed stay as an
        incomplete snapshot until the next save.

        Raises:
            StoreFullError: The weights do not fit either. What the attempt has written is removed.
            StoreError: The store failed.
        """
        save = partial(
            self._save, channel=channel, rules=rules, layers=layers, copied_frozen=copied_frozen
        )
        try:
            return save(request)
        except StoreFullError:
            has_removed = self._make_room(request, channel, rules)
        if has_removed:
            with contextlib.suppress(StoreFullError):
                return save(request)
            self._make_room(request, channel, rules)
        try:
            if channel != FULL:
                return save(request)
            saved = save(_reduced(request), channel=FULL)
        except StoreFullError:
            self._make_room(request, channel, rules)
            raise
        note = f"the disk is full: {saved.id} has the weights of the state alone"
        return replace(saved, notes=(note, *saved.notes), is_reduced=True)

    def _save(
        self,
        request: MemoryRequest,
        *,
        channel: str,
        rules: Rules,
        layers: Sequence[Layer],
        copied_frozen: bool,
    ) -> Saved:
        run, overdue, until_ns = run_of(request.tags), None, 0
        # Others may add at the same time, so nothing is removed here in a directory.
        with Sessions(self._open_to_add) as sessions:
            report, notes = take_in_order(
                sessions, request, layers, copied_frozen=copied_frozen, clock=self._clock
            )
            notes += [note.what for note in report.notes]
            looks_again = report.kind == FULL_KIND and not copied_frozen
            try:
                if any(layer.frozen for layer in layers) and not looks_again:
                    until_ns = next_full_ns(sessions.store, request, self._clock)
                if sessions.store.bucket is not None:
                    self._keeper.keep(
                        sessions.store, channel, rules, run, begin_next=sessions.begin_next
                    )
                else:
                    overdue = self._keeper.overdue(sessions.store, channel, rules, run)
            except (CiuicError, OSError, MemoryError) as error:
                notes.append(_not_removed(report.id, error))
        if overdue is not None:
            try:
                remove_older(self._store_path, self._keeper, channel, rules, run, overdue=overdue)
            except (CiuicError, OSError, MemoryError) as error:
                notes.append(_not_removed(report.id, error))
        return Saved(report.id, tuple(notes), report.stored_bytes, False, until_ns)

    def _make_room(self, request: MemoryRequest, channel: str, rules: Rules) -> bool:
        """Remove the data that no snapshot needs; returns whether data of a snapshot was removed.

        A failure here is not raised: the caller raises that the disk is full.
        """
        with (
            contextlib.suppress(CiuicError),
            open_at_address(self._store_path, os.environ, write=True, wait_s=_LOCK_WAIT_S) as store,
        ):
            return self._keeper.make_room(store, channel, rules, run_of(request.tags))
        return False

    def _open_to_add(self, wait_s: float) -> contextlib.AbstractContextManager[Store]:
        return open_at_address(
            self._store_path, os.environ, write=True, only_adds=True, wait_s=wait_s
        )


def _not_removed(saved: SnapshotId, error: BaseException) -> str:
    return f"{saved} was saved, but older ones could not be removed: {error}"


def _reduced(request: MemoryRequest) -> MemoryRequest:
    """Return a request for the weights of a full state."""
    contents = {os.fsdecode(file.path): file for file in request.files}
    directory = "" if STATE_NAME in contents else rank_directory(0)
    document = json.loads(b"".join(contents[directory + STATE_NAME].parts))
    reduced, names = weights_alone(document)
    files: Sequence[MemoryFile] = [
        MemoryFile(os.fsencode(directory + STATE_NAME), (encoded(reduced),)),
        *[contents[directory + name] for name in sorted(names)],
    ]
    return replace(request, files=tuple(files), tags=reduced_tags(request.tags))

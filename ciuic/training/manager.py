"""``SnapshotManager``: the library's calls."""

import atexit
import contextlib
import os
import sys
import threading
import warnings
import weakref
from typing import Any, Final, Literal, Self

from ciuic.catalog import damaged_manifests
from ciuic.errors import CiuicError, CorruptionError, UnknownFormatError, UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.store.directory.create import create_store
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store, open_store
from ciuic.system.clock import SystemClock
from ciuic.training import rng
from ciuic.training.cadence import Cadence
from ciuic.training.capture import stage
from ciuic.training.client import WriterProcess
from ciuic.training.finding import (
    FULL,
    WEIGHTS,
    SavedSnapshot,
    find_saved,
    saved_snapshots,
    tags_of,
)
from ciuic.training.handle import SaveHandle
from ciuic.training.loading import LoadedState, load
from ciuic.training.objects import load_into, state_of
from ciuic.training.staging import StagingBuffer

__all__ = ["SnapshotManager"]

Channel = Literal["full", "weights"]
_MODEL: Final = "model_state_dict"
_OPTIMIZER: Final = "optimizer_state_dict"
_managers: "weakref.WeakSet[SnapshotManager]" = weakref.WeakSet()


class SnapshotManager:
    """Saves the state of a training program to a store, and loads it.

    A save copies the state and returns. Another process stores the copy, and finishes even if this
    program is killed. A failure of a save is raised by the next call, and by its handle. Not for
    several threads at once.

    Args:
        save_dir: The store's directory; it is created if it is missing.
        interval: For ``step``: seconds, ``"1h"`` or ``"500 steps"`` between full states.
        max_snapshots: Snapshots that stay in each channel; pinned ones are not counted.
        full_every: For ``step``: number of steps between two saves of the full state.
        weights_every: For ``step``: number of steps between two saves of the weights alone.

    Raises:
        UsageError: An argument makes no sense.
        StoreError: The store can't be created or used.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        interval: float | str | None = None,
        max_snapshots: int = 10,
        *,
        full_every: int | None = None,
        weights_every: int | None = None,
    ) -> None:
        path = os.fspath(save_dir)
        if is_url(path):
            # Not quoted: a URL may hold a password.
            raise UsageError(
                "save_dir is a URL, and a store has to be in a directory of this machine",
                hint="Give save_dir the path of a directory.",
            )
        if type(max_snapshots) is not int or max_snapshots < 1:
            raise UsageError(f"max_snapshots={max_snapshots!r} is not a number from 1 on")
        self._clock = SystemClock()
        self._cadence = Cadence(interval, full_every, weights_every, self._clock.monotonic_s())
        self._keep_count = max_snapshots
        self._path = os.path.abspath(path)
        create_store(self._path, self._clock)
        self._process_id = os.getpid()
        self._lock = threading.RLock()
        self._buffer = StagingBuffer()
        self._writer: WriterProcess | None = None
        self._under_way: SaveHandle | None = None
        self._is_closed = False
        _managers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # The program's own error must not be replaced by one of a save.
            _close_loudly(self)

    def save_snapshot(
        self,
        model: object,
        optimizer: object = None,
        epoch: object = None,
        *,
        step: int | None = None,
        scheduler: object = None,
        scaler: object = None,
        dataloader: object = None,
        metrics: object = None,
        extra: object = None,
        channel: Channel = "full",
        wait: bool = False,
    ) -> SaveHandle:
        """Copy a state, and begin to store it. The state may change when this returns.

        A save that is under way is waited for. The full state includes the random number
        generators of Python, numpy and torch.

        Args:
            model: An object with ``state_dict``, or a dict of objects, tensors and arrays.
            optimizer: The same.
            epoch: The epoch.
            step: The step.
            scheduler: As ``model``; saved with the full state, as are all that follow.
            scaler: As ``model``.
            dataloader: As ``model``.
            metrics: Any value of numbers, text, arrays and containers.
            extra: The same.
            channel: ``full``, or ``weights``: only the model, the epoch, the step and the metrics.
            wait: Return when the snapshot is durable.

        Raises:
            TypeError: A value can't be stored; the message names it. Nothing is saved.
            CiuicError: An earlier save has failed, or with ``wait`` this one. After the failure of
                an earlier save, this one has not begun.
        """
        if channel not in {FULL, WEIGHTS}:
            raise UsageError(f"channel={channel!r} is neither 'full' nor 'weights'")
        with self._lock:
            self._settle()
            sections: dict[str, object] = {_MODEL: state_of(model, "model")}
            sections |= {"epoch": epoch, "step": step, "metrics": metrics}
            if channel == FULL:
                for name, value in {
                    "optimizer": optimizer,
                    "scheduler": scheduler,
                    "scaler": scaler,
                    "dataloader": dataloader,
                }.items():
                    if value is not None:
                        sections[f"{name}_state_dict"] = state_of(value, name)
                sections |= {"extra": extra, "rng": rng.capture()}
            handle = self._begin(sections, channel, tags_of(channel, epoch, step))
        if wait:
            handle.wait()
        return handle

    def should_save(self, step: int) -> Channel | None:
        """Return the channel to save at a step by the rules of the constructor; None: not now.

        Each call counts as this step: ``step`` calls it.
        """
        if not self._cadence.has_rule:
            raise UsageError(
                "this SnapshotManager has no rule when to save",
                hint="Give interval, full_every or weights_every, or call save_snapshot.",
            )
        due = self._cadence.due(step, self._clock.monotonic_s())
        return None if due is None else "full" if due == FULL else "weights"

    def step(
        self, step: int, model: object, optimizer: object = None, epoch: object = None, **more: Any
    ) -> SaveHandle | None:
        """Save if it is due; call it after every step. Arguments: see ``save_snapshot``."""
        channel = self.should_save(step)
        if channel is None:
            return None
        return self.save_snapshot(model, optimizer, epoch, step=step, channel=channel, **more)

    def load_latest_snapshot(
        self,
        *,
        channel: Channel | None = None,
        model: object = None,
        optimizer: object = None,
        map_location: object = None,
        strict: bool = True,
    ) -> LoadedState | None:
        """Load the newest undamaged snapshot; every byte is checked.

        Args:
            channel: Only snapshots of this channel; None: of ``full``, else of ``weights``.
            model: Also load the model's state into this object.
            optimizer: Also load the optimizer's state into this object.
            map_location: The device for tensors of torch; None: the CPU.
            strict: See ``torch.nn.Module.load_state_dict``.

        Returns:
            The state; None if the store has no snapshot of the library.

        Raises:
            CorruptionError: There are snapshots, and all are damaged.
            CiuicError: An earlier save has failed, or the store can't be read.
        """
        with self._lock, self._reading() as store:
            saved = saved_snapshots(store)
            channels = [channel] if channel is not None else [FULL, WEIGHTS]
            candidates = [found for name in channels for found in saved if name in found.tags]
            skipped = dict(damaged_manifests(store))
            for summary in candidates:
                try:
                    state = _load(store, summary, skipped, map_location)
                except (CorruptionError, UnknownFormatError) as error:
                    skipped[summary.id] = error.message
                    continue
                _fill(state, model, optimizer, strict=strict)
                return state
            if not skipped:
                return None
            first, what = next(iter(skipped.items()))
            raise CorruptionError(
                f"no snapshot in {self._path} is undamaged; {first}: {what}",
                hint=f"Run 'ciuic --store {self._path} verify --all --checksum'.",
            )

    def load_snapshot(
        self,
        ref: int | str,
        *,
        model: object = None,
        optimizer: object = None,
        map_location: object = None,
        strict: bool = True,
    ) -> LoadedState:
        """Load the snapshot of a step, tag, ID, prefix of an ID, or time; every byte is checked.

        Raises:
            SnapshotNotFoundError: There is none.
            CorruptionError: It is damaged.
        """
        with self._lock, self._reading() as store:
            state = _load(store, find_saved(store, ref), {}, map_location)
        _fill(state, model, optimizer, strict=strict)
        return state

    def list(self) -> "list[SavedSnapshot]":
        """Return the snapshots of the library in the store, newest first."""
        with self._lock, self._reading() as store:
            return [SavedSnapshot.of(summary) for summary in saved_snapshots(store)]

    def verify(self, ref: int | str | None = None) -> dict[str, Any]:
        """Read and check every byte of a snapshot, or of all of them, in the other process.

        Returns:
            The document of ``ciuic verify --json``: ``ok`` says whether all is well.
        """
        with self._lock:
            snapshot_id = None if ref is None else self._id_of(ref)
            answer = self._ask({"do": "verify", "id": snapshot_id}).result()
        report: dict[str, Any] = answer["report"]
        return report

    def pin(self, ref: int | str, *, pinned: bool = True) -> SnapshotId:
        """Pin a snapshot, so that it is never removed, or remove its pin; returns its ID."""
        with self._lock:
            snapshot_id = self._id_of(ref)
            self._ask({"do": "pin", "id": snapshot_id, "pinned": pinned}).result()
        return snapshot_id

    def wait(self) -> SnapshotId | None:
        """Wait until the save that is under way is durable; returns its ID, None without a save.

        Raises:
            CiuicError: It failed.
        """
        with self._lock:
            return self._settle()

    def close(self) -> None:
        """Wait for the save that is under way, and end the other process; harmless twice.

        Raises:
            CiuicError: The save failed.
        """
        with self._lock:
            if self._is_closed or os.getpid() != self._process_id:
                return
            try:
                self._settle()
            finally:
                self._is_closed = True
                if self._writer is not None:
                    self._writer.close()
                self._buffer.close()

    def _settle(self) -> SnapshotId | None:
        """Wait for the save under way, and raise its failure if no call has raised it yet."""
        self._check_usable()
        handle, self._under_way = self._under_way, None
        if handle is None:
            return None
        if handle.was_raised:
            return None
        snapshot_id = handle.wait()
        for note in handle.notes():
            warnings.warn(f"ciuic: {note}", RuntimeWarning, stacklevel=3)
        return snapshot_id

    def _check_usable(self) -> None:
        if os.getpid() != self._process_id:
            raise UsageError(
                "this SnapshotManager belongs to the process that made it",
                hint="Make one in each process.",
            )
        if self._is_closed:
            raise UsageError("this SnapshotManager is closed", hint="Make a new one.")

    def _begin(
        self, sections: dict[str, object], channel: str, tags: tuple[str, ...]
    ) -> SaveHandle:
        taken_ns = self._clock.now_ns()
        files = stage(sections, self._buffer)
        request = {
            "do": "save",
            "files": [[file.name, file.parts] for file in files],
            "taken_ns": taken_ns,
            "tags": tags,
            "channel": channel,
            "keep_count": self._keep_count,
        }
        self._under_way = handle = SaveHandle(self._ask(request))
        if channel == FULL:
            self._cadence.saved_full(self._clock.monotonic_s())
        return handle

    def _ask(self, request: dict[str, Any]) -> Any:
        """Send a request to the other process; start it, or start it again after its death."""
        if self._writer is not None and not self._writer.is_alive:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writer = WriterProcess(self._path, self._buffer.fd)
        return self._writer.ask(request)

    def _reading(self) -> "contextlib.AbstractContextManager[Store]":
        self._settle()
        return open_store(self._path)

    def _id_of(self, ref: int | str) -> SnapshotId:
        with self._reading() as store:
            return find_saved(store, ref).id


def _load(
    store: Store,
    summary: SnapshotSummary,
    skipped: dict[SnapshotId, str],
    map_location: object,
) -> LoadedState:
    def place(tensor: Any) -> Any:
        return tensor if map_location is None else tensor.to(map_location)

    return load(store, summary, skipped=skipped, place=place)


def _fill(state: LoadedState, model: object, optimizer: object, *, strict: bool) -> None:
    """Load a state into the objects that the caller gave."""
    for target, key, is_strict in ((model, _MODEL, strict), (optimizer, _OPTIMIZER, True)):
        if target is None:
            continue
        if key not in state:
            raise UsageError(
                f"{state.snapshot_id} has no {key}: it holds the weights alone",
                hint="Load a snapshot of the channel 'full'.",
            )
        load_into(target, state[key], strict=is_strict, name=key.removesuffix("_state_dict"))


def _close_loudly(manager: SnapshotManager) -> None:
    """Close a manager, and write its failure to stderr: there is no call left to raise it."""
    try:
        manager.close()
    except CiuicError as error:
        sys.stderr.write(f"ciuic: the last save failed: {error.message}\n")


@atexit.register
def _close_all() -> None:
    for manager in list(_managers):
        _close_loudly(manager)

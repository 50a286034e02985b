"""The saves of one manager: the writer's process, its shared memory, and the save under way."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ciuic.errors import BusyError, CiuicError, ReadOnlyError, StoreFullError, UsageError
from ciuic.ids import SnapshotId
from ciuic.system.clock import Clock
from ciuic.training.client import WriterProcess
from ciuic.training.completeness import warn_program
from ciuic.training.handle import SaveHandle
from ciuic.training.layers.groups import Layer
from ciuic.training.loading.state import LoadedState
from ciuic.training.preemption import Preemption
from ciuic.training.ranks.client import RankClient
from ciuic.training.ranks.job import Job
from ciuic.training.staging.buffer import StagingBuffer
from ciuic.training.staging.stage import Stager
from ciuic.training.values.arguments import shown

__all__ = ["Saves", "check_if_busy"]

_IN_BACKGROUND: Final = frozenset(["save", "part", "give-up", "publish"])
"""Requests whose answers this program need not wait for."""


def check_if_busy(if_busy: str, ranks: str | None) -> None:
    """Check the argument ``if_busy`` of a manager.

    Raises:
        UsageError: It is neither ``wait`` nor ``skip``, or it is ``skip`` with ranks.
    """
    if not isinstance(if_busy, str) or if_busy not in {"wait", "skip"}:
        raise UsageError(
            f"if_busy={shown(if_busy)} is neither 'wait' nor 'skip'",
            hint="Give if_busy='wait', or 'skip' to save nothing while a save is under way.",
        )
    if if_busy == "skip" and ranks is not None:
        raise UsageError(
            "if_busy='skip' cannot be combined with ranks: they would skip different steps",
            hint="Leave it out, and save less often.",
        )


class Saves:
    """Copies states for the writer's process, one at a time.

    A warning points at the line of the user's program that called the manager.

    Args:
        store_path: The store.
        job: Which of several ranks this is; None: there are no others.
        clock: Gives the time.
        layers: The groups of the model's parameters.
        if_busy: What ``check_if_busy`` has accepted.
        pickle_leaves: What ``check_pickle_leaves`` has returned.

    Raises:
        StoreError: The other ranks cannot be reached.
    """

    def __init__(
        self,
        store_path: str,
        job: Job | None,
        clock: Clock,
        layers: Sequence[Layer] = (),
        *,
        if_busy: str = "wait",
        pickle_leaves: Sequence[str] = (),
    ) -> None:
        self._skips = if_busy == "skip"
        self._path = store_path
        self._job = job
        self._clock = clock
        self._process_id = os.getpid()
        self._buffer = StagingBuffer()
        self._stager = Stager(self._buffer, layers, pickle_leaves)
        self._writer: WriterProcess | RankClient | None = None
        self._next: RankClient | None = None
        """Takes the place of a loose one that is still waited for."""
        self._under_way: SaveHandle | None = None
        self._loaded: SnapshotId | None = None
        self._frozen_until_ns = 0
        self._is_closed = False
        self._listener = job.listen(clock) if job is not None and job.rank == 0 else None
        if job is not None:
            # Now: the other ranks wait for it, and a rank that is missing is noticed early.
            self._writer = self._connected()

    @property
    def is_over(self) -> bool:
        """These saves are closed, or belong to the process that this one was forked from."""
        return self._is_closed or os.getpid() != self._process_id

    @property
    def writer_pid(self) -> int | None:
        """The writer's process; None: none was started."""
        return None if self._writer is None else self._writer.pid

    def begin(
        self, take: Callable[[], dict[str, object]], request: Mapping[str, Any]
    ) -> SaveHandle:
        """Copy a state, and ask the writer to store it. No save may be under way.

        Args:
            take: Returns the state; see ``Stager.stage``. Empty: this rank has none.
            request: The fields of the request besides the files.

        Raises:
            TypeError: A value cannot be stored; the message names it.
            ResourceError: There is not enough memory.
        """
        try:
            sections = take()
            copies_frozen = self._clock.now_ns() >= self._frozen_until_ns
            files = self._stager.stage(sections, copies_frozen=copies_frozen) if sections else []
        except BaseException as error:
            self.give_up(request["label"], error)
            raise
        written = [[file.name, file.parts] for file in files]
        do = "save" if self._job is None or self._job.rank == 0 else "part"
        more = {"follows": self._loaded, "copied_frozen": self._stager.has_copied_frozen}
        writer, answer = self._send({"do": do, "files": written, **more, **request})
        self._under_way = handle = SaveHandle(answer, writer.hurry)
        # Only now: from here on, the next save waits for this one before it uses the memory.
        writer.is_loose = False
        self._loaded = None
        writer.stand_back()
        return handle

    def give_up(self, label: Sequence[object], error: BaseException) -> None:
        """Tell the other ranks, if there are any, that this one saves nothing at a step.

        They would wait for a part that never comes.

        Args:
            label: The step and the channel.
            error: Why.
        """
        if self._job is not None:
            self.ask({"do": "give-up", "label": label, "why": str(error)})

    def wait_for_turn(self, urgent: Preemption | None, *, wait: bool) -> SaveHandle | None:
        """Wait for the save under way, so that another one can begin.

        Args:
            urgent: The signal that asks for the next save; None: no signal does.
            wait: The next save must not be left out.

        Returns:
            The save that stands for the next one; None: that can begin.
        """
        if urgent is not None:
            return self.settle_in_grace(urgent)
        if not wait and (skipped := self._skipped()) is not None:
            return skipped
        self.go_on()
        return None

    def _skipped(self) -> SaveHandle | None:
        """Return the handle of a save that is left out, because another one is under way.

        None: no save is under way, or saves wait for each other.
        """
        self._check_usable()
        if not self._skips or self._under_way is None or self._under_way.done:
            return None
        return _left_out("Save less often, or leave out if_busy='skip': then the save waits.")

    def loaded(self, state: LoadedState | None) -> LoadedState | None:
        """Note for the next save which state the program goes on from; returns it."""
        if state is not None:
            self._loaded = state.snapshot_id
        return state

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request to the other process; start it, or start it again after its death.

        Returns:
            A future of the answer.
        """
        self._check_usable()
        writer, answer = self._send(request)
        writer.is_loose = False
        return answer

    # Any: a future of values of JSON.
    def _send(self, request: dict[str, Any]) -> tuple[WriterProcess | RankClient, Any]:
        """Send a request; see ``ask``. The caller takes ``is_loose`` of the process back."""
        self._let_go_of_loose()
        if self._writer is not None and not self._writer.is_alive:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writer = self._connected()
        elif request["do"] not in _IN_BACKGROUND:
            self._writer.hurry()
        return self._writer, self._writer.ask(request)

    def _let_go_of_loose(self, timeout_s: float | None = None) -> None:
        """After an exception while a request was sent, wait until it is finished.

        The writer finishes what it was asked whole, and reads the shared memory until then.

        Raises:
            TimeoutError: The writer still does.
        """
        writer = self._writer
        if writer is None or not writer.is_loose:
            return
        # First: rank 0 takes a rank that has no connection for one that has ended.
        is_rank = isinstance(writer, RankClient) and writer.is_alive
        if is_rank and self._job is not None and self._next is None:
            self._next = RankClient(self._job, self._buffer.fd, self._clock)
        writer.close(timeout_s)
        if not writer.has_ended:
            raise TimeoutError("the save that an exception ended is still under way")
        self._writer, self._next = self._next, None

    def settle(self, timeout_s: float | None = None) -> SnapshotId | None:
        """Wait for the save under way, and raise its failure if no call has raised it yet.

        Returns:
            The snapshot; None if no save was under way.

        Raises:
            TimeoutError: The save is still under way.
            CiuicError: It failed.
        """
        self._check_usable()
        self._let_go_of_loose(timeout_s)
        handle = self._under_way
        if handle is None:
            return None
        handle.wait_done(timeout_s)
        self._under_way = None
        self._frozen_until_ns = handle.frozen_until_ns
        if handle.was_raised:
            return None
        snapshot_id = handle.wait()
        for note in handle.notes():
            warn_program(note)
        return snapshot_id

    def go_on(self) -> None:
        """Wait for the save under way; warn if the disk is full or read-only.

        Raises:
            CiuicError: It failed for another reason.
        """
        try:
            self.settle()
        except (StoreFullError, ReadOnlyError) as error:
            warn_program(f"a state was not saved: {error.message}")

    def settle_in_grace(self, preemption: Preemption) -> SaveHandle | None:
        """Wait for the save under way, at most until the program may be killed.

        A failure is a warning: this raises nothing.

        Returns:
            The save that is still under way, or a handle that says so; None: none is.
        """
        try:
            self.settle(preemption.remaining_s())
        except TimeoutError:
            warn_program(
                "the grace period ends before the save is durable; it goes on in another process"
            )
            # An exception may have ended that save before it had a handle.
            return self._under_way or _left_out("Save again, or give the program more time.")
        except CiuicError as error:
            # Raising would end the program without the save that the signal asked for.
            warn_program(f"a save failed: {error.message}")
        return None

    def close(self, timeout_s: float | None = None) -> None:
        """End the writer's process when it has finished; no save follows. Harmless twice.

        Args:
            timeout_s: The longest wait in seconds; None: no limit. It finishes in any case.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for writer in (self._writer, self._next):
            if writer is not None:
                writer.close(timeout_s)
        if self._listener is not None:
            self._listener.close()
        self._stager.close()
        self._buffer.close()

    def _connected(self) -> WriterProcess | RankClient:
        """Start the writer, or connect to that of rank 0."""
        job = self._job
        if job is None or self._listener is None:
            if job is not None:
                return RankClient(job, self._buffer.fd, self._clock)
            return WriterProcess(self._path, self._buffer.fd)
        ranks = (self._listener.fileno(), job.world_size, job.timeout_s)
        return WriterProcess(self._path, self._buffer.fd, ranks)

    def _check_usable(self) -> None:
        if os.getpid() != self._process_id:
            raise UsageError(
                "this SnapshotManager belongs to the process that made it",
                hint="Make one in each process.",
            )
        if self._is_closed:
            raise UsageError("this SnapshotManager is closed", hint="Make a new one.")


def _left_out(hint: str) -> SaveHandle:
    """Return the handle of a save that did not begin, because another one is under way."""
    answer: Future[dict[str, Any]] = Future()
    answer.set_exception(
        BusyError("this state was not saved: an earlier save was still under way", hint=hint)
    )
    return SaveHandle(answer)

"""The side of rank 0's writer: collects the parts of the other ranks, and answers them."""

import contextlib
import mmap
import os
import socket
import threading
from typing import Any, Final

from ciuic.errors import StoreError
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.system.clock import Clock
from ciuic.training.ranks.job import rank_directory
from ciuic.training.ranks.wire import Message, peer_user, receive, send

__all__ = ["Label", "RankServer"]

Label = list[Any]
"""The step and the channel of a save: what all its parts must agree on."""

_HELLO_S: Final = 60.0
_LAST_ANSWERS_S: Final = 60.0
_ACCEPT_AGAIN_S: Final = 1.0
_INTACT: Final = "Earlier snapshots are intact."


class _Part:
    """What a rank has handed over, until it is answered."""

    def __init__(self, label: Label, files: tuple[MemoryFile, ...]) -> None:
        self.label, self.files = label, files
        self.is_taken = False
        self.answer: Message | None = None


class RankServer:
    """Collects the parts of the other ranks of a job.

    A part stays usable when its rank has died: the memory belongs to this process as well.

    Args:
        listener: The socket on which they connect.
        count: The number of ranks, rank 0 included.
        timeout_s: How long to wait for a rank.
        clock: Gives the time.

    Attributes:
        directory: The directory of rank 0's files below the root, as a prefix of their names.
    """

    def __init__(self, listener: socket.socket, count: int, timeout_s: float, clock: Clock) -> None:
        self._listener = listener
        self._count = count
        self.directory = rank_directory(0) if count > 1 else ""
        self._timeout_s = timeout_s
        self._clock = clock
        self._parent = os.getppid()
        self._changed = threading.Condition()
        self._parts: dict[int, _Part] = {}
        self._connected: dict[int, socket.socket] = {}
        self._ended: set[int] = set()
        self._refused: dict[int, tuple[Label, str]] = {}
        self._late: dict[int, tuple[Label, str]] = {}
        self._published: dict[int, Message] = {}
        self._open_count = 0
        self._is_over = False
        threading.Thread(target=self._accept, name="ciuic-ranks", daemon=True).start()

    def collect(self, label: Label) -> list[MemoryFile]:
        """Wait for the part of each rank; returns their files.

        Raises:
            StoreError: A rank has ended, has failed, saves another step, or does not come. The
                ranks that have come get the same error.
        """
        end_s = self._clock.monotonic_s() + self._timeout_s
        with self._changed:
            while True:
                missing = [rank for rank in range(1, self._count) if not self._has(rank, label)]
                if not missing:
                    break
                why = [text for rank in missing if (text := self._hindrance(rank, label))]
                remaining_s = end_s - self._clock.monotonic_s()
                if not why and remaining_s > 0:
                    self._changed.wait(remaining_s)
                    continue
                raise self._refuse_parts(label, missing, why[0] if why else "")
            taken = [self._parts[rank] for rank in range(1, self._count)]
            for part in taken:
                part.is_taken = True
            self._changed.notify_all()
        return [file for part in taken for file in part.files]

    def settle(self, answer: Message) -> None:
        """Answer the ranks whose parts were collected."""
        with self._changed:
            for rank, part in list(self._parts.items()):
                if part.is_taken:
                    self._finish(rank, answer)

    def refuse(self, label: Label, why: str) -> None:
        """Refuse the parts of a save, now and later, because rank 0 cannot save its own state."""
        with self._changed:
            missing = [rank for rank in range(1, self._count) if not self._has(rank, label)]
            self._refuse_parts(label, missing, f"rank 0 could not save its state: {why}")

    def publish(self, number: int, message: Message) -> None:
        """Set the snapshot that all ranks load when they load for the ``number``-th time."""
        with self._changed:
            self._published[number] = message
            self._changed.notify_all()

    def close(self) -> None:
        """Answer all open requests of the ranks, because this process ends. Waits up to 60 s."""
        with self._changed:
            self._is_over = True
            for rank, part in list(self._parts.items()):
                message = f"rank 0 ended before it saved step {part.label[0]}"
                self._finish(rank, _written(StoreError(message, hint=_INTACT)))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open_count == 0, _LAST_ANSWERS_S)

    def _has(self, rank: int, label: Label) -> bool:
        return rank in self._parts and self._parts[rank].label == label

    def _hindrance(self, rank: int, label: Label) -> str:
        """Return why the part of a rank will not come; empty: it may still come."""
        if rank in self._parts:
            other = self._parts[rank].label
            return (
                f"rank {rank} saves step {other[0]} ({other[1]}) while rank 0 saves"
                f" step {label[0]} ({label[1]})"
            )
        if rank in self._refused and self._refused[rank][0] == label:
            return f"rank {rank} could not save its part: {self._refused[rank][1]}"
        if rank in self._ended:
            return f"rank {rank} ended before it handed over its part of step {label[0]}"
        return ""

    def _refuse_parts(self, label: Label, missing: list[int], why: str) -> StoreError:
        """Refuse the parts of a save that cannot be completed; returns the error to raise."""
        message = why or (
            f"rank {missing[0]} has not handed over its part of step {label[0]} in"
            f" {self._timeout_s:g} s"
        )
        error = StoreError(
            f"{message}; the snapshot was not saved",
            hint=f"{_INTACT} All ranks must save the same steps; the log of that rank may say why"
            " it did not.",
        )
        for rank in missing:
            if not self._hindrance(rank, label):
                self._late[rank] = label, message
            # Reported once: the rank may try this step again.
            self._refused.pop(rank, None)
        for rank, part in list(self._parts.items()):
            # Rank 0 never goes back, so nothing else would answer the part of an earlier step.
            if part.label == label or part.label[0] < label[0]:
                self._finish(rank, _written(error))
        return error

    def _finish(self, rank: int, answer: Message) -> None:
        """Answer a part, and drop it at once: no later save may take it."""
        part = self._parts.pop(rank)
        part.answer, part.files = answer, ()
        self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Most likely no descriptors are left: wait instead of spinning.
                with self._changed:
                    if self._changed.wait_for(lambda: self._is_over, _ACCEPT_AGAIN_S):
                        return
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="ciuic-part", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer the requests of one rank until it ends."""
        rank = 0
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(_HELLO_S)
            # If the program of rank 0 is gone, this process only finishes what it has begun.
            if peer_user(connection) != os.geteuid() or os.getppid() != self._parent:
                return
            hello, _ = receive(connection)
            connection.settimeout(None)
            if hello["count"] != self._count or not 0 < hello["rank"] < self._count:
                refusal = StoreError(
                    f"rank {hello['rank']} of {hello['count']} does not belong to the"
                    f" {self._count} ranks of rank 0",
                    hint="Start all ranks with one torchrun.",
                )
                send(connection, _written(refusal))
                return
            rank = hello["rank"]
            with self._changed:
                self._connected[rank] = connection
                self._ended.discard(rank)
                self._late.pop(rank, None)
            send(connection, {"writer": os.getpid()})
            while True:
                request, fd = receive(connection)
                with self._changed:
                    self._open_count += 1
                try:
                    send(connection, self._answer(rank, request, fd))
                finally:
                    with self._changed:
                        self._open_count -= 1
                        self._changed.notify_all()
        with self._changed:
            # A later connection of the same rank may have taken the place of this one.
            if self._connected.get(rank) is connection:
                del self._connected[rank]
                self._ended.add(rank)
                self._changed.notify_all()

    def _answer(self, rank: int, request: Message, fd: int | None) -> Message:
        if request["do"] == "part":
            return self._take(rank, request, fd)
        if request["do"] == "resume":
            return self._resume(rank, request["number"])
        with self._changed:
            if self._late.pop(rank, ([], ""))[0] != request["label"]:
                self._refused[rank] = request["label"], request["why"]
                self._changed.notify_all()
        return {}

    def _take(self, rank: int, request: Message, fd: int | None) -> Message:
        """Keep the part of a rank until it is committed or given up; returns the answer."""
        label: Label = request["label"]
        part = _Part(label, _mapped(rank, request["files"], fd))
        with self._changed:
            late_label, why = self._late.pop(rank, ([], ""))
            if late_label == label:
                return _written(
                    StoreError(
                        f"rank {rank} came too late with its part of step {label[0]}: {why}",
                        hint=f"{_INTACT} A longer rank_timeout waits longer.",
                    )
                )
            self._refused.pop(rank, None)
            if rank in self._parts:
                # Another manager of this rank has taken its place. Nothing else would answer the
                # part of the earlier one, and ``close`` would wait for the answer.
                message = f"rank {rank} has begun another save"
                self._finish(rank, _written(StoreError(message, hint=_INTACT)))
            self._parts[rank] = part
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: part.is_taken or part.answer is not None, self._timeout_s
            )
            if part.is_taken:
                self._changed.wait_for(lambda: part.answer is not None)
            if part.answer is not None:
                return part.answer
            if self._parts.get(rank) is part:
                del self._parts[rank]
        return _written(
            StoreError(
                f"rank 0 has not saved step {label[0]} in {self._timeout_s:g} s; the snapshot was"
                " not saved",
                hint=f"{_INTACT} All ranks must save the same steps.",
            )
        )

    def _resume(self, rank: int, number: int) -> Message:
        with self._changed:
            self._changed.wait_for(
                lambda: number in self._published or self._is_over, self._timeout_s
            )
            if number in self._published:
                return self._published[number]
            if self._is_over:
                return _written(
                    StoreError("rank 0 ended before it chose a snapshot to load", hint=_INTACT)
                )
        return _written(
            StoreError(
                f"rank 0 has not told rank {rank} in {self._timeout_s:g} s which snapshot to load",
                hint="All ranks must call the loading methods equally often.",
            )
        )


def _mapped(rank: int, files: list[Any], fd: int | None) -> tuple[MemoryFile, ...]:
    """Return the files of a part, in the memory that a rank shares.

    Raises:
        ValueError: The rank sent no descriptor.
    """
    if fd is None:
        raise ValueError("no descriptor")
    try:
        size_bytes = os.fstat(fd).st_size
        shared = mmap.mmap(fd, size_bytes, access=mmap.ACCESS_READ) if size_bytes else b""
    finally:
        os.close(fd)
    memory = memoryview(shared)
    return tuple(
        [
            MemoryFile(
                os.fsencode(f"{rank_directory(rank)}{name}"),
                tuple([memory[begin : begin + length] for begin, length in parts]),
            )
            for name, parts in files
        ]
    )


def _written(error: StoreError) -> Message:
    return {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}

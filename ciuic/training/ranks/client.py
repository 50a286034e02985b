"""The side of a rank that does not commit: hands its part to the writer of rank 0."""

import contextlib
import os
import socket
import threading
from collections import deque
from concurrent.futures import Future
from typing import Final

from ciuic.errors import ResourceError, StoreError, UsageError
from ciuic.system.clock import Clock
from ciuic.system.priority import set_session_nice
from ciuic.system.workers.threads import start
from ciuic.training.client import error_of, settle
from ciuic.training.ranks.job import Job
from ciuic.training.ranks.wire import Message, peer_user, receive, send

__all__ = ["RankClient"]

_RETRY_S: Final = 0.05
_REQUESTS: Final = frozenset(["part", "give-up", "resume"])


class RankClient:
    """A connection to the writer of rank 0. Requests are answered in their order.

    Args:
        job: Which rank this is.
        memory_fd: The shared memory with the part of this rank.
        clock: Gives the time.

    Attributes:
        is_loose: See ``WriterProcess``.

    Raises:
        StoreError: Rank 0 cannot be reached.
        ResourceError: No thread can be started to listen to it.
    """

    def __init__(self, job: Job, memory_fd: int, clock: Clock) -> None:
        self._job = job
        self._memory_fd = memory_fd
        # No lock: see ``WriterProcess``.
        self._waiting: deque[Future[Message]] = deque()
        self._is_over = False
        self._has_ended = threading.Event()
        self.is_loose = False
        self._socket, self._writer = self._connect(clock)
        self._listener = threading.Thread(target=self._listen, name="ciuic-rank", daemon=True)
        try:
            start(self._listener)
        except ResourceError:
            self._socket.close()
            raise

    @property
    def pid(self) -> None:
        """None: the writer's process belongs to rank 0."""
        return None

    @property
    def is_alive(self) -> bool:
        """The connection can take requests."""
        return not self._is_over

    @property
    def has_ended(self) -> bool:
        """After ``close`` while it was loose: rank 0's writer reads this rank's memory no more."""
        return self._has_ended.is_set()

    def stand_back(self) -> None:
        """Do nothing: rank 0 does it when it begins a save."""

    def hurry(self) -> bool:
        """Give the writer of rank 0 this program's priority; see ``WriterProcess.hurry``.

        Rank 0 may not wait for this save, and this rank holds up the training of all.
        """
        return self._is_over or set_session_nice(self._writer, 0)

    def ask(self, request: Message) -> "Future[Message]":
        """Send a request; the future gets its answer, or its error.

        Raises:
            UsageError: Only rank 0 can ask this.
        """
        if request["do"] not in _REQUESTS:
            raise UsageError(
                f"rank {self._job.rank} cannot {request['do']} a snapshot",
                hint="Call this method on rank 0.",
            )
        future: Future[Message] = Future()
        self.is_loose = True
        self._waiting.append(future)
        try:
            send(self._socket, request, self._memory_fd if request["do"] == "part" else None)
        except OSError:
            self._fail_all()
        return future

    def close(self, timeout_s: float | None = None) -> None:
        """End the connection; harmless twice. If it is loose, wait for the last answer first.

        Args:
            timeout_s: The longest wait in seconds; None: no limit.
        """
        # Rank 0's writer reads the shared memory until it has answered what it got whole.
        how = socket.SHUT_WR if self.is_loose else socket.SHUT_RDWR
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)
        # Not ``join``: after one that Ctrl-C ends, the next takes the thread for ended.
        self._has_ended.wait(timeout_s)

    def _connect(self, clock: Clock) -> tuple[socket.socket, int]:
        """Connect, and wait until the writer of rank 0 has accepted this rank.

        Returns:
            The connection, and the number of the writer's process.
        """
        job = self._job
        end_s = clock.monotonic_s() + job.timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(max(_RETRY_S, end_s - clock.monotonic_s()))
                connection.connect(f"\0{job.address}")
                user = peer_user(connection)
                if user != os.geteuid():
                    raise StoreError(f"rank 0 runs as another user, {user}")
                send(connection, {"rank": job.rank, "count": job.world_size})
                answer, _ = receive(connection)
            except (OSError, ValueError) as error:
                connection.close()
                if clock.monotonic_s() < end_s:
                    clock.sleep(_RETRY_S)
                    continue
                raise StoreError(
                    f"rank {job.rank} has not reached rank 0 in {job.timeout_s:g} s: {error}",
                    hint="All ranks need ranks='torchrun' and the same save_dir and run, and must"
                    " run on one machine in one network namespace. The log of rank 0 may say why"
                    " it ended.",
                ) from error
            except BaseException:
                connection.close()
                raise
            if "error" in answer:
                connection.close()
                raise error_of(answer["error"])
            connection.settimeout(None)
            return connection, answer["writer"]

    def _listen(self) -> None:
        try:
            with self._socket, contextlib.suppress(OSError, ValueError):
                while True:
                    answer, _ = receive(self._socket)
                    settle(self._waiting.popleft(), answer)
        finally:
            self._fail_all()
            self._has_ended.set()

    def _fail_all(self) -> None:
        self._is_over = True
        while self._waiting:
            try:
                future = self._waiting.popleft()
            except IndexError:  # the other thread has taken it
                break
            future.set_exception(
                StoreError(
                    f"rank {self._job.rank} has lost the process that commits for rank 0; this"
                    " save is not known to be durable",
                    hint="Earlier snapshots are intact. The log of rank 0 may say why it ended.",
                )
            )

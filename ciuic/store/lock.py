"""Locks: flock(2) on files of the store. They end with the process that holds them.

``lock.write``: held alone by whoever changes the store. ``lock.read``: shared by readers; kept for
changes that no reader could stand beside, of which there are none yet. A lock that can't even be
opened because the store is on a read-only mount is not needed either: nobody can write there.
"""

import contextlib
import errno
import fcntl
import os

from ciuic.clock import SystemClock
from ciuic.errors import BusyError
from ciuic.store.faults import store_faults

__all__ = ["Lock"]

_POLL_S = 0.05


class Lock:
    """One lock file, open or held."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def take_alone(self, wait_s: float = 0.0) -> None:
        """Hold the lock alone, waiting up to ``wait_s`` for others to let go.

        Raises:
            BusyError: Others still hold it; names the process if that is known.
            StoreError: The lock file can't be made.
        """
        with store_faults("lock", self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic_s() < deadline_s:
                    clock.sleep(_POLL_S)
                    continue
                holder = _holder(fd)
                os.close(fd)
                store = os.path.dirname(self.path)
                raise BusyError(f"the store {store} is in use{holder}") from None
        self._fd = fd
        # Whose lock it is only serves a message; a full disk must not keep anybody from it.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def take_shared(self) -> None:
        """Hold the lock beside other readers; waits for nobody who only adds.

        Raises:
            BusyError: A later version is doing something that nobody may read beside.
        """
        with store_faults("lock", self.path):
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.EACCES, errno.EPERM}:
                    return
                raise
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BusyError(f"the store {os.path.dirname(self.path)} is being changed") from None
        self._fd = fd

    def release(self) -> None:
        """Let go; harmless when it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    return f" by process {int(text)}" if text.isdigit() else ""

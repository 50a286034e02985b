"""Locks: flock(2) on files of the store. A lock ends with the process that holds it.

``lock.write`` is exclusive: a process that changes the store holds it. ``lock.read`` is shared by
readers, and is meant for changes that exclude readers, which no version of ciuic makes yet. On a
read-only mount a lock file can't be opened, and no lock is needed: no process can write there.
"""

import contextlib
import errno
import fcntl
import os

from ciuic.errors import BusyError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_or_create, open_regular
from ciuic.system.clock import SystemClock

__all__ = ["Lock"]

_POLL_S = 0.05


class Lock:
    """One lock file, open or held."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def take_alone(self, wait_s: float = 0.0) -> None:
        """Take the lock exclusively; waits up to ``wait_s`` for other processes to release it.

        Raises:
            BusyError: Another process still holds it; the message names it if it is known.
            StoreError: The lock file can't be created.
        """
        with store_faults("lock", self.path):
            fd = open_or_create(self.path)
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
                raise _busy(os.path.dirname(self.path), holder) from None
        self._fd = fd
        # The process ID only serves a message; a full disk must not prevent the lock.
        with contextlib.suppress(OSError):
            # With a second name, this may be a hard link to a user's other file.
            if os.fstat(fd).st_nlink == 1:
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def take_shared(self) -> None:
        """Take the lock together with other readers; writers that only add do not conflict.

        Raises:
            BusyError: A later version of ciuic makes a change that excludes readers.
        """
        with store_faults("lock", self.path):
            try:
                fd = open_regular(self.path)
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
        """Release the lock; harmless if it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> int:
    """Return the process that holds the lock; 0 if it is not known."""
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _busy(store_path: str, holder: int) -> BusyError:
    # Imported here: few commands find the store in use.
    from ciuic.system.processes import is_stopped

    message = f"the store {store_path} is in use{f' by process {holder}' if holder else ''}"
    if holder and is_stopped(holder):
        hint = f"'kill -CONT {holder}' lets it go on; then try again."
        return BusyError(f"{message}, which is stopped", hint=hint)
    return BusyError(message)

"""Locks: flock(2) on files of the store. A lock ends with the process that holds it.

Two locks together keep apart the processes that change a store. A process that removes or replaces
holds both alone. A process that only adds holds ``lock.write`` alone while it opens the store, and
then shares ``lock.add`` with the others that add. ``lock.read`` is shared by readers, and is meant
for changes that exclude readers, which no version of ciuic makes yet. On a read-only mount a lock
file cannot be opened, and no lock is needed: no process can write there.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable

from ciuic.errors import BusyError, CancelledError, StoreError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_or_create, open_regular
from ciuic.store.records import layout
from ciuic.system.clock import SystemClock

__all__ = ["Lock", "WriteLocks"]

_POLL_S = 0.05
_OPENING_S = 2.0
"""How long to wait for a process that opens the store to add to it, if the caller does not wait."""


class Lock:
    """One lock file, open or held.

    Args:
        path: The file.
        of_bucket: The address of the store that the file's directory caches; empty: the store is
            that directory.
    """

    def __init__(self, path: str, of_bucket: str = "") -> None:
        self.path = path
        self._of_bucket = of_bucket
        self._fd = -1

    def take_alone(
        self, wait_s: float = 0.0, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Take the lock exclusively; waits up to ``wait_s`` for other processes to release it.

        Raises:
            BusyError: Another process still holds it; the message names it if it is known.
            CancelledError: ``cancelled`` turned true while another process held it.
            StoreError: The lock file cannot be created.
        """
        _wait_for(self.try_alone, wait_s, lambda: self.busy(self.holder()), cancelled)
        self.sign()

    def try_alone(self) -> bool:
        """Take the lock exclusively, or change a shared lock into that, unless another holds it.

        If a change of the lock fails, this process holds neither.

        Raises:
            StoreError: The lock file cannot be created.
        """
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Share the lock, or change an exclusive lock into that, unless another holds it alone.

        Raises:
            StoreError: The lock file cannot be created.
        """
        return self._try(fcntl.LOCK_SH)

    def _try(self, kind: int) -> bool:
        fd = self._fd
        if fd < 0:
            with store_faults("lock", self.path):
                fd = open_or_create(self.path)
        self._fd = -1
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def sign(self) -> None:
        """Write the ID of this process into the file of the lock, which it holds."""
        # It only serves a message; a full disk must not prevent the lock.
        with contextlib.suppress(OSError):
            # With a second name, this may be a hard link to a user's other file.
            if os.fstat(self._fd).st_nlink == 1:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def holder(self) -> int:
        """Return the process that signed the lock last; 0 if it is not known."""
        with contextlib.suppress(StoreError, OSError):
            fd = open_regular(self.path)
            try:
                text = os.pread(fd, 32, 0).strip()
            finally:
                os.close(fd)
            return int(text) if text.isdigit() else 0
        return 0

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
            raise BusyError(f"the store {self._store} is being changed") from None
        self._fd = fd

    def busy(self, holder: int) -> BusyError:
        """Return the error that says who holds the lock; 0: that is not known."""
        # Imported here: few commands find the store in use.
        from ciuic.system.workers.processes import is_stopped

        here = " of this machine" if self._of_bucket else ""
        by = f" by process {holder}{here}" if holder else here.replace(" of", " on")
        message = f"the store {self._store} is in use{by}"
        if holder and is_stopped(holder):
            hint = f"'kill -CONT {holder}' lets it go on; then try again."
            return BusyError(f"{message}, which is stopped", hint=hint)
        return BusyError(message)

    @property
    def _store(self) -> str:
        return self._of_bucket or os.path.dirname(self.path)

    def release(self) -> None:
        """Release the lock; harmless if it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WriteLocks:
    """The locks of a process that changes a store.

    Args:
        store_path: The store, or the cache directory of one in a bucket.
        of_bucket: See ``Lock``.
    """

    def __init__(self, store_path: str, of_bucket: str = "") -> None:
        self._write = Lock(os.path.join(store_path, layout.WRITE_LOCK), of_bucket)
        self._add = Lock(os.path.join(store_path, layout.ADD_LOCK), of_bucket)
        self._others_add = False

    def take_alone(
        self, wait_s: float = 0.0, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Keep out all other processes that change the store; waits up to ``wait_s`` for them.

        Raises:
            BusyError: Another process still changes it; the message names it if it is known.
            CancelledError: ``cancelled`` turned true while another process changed it.
            StoreError: A lock file cannot be created.
        """
        _wait_for(self.try_alone, wait_s, self._busy, cancelled)

    def try_alone(self) -> bool:
        """Keep out all other processes that change the store, unless there are some.

        Raises:
            StoreError: A lock file cannot be created.
        """
        self._others_add = False
        if not self._write.try_alone():
            return False
        if self._add.try_alone():
            self._write.sign()
            return True
        # Not kept while it waits: a process that only adds would have to wait for it.
        self._write.release()
        self._others_add = True
        return False

    def begin_adding(
        self, wait_s: float = 0.0, cancelled: Callable[[], bool] = lambda: False
    ) -> bool:
        """Keep out all processes except those that are already adding: see ``share``.

        Returns:
            True if there are none.

        Raises:
            BusyError: Another process removes or replaces something, or still opens the store.
            CancelledError: ``cancelled`` turned true while it did.
            StoreError: A lock file cannot be created.
        """
        try:
            self._write.take_alone(wait_s, cancelled)
        except BusyError:
            if not self._is_opening():
                raise
            self._write.take_alone(_OPENING_S, cancelled)
        # A process that wants ``lock.add`` alone takes ``lock.write`` first, which this process
        # holds. So nothing else can take ``lock.add`` alone now: if it cannot be shared, another
        # process had it before.
        is_alone = self._add.try_alone()
        if not self._add.try_shared():
            raise self._add.busy(self._add.holder())
        self._add.sign()
        return is_alone

    def share(self) -> None:
        """After ``begin_adding``, let other processes add too."""
        self._write.release()

    def release(self) -> None:
        """Release the locks; harmless if they are not held."""
        self._add.release()
        self._write.release()

    def _is_opening(self) -> bool:
        """Return whether the process that is in the way only opens the store, to add to it."""
        is_shared = self._add.try_shared()
        self._add.release()
        return is_shared

    def _busy(self) -> BusyError:
        if not self._others_add:
            return self._write.busy(self._write.holder())
        holder = self._add.holder()
        # The last one to sign may have ended before the others that add.
        return self._add.busy(holder if os.path.exists(f"/proc/{holder}") else 0)


def _wait_for(
    take: Callable[[], bool],
    wait_s: float,
    busy: Callable[[], BusyError],
    cancelled: Callable[[], bool],
) -> None:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + wait_s
    while not take():
        if clock.monotonic_s() >= deadline_s:
            raise busy()
        if cancelled():
            raise CancelledError(f"interrupted while {busy().message}", hint="")
        clock.sleep(_POLL_S)

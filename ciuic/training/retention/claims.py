"""Notice another process that saves the same channel of the same run.

Each of the two would count and remove the other's snapshots. Who saves what is a lock on one byte
of a file of the store, ``lock.runs``. Such a lock (fcntl(2), F_SETLK) belongs to one process: a
worker that a training has forked does not inherit it, nor does the process that stores snapshots,
which may outlive the training. An flock(2) would stay with both. It ends with its process, so a
training that starts again at once is not told of the one that was killed.

So the training's process must ask for the locks. A thread asks: a file system may hang, such as one
on NFS whose server is gone, and the training must not wait for that.
"""

import contextlib
import fcntl
import os
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Final

from ciuic.errors import CiuicError, ResourceError
from ciuic.store.directory.files import open_or_create
from ciuic.store.records import layout
from ciuic.system import nofollow
from ciuic.system.hashing import derived_hash
from ciuic.system.workers.threads import start

__all__ = ["Claims"]

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` of Linux on machines of 64 bits: type, whence, start, length and process."""
_PATIENCE_S: Final = 1.0
"""How long a save waits for the file system. It usually answers in less than a millisecond."""
_closed_count = 0
"""How often this process has closed such a file."""


class Claims:
    """What the managers of this process save in one store.

    Without the right to write to the store, or on a file system without such locks, nothing is
    noticed.

    Args:
        directory: The store's directory, or this machine's directory of a store in a bucket.
        run: The run of the manager; None: the one without a name.
    """

    def __init__(self, directory: str, run: str | None) -> None:
        self._directory = directory
        self._run = run
        self._fd: int | None = None
        self._close: Callable[[], object] = lambda: None
        self._asked: dict[str, int] = {}
        self._asking: threading.Thread | None = None
        self._holder: str | None = None
        self._has_told = False
        self._is_closed = False

    def other(self, channel: str) -> str | None:
        """Claim a channel; returns who else has claimed one, in words, at most once.

        The claim holds until ``close``, or until another manager of this process is closed: only
        then does a further call ask the file system again. If the file system does not answer soon,
        a later call has the answer.
        """
        is_answered = self._asking is None or not self._asking.is_alive()
        if is_answered and self._asked.get(channel) != _closed_count:
            asking = threading.Thread(
                target=self._ask, args=(channel,), name="ciuic-claims", daemon=True
            )
            try:
                start(asking)
            except ResourceError:
                return None  # the save is under way, and must not fail for this
            self._asking, self._asked[channel] = asking, _closed_count
            asking.join(_PATIENCE_S)
        if self._holder is None or self._has_told:
            return None
        self._has_told = True
        return self._holder

    def close(self) -> None:
        """Give up what was claimed; harmless twice."""
        self._is_closed = True
        self._close()

    def _ask(self, channel: str) -> None:
        with contextlib.suppress(CiuicError, OSError):
            fd, place = self._opened(), _place(self._run, channel)
            # A lock for reading, so that the file is open for reading only: a file that is open
            # for writing keeps an administrator from making its file system read-only.
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, place)
            self._holder = _holder(fd, place) or self._holder
        if self._is_closed:
            self._close()

    def _opened(self) -> int:
        if self._fd is None:
            path = os.path.join(nofollow.resolved(self._directory), layout.RUN_LOCK)
            self._fd = fd = open_or_create(path, os.O_RDONLY)
            # Also if the program drops its manager without closing it.
            self._close = weakref.finalize(self, _give_up, fd)
        return self._fd


def _give_up(fd: int) -> None:
    """Close a file of claims: all locks of this process on the same file end with it."""
    global _closed_count  # noqa: PLW0603 - locks belong to the process, and so does this
    os.close(fd)
    _closed_count += 1


def _place(run: str | None, channel: str) -> int:
    """Return the byte whose lock means this channel of this run. The file stays empty."""
    name = f"{channel} {'' if run is None else run}"
    return int.from_bytes(derived_hash("ciuic lock of a run", name.encode())[:7])


def _holder(fd: int, place: int) -> str | None:
    """Return which other process has a lock there, in words; None if no other has."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return None
    # A process of another container has no number here, and one of another machine a wrong one.
    if pid > 0 and os.path.exists(f"/proc/{pid}"):
        return f"process {pid}"
    return "another process"

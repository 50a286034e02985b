"""Locks the directories that a restore fills: a second restore of one waits, or is refused.

Two restores of different snapshots into one directory would leave a mixture of both, and each would
report success. A file needs no lock: it is replaced as a whole, and the later restore counts.

The lock is flock(2) on the directory itself. It leaves no file behind, a process that is killed
releases it, and it needs no right that a restore lacks.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Container, Iterable, Iterator
from typing import Final

from ciuic.errors import CancelledError, ResourceError, TargetError
from ciuic.model import path_text
from ciuic.restore.passes import PARENT_MODE, Run
from ciuic.restore.targets import Target, refuse_existing
from ciuic.source.directory import DirectoryHandle
from ciuic.system.clock import SystemClock
from ciuic.system.limits import raise_open_files_limit

__all__ = ["alone_in"]

_MODE: Final = 0o700
_WAIT_S: Final = 30.0
"""A restore that takes longer is better looked at than waited for."""
_POLL_S: Final = 0.05


@contextlib.contextmanager
def alone_in(run: Run, targets: Iterable[Target]) -> Iterator[Container[bytes]]:
    """Create the targets that are directories, hold a lock on each, and yield what was created.

    A directory that cannot be created or opened is left to the restore, which says why. NFS locks
    only files that are open for writing, so no directory: there, two restores can still mix.

    Args:
        run: The restore.
        targets: Those that are restored whole: a filter may leave nothing of a directory.

    Raises:
        TargetError: Another process has held a lock for too long, or has created a target that may
            not be overwritten; nothing was changed.
        ResourceError: There are too many targets to hold all of them open; nothing was changed.
        CancelledError: The user interrupts; nothing was changed.
    """
    holds = _Holds(run, list(targets))
    try:
        holds.take()
    except BaseException:
        holds.undo()
        raise
    try:
        yield holds.made
    finally:
        holds.release()  # the target's file system may be unmounted next


class _Holds:
    """The locks of one restore, and the directories that it has created for them.

    Attributes:
        made: Paths of the directories.
    """

    def __init__(self, run: Run, targets: list[Target]) -> None:
        self._run = run
        self._targets = targets
        self._clock = SystemClock()
        self._until_s = self._clock.monotonic_s() + _WAIT_S
        self._held: list[DirectoryHandle] = []
        self.made: list[bytes] = []

    def take(self) -> None:
        """Lock all targets. See ``alone_in``."""
        if self._targets:
            raise_open_files_limit()
        while (changed := self._lock_all()) is not None:
            self.release()
            self._pause(changed)

    def release(self) -> None:
        """Release all locks, even if the traceback of an error still refers to the handles."""
        for handle in self._held:
            with contextlib.suppress(OSError):
                fcntl.flock(handle.fd, fcntl.LOCK_UN)
        self._held.clear()

    def undo(self) -> None:
        """Remove what was created, except where another restore is at work by now."""
        self.release()
        for path in reversed(self.made):
            with contextlib.suppress(OSError):
                handle = _open(path)
                if _try(handle):
                    os.rmdir(path)

    def _lock_all(self) -> Target | None:
        """Lock all targets, or return one that another restore created or removed meanwhile."""
        there: dict[tuple[int, int], tuple[DirectoryHandle, Target]] = {}
        missing = []
        for target in self._targets:
            handle = _opened(target)
            if handle is not None:
                status = os.fstat(handle.fd)
                there.setdefault((status.st_dev, status.st_ino), (handle, target))
            elif _is_missing(target.place):
                missing.append(target)
        refuse_existing(self._targets, overwrite=self._run.request.overwrite)
        # In the same order in all restores: two of them never wait for each other.
        for key in sorted(there):
            self._lock(*there[key])
        for target in missing:  # after the wait: what is refused has created nothing
            if not self._create(target):
                refuse_existing([target], overwrite=self._run.request.overwrite)
                return target
        for handle, target in there.values():
            if os.fstat(handle.fd).st_nlink == 0:
                return target
        return None

    def _lock(self, handle: DirectoryHandle, target: Target) -> None:
        while not _try(handle):
            if _is_callers(handle):
                return
            self._pause(target)
        self._held.append(handle)

    def _create(self, target: Target) -> bool:
        """Create a directory, and lock it; False if another restore was faster."""
        try:
            for path in _missing(target.parent):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, PARENT_MODE)
                    self.made.append(path)
            if target.name != b".":
                os.mkdir(target.place, _MODE)
                self.made.append(target.place)
            elif target.parent not in self.made:  # "/" goes into its parent itself
                return False
        except FileExistsError:
            return False
        except OSError:
            return True
        handle = _opened(target)
        if handle is None:
            return True
        if not _try(handle):
            return False
        self._held.append(handle)
        return True

    def _pause(self, target: Target) -> None:
        """Wait a moment for another restore."""
        if self._clock.monotonic_s() >= self._until_s:
            raise _busy(target)
        if self._run.cancelled():
            raise CancelledError("interrupted while another restore is at work", hint="")
        self._clock.sleep(_POLL_S)


def _is_missing(path: bytes) -> bool:
    """Return whether a path does not exist; False if the disk does not say, as after an error."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _missing(path: bytes) -> list[bytes]:
    """Return the directories that are missing on the way to a path, the outermost first."""
    found = []
    while not os.path.isdir(path):
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def _opened(target: Target) -> DirectoryHandle | None:
    """Open a target; None if it is not a directory that this user can read."""
    try:
        return _open(target.place)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise ResourceError(
                f"cannot lock {path_text(target.place)}: too many open files; nothing was changed"
            ) from error
        return None


def _open(path: bytes) -> DirectoryHandle:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return DirectoryHandle(os.open(path, flags), path)


def _try(handle: DirectoryHandle) -> bool:
    """Lock a directory; False if another process has locked it. Some file systems have no lock."""
    try:
        fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_callers(handle: DirectoryHandle) -> bool:
    """Return whether this process was started with the lock, as by ``flock DIR ciuic ...``.

    The locks of this process itself are on descriptors that are closed on exec.
    """
    wanted = os.fstat(handle.fd)
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                fd = int(name)
                if not os.get_inheritable(fd) or not os.path.samestat(os.fstat(fd), wanted):
                    continue
                with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
                    if any({"FLOCK", "WRITE"} <= set(line.split()) for line in file):
                        return True
    return False


def _busy(target: Target) -> TargetError:
    return TargetError(
        f"another restore is at work in {path_text(target.place)}; nothing was changed",
        hint="Wait until it has ended, or choose another place. Another program that has locked the"
        " directory has the same effect: 'fuser' names it.",
    )

"""Locks the directories that a restore fills: a second restore of one waits, or is refused.

Two restores of different snapshots into one directory would leave a mixture of both, and each would
report success. A file needs no lock: it is replaced as a whole, and the later restore counts.

The lock is flock(2) on the directory itself. It leaves no file behind, a process that is killed
releases it, and it needs no right that a restore lacks.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ciuic.errors import CancelledError, TargetError
from ciuic.model import path_text
from ciuic.restore.passes import Run
from ciuic.restore.targets import Target
from ciuic.source.directory import DirectoryHandle
from ciuic.system.clock import SystemClock

__all__ = ["alone_in"]

_MODE: Final = 0o700
_WAIT_S: Final = 30.0
"""A restore that takes longer is better looked at than waited for."""
_POLL_S: Final = 0.05


@contextlib.contextmanager
def alone_in(run: Run, targets: Iterable[Target]) -> Iterator[None]:
    """Create the targets that are directories, and hold a lock on each.

    A directory that cannot be created is left to the restore, which says why. NFS locks only files
    that are open for writing, so no directory: there, two restores can still mix.

    Args:
        run: The restore.
        targets: Those that are restored whole: a filter may leave nothing of a directory.

    Raises:
        TargetError: Another process has held a lock for too long; nothing was restored.
        CancelledError: The user interrupts.
    """
    held = [_locked(target, run.cancelled) for target in targets if _is_there(run, target)]
    try:
        yield
    finally:
        held.clear()  # the target's file system may be unmounted next


def _is_there(run: Run, target: Target) -> bool:
    """Create a directory if it is missing; False if it cannot be created."""
    try:
        parent = run.open_parent(target)
        # Another restore may create it at the same moment.
        with contextlib.suppress(FileExistsError):
            if parent is not None:
                os.mkdir(target.name, _MODE, dir_fd=parent.fd)
    except (TargetError, OSError):
        return False
    return True


def _locked(target: Target, cancelled: Callable[[], bool]) -> DirectoryHandle | None:
    """Return the directory with a lock, or None if it can have none."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    clock = SystemClock()
    until_s = clock.monotonic_s() + _WAIT_S
    try:
        handle = DirectoryHandle(os.open(target.place, flags), target.place)
        while not _try(handle):
            if clock.monotonic_s() >= until_s:
                raise _busy(target)
            if cancelled():
                raise CancelledError("interrupted while another restore is at work", hint="")
            clock.sleep(_POLL_S)
    except OSError:
        return None
    return handle


def _try(handle: DirectoryHandle) -> bool:
    try:
        fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(target: Target) -> TargetError:
    return TargetError(
        f"another restore is at work in {path_text(target.place)}; nothing was changed",
        hint="Wait until it has ended, or choose another place. Another program that has locked the"
        " directory has the same effect: 'fuser' names it.",
    )

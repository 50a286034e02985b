"""Open files by path without following a symlink in any part of the path.

Every function opens the directories of a path in turn, each relative to the one above it and none
through a symlink, and then works relative to the last directory. So the owner of one of the
directories cannot redirect the process, not even by swapping a directory for a symlink between two
calls. Checking the path first and using it later would leave that gap.

Callers resolve a path once with ``resolved``, which follows the symlinks that the user meant. A
path that begins with ``/proc/self/fd/N`` begins at that open directory.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from ciuic.errors import ResourceError

__all__ = [
    "change_mode",
    "exists",
    "is_directory",
    "list_names",
    "open_directory",
    "open_file",
    "opened_directory",
    "opened_parent",
    "resolved",
    "status",
]

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_LIMITS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DESCRIPTORS: Final = "/proc/self/fd/"
_OPENED: Final = rf"{_DESCRIPTORS}(\d+)(?:/+|\Z)"


def resolved(path: str) -> str:
    """Return the absolute path of ``path`` with every symlink followed.

    Raises:
        OSError: The resolved path is another file than ``path``. Paths such as
            ``/proc/PID/root`` do that.
    """
    real = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if not os.path.samestat(os.stat(path), os.stat(real)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return real


@contextlib.contextmanager
def opened_parent(path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that holds ``path`` for the duration of the block.

    Yields:
        The directory's descriptor, and the last name of the path.

    Raises:
        OSError: The directory cannot be opened; ``ELOOP`` if a part of the path is a symlink.
    """
    above, name = os.path.split(path)
    fd = _walked(above)
    try:
        yield fd, name or "."
    finally:
        os.close(fd)


def _walked(path: str) -> int:
    begin = re.match(_OPENED, path) if path.startswith(_DESCRIPTORS) else None
    if begin is not None:
        fd, path = os.dup(int(begin[1])), path[begin.end() :]
    else:
        fd = os.open("/" if path.startswith("/") else ".", _STEP)
    for name in path.split("/"):
        if name:
            try:
                inner = os.open(name, _STEP, dir_fd=fd)
            except NotADirectoryError:
                _refuse_symlink(name, fd)
                raise
            finally:
                os.close(fd)
            fd = inner
    return fd


def _refuse_symlink(name: str, directory: int) -> None:
    """Raise ``ELOOP`` if the name is a symlink; the kernel only says: not a directory."""
    try:
        os.readlink(name, dir_fd=directory)
        above = os.readlink(f"/proc/self/fd/{directory}")
    except OSError:
        return
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.path.join(above, name))


def open_file(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file as ``os.open`` does; a symlink is refused with ``ELOOP``."""
    with opened_parent(path) as (directory, name):
        try:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
        except OSError as error:
            error.filename = path
            raise


def open_directory(path: str) -> int:
    """Open a directory to list it or sync it; returns its descriptor."""
    fd = _walked(path)
    try:
        return os.open(".", _LIST, dir_fd=fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """Open a directory for the duration of the block."""
    fd = open_directory(path)
    try:
        yield fd
    finally:
        os.close(fd)


def status(path: str) -> os.stat_result:
    """Return the status of a path as ``os.lstat`` does."""
    with opened_parent(path) as (directory, name):
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def exists(path: str) -> bool:
    """Return whether a path exists, as ``os.path.lexists`` does.

    Raises:
        ResourceError: The process has too few descriptors or too little memory to find out.
            Without this error, a store would look empty.
    """
    return _status_if_there(path) is not None


def is_directory(path: str) -> bool:
    """Return whether a path is a directory; a symlink to a directory is not.

    Raises:
        ResourceError: As ``exists``.
    """
    found = _status_if_there(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _status_if_there(path: str) -> os.stat_result | None:
    try:
        return status(path)
    except ValueError:
        return None
    except OSError as error:
        if error.errno in _OWN_LIMITS:
            raise ResourceError(f"cannot look for {path}: {error.strerror}") from error
        return None


def list_names(path: str) -> list[str]:
    """Return the names in a directory, as ``os.listdir`` does."""
    with opened_directory(path) as fd:
        return os.listdir(fd)


def change_mode(path: str, mode: int) -> None:
    """Change the mode of a file as ``os.chmod`` does; the target of a symlink keeps its mode."""
    fd = open_file(path, os.O_PATH)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            return
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        except FileNotFoundError:  # a chroot without /proc
            _change_mode_of_readable(path, mode)
    finally:
        os.close(fd)


def _change_mode_of_readable(path: str, mode: int) -> None:
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)

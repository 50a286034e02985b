"""Directories -> names and metadata, in the order of the names; no file content is read here.

Every directory is opened relative to its parent and never through a symlink. So a user gains
nothing by swapping a directory for a symlink while root takes a snapshot.
"""

import errno
import os
import stat
import sys
from typing import Final

from ciuic.errors import SourceError
from ciuic.model import Entry

__all__ = [
    "DirectoryHandle",
    "entry_of",
    "open_directory_beneath",
    "open_root",
    "read_symlink",
    "read_xattrs",
    "storable_ns",
]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENCODING: Final = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
_TIME_MIN_NS: Final = -(2**63)
_TIME_MAX_NS: Final = 2**63 - 1
_NO_XATTRS: Final = {errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES}


class DirectoryHandle:
    """An open directory; closed when the last reference to it is gone.

    Attributes:
        fd: The descriptor; valid as long as the handle.
        path: Absolute path, for messages and patterns.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path

    def __del__(self) -> None:
        os.close(self.fd)

    def child(self, name: bytes) -> "DirectoryHandle":
        """Open a subdirectory.

        Raises:
            OSError: It cannot be opened; ELOOP or ENOTDIR if it is no longer a directory.
        """
        return DirectoryHandle(os.open(name, _OPEN_DIRECTORY, dir_fd=self.fd), self.join(name))

    def join(self, name: bytes) -> bytes:
        """Return the absolute path of a name in this directory."""
        return self.path + name if self.path.endswith(b"/") else self.path + b"/" + name

    def names(self) -> list[bytes]:
        """Return all names in this directory, sorted."""
        # os.fsencode does the same, but its checks take longer than the encoding.
        encoding, errors = _ENCODING
        return sorted([name.encode(encoding, errors) for name in os.listdir(self.fd)])

    def status(self, name: bytes) -> os.stat_result:
        """Return the status of a name without following a symlink."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)


def open_root(path: bytes) -> DirectoryHandle:
    """Open a configured root; if the root is a symlink, it is followed, as the user configured it.

    Raises:
        SourceError: The root is missing or cannot be read.
    """
    try:
        return DirectoryHandle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
        raise SourceError(os.strerror(error.errno or 0)) from error


def entry_of(name: bytes, status: os.stat_result) -> Entry:
    """Return the entry of a name, without content and extended attributes."""
    mode = status.st_mode
    rdev = 0
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        rdev = os.major(status.st_rdev) << 32 | os.minor(status.st_rdev)
    has_other_names = status.st_nlink > 1 and not stat.S_ISDIR(mode)
    return Entry(
        name,
        mode,
        status.st_uid,
        status.st_gid,
        storable_ns(status.st_mtime_ns),
        storable_ns(status.st_ctime_ns),
        status.st_ino,
        status.st_size if stat.S_ISREG(mode) else 0,
        link_dev=status.st_dev if has_other_names else 0,
        rdev=rdev,
    )


def storable_ns(time_ns: int) -> int:
    """Return a file's time, or the nearest time that 64 bits can hold (1677-09-21 to 2262-04-11).

    tmpfs, btrfs and NFS store seconds in 64 bits, so a wrong clock can leave any year.
    """
    if _TIME_MIN_NS <= time_ns <= _TIME_MAX_NS:
        return time_ns
    return _TIME_MIN_NS if time_ns < 0 else _TIME_MAX_NS


def read_xattrs(target: int | bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the extended attributes of an open file or of a path, without following a symlink.

    POSIX ACLs are ``system.posix_acl_access`` and ``system.posix_acl_default``. The result lacks
    attributes that this user may not read; it is empty if the file system has no attributes. Each
    name is there once, even if a file system in user space lists it twice: the store refuses that.
    """
    found = {}
    try:
        names = _xattr_names(target)
        if not names:
            return ()
        for name in names:
            value = _xattr_value(target, name)
            if value is not None:
                found[os.fsencode(name)] = value
    except OSError as error:
        if error.errno not in _NO_XATTRS:
            raise
    return tuple(sorted(found.items()))


def _xattr_names(target: int | bytes) -> list[str]:
    if isinstance(target, int):
        return os.listxattr(target)
    return os.listxattr(target, follow_symlinks=False)


def _xattr_value(target: int | bytes, name: str) -> bytes | None:
    try:
        if isinstance(target, int):
            return os.getxattr(target, name)
        return os.getxattr(target, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return None
        raise


def read_symlink(directory: DirectoryHandle, name: bytes) -> bytes:
    """Return the target of a symlink."""
    return os.readlink(name, dir_fd=directory.fd)


def open_directory_beneath(top: int, path: bytes) -> int:
    """Open a directory below another without following a symlink; the caller closes it.

    Raises:
        OSError: The directory cannot be opened, or a part of the path is not a directory.
    """
    fd = os.dup(top)
    for name in path.split(b"/") if path else []:
        try:
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd

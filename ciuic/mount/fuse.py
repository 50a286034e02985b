"""Between the kernel and ``Files``: the home of mfusepy and of libfuse.

mfusepy's own methods decode every path and build a dictionary for every ``stat``. Here they are
replaced by methods that do neither.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

from ciuic.mount.files import Files
from ciuic.mount.nodes import Attributes, Node, inode_number

# mfusepy takes libfuse 2 where both are installed, and starts a compiler to find either.
os.environ.setdefault("FUSE_LIBRARY_PATH", "libfuse3.so.3")

import mfusepy

__all__ = ["serve"]

_CACHED_S: Final = 60.0
"""How long the kernel may use names and attributes without asking again. A snapshot never changes;
the directories that the mount adds are listed again each time."""
_PLUS: Final = 2
"""FUSE_FILL_DIR_PLUS: the attributes are complete, so the kernel does not look the name up."""
_WANTS_PLUS: Final = 1
_UNKNOWN_INODE: Final = 0xFFFF_FFFF
"""libfuse's number for an unknown inode. The C library does not show names with the number 0."""
_BLOCK_BYTES: Final = 4096
_NAME_MAX: Final = 1023
_NS: Final = 1_000_000_000


_Bytes: TypeAlias = "ctypes._Pointer[ctypes.c_byte]"
_Listed: TypeAlias = tuple[int, bytes, Node | int]
"""The offset of a name in its directory, the name, and its node or type."""
_Structure: TypeAlias = "ctypes._Pointer[ctypes.Structure]"


class _Offered:
    """The requests that are answered: mfusepy looks for attributes with their names."""

    use_ns = True
    getattr = readlink = open = read = release = readdir = True
    opendir = releasedir = listxattr = getxattr = statfs = lseek = True


class _Listing:
    """An open directory, which is listed in parts.

    Args:
        files: The mounted files.
        path: The directory.
    """

    def __init__(self, files: Files, path: bytes) -> None:
        self._files = files
        self._path = path
        self._offset = -1
        self._names: Iterator[_Listed] = iter(())
        self._pending: tuple[_Listed, ...] = ()

    def names_from(self, offset: int) -> Iterator[_Listed]:
        """Yield the names after an offset, each with its own."""
        if offset != self._offset or not offset:
            self._names, self._pending = islice(self._numbered(), offset, None), ()
        self._offset = -1  # after an error, the next call starts over
        last = offset
        for listed in chain(self._pending, self._names):
            last = listed[0]
            yield listed
        self._pending, self._offset = (), last

    def stop_before(self, listed: _Listed) -> None:
        """Begin with this name if the next call goes on here."""
        self._pending, self._offset = (listed,), listed[0] - 1

    def _numbered(self) -> Iterator[_Listed]:
        yield 1, b".", stat.S_IFDIR
        yield 2, b"..", stat.S_IFDIR
        for number, (name, found) in enumerate(self._files.names(self._path), start=3):
            yield number, name, found


class _Mounted(mfusepy.FUSE):  # type: ignore[misc]
    """A mounted file system; the constructor returns when it is unmounted."""

    def __init__(self, files: Files, point: str, ready: Callable[[], None], **options: object):
        self._files = files
        self._ready = ready
        self._listings: dict[int, _Listing] = {}
        self._last_listing = 0
        super().__init__(_Offered(), point, **options)

    def init_fuse_3(self, _conn: object, config: _Structure) -> None:
        """Set libfuse's options; it calls this once, before the first request."""
        settings = config.contents
        settings.use_ino = 1
        settings.kernel_cache = 1
        settings.entry_timeout = settings.attr_timeout = _CACHED_S
        settings.negative_timeout = 0.0  # a name that is missing now may be a snapshot soon
        self._ready()

    def getattr_fuse_3(self, path: bytes, buf: _Structure, _: object) -> int:
        _fill(buf.contents, self._files.attributes(path))
        return 0

    def readlink(self, path: bytes, buf: _Bytes, size: int) -> int:
        target = self._files.target(path)[: size - 1] + b"\0"
        ctypes.memmove(buf, target, len(target))
        return 0

    def open(self, path: bytes, info: _Structure) -> int:
        info.contents.fh = self._files.open(path)
        return 0

    def read(
        self,
        _path: bytes,
        buf: _Bytes,
        size: int,
        offset: int,
        info: _Structure,
    ) -> int:
        data = self._files.read(info.contents.fh, offset, size)
        ctypes.memmove(buf, data, len(data))
        return len(data)

    def lseek(self, _path: bytes, offset: int, whence: int, info: _Structure) -> int:
        return self._files.seek(info.contents.fh, offset, whence)

    def release(self, _path: bytes, info: _Structure) -> int:
        self._files.release(info.contents.fh)
        return 0

    def opendir(self, path: bytes, info: _Structure) -> int:
        self._last_listing += 1
        self._listings[self._last_listing] = _Listing(self._files, path)
        info.contents.fh = self._last_listing
        return 0

    def releasedir(self, _path: bytes, info: _Structure) -> int:
        self._listings.pop(info.contents.fh, None)
        return 0

    def readdir_fuse_3(
        self,
        _path: bytes,
        buf: object,
        fill: Callable[..., int],
        offset: int,
        info: _Structure,
        flags: int,
    ) -> int:
        """Give libfuse the names from an offset on, as many as fit.

        The kernel wants attributes with the first names, and with later ones only if a program has
        used those of earlier ones: ``find`` does not, and they take most of the time.
        """
        files, status = self._files, mfusepy.c_stat()
        pointer = ctypes.pointer(status)
        wants_plus = flags & _WANTS_PLUS
        listing = self._listings[info.contents.fh]
        for listed in listing.names_from(offset):
            place, name, found = listed
            plus = 0
            if isinstance(found, Node):
                if wants_plus and files.is_cheap(found):
                    _fill(status, files.attributes_of(found))
                    plus = _PLUS
                else:
                    status.st_mode, status.st_ino = found.entry.mode, inode_number(found)
            else:
                status.st_mode, status.st_ino = found, _UNKNOWN_INODE
            if fill(buf, name, pointer, place, plus):
                listing.stop_before(listed)  # the buffer is full
                break
        return 0

    def listxattr(self, path: bytes, buf: _Bytes, size: int) -> int:
        names = b"".join([name + b"\0" for name, _ in self._files.xattrs(path)])
        return _copied(buf, names, size)

    def getxattr(self, path: bytes, name: bytes, buf: _Bytes, size: int) -> int:
        for known, value in self._files.xattrs(path):
            if known == name:
                return _copied(buf, value, size)
        return -errno.ENODATA

    def statfs(self, _path: bytes, buf: _Structure) -> int:
        status = buf.contents
        status.f_bsize = status.f_frsize = _BLOCK_BYTES
        status.f_namemax = _NAME_MAX
        return 0


def serve(files: Files, point: str, *, ready: Callable[[], None], is_for_all: bool) -> bool:
    """Mount the files at a directory, and answer until it is unmounted.

    Args:
        files: What to show.
        point: The mount point.
        ready: Called when the file system is mounted.
        is_for_all: Other users may use it; the kernel checks their rights by owner and mode.

    Returns:
        False if libfuse could not mount it; it has said why on stderr.
    """
    options: dict[str, object] = {
        "foreground": True,
        "nothreads": True,
        "ro": True,
        "nosuid": True,
        "nodev": True,
        "fsname": "ciuic",
        "subtype": "ciuic",
    }
    if is_for_all:
        options["allow_other"] = options["default_permissions"] = True
    was_ready = False

    def note() -> None:
        nonlocal was_ready
        was_ready = True
        ready()

    try:
        _Mounted(files, point, note, **options)
    except RuntimeError:
        # libfuse's code for a failure, and also for the end by a signal.
        return was_ready
    return True


def _fill(status: ctypes.Structure, found: Attributes) -> None:
    status.st_mode = found.mode
    status.st_ino = found.ino
    status.st_nlink = found.nlink
    status.st_uid = found.uid
    status.st_gid = found.gid
    status.st_rdev = found.rdev
    status.st_size = found.size_bytes
    status.st_blksize = _BLOCK_BYTES
    status.st_blocks = found.stored_bytes // 512
    modified, changed = divmod(found.mtime_ns, _NS), divmod(found.ctime_ns, _NS)
    # No snapshot records when a file was read: as after a restore, that is unknown.
    status.st_atimespec.tv_sec, status.st_atimespec.tv_nsec = modified
    status.st_mtimespec.tv_sec, status.st_mtimespec.tv_nsec = modified
    status.st_ctimespec.tv_sec, status.st_ctimespec.tv_nsec = changed


def _copied(buf: _Bytes, value: bytes, size: int) -> int:
    """Copy an extended attribute; return its length, or an error if it does not fit."""
    if not size:
        return len(value)
    if len(value) > size:
        return -errno.ERANGE
    ctypes.memmove(buf, value, len(value))
    return len(value)

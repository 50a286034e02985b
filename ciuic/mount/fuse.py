"""Between the kernel and ``Files``: the home of mfusepy and of libfuse.

mfusepy's own methods decode every path and build a dictionary for every ``stat``. Here they are
replaced by methods that do neither.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from ciuic.mount.files import Files
from ciuic.mount.nodes import Attributes, Listed, attributes_of, is_cheap, unnumbered
from ciuic.mount.read_ahead import read_far_ahead
from ciuic.mount.snapshots import added_entry
from ciuic.system.core import core

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
_PLUS_IF_USED: Final = 1 << 14
"""FUSE_CAP_READDIRPLUS_AUTO: the kernel asks for attributes of later names only if a program has
used those of earlier ones. But ``find`` and ``ls`` use none before they have all names."""
_UNKNOWN_INODE: Final = 0xFFFF_FFFF
"""libfuse's number for an unknown inode. The C library does not show names with the number 0."""
_BLOCK_BYTES: Final = 4096
_NAME_MAX: Final = 1023
_NS: Final = 1_000_000_000
_DOTS: Final = unnumbered([added_entry(name, stat.S_IFDIR, 0) for name in (b".", b"..")])

_Bytes: TypeAlias = "ctypes._Pointer[ctypes.c_byte]"
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
        self._parts: Iterator[Listed] = iter(())
        self._part = _DOTS
        self._at = 0

    def give(self, offset: int, give: Callable[[Listed, int, int], int]) -> None:
        """Give the names after an offset, until no more are taken.

        Args:
            offset: How many names come before them.
            give: Gets names, how many of them are left out, and the offset of the first one;
                returns how many it has taken.
        """
        if offset != self._offset or not offset:
            self._begin(offset)
        self._offset = -1  # after an error, the next call starts over
        while True:
            left = len(self._part.entries) - self._at
            taken = give(self._part, self._at, offset + 1 - self._at) if left else 0
            offset, self._at = offset + taken, self._at + taken
            if taken < left or not self._advance():
                break
        self._offset = offset

    def _begin(self, offset: int) -> None:
        self._parts = chain([_DOTS], self._files.names(self._path))
        while self._advance():
            count = len(self._part.entries)
            if offset < count:
                self._at = offset
                return
            offset -= count
        self._at = len(self._part.entries)  # at the end, or after it

    def _advance(self) -> bool:
        """Go on to the next names; False: there are none."""
        following = next(self._parts, None)
        if following is not None:
            self._part, self._at = following, 0
        return following is not None


class _Mounted(mfusepy.FUSE):  # type: ignore[misc]
    """A mounted file system; the constructor returns when it is unmounted."""

    def __init__(self, files: Files, point: str, ready: Callable[[], None], **options: object):
        self._files = files
        self._ready = ready
        self._listings: dict[int, _Listing] = {}
        self._last_listing = 0
        # Resolved now: once it is mounted, this process would wait for its own answer.
        self._real_point = os.fsencode(os.path.realpath(point))
        self._has_opened = False
        super().__init__(_Offered(), point, **options)

    def init_fuse_3(self, connection: _Structure, config: _Structure) -> None:
        """Set libfuse's options; it calls this once, before the first request."""
        connection.contents.want &= ~_PLUS_IF_USED
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
        if not self._has_opened:
            # Not before: the kernel sets its own value after the answer to its first request.
            self._has_opened = True
            read_far_ahead(self._real_point)
        return 0

    def read(
        self,
        _path: bytes,
        buf: _Bytes,
        size: int,
        offset: int,
        info: _Structure,
    ) -> int:
        place = (ctypes.c_char * size).from_address(ctypes.addressof(buf.contents))
        return self._files.read_into(info.contents.fh, offset, memoryview(place).cast("B"))

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
        buf: int,
        fill: "ctypes._FuncPointer",
        offset: int,
        info: _Structure,
        flags: int,
    ) -> int:
        """Give libfuse the names from an offset on, as many as fit, with their attributes.

        Without them, a program that uses them makes the kernel look up each name by itself.
        """
        wants_plus = bool(flags & _WANTS_PLUS)
        compiled = core()

        def give(listed: Listed, begin: int, first: int) -> int:
            if compiled is None:
                return _give_each(buf, fill, listed, begin, first, wants_plus=wants_plus)
            address = ctypes.cast(fill, ctypes.c_void_p).value or 0
            entries, inos = listed
            return compiled.functions.names_fill(
                address, buf, entries, inos, begin, first, wants_plus
            )

        self._listings[info.contents.fh].give(offset, give)
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


def _give_each(
    buf: int,
    fill: "ctypes._FuncPointer",
    listed: Listed,
    begin: int,
    first: int,
    *,
    wants_plus: bool,
) -> int:
    """Give names to libfuse as the compiled core does; returns how many it has taken."""
    status = mfusepy.c_stat()
    pointer = ctypes.pointer(status)
    for number in range(begin, len(listed.entries)):
        entry, ino = listed.entries[number], listed.inos[number]
        plus = 0
        if wants_plus and ino and is_cheap(entry):
            _fill(status, attributes_of(entry, ino))
            plus = _PLUS
        else:
            status.st_mode, status.st_ino = entry.mode, ino or _UNKNOWN_INODE
        if fill(buf, entry.name, pointer, first + number, plus):
            return number - begin
    return len(listed.entries) - begin


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

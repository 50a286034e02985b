"""The system calls that Python has no name for: clones, extent maps, subvolumes, leases.

Each function is one call, or one call for each page of its answer, and raises what the kernel
says as OSError; what that means is for the callers to know. Numbers and layouts: the kernel's
linux/fs.h, linux/fiemap.h and linux/btrfs.h, which never change them.
"""

import errno
import fcntl
import signal
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = [
    "INEXACT_FLAGS",
    "SUBVOLUME_INODE",
    "UNWRITTEN_FLAG",
    "MappedExtent",
    "SubvolumeInfo",
    "clone_file",
    "clone_range",
    "has_writer",
    "hold_lease",
    "map_extents",
    "remove_subvolume",
    "snapshot_subvolume",
    "subvolume_info",
]

_FICLONE: Final = 0x4004_9409
_FICLONERANGE: Final = 0x4020_940D
_CLONE_RANGE: Final = struct.Struct("=qQQQ")

_FS_IOC_FIEMAP: Final = 0xC020_660B
_FIEMAP_HEAD: Final = struct.Struct("=QQIIII")
_FIEMAP_EXTENT: Final = struct.Struct("=QQQQQIIII")
_FIEMAP_FLAG_SYNC: Final = 1
_FIEMAP_PAGE: Final = 1024
_EXTENT_LAST: Final = 0x1
UNWRITTEN_FLAG: Final = 0x800
"""Allocated and never written: it reads as zeros."""
INEXACT_FLAGS: Final = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL, UNWRITTEN: an
extent with one of these says nothing about where its bytes lie."""

SUBVOLUME_INODE: Final = 256
"""Inode number of the top directory of every btrfs subvolume."""
_BTRFS_SNAP_CREATE_V2: Final = 0x5000_9417
_BTRFS_SNAP_DESTROY: Final = 0x5000_940F
_BTRFS_GET_SUBVOL_INFO: Final = 0x81F8_943C
_BTRFS_SUBVOL_RDONLY: Final = 1 << 1
_BTRFS_INFO_RDONLY: Final = 1 << 0
_SNAP_ARGS: Final = struct.Struct("=qQQ32x4040s")
_DESTROY_ARGS: Final = struct.Struct("=q4088s")
_SUBVOLUME_INFO: Final = struct.Struct("=Q256sQQQQ16s16s16sQQ")
_SUBVOLUME_INFO_BYTES: Final = 504

_TOLD_BY: Final = int(signal.SIGURG)


class MappedExtent(NamedTuple):
    """Where a stretch of a file lies on its device, as FIEMAP says; lengths in bytes."""

    logical: int
    physical: int
    length: int
    flags: int


class SubvolumeInfo(NamedTuple):
    """What tells a subvolume from another, and one state of it from the next.

    Attributes:
        id: Number of its tree within the file system, never used again.
        uuid: Its own.
        parent_uuid: Of the subvolume that it is a snapshot of.
        generation: Transaction of its last change.
        is_readonly: Nothing in it can be written.
    """

    id: int
    uuid: bytes
    parent_uuid: bytes
    generation: int
    is_readonly: bool


def clone_file(source_fd: int, target_fd: int) -> None:
    """Make the target share all blocks of the source: ioctl_ficlone(2).

    The content is that of one moment: the kernel holds writers off while it copies the map, and
    writes out what they have written before.

    Raises:
        OSError: EOPNOTSUPP, EXDEV, EINVAL, ETXTBSY, ENOSPC, ...: the target is as it was.
    """
    fcntl.ioctl(target_fd, _FICLONE, source_fd)


def clone_range(
    source_fd: int, source_offset: int, length_bytes: int, target_fd: int, target_offset: int
) -> None:
    """Make a range of the target share the source's blocks: ioctl_ficlonerange(2).

    Offsets and length are multiples of the file system's block size, except that the range may
    end where the source does.
    """
    arguments = _CLONE_RANGE.pack(source_fd, source_offset, length_bytes, target_offset)
    fcntl.ioctl(target_fd, _FICLONERANGE, arguments)


def map_extents(fd: int, *, sync: bool) -> Iterator[MappedExtent]:
    """The file's extents in order, holes left out; asked for in pages of a thousand.

    Args:
        fd: A regular file.
        sync: Write dirty data first, so that no extent is still without a place.

    Raises:
        OSError: EOPNOTSUPP where the file system has no such map (tmpfs, NFS).
    """
    at = 0
    flags = _FIEMAP_FLAG_SYNC if sync else 0
    while True:
        page = bytearray(_FIEMAP_HEAD.size + _FIEMAP_PAGE * _FIEMAP_EXTENT.size)
        _FIEMAP_HEAD.pack_into(page, 0, at, (1 << 64) - 1 - at, flags, 0, _FIEMAP_PAGE, 0)
        fcntl.ioctl(fd, _FS_IOC_FIEMAP, page)
        count = _FIEMAP_HEAD.unpack_from(page)[3]
        if count == 0:
            return
        end = _FIEMAP_HEAD.size + count * _FIEMAP_EXTENT.size
        records = memoryview(page)[_FIEMAP_HEAD.size : end]
        for logical, physical, length, _, _, found, _, _, _ in _FIEMAP_EXTENT.iter_unpack(records):
            if logical + length <= at:
                continue  # the file changed between two pages: never go back
            yield MappedExtent(logical, physical, length, found)
            at = logical + length
            if found & _EXTENT_LAST:
                return
        flags = 0


def snapshot_subvolume(source_fd: int, directory_fd: int, name: bytes) -> None:
    """Make a read-only snapshot of a btrfs subvolume: one atomic moment of all of it.

    Args:
        source_fd: The subvolume's top directory.
        directory_fd: A directory on the same file system that takes the snapshot.
        name: Of the snapshot in that directory.

    Raises:
        OSError: EXDEV on another file system, EPERM where the subvolume is another user's.
    """
    arguments = _SNAP_ARGS.pack(source_fd, 0, _BTRFS_SUBVOL_RDONLY, name)
    fcntl.ioctl(directory_fd, _BTRFS_SNAP_CREATE_V2, bytearray(arguments))


def remove_subvolume(directory_fd: int, name: bytes) -> None:
    """Delete a subvolume by its name in a directory; the space comes back in the background.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN, unless the file system allows it to the owner.
    """
    fcntl.ioctl(directory_fd, _BTRFS_SNAP_DESTROY, bytearray(_DESTROY_ARGS.pack(0, name)))


def subvolume_info(fd: int) -> SubvolumeInfo:
    """About the subvolume that an open file or directory lies in.

    Raises:
        OSError: ENOTTY where the file system is not btrfs.
    """
    answer = bytearray(_SUBVOLUME_INFO_BYTES)
    fcntl.ioctl(fd, _BTRFS_GET_SUBVOL_INFO, answer)
    number, _, _, _, generation, flags, uuid, parent, _, _, _ = _SUBVOLUME_INFO.unpack_from(answer)
    return SubvolumeInfo(number, uuid, parent, generation, bool(flags & _BTRFS_INFO_RDONLY))


def has_writer(fd: int) -> bool | None:
    """Whether some process has the file open for writing at this moment, memory maps included.

    Somebody who opens the file in between waits for a microsecond.

    Args:
        fd: A regular file, opened for reading only.

    Returns:
        None where it can't be known: see ``hold_lease``.
    """
    found = hold_lease(fd)
    if found is False:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return found


def hold_lease(fd: int) -> bool | None:
    """Whether some process has the file open for writing; if not, keep all from beginning to.

    fcntl(2), F_SETLEASE: a read lease is granted if and only if nobody has, memory maps
    included. It lasts until the descriptor is closed. Who opens the file for writing, or
    truncates it, waits as long (with O_NONBLOCK: is refused), so it must be closed soon.

    Args:
        fd: A regular file, opened for reading only.

    Returns:
        False if the lease is held. None where it can't be known: a file of another user without
        CAP_LEASE, NFS, FUSE.
    """
    try:
        # The kernel tells a lease's holder of an opener by SIGIO, which ends a process that has
        # not asked for it; this signal is ignored unless somebody handles it.
        fcntl.fcntl(fd, fcntl.F_SETSIG, _TOLD_BY)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False

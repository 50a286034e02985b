"""System calls that Python's library lacks: reflinks, extent maps, subvolumes, leases.

Each function makes one call, or one for each page of the answer, and raises the kernel's error as
OSError; the callers interpret it. Numbers and layouts are from the kernel's linux/fs.h,
linux/fiemap.h and linux/btrfs.h, which never change them.
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
    "create_subvolume",
    "has_writer",
    "hold_lease",
    "map_extents",
    "remove_subvolume",
    "snapshot_subvolume",
    "subvolume_info",
]

_FICLONE: Final = 0x4004_9409

_FS_IOC_FIEMAP: Final = 0xC020_660B
_FIEMAP_HEAD: Final = struct.Struct("=QQIIII")
_FIEMAP_EXTENT: Final = struct.Struct("=QQQQQIIII")
_FIEMAP_FLAG_SYNC: Final = 1
_FIEMAP_PAGE: Final = 1024
_EXTENT_LAST: Final = 0x1
UNWRITTEN_FLAG: Final = 0x800
"""The extent is allocated and was never written: it reads as zeros."""
INEXACT_FLAGS: Final = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL, UNWRITTEN: the
physical address of an extent with one of these does not locate its bytes."""

SUBVOLUME_INODE: Final = 256
"""Inode number of the top directory of every btrfs subvolume."""
_BTRFS_SUBVOL_CREATE: Final = 0x5000_940E
_BTRFS_SNAP_CREATE_V2: Final = 0x5000_9417
_BTRFS_SNAP_DESTROY: Final = 0x5000_940F
_BTRFS_GET_SUBVOL_INFO: Final = 0x81F8_943C
_BTRFS_SUBVOL_RDONLY: Final = 1 << 1
_BTRFS_INFO_RDONLY: Final = 1 << 0
_SNAP_ARGS: Final = struct.Struct("=qQQ32x4040s")
_NAME_ARGS: Final = struct.Struct("=q4088s")
_SUBVOLUME_INFO: Final = struct.Struct("=Q256sQQQQ16s16s16sQQ")
_SUBVOLUME_INFO_BYTES: Final = 504

_LEASE_SIGNAL: Final = int(signal.SIGURG)


class MappedExtent(NamedTuple):
    """A range of a file and its place on the device, from FIEMAP; all numbers in bytes."""

    logical: int
    physical: int
    length: int
    flags: int


class SubvolumeInfo(NamedTuple):
    """The identity and the state of a btrfs subvolume.

    Attributes:
        id: Number of its tree within the file system; btrfs never reuses it.
        uuid: UUID of the subvolume.
        parent_uuid: UUID of the subvolume that it is a snapshot of; zeros if it is none.
        generation: Transaction of its last change that is committed. A snapshot begins with that
            of its source, and making it is the last thing that happens in that transaction.
        is_readonly: The subvolume is read-only.
    """

    id: int
    uuid: bytes
    parent_uuid: bytes
    generation: int
    is_readonly: bool


def clone_file(source_fd: int, target_fd: int) -> None:
    """Make the target share all blocks of the source: ioctl_ficlone(2).

    The copy is atomic: the kernel flushes earlier writes and blocks writers while it copies the
    extent map.

    Raises:
        OSError: EOPNOTSUPP, EXDEV, EINVAL, ETXTBSY, ENOSPC, ...: the target is unchanged.
    """
    fcntl.ioctl(target_fd, _FICLONE, source_fd)


def map_extents(fd: int, *, sync: bool) -> Iterator[MappedExtent]:
    """Yield the extents of a file in order, without holes; the kernel returns about 1000 a call.

    Args:
        fd: A regular file.
        sync: Flush dirty data first, so that every extent has its place on the device.

    Raises:
        OSError: EOPNOTSUPP on a file system without extent maps (tmpfs, NFS).
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
                continue  # the file changed between two calls: never go back
            yield MappedExtent(logical, physical, length, found)
            at = logical + length
            if found & _EXTENT_LAST:
                return
        flags = 0


def create_subvolume(directory_fd: int, name: bytes) -> None:
    """Make an empty btrfs subvolume, with the mode of a new directory.

    Raises:
        OSError: EEXIST; ENOTTY if the file system is not btrfs.
    """
    fcntl.ioctl(directory_fd, _BTRFS_SUBVOL_CREATE, bytearray(_NAME_ARGS.pack(0, name)))


def snapshot_subvolume(source_fd: int, directory_fd: int, name: bytes) -> None:
    """Make an atomic, read-only snapshot of a btrfs subvolume.

    Args:
        source_fd: The subvolume's top directory.
        directory_fd: A directory on the same file system, where the snapshot is created.
        name: Name of the snapshot in that directory.

    Raises:
        OSError: EXDEV on another file system, EPERM if another user owns the subvolume.
    """
    arguments = _SNAP_ARGS.pack(source_fd, 0, _BTRFS_SUBVOL_RDONLY, name)
    fcntl.ioctl(directory_fd, _BTRFS_SNAP_CREATE_V2, bytearray(arguments))


def remove_subvolume(directory_fd: int, name: bytes) -> None:
    """Delete a subvolume by its name in a directory; btrfs frees the space in the background.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN, unless a mount option lets the owner do it.
    """
    fcntl.ioctl(directory_fd, _BTRFS_SNAP_DESTROY, bytearray(_NAME_ARGS.pack(0, name)))


def subvolume_info(fd: int) -> SubvolumeInfo:
    """Return the identity of the subvolume that holds an open file or directory.

    Raises:
        OSError: ENOTTY if the file system is not btrfs.
    """
    answer = bytearray(_SUBVOLUME_INFO_BYTES)
    fcntl.ioctl(fd, _BTRFS_GET_SUBVOL_INFO, answer)
    number, _, _, _, generation, flags, uuid, parent_uuid, _, _, _ = _SUBVOLUME_INFO.unpack_from(
        answer
    )
    is_readonly = bool(flags & _BTRFS_INFO_RDONLY)
    return SubvolumeInfo(number, uuid, parent_uuid, generation, is_readonly)


def has_writer(fd: int) -> bool | None:
    """Return whether a process has the file open for writing or mapped for writing.

    A process that opens the file during this call waits for a microsecond.

    Args:
        fd: A regular file, opened for reading only.

    Returns:
        None if the kernel cannot tell: see ``hold_lease``.
    """
    found = hold_lease(fd)
    if found is False:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return found


def hold_lease(fd: int) -> bool | None:
    """Return whether a process has the file open for writing; if none has, keep writers out.

    The kernel grants a read lease (fcntl(2), F_SETLEASE) if and only if no process has the file
    open for writing or mapped for writing. The lease lasts until the descriptor is closed. Until
    then, a process that opens the file for writing or truncates it waits (with O_NONBLOCK, it gets
    an error). So the caller must close the descriptor soon.

    Args:
        fd: A regular file, opened for reading only.

    Returns:
        False if the lease is held. None if the kernel cannot tell: a file of another user without
        CAP_LEASE, NFS, FUSE.
    """
    try:
        # By default the kernel notifies the holder of a lease by SIGIO, which kills a process that
        # does not handle it. SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, _LEASE_SIGNAL)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False

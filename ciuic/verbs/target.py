"""The place that is restored to: names, metadata and removal, never through a symlink.

Whatever stands in the target is hostile: a symlink where a directory should be is replaced and
never followed, because every step is relative to a directory that is already open.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import TargetError
from ciuic.model import Entry
from ciuic.scan import DirectoryHandle, read_xattrs

__all__ = [
    "RUN_AGAIN",
    "IsProtected",
    "apply_metadata",
    "apply_special_metadata",
    "count_files",
    "is_leftover",
    "make_special",
    "raise_if_ending",
    "remedy",
    "remove_tree",
    "same_metadata",
    "target_faults",
    "temporary_prefix",
]

RUN_AGAIN: Final = "Run it again, with --overwrite: what is already right is left alone."
_PREFIX: Final = b".ciuic-restore-"
_LEFTOVER: Final = re.compile(rb"\.ciuic-restore-(\d+)-(\d+)-[0-9a-f]{16}")
_ENDING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors of the target's file system: the next path would fail with them too."""
_REMEDIES: Final = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EROFS: "mount its file system for writing",
    errno.EIO: "look at its disk",
}
_OWN_XATTRS: Final = (b"user.", b"system.posix_acl_")
"""Attributes that a restore takes away when the snapshot does not have them."""


@contextlib.contextmanager
def target_faults(path: bytes) -> Iterator[None]:
    """Let an OSError of one path through; raise TargetError for one that ends the restore."""
    try:
        yield
    except OSError as error:
        raise_if_ending(error, path)
        raise


def raise_if_ending(error: OSError, path: bytes) -> None:
    """Raise TargetError for an error that ends the restore, for those who have caught it already.

    ``target_faults`` costs a tenth of what a small file does.
    """
    if error.errno in _ENDING:
        reason = os.strerror(error.errno)
        raise TargetError(
            f"cannot write {os.fsdecode(path)!r}: {reason}",
            hint=f"{remedy(error)} {RUN_AGAIN}",
        ) from error


def remedy(error: OSError) -> str:
    """What to do about a target that can't be written."""
    do = _REMEDIES.get(error.errno or 0, "run as a user who may write there")
    return f"Choose another place with -d, or {do}."


def temporary_prefix() -> bytes:
    """Begins the names of files that are not whole yet; tells which process is at them."""
    return b"%s%d-%d-" % (_PREFIX, os.getpid(), _started(os.getpid()))


def is_leftover(name: bytes) -> bool:
    """``name`` is an unfinished file of a restore whose process is gone."""
    match = _LEFTOVER.fullmatch(name)
    return match is not None and _started(int(match[1])) != int(match[2])


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none: proc(5), "stat"."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


IsProtected = Callable[[bytes, os.stat_result], bool]
"""Told a path as the snapshot would have it, and its status: it stays whatever happens."""


def remove_tree(
    directory: DirectoryHandle, name: bytes, path: bytes, is_protected: IsProtected
) -> int:
    """Remove a name and all below it but what is protected; returns how many files went.

    Not by recursion: trees are deeper than the stack is. A symlink is removed, what it points to
    is not.
    """
    removed = 0
    waiting = [(directory, name, path, False)]
    while waiting:
        parent, one, at, is_emptied = waiting.pop()
        status = parent.status(one)
        if is_emptied:
            with contextlib.suppress(OSError):  # not empty: something in it is protected
                os.rmdir(one, dir_fd=parent.fd)
        elif is_protected(at, status):
            continue
        elif stat.S_ISDIR(status.st_mode):
            inner = parent.child(one)
            waiting.append((parent, one, at, True))
            waiting.extend([(inner, name, os.path.join(at, name), False) for name in inner.names()])
        else:
            os.unlink(one, dir_fd=parent.fd)
            removed += 1
    return removed


def count_files(
    directory: DirectoryHandle, name: bytes, path: bytes, is_protected: IsProtected
) -> int:
    """How many files ``remove_tree`` would remove."""
    counted = 0
    waiting = [(directory, name, path)]
    while waiting:
        parent, one, at = waiting.pop()
        status = parent.status(one)
        if is_protected(at, status):
            continue
        if stat.S_ISDIR(status.st_mode):
            inner = parent.child(one)
            waiting.extend([(inner, name, os.path.join(at, name)) for name in inner.names()])
        else:
            counted += 1
    return counted


def make_special(directory: DirectoryHandle, name: bytes, entry: Entry) -> None:
    """Make a symlink, FIFO or device node under a name that is free."""
    if entry.is_symlink:
        os.symlink(entry.content, name, dir_fd=directory.fd)
    elif stat.S_ISFIFO(entry.mode):
        os.mkfifo(name, 0o600, dir_fd=directory.fd)
    else:
        device = os.makedev(entry.rdev >> 32, entry.rdev & 0xFFFFFFFF)
        os.mknod(name, stat.S_IFMT(entry.mode) | 0o600, device, dir_fd=directory.fd)


def apply_metadata(
    fd: int, entry: Entry, status: os.stat_result, *, bare: bool = False
) -> list[str]:
    """Set owner, mode, attributes and times of an open file or directory.

    ``bare`` says that neither it nor the entry has extended attributes: most files have none.

    What this user may not do is no error: it is returned, in words. The order matters: chown
    clears the set-uid bits, chmod changes an ACL's mask, and only the times, set last, are not
    moved by what comes after.
    """
    refused = []
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        refused += _try_owner(lambda: os.fchown(fd, entry.uid, entry.gid), entry)
    mode = stat.S_IMODE(entry.mode)
    if refused:
        # The file is somebody else's now: it must not run with that user's rights.
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(fd, mode)
    if not bare:
        refused += _set_xattrs(fd, entry)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
    return refused


def apply_special_metadata(directory: DirectoryHandle, name: bytes, entry: Entry) -> list[str]:
    """As ``apply_metadata``, for a symlink, FIFO or device node, which is never opened."""
    status = directory.status(name)
    refused = []
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):

        def give() -> None:
            os.chown(name, entry.uid, entry.gid, dir_fd=directory.fd, follow_symlinks=False)

        refused += _try_owner(give, entry)
    if not entry.is_symlink:
        _chmod_unopened(directory, name, entry)
    if entry.xattrs:
        refused += _set_xattrs(b"/proc/self/fd/%d/" % directory.fd + name, entry)
    times = (entry.mtime_ns, entry.mtime_ns)
    os.utime(name, ns=times, dir_fd=directory.fd, follow_symlinks=False)
    return refused


def _chmod_unopened(directory: DirectoryHandle, name: bytes, entry: Entry) -> None:
    """Set the mode of a FIFO or device node, which must not be opened for reading.

    By way of a descriptor: chmod by name follows a symlink that somebody has put there since.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    try:
        if stat.S_IFMT(os.fstat(fd).st_mode) == stat.S_IFMT(entry.mode):
            os.chmod(b"/proc/self/fd/%d" % fd, stat.S_IMODE(entry.mode))
    finally:
        os.close(fd)


def _try_owner(change: Callable[[], None], entry: Entry) -> list[str]:
    try:
        change()
    except PermissionError:
        return [f"owner {entry.uid}:{entry.gid} not restored: only root may give files away"]
    return []


def same_metadata(entry: Entry, status: os.stat_result) -> bool:
    """Owner, mode and time are already as they should be; attributes are not looked at."""
    return (
        status.st_mode == entry.mode
        and (status.st_uid, status.st_gid) == (entry.uid, entry.gid)
        and status.st_mtime_ns == entry.mtime_ns
    )


def _set_xattrs(target: int | bytes, entry: Entry) -> list[str]:
    """Make extended attributes equal to the entry's, as far as this user may."""
    wanted = dict(entry.xattrs)
    present = dict(read_xattrs(target))
    refused = []
    for name in present.keys() - wanted.keys():
        if name.startswith(_OWN_XATTRS):
            refused += _try_xattr(lambda n=name: _remove_xattr(target, n), name)  # type: ignore[misc]
    for name, value in entry.xattrs:
        if present.get(name) != value:
            refused += _try_xattr(
                lambda n=name, v=value: _set_xattr(target, n, v),  # type: ignore[misc]
                name,
            )
    return refused


def _try_xattr(change: Callable[[], None], name: bytes) -> list[str]:
    try:
        change()
    except OSError as error:
        if error.errno in {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL}:
            reason = os.strerror(error.errno)
            return [f"attribute {os.fsdecode(name)} not restored: {reason}"]
        raise
    return []


def _set_xattr(target: int | bytes, name: bytes, value: bytes) -> None:
    if isinstance(target, int):
        os.setxattr(target, name, value)
    else:
        os.setxattr(target, name, value, follow_symlinks=False)


def _remove_xattr(target: int | bytes, name: bytes) -> None:
    if isinstance(target, int):
        os.removexattr(target, name)
    else:
        os.removexattr(target, name, follow_symlinks=False)

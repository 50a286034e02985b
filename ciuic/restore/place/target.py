"""The target of a restore: names, metadata and removal, never through a symlink.

The target may be hostile. A symlink in the place of a directory is replaced and never followed,
because every step is relative to a directory that is already open.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ciuic.errors import ResourceError, TargetError
from ciuic.model import Entry
from ciuic.source.directory import DirectoryHandle, read_xattrs

__all__ = [
    "OWNER_REFUSED",
    "RUN_AGAIN",
    "IsProtected",
    "apply_metadata",
    "apply_special_metadata",
    "ending",
    "is_leftover",
    "list_files",
    "make_special",
    "raise_if_ending",
    "remedy",
    "remove_tree",
    "same_metadata",
    "target_faults",
    "temporary_prefix",
]

_UNCHANGED_ID: Final = 0xFFFFFFFF
"""chown takes it to mean "do not change this". No user and no group has this ID."""
OWNER_REFUSED: Final = "not restored: only root may give files away"
"""The end of the message about an owner that this user may not set."""
RUN_AGAIN: Final = (
    "Run it again, 'ciuic restore' with --overwrite: files that are right already are kept."
)
_PREFIX: Final = b".ciuic-restore-"
_LEFTOVER: Final = rb"\.ciuic-restore-(\d+)-(\d+)-[0-9a-f]{16}"
_ENDING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors of the target's file system. The next path would fail with the same error."""
_REMEDIES: Final = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EROFS: "mount its file system for writing",
    errno.EIO: "check its disk",
}
_OWN_XATTRS: Final = (b"user.", b"system.posix_acl_")
"""Prefixes of the attributes that a restore removes if the snapshot does not have them."""


@contextlib.contextmanager
def target_faults(path: bytes) -> Iterator[None]:
    """Let an OSError of one path through; raise TargetError for one that ends the restore."""
    try:
        yield
    except OSError as error:
        raise_if_ending(error, path)
        raise


def raise_if_ending(error: OSError, path: bytes) -> None:
    """Raise TargetError for an error that ends the restore.

    For callers that have caught the error already: ``target_faults`` takes a tenth of the time of
    writing a small file.
    """
    if error.errno in _ENDING:
        raise ending(error, path) from error


def ending(error: OSError, path: bytes) -> TargetError:
    """Return the error that ends a restore."""
    return TargetError(
        f"cannot write {os.fsdecode(path)!r}: {os.strerror(error.errno or 0)}",
        hint=f"{remedy(error)} {RUN_AGAIN}",
    )


def remedy(error: OSError) -> str:
    """Return what to do about a target that cannot be written."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return ResourceError.default_hint  # no place is at fault
    do = _REMEDIES.get(error.errno or 0, "run as a user who may write there")
    return f"Choose another place with 'ciuic restore -s ID -p PATH -d DIR', or {do}."


def temporary_prefix() -> bytes:
    """Return the prefix of temporary names.

    It contains the ID and the start time of this process.
    """
    return b"%s%d-%d-" % (_PREFIX, os.getpid(), _started(os.getpid()))


def is_leftover(name: bytes) -> bool:
    """Return whether ``name`` is a temporary file of a restore whose process has ended."""
    if not name.startswith(_PREFIX):
        return False
    match = re.fullmatch(_LEFTOVER, name)
    return match is not None and _started(int(match[1])) != int(match[2])


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), "stat"); 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # A zombie has ended: in a container, it may be that no process ever waits for it.
        return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


IsProtected = Callable[[DirectoryHandle, bytes, bytes, os.stat_result], bool]
"""Whether a name must never be removed. Receives the directory, the name, its path as the snapshot
would have it, and its status."""


def remove_tree(
    directory: DirectoryHandle,
    name: bytes,
    path: bytes,
    is_protected: IsProtected,
    report: Callable[[int], None],
) -> None:
    """Remove a name and everything below it, except protected paths.

    A symlink is removed; its target is not. Not by recursion: trees can be deeper than the stack.

    Args:
        directory: The open directory that has the name.
        name: The name.
        path: Its path as the snapshot would have it.
        is_protected: See ``IsProtected``.
        report: Called with 1 for each removed file, so that the count is right after an error.
    """
    waiting = [(directory, name, path, False)]
    while waiting:
        parent, inner_name, inner_path, is_emptied = waiting.pop()
        status = parent.status(inner_name)
        if is_emptied:
            with contextlib.suppress(OSError):  # not empty: something in it is protected
                os.rmdir(inner_name, dir_fd=parent.fd)
        elif is_protected(parent, inner_name, inner_path, status):
            continue
        elif stat.S_ISDIR(status.st_mode):
            inner = parent.child(inner_name)
            waiting.append((parent, inner_name, inner_path, True))
            waiting.extend(
                [(inner, name, os.path.join(inner_path, name), False) for name in inner.names()]
            )
        else:
            os.unlink(inner_name, dir_fd=parent.fd)
            report(1)


def list_files(
    directory: DirectoryHandle,
    name: bytes,
    path: bytes,
    is_protected: IsProtected,
    report: Callable[[bytes], None],
) -> None:
    """Report the path in the target of each file that ``remove_tree`` would remove."""
    waiting = [(directory, name, path)]
    while waiting:
        parent, inner_name, inner_path = waiting.pop()
        status = parent.status(inner_name)
        if is_protected(parent, inner_name, inner_path, status):
            continue
        if stat.S_ISDIR(status.st_mode):
            inner = parent.child(inner_name)
            waiting.extend(
                [(inner, name, os.path.join(inner_path, name)) for name in inner.names()]
            )
        else:
            report(parent.join(inner_name))


def make_special(directory: DirectoryHandle, name: bytes, entry: Entry) -> None:
    """Create a symlink, FIFO or device node under an unused name."""
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
    """Set owner, mode, extended attributes and times of an open file or directory.

    The order matters: chown clears the set-uid bits, and chmod changes the mask of an ACL. Times
    come last, because every other step may change them.

    Args:
        fd: The open file or directory.
        entry: The entry in the snapshot.
        status: Present status of the file.
        bare: Neither the file nor the entry has extended attributes, as is true of most files.

    Returns:
        What this user may not set, in words. That is not an error.
    """
    refused = []
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        refused += _try_owner(lambda: os.fchown(fd, entry.uid, entry.gid), entry)
    mode = stat.S_IMODE(entry.mode)
    if refused:
        # The file has another owner than in the snapshot: it must not run with that user's rights.
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(fd, mode)
    if not bare:
        refused += _set_xattrs(fd, entry)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
    return refused


def apply_special_metadata(directory: DirectoryHandle, name: bytes, entry: Entry) -> list[str]:
    """Like ``apply_metadata``, for a symlink, FIFO or device node, which is never opened."""
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

    Through a descriptor with O_PATH: chmod by name would follow a symlink that has taken its place.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    try:
        if stat.S_IFMT(os.fstat(fd).st_mode) == stat.S_IFMT(entry.mode):
            os.chmod(b"/proc/self/fd/%d" % fd, stat.S_IMODE(entry.mode))
    finally:
        os.close(fd)


def _try_owner(change: Callable[[], None], entry: Entry) -> list[str]:
    if _UNCHANGED_ID in (entry.uid, entry.gid):
        return [f"owner {entry.uid}:{entry.gid} not restored: the kernel has no such owner"]
    try:
        change()
    except PermissionError:
        return [f"owner {entry.uid}:{entry.gid} {OWNER_REFUSED}"]
    return []


def same_metadata(entry: Entry, status: os.stat_result) -> bool:
    """Return whether owner, mode and time are right; compares no extended attributes."""
    return (
        status.st_mode == entry.mode
        and (status.st_uid, status.st_gid) == (entry.uid, entry.gid)
        and status.st_mtime_ns == entry.mtime_ns
    )


def _set_xattrs(target: int | bytes, entry: Entry) -> list[str]:
    """Make the extended attributes equal to the entry's; returns what this user may not set."""
    wanted = dict(entry.xattrs)
    present = dict(read_xattrs(target))
    refused = []
    for name in present.keys() - wanted.keys():
        if name.startswith(_OWN_XATTRS):
            refused += _try_xattr(partial(_remove_xattr, target, name), name)
    for name, value in entry.xattrs:
        if present.get(name) != value:
            refused += _try_xattr(partial(_set_xattr, target, name, value), name)
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

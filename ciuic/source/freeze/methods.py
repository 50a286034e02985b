"""Choose how the files of a root are captured: the best method that works.

subvolume   btrfs, as root: one atomic snapshot of the whole subvolume, whatever its size
reflink     btrfs, XFS, bcachefs: each changed file is copied by reflink, atomically
in place    other file systems: files are read directly, and their status is checked before and
            after
"""

import errno
import os
from typing import Final, NamedTuple

from ciuic.source.freeze.interface import AREA_NAME, IN_PLACE
from ciuic.source.freeze.places import candidate_places
from ciuic.source.mounts import mount_of, mounts
from ciuic.system import kernel

__all__ = ["REFLINK", "SUBVOLUME", "Choice", "choose", "subvolume_top"]

SUBVOLUME: Final = "subvolume"
REFLINK: Final = "reflink"
_CAP_SYS_ADMIN: Final = 1 << 21


class Choice(NamedTuple):
    """How a root is captured.

    Attributes:
        how: "subvolume", "reflink" or "in place".
        why: The reason, a clause for messages.
        place: The directory for the area of reflink copies; None if captured in place.
    """

    how: str
    why: str
    place: bytes | None


def choose(root: bytes) -> Choice:
    """Return how a root's files can be captured; trying leaves nothing behind."""
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        return Choice(IN_PLACE, "the directory is missing", None)
    mount = mount_of(real, mounts())
    kind = os.fsdecode(mount.kind) if mount is not None else "unknown"
    place = next((path for path in candidate_places(root) if _is_usable(path)), None)
    if place is None:
        is_readonly = mount is not None and mount.is_readonly
        what = "is mounted read-only" if is_readonly else "is not writable for this user"
        return Choice(IN_PLACE, f"{kind} {what}, so reflink copies cannot be stored there", None)
    if subvolume_top(real) is not None:
        if _may_remove_subvolumes():
            return Choice(SUBVOLUME, "it is in a btrfs subvolume", place)
        why = "btrfs, but this user may not remove subvolumes"
    else:
        why = f"{kind} can share blocks between files"
    reason = _try_reflink(_writable_part(place))
    if reason:
        return Choice(IN_PLACE, f"{kind} cannot share blocks between files: {reason}", None)
    return Choice(REFLINK, why, place)


def subvolume_top(real: bytes) -> bytes | None:
    """Return the top directory of the btrfs subvolume that holds a path without symlinks.

    Returns:
        None if the file system is not btrfs, or the mount does not include the top directory.
    """
    mount = mount_of(real, mounts())
    if mount is None or mount.kind != b"btrfs":
        return None
    path = real
    while True:
        if os.stat(path).st_ino == kernel.SUBVOLUME_INODE:
            return path
        if path in {mount.point, b"/"}:
            return None
        path = os.path.dirname(path)


def _is_usable(place: bytes) -> bool:
    return os.access(_writable_part(place), os.W_OK)


def _writable_part(place: bytes) -> bytes:
    """Return the area if it exists: a hardened service may only be able to write there."""
    area = os.path.join(place, AREA_NAME)
    return area if os.path.isdir(area) else place


def _may_remove_subvolumes() -> bool:
    """Return whether this process has CAP_SYS_ADMIN; else frozen subvolumes would pile up."""
    try:
        with open("/proc/self/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        return bool(int(fields[b"CapEff"], 16) & _CAP_SYS_ADMIN)
    except (OSError, KeyError, ValueError):
        return False


def _try_reflink(place: bytes) -> str:
    """Copy an unnamed file in a directory by reflink; returns why that failed, or nothing."""
    try:
        source = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            target = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                kernel.clone_file(source, target)
            finally:
                os.close(target)
        finally:
            os.close(source)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.ENOTTY}:
            return "it has no reflinks"
        return os.strerror(error.errno or 0)
    return ""

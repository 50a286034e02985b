"""How the files of a root are captured: chosen by trying, best first.

subvolume   btrfs, root user: one atomic moment for all of it, whatever its size
reflink     btrfs, XFS, bcachefs: every changed file is cloned, one moment a file
in place    everything else: read where it lies, with a look before and after
"""

import errno
import os
from typing import Final, NamedTuple

from ciuic.capture import kernel
from ciuic.capture.frozen import AREA_NAME, candidate_places
from ciuic.scan import mount_of, mounts

__all__ = ["IN_PLACE", "REFLINK", "SUBVOLUME", "Choice", "choose", "subvolume_top"]

SUBVOLUME: Final = "subvolume"
REFLINK: Final = "reflink"
IN_PLACE: Final = "in place"
_CAP_SYS_ADMIN: Final = 1 << 21


class Choice(NamedTuple):
    """How a root is captured.

    Attributes:
        how: "subvolume", "reflink" or "in place".
        why: One clause for people.
        place: The directory that takes the frozen copies; None in place.
    """

    how: str
    why: str
    place: bytes | None


def choose(root: bytes) -> Choice:
    """How a root's files can be captured. Nothing is left behind by trying."""
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        return Choice(IN_PLACE, "it is not there", None)
    mount = mount_of(real, mounts())
    kind = os.fsdecode(mount.kind) if mount is not None else "unknown"
    place = next((one for one in candidate_places(root) if _is_usable(one)), None)
    if place is None:
        where = "is mounted read-only" if mount is not None and mount.is_readonly else "is not ours"
        return Choice(IN_PLACE, f"{kind} here {where}: no place for frozen copies", None)
    if subvolume_top(real) is not None:
        if _may_remove_subvolumes():
            return Choice(SUBVOLUME, "it lies in a btrfs subvolume", place)
        why = "btrfs, but this user may not remove subvolumes"
    else:
        why = f"{kind} can share blocks between files"
    reason = _try_clone(_writable_part(place))
    if reason:
        return Choice(IN_PLACE, f"{kind} can't share blocks between files: {reason}", None)
    return Choice(REFLINK, why, place)


def subvolume_top(real: bytes) -> bytes | None:
    """The top directory of the btrfs subvolume that a path without symlinks lies in.

    None if it is not btrfs, or the top is out of reach: only a part of it is mounted.
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
    """The area itself when it is there: a hardened service may write to nothing beside it."""
    area = os.path.join(place, AREA_NAME)
    return area if os.path.isdir(area) else place


def _may_remove_subvolumes() -> bool:
    """This process has CAP_SYS_ADMIN: snapshots that can't be removed would pile up."""
    try:
        with open("/proc/self/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        return bool(int(fields[b"CapEff"], 16) & _CAP_SYS_ADMIN)
    except (OSError, KeyError, ValueError):
        return False


def _try_clone(place: bytes) -> str:
    """Why files in a directory can't be cloned, or nothing: tried on two files without a name."""
    try:
        one = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            other = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                kernel.clone_file(one, other)
            finally:
                os.close(other)
        finally:
            os.close(one)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.ENOTTY}:
            return "it has no such call"
        return os.strerror(error.errno or 0)
    return ""

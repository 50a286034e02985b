"""Mounted file systems: which of them holds a path, and which are missing."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "FSTAB",
    "Mount",
    "PseudoMounts",
    "mount_of",
    "mount_points_of",
    "mounts",
    "unmounted_point",
]

FSTAB: Final = "/etc/fstab"

_CIUIC: Final = b"fuse.ciuic"
_PSEUDO_TYPES: Final = frozenset(
    b"autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs"
    b" fuse.ciuic fusectl hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs"
    b" tracefs".split()
)
_OCTAL: Final = rb"\\([0-7]{3})"


class Mount(NamedTuple):
    """A mounted file system: proc(5), "mountinfo".

    Attributes:
        point: Absolute path of the mount point.
        kind: Type of the file system, as in ``mount -t``.
        device: ``st_dev`` of its files; on btrfs, at most that of the mounted subvolume.
        is_readonly: The file system or this mount of it is read-only.
    """

    point: bytes
    kind: bytes
    device: int
    is_readonly: bool


def mounts(mount_info: bytes | None = None) -> list[Mount]:
    """Return the mounts that this process sees, in the order of mounting; empty without /proc."""
    if mount_info is None:
        mount_info = _mount_info()
    return list(_parsed_mounts(mount_info))


def mount_points_of(table: bytes) -> list[bytes]:
    """Return the mount points in a table of file systems: fstab(5)."""
    lines = [line.split() for line in table.splitlines() if not line.lstrip().startswith(b"#")]
    named = [fields[1] for fields in lines if len(fields) > 1 and fields[1].startswith(b"/")]
    return [_unescaped(point) for point in named]


def unmounted_point(path: str, environ: Mapping[str, str]) -> str:
    """Return the mount point in /etc/fstab that is at or above a path and has no mount.

    The mount point ``/`` does not count.

    Returns:
        Empty if every mount point above the path is mounted, or /etc/fstab cannot be read.
    """
    # libmount, and so mount(8), reads another table if this variable is set.
    table = environ.get("LIBMOUNT_FSTAB", FSTAB)
    try:
        with open(table, "rb") as file:
            named = [os.path.realpath(point) for point in mount_points_of(file.read())]
    except OSError:
        return ""
    real = os.path.realpath(os.fsencode(path))
    mounted = {mount.point for mount in mounts()}
    missing = [
        point
        for point in named
        if point != b"/" and _is_within(real, point) and point not in mounted
    ]
    return os.fsdecode(max(missing, key=len, default=b""))


def mount_of(path: bytes, known: Sequence[Mount]) -> Mount | None:
    """Return the mount that holds an absolute path without symlinks."""
    holding = [mount for mount in known if _is_within(path, mount.point)]
    # The longest mount point wins; of several mounts at one point, the last hides the others.
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


class PseudoMounts:
    """Mounted file systems that show the kernel's state instead of files: /proc, /sys."""

    def __init__(self) -> None:
        self._kinds = {
            mount.device: mount.kind for mount in mounts() if mount.kind in _PSEUDO_TYPES
        }

    def holds(self, status: os.stat_result) -> bool:
        """Return whether a directory is on a pseudo file system."""
        return status.st_dev in self._kinds

    def why_left_out(self, status: os.stat_result) -> str:
        """Say why snapshots leave out a directory; empty if it is on no pseudo file system."""
        kind = self._kinds.get(status.st_dev, b"")
        if kind == _CIUIC:
            return "is on a mount of ciuic: left out, because a store has its files"
        return f"is on a pseudo file system: left out ({os.fsdecode(kind)})" if kind else ""

    def is_ciuic(self, status: os.stat_result) -> bool:
        """Return whether a directory is on a mount of ciuic."""
        return self._kinds.get(status.st_dev) == _CIUIC


def _is_within(path: bytes, outer: bytes) -> bool:
    return (path + b"/").startswith(outer.rstrip(b"/") + b"/")


def _unescaped(point: bytes) -> bytes:
    """Replace octal escapes, which the kernel and fstab(5) use for spaces."""
    return re.sub(_OCTAL, lambda found: bytes([int(found[1], 8)]), point)


def _mount_info() -> bytes:
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _parsed_mounts(mount_info: bytes) -> Iterator[Mount]:
    for line in mount_info.splitlines():
        before, _, after = line.partition(b" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 6 or len(types) < 3:
            continue
        major, _, minor = fields[2].partition(b":")
        point = _unescaped(fields[4])
        options = set(fields[5].split(b",")) | set(types[2].split(b","))
        yield Mount(point, types[0], os.makedev(int(major), int(minor)), b"ro" in options)

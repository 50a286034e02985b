"""Directories -> names and metadata, in the order of the names; no content is read here.

Every directory is opened relative to the one above it and never through a symlink, so that a
user who swaps a directory for a link while root takes a snapshot gains nothing by it.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import SourceError
from ciuic.model import Entry

__all__ = [
    "DirectoryHandle",
    "Exclusions",
    "Mount",
    "PseudoMounts",
    "entry_of",
    "mount_of",
    "mount_points_of",
    "mounts",
    "open_root",
    "read_symlink",
    "read_xattrs",
    "storable_ns",
]

_PSEUDO_TYPES: Final = frozenset(
    b"autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl"
    b" hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TIME_MIN_NS: Final = -(2**63)
_TIME_MAX_NS: Final = 2**63 - 1
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
# "**/" is any number of directories where a directory may begin.
_DEEP: Final = re.compile(rb"(?:(?<![^/])\*\*/|\*\*)")
_SET: Final = re.compile(rb"\[([!^]?+)(\][^\]]*|[^\]]+)\]")
_MEMBERS: Final = re.compile(rb".-.|.", re.DOTALL)
_NO_XATTRS: Final = {errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES}


class DirectoryHandle:
    """An open directory; closed when nobody refers to it any longer.

    Attributes:
        fd: The descriptor; valid as long as the handle is.
        path: Absolute, for messages and for patterns.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path

    def __del__(self) -> None:
        os.close(self.fd)

    def child(self, name: bytes) -> "DirectoryHandle":
        """Open a directory in this one.

        Raises:
            OSError: It can't be opened; ELOOP or ENOTDIR if it is not a directory any longer.
        """
        return DirectoryHandle(os.open(name, _OPEN_DIRECTORY, dir_fd=self.fd), self.join(name))

    def join(self, name: bytes) -> bytes:
        """Absolute path of a name in this directory."""
        return self.path + name if self.path.endswith(b"/") else self.path + b"/" + name

    def names(self) -> list[bytes]:
        """All names in this directory, sorted."""
        return sorted(map(os.fsencode, os.listdir(self.fd)))

    def status(self, name: bytes) -> os.stat_result:
        """Status of a name, not following a symlink."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)


def open_root(path: bytes) -> DirectoryHandle:
    """Open a configured root; a root that is itself a symlink is followed, as its owner means it.

    Raises:
        SourceError: It is missing, or can't be read.
    """
    try:
        return DirectoryHandle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
        raise SourceError(os.strerror(error.errno or 0)) from error


def entry_of(name: bytes, status: os.stat_result) -> Entry:
    """The entry for a name, without content and extended attributes."""
    mode = status.st_mode
    rdev = 0
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        rdev = os.major(status.st_rdev) << 32 | os.minor(status.st_rdev)
    several = status.st_nlink > 1 and not stat.S_ISDIR(mode)
    return Entry(
        name,
        mode,
        status.st_uid,
        status.st_gid,
        storable_ns(status.st_mtime_ns),
        storable_ns(status.st_ctime_ns),
        status.st_ino,
        status.st_size if stat.S_ISREG(mode) else 0,
        link_dev=status.st_dev if several else 0,
        rdev=rdev,
    )


def storable_ns(time_ns: int) -> int:
    """A file's time, or the nearest that 64 bits can hold: the years 1677 to 2262.

    tmpfs, btrfs and NFS keep seconds in 64 bits, so that a wrong clock can leave any year.
    """
    if _TIME_MIN_NS <= time_ns <= _TIME_MAX_NS:
        return time_ns
    return _TIME_MIN_NS if time_ns < 0 else _TIME_MAX_NS


def read_xattrs(target: int | bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Extended attributes of an open file, or of a path that is not followed.

    POSIX ACLs come as ``system.posix_acl_access`` and ``system.posix_acl_default``. Attributes
    that this user may not read, and file systems that have none, give nothing.
    """
    found = []
    try:
        for name in _xattr_names(target):
            with_value = _xattr_value(target, name)
            if with_value is not None:
                found.append((os.fsencode(name), with_value))
    except OSError as error:
        if error.errno not in _NO_XATTRS:
            raise
    return tuple(sorted(found)) if found else ()


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
    """Where a symlink points."""
    return os.readlink(name, dir_fd=directory.fd)


class Exclusions:
    """Which paths the configuration leaves out.

    A pattern that starts with ``/`` is matched against absolute paths, one with a ``/`` in it
    against the last components of a path, any other against a name at any depth. ``*`` and
    ``?`` stop at a ``/``, ``**`` does not, ``[abc]`` and ``[!abc]`` are sets. A directory that
    is left out is left out with all that is in it.

    Raises:
        ValueError: A pattern has a range that runs backwards.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        names, paths = [], []
        for pattern in patterns:
            raw = os.fsencode(pattern)
            bare = raw.rstrip(b"/") or b"/"
            if bare.startswith(b"/"):
                paths.append(_translated(bare))
            elif b"/" in bare:
                paths.append(_translated(b"**/" + bare))
            else:
                names.append(_translated(bare))
        self._names = _compiled(names)
        self._paths = _compiled(paths)
        self.any = bool(patterns)

    def match(self, directory: DirectoryHandle, name: bytes) -> bool:
        """A name in a directory is left out."""
        return self.match_path(directory.path, name)

    def match_path(self, directory_path: bytes, name: bytes) -> bool:
        """A name in the directory of this path is left out."""
        if self._names is not None and self._names.fullmatch(name):
            return True
        if self._paths is None:
            return False
        path = directory_path.rstrip(b"/") + b"/" + name
        return bool(self._paths.fullmatch(path))


def _compiled(patterns: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(patterns), re.DOTALL) if patterns else None


def _translated(pattern: bytes) -> bytes:
    """A glob as a regular expression over bytes.

    Where another wildcard follows, the first place where the part in between fits is as good as
    any later one, and is not left again: a dozen stars would try every combination of places. To
    try all places is quicker as long as there are few.
    """
    stretches, at, parts = [], 0, [b""]
    deep = b""
    while at < len(pattern):
        found = _DEEP.match(pattern, at)
        if found:
            stretches.append((deep, parts))
            deep = b"(?:.*/)?" if found[0].endswith(b"/") else b".*"
            parts, at = [b""], found.end()
        elif pattern[at : at + 1] == b"*":
            parts.append(b"")
            at += 1
        else:
            one, at = _next_part(pattern, at)
            parts[-1] += one
    out = b""
    for before, fixed in stretches:
        shortest = before.replace(b"*", b"*?").replace(b")?", b")??")
        out += b"(?>" + shortest + _first_places(fixed) + b")"
    sure = max(len(parts) - 2, 1)
    rest = b"".join([b"[^/]*" + part for part in parts[sure:]])
    return b"(?:" + out + deep + _first_places(parts[:sure]) + rest + b")"


def _first_places(parts: list[bytes]) -> bytes:
    return parts[0] + b"".join([b"(?>[^/]*?" + part + b")" for part in parts[1:]])


def _next_part(pattern: bytes, at: int) -> tuple[bytes, int]:
    """What stands for one character, and where it ends."""
    one = pattern[at : at + 1]
    if one == b"?":
        return b"[^/]", at + 1
    found = _SET.match(pattern, at) if one == b"[" else None
    if found is None:
        return re.escape(one), at + 1
    members = b"".join([_members(part[0]) for part in _MEMBERS.finditer(found[2])])
    return b"(?!/)[" + (b"^" if found[1] else b"") + members + b"]", found.end()


def _members(part: bytes) -> bytes:
    """A byte of a set, or a range of them, as a regular expression has it."""
    if len(part) == 1:
        return re.escape(part)
    first, last = part[:1], part[2:]
    if first > last:
        raise ValueError(
            f"the range {os.fsdecode(part)} in a set runs backwards: a set is one character"
        )
    return re.escape(first) + b"-" + re.escape(last)


class Mount(NamedTuple):
    """A mounted file system: proc(5), "mountinfo".

    Attributes:
        point: Where it is mounted; absolute.
        kind: Type of the file system, as in ``mount -t``.
        device: ``st_dev`` of its files; on btrfs that of the mounted subvolume at best.
        is_readonly: It, or this mount of it, can't be written.
    """

    point: bytes
    kind: bytes
    device: int
    is_readonly: bool


def mounts(mount_info: bytes | None = None) -> list[Mount]:
    """What this process sees mounted, in the order of mounting; nothing without /proc."""
    if mount_info is None:
        mount_info = _mount_info()
    return list(_parsed_mounts(mount_info))


def mount_points_of(table: bytes) -> list[bytes]:
    """The mount points that a table of file systems names: fstab(5)."""
    lines = [line.split() for line in table.splitlines() if not line.lstrip().startswith(b"#")]
    named = [fields[1] for fields in lines if len(fields) > 1 and fields[1].startswith(b"/")]
    return [_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), one) for one in named]


def mount_of(path: bytes, known: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without symlinks lies in."""
    holding = [one for one in known if _is_within(path, one.point)]
    # The longest mount point wins; of several at one point, the last covers the others.
    return max(reversed(holding), key=lambda one: len(one.point), default=None)


class PseudoMounts:
    """Mounted file systems that hold no files but the kernel's view of itself: /proc, /sys."""

    def __init__(self, mount_info: bytes | None = None) -> None:
        known = mounts(mount_info)
        self._devices = frozenset([one.device for one in known if one.kind in _PSEUDO_TYPES])

    def holds(self, status: os.stat_result) -> bool:
        """This directory lies on such a file system."""
        return status.st_dev in self._devices


def _is_within(path: bytes, outer: bytes) -> bool:
    return (path + b"/").startswith(outer.rstrip(b"/") + b"/")


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
        point = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), fields[4])
        options = set(fields[5].split(b",")) | set(types[2].split(b","))
        yield Mount(point, types[0], os.makedev(int(major), int(minor)), b"ro" in options)

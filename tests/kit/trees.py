"""Exact comparison of directory trees, by everything that the kernel shows."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ciuic.source.mounts import mount_of, mounts

__all__ = ["Photo", "data_ranges", "differences", "has_holes", "photograph", "status_tree", "walk"]

_PAGE = 4096


class Photo(NamedTuple):
    """Everything of an entry that a restore must restore."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size_bytes: int
    content: str
    rdev: int
    xattrs: tuple[tuple[str, bytes], ...]
    data: tuple[tuple[int, int], ...]
    names: tuple[bytes, ...]


def walk(top: str | bytes | Path) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Yield every entry from ``top`` on: its relative path, its full path, its status."""
    base = os.fsencode(top)
    waiting = [b""]
    while waiting:
        inside = waiting.pop()
        path = os.path.join(base, inside) if inside else base
        status = os.lstat(path)
        yield inside or b".", path, status
        if stat.S_ISDIR(status.st_mode):
            waiting.extend(os.path.join(inside, name) for name in os.listdir(path))


def photograph(top: str | bytes | Path, *, holes: bool = True) -> dict[bytes, Photo]:
    """Return every entry of a tree by its path, without sockets, which no snapshot holds.

    XFS counts reserved blocks of a file as data, so holes are not compared there. To compare them,
    sync the files first and use ``data_ranges``.
    """
    holes = holes and has_holes(top)
    found = [entry for entry in walk(top) if not stat.S_ISSOCK(entry[2].st_mode)]
    groups: dict[tuple[int, int], list[bytes]] = {}
    for inside, _, status in found:
        if not stat.S_ISDIR(status.st_mode):
            groups.setdefault((status.st_dev, status.st_ino), []).append(inside)
    return {
        inside: _photo(path, status, groups.get((status.st_dev, status.st_ino), []), holes)
        for inside, path, status in sorted(found)
    }


def has_holes(top: str | bytes | Path) -> bool:
    """Return whether ``photograph`` compares the holes of files in this directory."""
    mount = mount_of(os.path.realpath(os.fsencode(top)), mounts())
    return mount is None or mount.kind != b"xfs"


def _photo(path: bytes, status: os.stat_result, names: list[bytes], holes: bool) -> Photo:
    mode = status.st_mode
    content, size_bytes = "", 0
    data: tuple[tuple[int, int], ...] = ()
    if stat.S_ISREG(mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = status.st_size
            data = data_ranges(file.fileno(), size_bytes) if holes else ()
    elif stat.S_ISLNK(mode):
        content = os.readlink(path).hex()
    special = stat.S_ISBLK(mode) or stat.S_ISCHR(mode)
    return Photo(
        mode,
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        size_bytes,
        content,
        status.st_rdev if special else 0,
        _xattrs(path),
        data,
        tuple(sorted(names)) if len(names) > 1 else (),
    )


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def data_ranges(fd: int, size_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return the data ranges of a file: start and end of each range between holes."""
    found: list[tuple[int, int]] = []
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, end))
    return tuple(found)


def differences(expected: dict[bytes, Photo], actual: dict[bytes, Photo]) -> list[str]:
    """Return the differences of two photographs in words; empty if they are equal."""
    found = [f"missing: {path!r}" for path in sorted(expected.keys() - actual.keys())]
    found += [f"unexpected: {path!r}" for path in sorted(actual.keys() - expected.keys())]
    for path in sorted(expected.keys() & actual.keys()):
        for field, wanted, other in zip(Photo._fields, expected[path], actual[path], strict=True):
            if wanted != other:
                found.append(f"{path!r}: {field} is {other!r} instead of {wanted!r}")
    return found


def status_tree(top: str | bytes | Path) -> dict[bytes, tuple[int, ...]]:
    """Return everything that changes with any write, with inodes and change times."""
    return {
        inside: (
            status.st_ino,
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        for inside, _, status in walk(top)
    }

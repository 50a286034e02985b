"""Comparing a restored tree with its source: names, kinds, bytes, modes, owners, times.

A tree that is restored in place is compared with fingerprints from before.
"""

import hashlib
import os
import stat
from pathlib import Path

from benchmarks.measure import RunFailedError

PIECE_BYTES = 1 << 20

Fingerprints = dict[str, tuple[int, int, int, int, str]]
"""Mode, owner, group, modification time and digest of each file, by its path in the tree."""


def require_equal(source: Path, restored: Path) -> None:
    """Raise RunFailedError with the first few differences, if there are any."""
    found = differences(source, restored)
    if found:
        raise RunFailedError(f"{restored} differs from {source}: " + "; ".join(found[:5]))


def fingerprints(directory: Path) -> Fingerprints:
    """Return the fingerprints of all files below the directory, by all of their bytes."""
    found: Fingerprints = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            seen = path.lstat()
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            place = str(path.relative_to(directory))
            found[place] = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, digest)
    return found


def require_same(before: Fingerprints, directory: Path) -> None:
    """Raise RunFailedError if the directory differs from its fingerprints."""
    now = fingerprints(directory)
    found = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if found:
        raise RunFailedError(f"{directory} has changed: " + "; ".join(found[:5]))


def differences(source: Path, restored: Path) -> list[str]:
    """Return a line for each path that differs; times of directories are ignored."""
    if source.is_file():
        return _file_differences(source, restored, source.name)
    found: list[str] = []
    for parent, directories, names in os.walk(source):
        place = Path(parent).relative_to(source)
        other = restored / place
        there = set(os.listdir(other)) if other.is_dir() else set()
        expected = {*directories, *names}
        found += [f"{place / name}: unexpected" for name in there - expected]
        found += [f"{place / name}: missing" for name in expected - there]
        for name in sorted(set(names) & there):
            found += _file_differences(Path(parent, name), other / name, str(place / name))
    return found


def _file_differences(left: Path, right: Path, shown: str) -> list[str]:
    try:
        here, there = left.lstat(), right.lstat()
    except OSError as error:
        return [f"{shown}: {error.strerror}"]
    if (here.st_mode, here.st_uid, here.st_gid) != (there.st_mode, there.st_uid, there.st_gid):
        return [f"{shown}: mode or owner"]
    if stat.S_ISLNK(here.st_mode):
        return [] if os.readlink(left) == os.readlink(right) else [f"{shown}: link target"]
    if here.st_mtime_ns != there.st_mtime_ns:
        return [f"{shown}: modification time"]
    return (
        [] if here.st_size == there.st_size and _same_bytes(left, right) else [f"{shown}: content"]
    )


def _same_bytes(left: Path, right: Path) -> bool:
    with left.open("rb", buffering=0) as first, right.open("rb", buffering=0) as second:
        while True:
            piece = first.read(PIECE_BYTES)
            if piece != second.read(PIECE_BYTES):
                return False
            if not piece:
                return True

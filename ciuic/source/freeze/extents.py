"""Find the ranges in which two reflink copies may differ from their extent maps, without reading.

Blocks that two files share are never overwritten: a write to one of the files goes to new blocks.
No program writes to a reflink copy. So where an older and a newer copy have the same blocks, they
have the same bytes. ioctl_fiemap: the kernel's Documentation, filesystems/fiemap.rst.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.source.byte_range import ByteRange
from ciuic.system import kernel
from ciuic.system.hashing import data_id

__all__ = ["changed_ranges", "data_ranges", "fingerprint"]

_MARK: Final = struct.Struct("<QQQ?")
_MARK_BYTES: Final = 16


class _Run(NamedTuple):
    """Extents that are adjacent both in the file and on the device, joined."""

    start: int
    end: int
    physical: int
    is_exact: bool


def changed_ranges(
    old_fd: int, old_size: int, new_fd: int, new_size: int
) -> list[ByteRange] | None:
    """Return the ranges of a newer reflink copy whose bytes may differ from an older copy.

    The ranges include all bytes beyond the end of the older copy, and every extent whose physical
    address is unknown or meaningless: not flushed yet, inline, compressed, encrypted, preallocated.

    Args:
        old_fd: The older copy; no program writes to either copy.
        old_size: Length of the older copy in bytes.
        new_fd: The newer copy.
        new_size: Length of the newer copy in bytes.

    Returns:
        Ranges of the newer copy, in order and not adjacent. None if the file system has no extent
        maps, or is moving extents at this moment.
    """
    try:
        old = list(_runs(old_fd))
        new = list(_runs(new_fd))
        # If the old copy's blocks were moved meanwhile, the new copy may have got the freed blocks.
        if list(_runs(old_fd)) != old:
            return None
    except OSError:
        return None
    changed = []
    at = 0
    for start, end in _equal(old, new, min(old_size, new_size)):
        if start > at:
            changed.append(ByteRange(at, start - at))
        at = end
    if at < new_size:
        changed.append(ByteRange(at, new_size - at))
    return changed


def fingerprint(fd: int) -> bytes | None:
    """Return 16 bytes that change if the file's bytes move to other blocks; None without a map.

    Flags and the division of a run into extents don't count: both depend on which files share the
    blocks.
    """
    try:
        marks = [_MARK.pack(*run) for run in _runs(fd)]
    except OSError:
        return None
    return data_id(b"".join(marks))[:_MARK_BYTES]


def data_ranges(fd: int) -> list[ByteRange] | None:
    """Return the ranges of a reflink copy that have data; holes and preallocated ranges are zeros.

    The extent map takes few calls for a whole file. SEEK_HOLE walks over all later extents in each
    call: a file of twenty thousand extents took seconds.

    Returns:
        Ranges in order and not adjacent; None if the file system has no extent maps.
    """
    found: list[ByteRange] = []
    start = end = 0
    try:
        for extent in kernel.map_extents(fd, sync=True):
            if extent.flags & kernel.UNWRITTEN_FLAG:
                continue
            if extent.logical > end:
                if end > start:
                    found.append(ByteRange(start, end - start))
                start = extent.logical
            end = extent.logical + extent.length
    except OSError:
        return None
    if end > start:
        found.append(ByteRange(start, end - start))
    return found


def _runs(fd: int) -> Iterator[_Run]:
    """Yield the file's extents, joined: XFS splits an extent if only a part of it is shared."""
    start = end = physical = 0
    is_exact = False
    for logical, place, length, flags in kernel.map_extents(fd, sync=True):
        exact = not flags & kernel.INEXACT_FLAGS
        follows = logical == end > start and exact == is_exact
        if not follows or (exact and place != physical + end - start):
            if end > start:
                yield _Run(start, end, physical, is_exact)
            start, physical, is_exact = logical, place if exact else 0, exact
        end = logical + length
    if end > start:
        yield _Run(start, end, physical, is_exact)


def _equal(old: list[_Run], new: list[_Run], size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges below ``size`` with equal bytes, in order; some may be adjacent."""
    old_at = new_at = at = 0
    while at < size:
        while old_at < len(old) and old[old_at].end <= at:
            old_at += 1
        while new_at < len(new) and new[new_at].end <= at:
            new_at += 1
        old_run = old[old_at] if old_at < len(old) else None
        new_run = new[new_at] if new_at < len(new) else None
        end = min(_boundary(old_run, at, size), _boundary(new_run, at, size))
        if _place(old_run, at) == _place(new_run, at) != _UNKNOWN:
            yield at, end
        at = end


_HOLE: Final = -1
_UNKNOWN: Final = -2


def _boundary(run: _Run | None, at: int, size: int) -> int:
    """Return where the run, or the hole before it, ends that holds a position."""
    if run is None:
        return size
    return min(size, run.start if at < run.start else run.end)


def _place(run: _Run | None, at: int) -> int:
    """Return the physical address of a position in the file."""
    if run is None or at < run.start:
        return _HOLE
    return run.physical + at - run.start if run.is_exact else _UNKNOWN

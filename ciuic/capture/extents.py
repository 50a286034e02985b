"""Which ranges of two frozen copies can differ, from the maps of their extents: nothing is read.

Blocks that two files share are never overwritten: whoever writes to one of the files gets new
blocks. So where an older copy and a newer one, which nobody writes to any longer, lie at the same
place on the device, they hold the same bytes. ioctl_fiemap: the kernel's Documentation,
filesystems/fiemap.rst.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.capture import kernel
from ciuic.hashing import data_id

__all__ = ["Range", "changed_ranges", "data_ranges", "fingerprint"]

_MARK: Final = struct.Struct("<QQQ?")
_MARK_BYTES: Final = 16


class Range(NamedTuple):
    """A stretch of a file."""

    offset_bytes: int
    length_bytes: int


class _Stretch(NamedTuple):
    """Extents that follow one another in the file and on the device, as one."""

    start: int
    end: int
    physical: int
    is_exact: bool


def changed_ranges(old_fd: int, old_size: int, new_fd: int, new_size: int) -> list[Range] | None:
    """The ranges of a newer frozen copy that may hold other bytes than an older one.

    Everything beyond the older one's end counts, and so does every extent whose place is not
    known or says nothing: not written yet, inline, compressed, encrypted, preallocated.

    Args:
        old_fd: The older copy; neither of them is written to any longer.
        old_size: Its length in bytes.
        new_fd: The newer copy.
        new_size: Its length in bytes.

    Returns:
        In order, apart from one another, within the newer copy. None when there is no telling:
        the file system has no map, or is moving extents about at this moment.
    """
    try:
        old = list(_stretches(old_fd))
        new = list(_stretches(new_fd))
        # Blocks that were moved away while we looked may be somebody else's by now.
        if list(_stretches(old_fd)) != old:
            return None
    except OSError:
        return None
    changed = []
    at = 0
    for start, end in _equal(old, new, min(old_size, new_size)):
        if start > at:
            changed.append(Range(at, start - at))
        at = end
    if at < new_size:
        changed.append(Range(at, new_size - at))
    return changed


def fingerprint(fd: int) -> bytes | None:
    """16 bytes that change when the file's bytes move to other blocks; None without a map.

    Flags are left out, and how a stretch is divided: both depend on who shares it.
    """
    try:
        marks = [_MARK.pack(*one) for one in _stretches(fd)]
    except OSError:
        return None
    return data_id(b"".join(marks))[:_MARK_BYTES]


def data_ranges(fd: int) -> list[Range] | None:
    """Where a frozen copy has data; what lies between is holes, or preallocated: zeros.

    One call tells it of the whole file, where SEEK_HOLE walks over all extents that follow, once
    for every range: a file of twenty thousand extents took seconds.

    Returns:
        In order, apart from one another; None without a map.
    """
    found: list[Range] = []
    start = end = 0
    try:
        for extent in kernel.map_extents(fd, sync=True):
            if extent.flags & kernel.UNWRITTEN_FLAG:
                continue
            if extent.logical > end:
                if end > start:
                    found.append(Range(start, end - start))
                start = extent.logical
            end = extent.logical + extent.length
    except OSError:
        return None
    if end > start:
        found.append(Range(start, end - start))
    return found


def _stretches(fd: int) -> Iterator[_Stretch]:
    """The file's extents; XFS divides one where only a part of it is shared."""
    start = end = physical = 0
    is_exact = False
    for logical, place, length, flags in kernel.map_extents(fd, sync=True):
        exact = not flags & kernel.INEXACT_FLAGS
        follows = logical == end > start and exact == is_exact
        if not follows or (exact and place != physical + end - start):
            if end > start:
                yield _Stretch(start, end, physical, is_exact)
            start, physical, is_exact = logical, place if exact else 0, exact
        end = logical + length
    if end > start:
        yield _Stretch(start, end, physical, is_exact)


def _equal(old: list[_Stretch], new: list[_Stretch], size: int) -> Iterator[tuple[int, int]]:
    """Stretches of equal bytes below ``size``, in order; some may touch."""
    old_at = new_at = at = 0
    while at < size:
        while old_at < len(old) and old[old_at].end <= at:
            old_at += 1
        while new_at < len(new) and new[new_at].end <= at:
            new_at += 1
        one = old[old_at] if old_at < len(old) else None
        other = new[new_at] if new_at < len(new) else None
        end = min(_boundary(one, at, size), _boundary(other, at, size))
        if _place(one, at) == _place(other, at) != _UNKNOWN:
            yield at, end
        at = end


_HOLE: Final = -1
_UNKNOWN: Final = -2


def _boundary(one: _Stretch | None, at: int, size: int) -> int:
    """Where what holds at a position ends."""
    if one is None:
        return size
    return min(size, one.start if at < one.start else one.end)


def _place(one: _Stretch | None, at: int) -> int:
    """Where on the device a position lies."""
    if one is None or at < one.start:
        return _HOLE
    return one.physical + at - one.start if one.is_exact else _UNKNOWN

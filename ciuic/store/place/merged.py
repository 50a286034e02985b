"""Merges ranges that are near to each other, so that one request reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ciuic.store.place.place import ByteRange

__all__ = ["Merged", "merged_ranges"]

_GAP_BYTES_MAX: Final = 512 * 1024
"""Reading this many unneeded bytes takes about as long as a request of its own."""
_LENGTH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Larger reads are not faster, and several requests run at once."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Ranges that are read together.

    Attributes:
        whole: The range to read.
        positions: Which of the caller's ranges it has, by their positions in the caller's list.
    """

    whole: ByteRange
    positions: Sequence[int]


def merged_ranges(ranges: Sequence[ByteRange]) -> list[Merged]:
    """Return groups of ranges, in the order of the object; each range is in one group."""
    groups: list[Merged] = []
    order = sorted(range(len(ranges)), key=lambda position: ranges[position].begin_bytes)
    for position in order:
        wanted = ranges[position]
        if groups:
            whole = groups[-1].whole
            end_bytes = max(whole.end_bytes, wanted.end_bytes)
            joined = ByteRange(whole.begin_bytes, end_bytes - whole.begin_bytes)
            is_near = wanted.begin_bytes - whole.end_bytes <= _GAP_BYTES_MAX
            if is_near and (joined.length_bytes <= _LENGTH_BYTES_MAX or joined == whole):
                groups[-1] = Merged(joined, [*groups[-1].positions, position])
                continue
        groups.append(Merged(wanted, [position]))
    return groups

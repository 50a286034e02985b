"""An old recipe and the ranges that changed -> a new recipe, and what has to be read for it.

What did not change is taken over: whole pieces, and slices of those that changed in part, so that
4 KiB written in the middle of a chunk cost 4 KiB. A region of the file that is down to crumbs is
read as a whole, which bounds the recipe and what a restore has to gather.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ciuic.capture import Range
from ciuic.chunking import Chunker
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece

__all__ = ["Gap", "Kept", "believed", "believed_whole", "respell"]

ITEMS_MAX: Final = 64
"""So many items spell one region of a chunk's length: ten generations of 1 % of all blocks changed
at random (decision 0008)."""
_KEPT_MIN: Final = 0.25
"""A region of which less than this is left is read as a whole: its old chunks may then go."""


_BATCH: Final = 500


class Kept(NamedTuple):
    """A stretch of the file that the old recipe spells."""

    offset_bytes: int
    piece: Piece

    @property
    def length_bytes(self) -> int:
        """Of the stretch."""
        return self.piece.length_bytes


class Gap(NamedTuple):
    """A stretch of the file that has to be read."""

    offset_bytes: int
    length_bytes: int


def respell(
    pieces: Iterable[Piece], changed: Sequence[Range], new_size: int, *, chunker: Chunker
) -> Iterator[Kept | Gap]:
    """Plan the recipe of a file that was changed in places.

    Args:
        pieces: The old recipe, in order, wherever it is cut.
        changed: Ranges of the new file that may differ, in order; what lies beyond the old
            file's end is among them.
        new_size: Length of the new file in bytes.
        chunker: Where a fresh read cuts.

    Yields:
        The new file from its first byte to its last. A gap begins and ends where a fresh read
        would cut, or next to something that is kept; gaps never touch.
    """
    yield from _merged(_by_region(_segments(pieces, changed, new_size), chunker))


def believed(
    pieces: Iterable[Piece],
    changed: Sequence[Range],
    new_size: int,
    *,
    chunker: Chunker,
    chunk_bytes: int,
) -> Iterator[Kept]:
    """The pieces that a full read must find again if ``changed`` tells the truth.

    Only chunks of full length that a fresh read cuts in the same places: what is shorter may be a
    slice, whose ID is that of more bytes.
    """
    for one in _segments(pieces, changed, new_size):
        if isinstance(one, Kept) and one.piece.id and one.length_bytes == chunk_bytes:
            start = one.offset_bytes
            if chunker.before(start) == start and chunker.after(start) == start + chunk_bytes:
                yield one


def believed_whole(
    pieces: Iterable[Piece],
    changed: Sequence[Range],
    new_size: int,
    *,
    places: Callable[[Sequence[bytes]], Mapping[bytes, ChunkPlace]],
) -> Iterator[Kept]:
    """The same for a file that is cut by its content: the pieces that are whole chunks.

    A full read finds each of them again if it cuts there, which it need not behind a stretch that
    was once read alone.

    Args:
        pieces: The old recipe, in order.
        changed: Ranges of the new file that may differ, in order.
        new_size: Length of the new file in bytes.
        places: Tells how long chunks are: a piece that is shorter is a slice.
    """
    kept = (one for one in _segments(pieces, changed, new_size) if isinstance(one, Kept))
    whole = (one for one in kept if one.piece.id and not one.piece.start_bytes)
    while batch := list(islice(whole, _BATCH)):
        known = places([one.piece.id for one in batch])
        for one in batch:
            place = known.get(one.piece.id)
            if place is not None and place.length_bytes == one.length_bytes:
                yield one


def _segments(
    pieces: Iterable[Piece], changed: Sequence[Range], new_size: int
) -> Iterator[Kept | Gap]:
    """Old pieces and changed ranges, cut at one another's ends."""
    ranges = iter(changed)
    current = next(ranges, None)
    at = 0
    for piece in pieces:
        end = min(at + piece.length_bytes, new_size)
        start = at
        while at < end:
            while current is not None and current.offset_bytes + current.length_bytes <= at:
                current = next(ranges, None)
            if current is not None and current.offset_bytes <= at:
                until = min(end, current.offset_bytes + current.length_bytes)
                yield Gap(at, until - at)
            else:
                until = end if current is None else min(end, current.offset_bytes)
                # A hole has no bytes to begin with.
                skipped = piece.start_bytes + at - start if piece.id else 0
                yield Kept(at, Piece(until - at, piece.id, skipped))
            at = until
        if at >= new_size:
            return
    if at < new_size:
        yield Gap(at, new_size - at)


def _by_region(segments: Iterable[Kept | Gap], chunker: Chunker) -> Iterator[Kept | Gap]:
    """Turn regions that are down to crumbs into gaps; a region is what a fresh read cuts out."""
    region: list[Kept | Gap] = []
    for segment in segments:
        for part in _cut_at_regions(segment, chunker):
            start = part.offset_bytes
            if chunker.before(start) == start:
                yield from _settled(region)
                region = []
                if start + part.length_bytes >= chunker.after(start):
                    yield part
                    continue
            region.append(part)
    yield from _settled(region)


def _cut_at_regions(segment: Kept | Gap, chunker: Chunker) -> Iterator[Kept | Gap]:
    """Up to the first boundary, all whole regions as one, what is left."""
    start, end = segment.offset_bytes, segment.offset_bytes + segment.length_bytes
    is_boundary = chunker.before(start) == start
    first = min(end, start if is_boundary else chunker.after(start))
    last = max(first, chunker.before(end))
    for one, other in ((start, first), (first, last), (last, end)):
        if one < other:
            yield _part(segment, one, other)


def _part(segment: Kept | Gap, start: int, end: int) -> Kept | Gap:
    if isinstance(segment, Gap):
        return Gap(start, end - start)
    piece = segment.piece
    skipped = start - segment.offset_bytes if piece.id else 0
    return Kept(start, Piece(end - start, piece.id, piece.start_bytes + skipped))


def _settled(region: list[Kept | Gap]) -> list[Kept | Gap]:
    """A region's parts, or one gap in their place."""
    if not any(isinstance(one, Gap) for one in region):
        return region
    start = region[0].offset_bytes
    length = region[-1].offset_bytes + region[-1].length_bytes - start
    kept = sum([one.length_bytes for one in region if isinstance(one, Kept)])
    if len(region) > ITEMS_MAX or kept < _KEPT_MIN * length:
        return [Gap(start, length)]
    return region


def _merged(parts: Iterable[Kept | Gap]) -> Iterator[Kept | Gap]:
    """Join neighbours that are one stretch of a chunk, of a hole or of the file."""
    last: Kept | Gap | None = None
    for part in parts:
        joined = None if last is None else _joined(last, part)
        if joined is not None:
            last = joined
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _joined(one: Kept | Gap, other: Kept | Gap) -> Kept | Gap | None:
    if isinstance(one, Gap) and isinstance(other, Gap):
        return Gap(one.offset_bytes, one.length_bytes + other.length_bytes)
    if isinstance(one, Gap) or isinstance(other, Gap) or one.piece.id != other.piece.id:
        return None
    before, after = one.piece, other.piece
    if before.id and before.start_bytes + before.length_bytes != after.start_bytes:
        return None
    length = before.length_bytes + after.length_bytes
    return Kept(one.offset_bytes, Piece(length, before.id, before.start_bytes))

"""Plan a new recipe from an old recipe and the ranges that changed.

The new recipe keeps unchanged pieces, and slices of pieces that changed in part. So 4 KiB written
in the middle of a chunk cost 4 KiB. If a region consists of many small slices, it is read as a
whole, which bounds the length of the recipe and the number of chunks that a restore gathers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ciuic.chunking import Chunker
from ciuic.ids import ChunkId
from ciuic.source.byte_range import ByteRange
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.recipe_nodes import Piece

__all__ = ["Gap", "Kept", "plan_changes", "unchanged_chunks", "unchanged_whole_chunks"]

ITEMS_MAX: Final = 64
"""Maximum number of items for a region of a chunk's length: ten times, 1% of all blocks changed at
random (decision 0008)."""
_KEPT_MIN: Final = 0.25
"""A region that keeps a smaller share is read as a whole, so that prune may remove its old
chunks."""


_BATCH: Final = 500


class Kept(NamedTuple):
    """A range of the file that keeps a piece of the old recipe."""

    offset_bytes: int
    piece: Piece

    @property
    def length_bytes(self) -> int:
        """Length of the range."""
        return self.piece.length_bytes


class Gap(NamedTuple):
    """A range of the file that must be read."""

    offset_bytes: int
    length_bytes: int


def plan_changes(
    pieces: Iterable[Piece], changed: Sequence[ByteRange], new_size: int, *, chunker: Chunker
) -> Iterator[Kept | Gap]:
    """Plan the recipe of a file that was changed in places.

    Args:
        pieces: The old recipe, in order.
        changed: Ranges of the new file that may differ, in order; they include all bytes beyond
            the end of the old file.
        new_size: Length of the new file in bytes.
        chunker: Cuts the file in a full read.

    Yields:
        The parts of the new file, from its first byte to its last. A gap begins and ends where a
        full read would cut, or next to a kept piece; gaps are never adjacent.
    """
    yield from _merged(_by_region(_segments(pieces, changed, new_size), chunker))


def unchanged_chunks(
    pieces: Iterable[Piece],
    changed: Sequence[ByteRange],
    new_size: int,
    *,
    chunker: Chunker,
    chunk_bytes: int,
) -> Iterator[Kept]:
    """Yield the pieces that a full read must find again if ``changed`` is right.

    These are chunks of full length that a full read cuts in the same places. A shorter piece may
    be a slice, whose ID is that of the whole chunk.
    """
    for part in _segments(pieces, changed, new_size):
        if isinstance(part, Kept) and part.piece.id and part.length_bytes == chunk_bytes:
            start = part.offset_bytes
            if chunker.before(start) == start and chunker.after(start) == start + chunk_bytes:
                yield part


def unchanged_whole_chunks(
    pieces: Iterable[Piece],
    changed: Sequence[ByteRange],
    new_size: int,
    *,
    places: Callable[[Sequence[ChunkId]], Mapping[ChunkId, ChunkPlace]],
) -> Iterator[Kept]:
    """Like ``unchanged_chunks`` for a file that is cut by its content: yield the whole chunks.

    A full read finds each of them again if it cuts at the same places. It may not, after a range
    that was once read alone.

    Args:
        pieces: The old recipe, in order.
        changed: Ranges of the new file that may differ, in order.
        new_size: Length of the new file in bytes.
        places: Returns the places of chunks, with their lengths: a shorter piece is a slice.
    """
    kept = (part for part in _segments(pieces, changed, new_size) if isinstance(part, Kept))
    from_start = (part for part in kept if part.piece.id and not part.piece.start_bytes)
    while batch := list(islice(from_start, _BATCH)):
        known = places([part.piece.id for part in batch])
        for part in batch:
            place = known.get(part.piece.id)
            if place is not None and place.length_bytes == part.length_bytes:
                yield part


def _segments(
    pieces: Iterable[Piece], changed: Sequence[ByteRange], new_size: int
) -> Iterator[Kept | Gap]:
    """Yield the old pieces and the changed ranges, cut at each other's ends."""
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
                # A hole has no start within a chunk.
                skipped = piece.start_bytes + at - start if piece.id else 0
                yield Kept(at, Piece(until - at, piece.id, skipped))
            at = until
        if at >= new_size:
            return
    if at < new_size:
        yield Gap(at, new_size - at)


def _by_region(segments: Iterable[Kept | Gap], chunker: Chunker) -> Iterator[Kept | Gap]:
    """Turn regions of many small parts into gaps; a region is what a full read would cut out."""
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
    """Yield the part before the first boundary, all whole regions as one part, and the rest."""
    start, end = segment.offset_bytes, segment.offset_bytes + segment.length_bytes
    is_boundary = chunker.before(start) == start
    first = min(end, start if is_boundary else chunker.after(start))
    last = max(first, chunker.before(end))
    for begin, until in ((start, first), (first, last), (last, end)):
        if begin < until:
            yield _part(segment, begin, until)


def _part(segment: Kept | Gap, start: int, end: int) -> Kept | Gap:
    if isinstance(segment, Gap):
        return Gap(start, end - start)
    piece = segment.piece
    skipped = start - segment.offset_bytes if piece.id else 0
    return Kept(start, Piece(end - start, piece.id, piece.start_bytes + skipped))


def _settled(region: list[Kept | Gap]) -> list[Kept | Gap]:
    """Return a region's parts, or one gap if too little of it is kept."""
    if not any(isinstance(part, Gap) for part in region):
        return region
    start = region[0].offset_bytes
    length = region[-1].offset_bytes + region[-1].length_bytes - start
    kept = sum([part.length_bytes for part in region if isinstance(part, Kept)])
    if len(region) > ITEMS_MAX or kept < _KEPT_MIN * length:
        return [Gap(start, length)]
    return region


def _merged(parts: Iterable[Kept | Gap]) -> Iterator[Kept | Gap]:
    """Join adjacent parts that are one range of a chunk, of a hole or of the file."""
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


def _joined(part: Kept | Gap, following: Kept | Gap) -> Kept | Gap | None:
    if isinstance(part, Gap) and isinstance(following, Gap):
        return Gap(part.offset_bytes, part.length_bytes + following.length_bytes)
    if isinstance(part, Gap) or isinstance(following, Gap) or part.piece.id != following.piece.id:
        return None
    before, after = part.piece, following.piece
    if before.id and before.start_bytes + before.length_bytes != after.start_bytes:
        return None
    length = before.length_bytes + after.length_bytes
    return Kept(part.offset_bytes, Piece(length, before.id, before.start_bytes))

"""Places of chunks, and the rows of the chunk index that record them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ciuic.ids import ChunkId, PackId
from ciuic.store.format.pack import PackedFrame

__all__ = ["CheckRecord", "ChunkPlace", "DrillRecord", "Emptied", "Row", "rows_of"]


class ChunkPlace(NamedTuple):
    """The place of a chunk.

    Attributes:
        pack_id: The pack.
        offset_bytes: Offset of the chunk's frame in the pack.
        frame_bytes: Length of that frame, header included.
        start_bytes: Offset of the chunk in the frame's decoded payload.
        length_bytes: Length of the chunk.
        kind: ``DATA``, ``RECIPE`` or ``TREE``.
        delta_bases: The delta bases; none if the chunk is not a delta.
    """

    pack_id: PackId
    offset_bytes: int
    frame_bytes: int
    start_bytes: int
    length_bytes: int
    kind: int
    delta_bases: tuple[ChunkId, ...] = ()


class CheckRecord(NamedTuple):
    """When a pack was last read in full, and the result.

    Attributes:
        checked_ns: When the pack was read.
        read_bytes: How many bytes were read.
        what: What was wrong with it; empty if nothing was.
    """

    checked_ns: int
    read_bytes: int
    what: str


class DrillRecord(NamedTuple):
    """When a recovery was practiced, and the result.

    Attributes:
        done_ns: When the drill ended.
        snapshot: The full ID of the snapshot.
        files: How many files came back as the snapshot has them.
        restored_bytes: How many bytes were restored.
        restore_s: How long the restore took.
        is_full: Every path of the snapshot was restored, not a sample.
        outcome: What went wrong; empty if nothing did.
    """

    done_ns: int
    snapshot: str
    files: int
    restored_bytes: int
    restore_s: float
    is_full: bool
    outcome: str


class Emptied(NamedTuple):
    """A pack whose needed chunks were copied to another pack, and all its chunks."""

    pack_id: PackId
    chunk_ids: Sequence[ChunkId]


Row = tuple[ChunkId, int, int, int, int, int, int]


def rows_of(
    number: int, frames: Iterable[PackedFrame]
) -> tuple[list[Row], dict[Row, tuple[ChunkId, ...]]]:
    """Return the rows of a pack's chunks without base; and of its deltas, with their bases.

    If a pack has a chunk several times, one copy counts, so that its row and its reference agree: a
    copy without base, or else the last one.
    """
    listed = list(frames)
    alone = list(_rows(number, [packed for packed in listed if not packed.frame.is_delta]))
    deltas = {
        row[0]: (row, packed.frame.delta_bases)
        for packed in listed
        if packed.frame.is_delta
        for row in _rows(number, [packed])
    }
    for row in alone if deltas else ():
        deltas.pop(row[0], None)
    return alone, dict(deltas.values())


def _rows(number: int, frames: Iterable[PackedFrame]) -> Iterator[Row]:
    for packed in frames:
        frame, offset = packed.frame, packed.offset_bytes
        total, kind = frame.total_bytes, frame.kind
        start = 0
        for chunk_id, length in frame.chunks:
            yield chunk_id, number, offset, total, start, length, kind
            start += length

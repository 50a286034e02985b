"""Frames: chunks that are encoded together, with a header to find and check them.

A large chunk has a frame of its own. Small chunks share a frame: 160 files of 6 KB compress to two
thirds of what they take one by one, in less than half the time. Byte layout: docs/format.md,
"Frames". This module converts between values and bytes; it opens no file.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic import codec
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.records.kinds import DATA, KINDS, chunk_id_of
from ciuic.system.hashing import ID_BYTES, checksum, data_id
from ciuic.units import counted

__all__ = [
    "CHUNKS_MAX",
    "FRAME_BYTES_MAX",
    "HEADER_BYTES",
    "MAGIC",
    "NO_DELTA_BASE",
    "PLAIN_BYTES_MAX",
    "Frame",
    "UnusableFrameError",
    "check_delta_bases",
    "decode_frame",
    "encode_delta_frame",
    "encode_frame",
    "header_bytes_needed",
    "parse_header",
    "stored_bytes_of",
]

MAGIC: Final = b"CiF1"
_HEADER: Final = struct.Struct("<4sBBHIIII32sQQ")
_BASES_MAX: Final = 2
_COUNT: Final = struct.Struct("<I")
_COUNT_AT: Final = 8
_STORED_BYTES_AT: Final = 16
_SLOT: Final = struct.Struct("<32sI")
_SLOT_BYTES: Final = _SLOT.size
HEADER_BYTES: Final = _HEADER.size
CHUNKS_MAX: Final = 65_536
PLAIN_BYTES_MAX: Final = 64 * 1024 * 1024
FRAME_BYTES_MAX: Final = HEADER_BYTES + CHUNKS_MAX * _SLOT_BYTES + PLAIN_BYTES_MAX
"""No frame is longer: a payload is never longer than the plain bytes."""
_CHECKSUM_AT: Final = HEADER_BYTES - 8
NO_DELTA_BASE: Final = ChunkId(bytes(ID_BYTES))


class UnusableFrameError(CorruptionError):
    """A sound header describes a frame that no writer makes. Only this frame is lost."""


_Slots = tuple[tuple[ChunkId, int], ...]


class Frame(NamedTuple):
    """A frame's header and table, parsed; without the payload.

    Attributes:
        kind: ``DATA``, ``RECIPE`` or ``TREE``.
        codec: Number of the payload's encoding.
        delta_bases: The delta bases of a delta, at most two; none if the frame is not a delta.
        plain_bytes: Length of the decoded payload.
        stored_bytes: Length of the stored payload.
        payload_checksum: XXH3-64 of the stored payload.
        chunks: ID and plain length of each chunk, in the order of the decoded payload.
    """

    kind: int
    codec: int
    delta_bases: tuple[ChunkId, ...]
    plain_bytes: int
    stored_bytes: int
    payload_checksum: int
    chunks: _Slots

    @property
    def header_bytes(self) -> int:
        """Length of header and table together."""
        return HEADER_BYTES + (len(self.chunks) + len(self.delta_bases[1:])) * _SLOT_BYTES

    @property
    def is_delta(self) -> bool:
        """The frame is a delta: decoding it needs its delta bases."""
        return bool(self.delta_bases)

    @property
    def total_bytes(self) -> int:
        """Length of the whole frame in a pack."""
        return self.header_bytes + self.stored_bytes

    def holds_its_chunks(self, plain: bytes | memoryview) -> bool:
        """Return whether each part of the decoded payload hashes to the ID in the table."""
        identify = data_id if self.kind == DATA else functools.partial(chunk_id_of, self.kind)
        view = memoryview(plain)
        start = 0
        for chunk_id, length in self.chunks:
            if identify(view[start : start + length]) != chunk_id:
                return False
            start += length
        return start == len(view)

    def encode_header(self) -> bytes:
        """Encode header and table."""
        first, further = self.delta_bases[:1], self.delta_bases[1:]
        # A further delta base takes a slot of the table, behind the chunks, with a length of 0.
        slots = (*self.chunks, *[(delta_base, 0) for delta_base in further])
        fields = (
            MAGIC,
            self.kind,
            self.codec,
            0,
            len(slots),
            self.plain_bytes,
            self.stored_bytes,
            len(further),
            first[0] if first else NO_DELTA_BASE,
            self.payload_checksum,
        )
        table = b"".join([chunk_id + size.to_bytes(4, "little") for chunk_id, size in slots])
        bare = _HEADER.pack(*fields, 0)[:_CHECKSUM_AT]
        return _HEADER.pack(*fields, checksum(bare + table)) + table


def encode_frame(
    kind: int,
    chunks: Sequence[tuple[ChunkId, bytes | memoryview]],
    width: int = 0,
) -> tuple[Frame, bytes | memoryview]:
    """Encode chunks in one frame; returns the header and the payload.

    Args:
        kind: The kind of all chunks.
        chunks: ID and plain bytes of each.
        width: Bytes per element of a single chunk; see ``codec.encode``.
    """
    plain = chunks[0][1] if len(chunks) == 1 else b"".join([part for _, part in chunks])
    number, payload = codec.encode(plain, is_mixed=kind != DATA or len(chunks) > 1, width=width)
    return _frame(kind, chunks, number, (), payload), payload


def encode_delta_frame(
    chunk: tuple[ChunkId, bytes | memoryview],
    bases: Sequence[tuple[ChunkId, codec.DeltaBase]],
    chain_cost: float,
    width: int = 0,
) -> tuple[Frame, bytes | memoryview] | None:
    """Encode a chunk of file content as a delta.

    Args:
        chunk: ID and plain bytes.
        bases: Candidates for the delta base: ID and content, the most similar one first.
        chain_cost: See ``codec.encode_delta``.
        width: See ``codec.encode_delta``.

    Returns:
        The header and the payload; None if the chunk is better stored without a delta base.
    """
    found = codec.encode_delta(chunk[1], [base for _, base in bases], chain_cost, width)
    if found is None:
        return None
    delta_base = bases[found.base_number][0]
    return _frame(DATA, [chunk], found.codec, (delta_base,), found.stored), found.stored


def _frame(
    kind: int,
    chunks: Sequence[tuple[ChunkId, bytes | memoryview]],
    number: int,
    delta_bases: tuple[ChunkId, ...],
    payload: bytes | memoryview,
) -> Frame:
    sizes = tuple([(chunk_id, len(plain)) for chunk_id, plain in chunks])
    return Frame(
        kind=kind,
        codec=number,
        delta_bases=delta_bases,
        plain_bytes=sum([size for _, size in sizes]),
        stored_bytes=len(payload),
        payload_checksum=checksum(payload),
        chunks=sizes,
    )


def header_bytes_needed(start: bytes | memoryview) -> int:
    """Return the length of header and table, from the first ``HEADER_BYTES`` of a frame.

    Raises:
        CorruptionError: No frame starts here.
    """
    if len(start) < HEADER_BYTES or start[:4] != MAGIC:
        raise CorruptionError("no frame starts here")
    count: int = _COUNT.unpack_from(start, _COUNT_AT)[0]
    if not 1 <= count <= CHUNKS_MAX:
        raise CorruptionError(f"a frame cannot hold {counted(count, 'chunk')}")
    return HEADER_BYTES + count * _SLOT_BYTES


def stored_bytes_of(header: bytes | memoryview) -> int:
    """Return the length of the payload; its place in the header is the same in every version."""
    length: int = _COUNT.unpack_from(header, _STORED_BYTES_AT)[0]
    return length


def parse_header(data: bytes | memoryview) -> Frame:
    """Decode header and table, which may be followed by other bytes.

    Raises:
        CorruptionError: Header or table are truncated or damaged.
        UnusableFrameError: They are sound, and describe a frame that no writer makes.
        UnknownFormatError: They are sound, and of a kind that this version does not know.
    """
    length = header_bytes_needed(data)
    if len(data) < length:
        raise CorruptionError("a frame's table is cut short")
    _, kind, number, flags, _, plain, stored, further, delta_base, payload_sum, own_sum = (
        _HEADER.unpack_from(data)
    )
    table = bytes(data[HEADER_BYTES:length])
    if checksum(bytes(data[:_CHECKSUM_AT]) + table) != own_sum:
        raise CorruptionError("a frame's header does not match its checksum")
    if kind not in KINDS or flags or further >= _BASES_MAX:
        raise UnknownFormatError(
            f"a frame of kind {kind}, flags {flags:#x}, reserved {further:#x} is not known"
        )
    chunks: _Slots = tuple(_SLOT.iter_unpack(table))
    delta_bases: tuple[ChunkId, ...] = () if delta_base == NO_DELTA_BASE else (ChunkId(delta_base),)
    if further:
        chunks, delta_bases = _split_slots(chunks, delta_bases, further)
    sizes = [size for _, size in chunks]
    if plain > PLAIN_BYTES_MAX or sum(sizes) != plain:
        raise UnusableFrameError("a frame's chunk lengths do not add up")
    if 0 in sizes:
        raise UnusableFrameError("a frame lists a chunk of 0 bytes")
    if stored > plain:
        raise UnusableFrameError("a frame's payload is longer than the chunks in it")
    return Frame(kind, number, delta_bases, plain, stored, payload_sum, chunks)


def _split_slots(
    slots: _Slots, first: tuple[ChunkId, ...], further: int
) -> tuple[_Slots, tuple[ChunkId, ...]]:
    """Return the slots of a table that are chunks, and all delta bases.

    Raises:
        UnusableFrameError: There is no first delta base, no chunk, or a base with a length.
    """
    chunks, bases = slots[:-further], slots[-further:]
    if not chunks or not first or any(size for _, size in bases):
        raise UnusableFrameError("a frame's table has no room for its delta bases")
    return chunks, (*first, *[delta_base for delta_base, _ in bases])


def decode_frame(
    frame: Frame,
    payload: bytes | memoryview,
    *delta_bases: bytes | memoryview,
    out: memoryview | None = None,
) -> bytes | memoryview:
    """Decode a frame. The chunk IDs are not checked: see ``check_chunk``.

    Args:
        frame: The header.
        payload: The stored payload.
        delta_bases: The bytes of each delta base.
        out: See ``codec.decode``.

    Raises:
        CorruptionError: The payload is damaged.
        UnknownFormatError: This version does not know the codec, or this use of it.
    """
    if checksum(payload) != frame.payload_checksum:
        raise CorruptionError("a frame's payload does not match its checksum")
    check_delta_bases(frame)
    return codec.decode(frame.codec, payload, frame.plain_bytes, *delta_bases, out=out)


def check_delta_bases(frame: Frame) -> None:
    """Check that a frame has as many delta bases as its codec needs. A new codec passes.

    Raises:
        CorruptionError: It has another number.
        UnknownFormatError: It is a delta of nodes, or of several chunks.
    """
    found, needed = len(frame.delta_bases), codec.BASE_COUNTS.get(frame.codec)
    if needed is not None and found != needed:
        raise CorruptionError(
            f"a frame of codec {frame.codec} has {counted(found, 'delta base')} instead of {needed}"
        )
    if found and (frame.kind != DATA or len(frame.chunks) != 1):
        raise UnknownFormatError("a delta of nodes or of several chunks is not known")

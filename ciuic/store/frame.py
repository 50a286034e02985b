"""Frames: chunks that are encoded together, with all that is needed to find and check them.

One large chunk makes a frame; many small ones share one, because 160 files of 6 KB compress
to two thirds of what they take one by one, in less than half the time. Byte layout:
docs/format.md, "Frames". This module turns values into bytes and back; it opens no file.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic import codec
from ciuic.errors import CorruptionError, DigestError, UnknownFormatError
from ciuic.hashing import ID_BYTES, checksum, data_id, node_id

__all__ = [
    "CHAIN_MAX",
    "CHUNKS_MAX",
    "DATA",
    "HEADER_BYTES",
    "KINDS",
    "MAGIC",
    "NO_REFERENCE",
    "PLAIN_BYTES_MAX",
    "RECIPE",
    "TREE",
    "Frame",
    "check_chunk",
    "chunk_id",
    "decode_frame",
    "encode_delta_frame",
    "encode_frame",
    "header_bytes_needed",
    "holds_its_chunks",
    "parse_header",
]

DATA: Final = 1
RECIPE: Final = 2
TREE: Final = 3
KINDS: Final = {DATA: "data", RECIPE: "recipe", TREE: "tree"}

MAGIC: Final = b"CiF1"
_HEADER: Final = struct.Struct("<4sBBHIIII32sQQ")
_COUNT: Final = struct.Struct("<I")
_COUNT_AT: Final = 8
_SLOT: Final = struct.Struct("<32sI")
_SLOT_BYTES: Final = _SLOT.size
HEADER_BYTES: Final = _HEADER.size
CHUNKS_MAX: Final = 65_536
PLAIN_BYTES_MAX: Final = 64 * 1024 * 1024
_CHECKSUM_AT: Final = HEADER_BYTES - 8
NO_REFERENCE: Final = bytes(ID_BYTES)
CHAIN_MAX: Final = 64
"""A chunk may be a difference from one that is a difference, and so on; no further than this."""


class Frame(NamedTuple):
    """A frame's header: what is in it, not the bytes.

    Attributes:
        kind: ``DATA``, ``RECIPE`` or ``TREE``.
        codec: Number of the payload's encoding.
        reference: ID of the chunk that a delta builds on; 32 zero bytes if it is none.
        plain_bytes: Length of the decoded payload.
        stored_bytes: Length of the payload.
        payload_checksum: XXH3-64 of the payload as stored.
        chunks: ID and plain length of each chunk, in the order they stand in the plain bytes.
    """

    kind: int
    codec: int
    reference: bytes
    plain_bytes: int
    stored_bytes: int
    payload_checksum: int
    chunks: tuple[tuple[bytes, int], ...]

    @property
    def header_bytes(self) -> int:
        """Length of header and table together."""
        return HEADER_BYTES + len(self.chunks) * _SLOT_BYTES

    @property
    def is_delta(self) -> bool:
        """Another chunk is needed to decode it."""
        return self.reference != NO_REFERENCE

    @property
    def total_bytes(self) -> int:
        """Length of the whole frame in a pack."""
        return self.header_bytes + self.stored_bytes

    def encode_header(self) -> bytes:
        """Header and table as they stand in a pack."""
        fields = (
            MAGIC,
            self.kind,
            self.codec,
            0,
            len(self.chunks),
            self.plain_bytes,
            self.stored_bytes,
            0,
            self.reference,
            self.payload_checksum,
        )
        table = b"".join([name + size.to_bytes(4, "little") for name, size in self.chunks])
        bare = _HEADER.pack(*fields, 0)[:_CHECKSUM_AT]
        return _HEADER.pack(*fields, checksum(bare + table)) + table


def chunk_id(kind: int, plain: bytes | bytearray | memoryview) -> bytes:
    """Content address of a chunk of this kind."""
    return data_id(plain) if kind == DATA else node_id(kind, bytes(plain))


def encode_frame(
    kind: int,
    chunks: Sequence[tuple[bytes, bytes | memoryview]],
    width: int = 0,
) -> tuple[Frame, bytes | memoryview]:
    """Encode chunks, given as ID and plain bytes; returns the header and the payload.

    Args:
        kind: Of all of them.
        chunks: The chunks.
        width: Bytes of an element of a single chunk, as far as is known; see ``codec.encode``.
    """
    plain = chunks[0][1] if len(chunks) == 1 else b"".join([one for _, one in chunks])
    number, payload = codec.encode(plain, is_mixed=kind != DATA or len(chunks) > 1, width=width)
    return _frame(kind, chunks, number, NO_REFERENCE, payload), payload


def encode_delta_frame(
    chunk: tuple[bytes, bytes | memoryview],
    references: Sequence[tuple[bytes, codec.Reference]],
    chain_cost: float,
    width: int = 0,
) -> tuple[Frame, bytes | memoryview] | None:
    """Encode a chunk of file content as a difference from an earlier version.

    Args:
        chunk: ID and plain bytes.
        references: IDs of earlier versions, and how to have them; the likest first.
        chain_cost: See ``codec.encode_delta``.
        width: See ``codec.encode_delta``.

    Returns:
        The header and the payload; None if the chunk had better stand alone.
    """
    found = codec.encode_delta(chunk[1], [one for _, one in references], chain_cost, width)
    if found is None:
        return None
    reference = references[found.reference][0]
    return _frame(DATA, [chunk], found.codec, reference, found.stored), found.stored


def _frame(
    kind: int,
    chunks: Sequence[tuple[bytes, bytes | memoryview]],
    number: int,
    reference: bytes,
    payload: bytes | memoryview,
) -> Frame:
    sizes = tuple([(name, len(plain)) for name, plain in chunks])
    return Frame(
        kind=kind,
        codec=number,
        reference=reference,
        plain_bytes=sum([size for _, size in sizes]),
        stored_bytes=len(payload),
        payload_checksum=checksum(payload),
        chunks=sizes,
    )


def header_bytes_needed(start: bytes | memoryview) -> int:
    """How many bytes header and table take, from the first ``HEADER_BYTES`` of a frame.

    Raises:
        CorruptionError: No frame starts here.
    """
    if len(start) < HEADER_BYTES or start[:4] != MAGIC:
        raise CorruptionError("no frame starts here")
    count: int = _COUNT.unpack_from(start, _COUNT_AT)[0]
    if not 1 <= count <= CHUNKS_MAX:
        raise CorruptionError(f"a frame can't hold {count} chunks")
    return HEADER_BYTES + count * _SLOT_BYTES


def parse_header(data: bytes | memoryview) -> Frame:
    """Decode header and table; ``data`` may go on behind them.

    Raises:
        CorruptionError: They are cut short, or not what was written.
        UnknownFormatError: They are whole, and of a kind that this version does not know.
    """
    length = header_bytes_needed(data)
    if len(data) < length:
        raise CorruptionError("a frame's table is cut short")
    _, kind, number, flags, count, plain, stored, extra, reference, payload_sum, own_sum = (
        _HEADER.unpack_from(data)
    )
    table = bytes(data[HEADER_BYTES:length])
    if checksum(bytes(data[:_CHECKSUM_AT]) + table) != own_sum:
        raise CorruptionError("a frame's header does not match its checksum")
    if kind not in KINDS or flags or extra:
        raise UnknownFormatError(f"a frame of kind {kind}, flags {flags:#x} is not known")
    chunks = tuple(_SLOT.iter_unpack(table))
    sum_bytes = chunks[0][1] if count == 1 else sum([size for _, size in chunks])
    if plain > PLAIN_BYTES_MAX or sum_bytes != plain:
        raise CorruptionError("a frame's chunk lengths do not add up")
    return Frame(kind, number, reference, plain, stored, payload_sum, chunks)


def decode_frame(
    frame: Frame, payload: bytes | memoryview, reference: bytes | memoryview = b""
) -> bytes | memoryview:
    """All plain bytes of a frame. Their chunk IDs are not checked here: see ``check_chunk``.

    Args:
        frame: Its header.
        payload: Its stored bytes.
        reference: The chunk that a delta is a difference from.

    Raises:
        CorruptionError: The payload is not what was written.
        UnknownFormatError: The codec is not known to this version.
    """
    if checksum(payload) != frame.payload_checksum:
        raise CorruptionError("a frame's payload does not match its checksum")
    if frame.is_delta != (frame.codec in codec.DIFFERENCES):
        raise UnknownFormatError(
            f"a frame of codec {frame.codec} {'with' if frame.is_delta else 'without'} a reference"
            " is not known to this version of ciuic"
        )
    return codec.decode(frame.codec, payload, frame.plain_bytes, reference)


def check_chunk(kind: int, name: bytes, plain: bytes | memoryview) -> None:
    """Make sure that ``plain`` is the chunk it is taken for.

    Raises:
        DigestError: It hashes to something else.
    """
    actual = chunk_id(kind, plain)
    if actual != name:
        raise DigestError(f"chunk {name.hex()[:12]} decodes to {actual.hex()[:12]}")


def holds_its_chunks(frame: Frame, plain: bytes | memoryview) -> bool:
    """Each chunk of a frame's table hashes to its name; ``plain`` is the decoded payload."""
    identify = data_id if frame.kind == DATA else functools.partial(chunk_id, frame.kind)
    view = memoryview(plain)
    start = 0
    for name, length in frame.chunks:
        if identify(view[start : start + length]) != name:
            return False
        start += length
    return start == len(view)

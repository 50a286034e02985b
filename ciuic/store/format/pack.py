"""Packs: frames in one write-once file, with a footer that lists them.

The footer repeats every frame's header, so the chunk index can be rebuilt from the ends of the
packs. The frames of a pack without a footer can be walked from its start. Byte layout:
docs/format.md, "Packs".
"""

import operator
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SESSION_BYTES, PackId, SessionId
from ciuic.store.format.frame import (
    HEADER_BYTES,
    Frame,
    UnusableFrameError,
    header_bytes_needed,
    parse_header,
    stored_bytes_of,
)
from ciuic.system.hashing import PACK_LABEL_BYTES, checksum, pack_id_of

__all__ = [
    "MAGIC",
    "TRAILER_BYTES",
    "PackedFrame",
    "encode_footer",
    "end_of",
    "footer_frames",
    "is_end",
    "new_label",
    "walk_frames",
]

MAGIC: Final = b"CIUICPK1"
_END_MAGIC: Final = b"CIUICEND"
_TRAILER: Final = struct.Struct("<QIIQ8s")
TRAILER_BYTES: Final = _TRAILER.size
_OFFSET: Final = struct.Struct("<Q")


class PackedFrame(NamedTuple):
    """A frame in a pack: its offset, its parsed header, and the bytes of header and table."""

    offset_bytes: int
    frame: Frame
    header: bytes


def new_label(session_id: SessionId) -> bytes:
    """Return the label of a new pack: the ID of the session that writes it, and random bytes."""
    return session_id + os.urandom(PACK_LABEL_BYTES - SESSION_BYTES)


def encode_footer(
    frames: Sequence[PackedFrame], footer_offset: int, label: bytes
) -> tuple[PackId, bytes]:
    """Encode footer and trailer of a pack; returns the pack's ID and the bytes.

    Args:
        frames: All frames of the pack.
        footer_offset: Where the footer begins.
        label: See ``new_label``.
    """
    listed = [_OFFSET.pack(packed.offset_bytes) + packed.header for packed in frames]
    footer = b"".join([*listed, label])
    trailer = _TRAILER.pack(footer_offset, len(footer), len(frames), checksum(footer), _END_MAGIC)
    return pack_id_of(footer), footer + trailer


def end_of(read: Callable[[int, int], bytes], size_bytes: int) -> bytes:
    """Return footer and trailer of a complete pack; anything else: see ``is_end``.

    Args:
        read: Returns bytes of the pack, given how many and where they begin.
        size_bytes: The length of the pack.
    """
    trailer = read(TRAILER_BYTES, max(0, size_bytes - TRAILER_BYTES))
    begin = _TRAILER.unpack(trailer)[0] if len(trailer) == TRAILER_BYTES else size_bytes
    return read(max(0, size_bytes - begin), begin)


def is_end(data: bytes, pack_id: PackId, size_bytes: int) -> bool:
    """Return whether bytes are footer and trailer of a pack of this ID and length."""
    if len(data) < TRAILER_BYTES + PACK_LABEL_BYTES or len(data) > size_bytes:
        return False
    footer = data[:-TRAILER_BYTES]
    offset, length, _, own_sum, magic = _TRAILER.unpack_from(data, len(footer))
    return (
        magic == _END_MAGIC
        and offset == size_bytes - len(data)
        and length == len(footer)
        and own_sum == checksum(footer)
        and pack_id_of(footer) == pack_id
    )


def footer_frames(
    read: Callable[[int, int], bytes], size: int, pack_id: PackId, *, strict: bool = True
) -> list[PackedFrame]:
    """Return the frames of a pack from its footer.

    Args:
        read: Reads (length, offset) of the pack; may return fewer bytes.
        size: Length of the pack.
        pack_id: Its ID.
        strict: Raise an error for a frame that this version does not know, and for a frame that no
            writer makes; otherwise these are left out. What removes or rewrites packs must know all
            frames.

    Raises:
        CorruptionError: The footer is missing, damaged, or that of another pack; or frames overlap.
        UnknownFormatError: ``strict``, and it lists a frame that this version does not know.
    """
    if size < len(MAGIC) + _TRAILER.size:
        raise CorruptionError("the pack is cut short")
    trailer = read(_TRAILER.size, size - _TRAILER.size)
    if len(trailer) != _TRAILER.size:
        raise CorruptionError("the pack is cut short")
    offset, length, count, own_sum, magic = _TRAILER.unpack(trailer)
    if magic != _END_MAGIC or offset + length + _TRAILER.size != size:
        raise CorruptionError("the pack has no footer")
    footer = read(length, offset)
    if len(footer) != length or checksum(footer) != own_sum:
        raise CorruptionError("the pack's footer does not match its checksum")
    if length < PACK_LABEL_BYTES:
        raise CorruptionError("the pack's footer is cut short")
    if pack_id_of(footer) != pack_id:
        raise CorruptionError("the pack's footer is that of another pack")
    listed = list(_parse_footer(footer[:-PACK_LABEL_BYTES], strict=strict))
    if len(listed) != count:
        raise CorruptionError("the pack's footer does not list the number of frames that it states")
    frames = [packed for packed in listed if packed is not None]
    _check_places(frames, offset)
    return frames


def walk_frames(read: Callable[[int, int], bytes], size: int) -> Iterator[PackedFrame]:
    """Iterate over the frames of a pack without a footer, from its start.

    Ends where no sound frame header begins: at the footer, or at damage. Frames that this version
    does not know, and frames that no writer makes, are left out.
    """
    offset = len(MAGIC)
    while offset + HEADER_BYTES <= size:
        try:
            needed = header_bytes_needed(read(HEADER_BYTES, offset))
            header = read(needed, offset)
            frame = parse_header(header)
        except (UnknownFormatError, UnusableFrameError):
            offset += needed + stored_bytes_of(header)
            continue
        except CorruptionError:
            return
        if offset + frame.total_bytes > size:
            return
        yield PackedFrame(offset, frame, header)
        offset += frame.total_bytes


def _check_places(frames: list[PackedFrame], footer_offset: int) -> None:
    """Check that frames are between magic and footer, and that none overlaps another.

    A footer made to waste time could otherwise list one range of the pack a million times.
    """
    end = len(MAGIC)
    for packed in sorted(frames, key=operator.itemgetter(0)):
        at = packed.offset_bytes
        if at < len(MAGIC):
            raise CorruptionError("the pack's footer lists a frame that is not in the pack")
        if at < end:
            raise CorruptionError("the pack's footer lists frames that overlap")
        end = at + len(packed.header) + packed.frame.stored_bytes
    if end > footer_offset:
        raise CorruptionError("the pack's footer lists a frame that is not in the pack")


def _parse_footer(footer: bytes, *, strict: bool) -> Iterator[PackedFrame | None]:
    """Yield the listed frames; None for a frame that is left out."""
    at = 0
    while at < len(footer):
        if len(footer) - at < _OFFSET.size:
            raise CorruptionError("the pack's footer is cut short")
        (offset,) = _OFFSET.unpack_from(footer, at)
        at += _OFFSET.size
        end = at + header_bytes_needed(footer[at : at + HEADER_BYTES])
        header = footer[at:end]
        try:
            frame = parse_header(header)
        except (UnknownFormatError, UnusableFrameError):
            if strict:
                raise
            yield None
        else:
            yield PackedFrame(offset, frame, header)
        at = end

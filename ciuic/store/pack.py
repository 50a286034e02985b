"""Packs: frames in one write-once file, with a footer that lists them.

The footer repeats every frame's header, so that the index can be made anew by reading the end
of each pack; a pack without a footer gives its frames back by walking them. Byte layout:
docs/format.md, "Packs".
"""

import functools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.hashing import checksum, pack_id
from ciuic.store.files import read_at
from ciuic.store.frame import HEADER_BYTES, Frame, header_bytes_needed, parse_header

__all__ = [
    "MAGIC",
    "PackedFrame",
    "encode_footer",
    "footer_frames",
    "read_footer",
    "walk_frames",
]

MAGIC: Final = b"CIUICPK1"
_END_MAGIC: Final = b"CIUICEND"
_TRAILER: Final = struct.Struct("<QIIQ8s")
_OFFSET: Final = struct.Struct("<Q")


class PackedFrame(NamedTuple):
    """A frame, where it starts in its pack, and its header as it stands there."""

    offset_bytes: int
    frame: Frame
    header: bytes


def encode_footer(frames: Sequence[PackedFrame], footer_offset: int) -> tuple[bytes, bytes]:
    """Footer and trailer for a pack with these frames; returns the pack's ID and the bytes."""
    footer = b"".join([_OFFSET.pack(one.offset_bytes) + one.header for one in frames])
    trailer = _TRAILER.pack(footer_offset, len(footer), len(frames), checksum(footer), _END_MAGIC)
    return pack_id(footer), footer + trailer


def read_footer(fd: int, name: bytes) -> list[PackedFrame]:
    """The frames of a pack, from its end.

    Raises:
        CorruptionError: There is no whole footer, or it is another pack's.
        OSError: The file can't be read.
    """
    return footer_frames(functools.partial(read_at, fd), os.fstat(fd).st_size, name)


def footer_frames(read: Callable[[int, int], bytes], size: int, name: bytes) -> list[PackedFrame]:
    """As ``read_footer``, for a pack of ``size`` bytes that ``read`` (length, offset) reads.

    Raises:
        CorruptionError: There is no whole footer, or it is another pack's.
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
    if pack_id(footer) != name:
        raise CorruptionError("the pack's footer is that of another pack")
    frames = list(_parse_footer(footer))
    if len(frames) != count:
        raise CorruptionError("the pack's footer does not list as many frames as it says")
    if any(not _lies_within(one, offset) for one in frames):
        raise CorruptionError("the pack's footer lists a frame that is not in the pack")
    return frames


def walk_frames(fd: int) -> Iterator[PackedFrame]:
    """The frames of a pack one after another, for a pack whose footer is lost.

    Ends at the first byte that no whole frame header starts at: the footer, or damage.
    """
    offset = len(MAGIC)
    size = os.fstat(fd).st_size
    while offset + HEADER_BYTES <= size:
        try:
            needed = header_bytes_needed(read_at(fd, HEADER_BYTES, offset))
            header = read_at(fd, needed, offset)
            frame = parse_header(header)
        except CorruptionError:
            return
        if offset + frame.total_bytes > size:
            return
        yield PackedFrame(offset, frame, header)
        offset += frame.total_bytes


def _lies_within(one: PackedFrame, footer_offset: int) -> bool:
    total_bytes = len(one.header) + one.frame.stored_bytes
    return len(MAGIC) <= one.offset_bytes <= footer_offset - total_bytes


def _parse_footer(footer: bytes) -> Iterator[PackedFrame]:
    at = 0
    while at < len(footer):
        if len(footer) - at < _OFFSET.size:
            raise CorruptionError("the pack's footer is cut short")
        (offset,) = _OFFSET.unpack_from(footer, at)
        at += _OFFSET.size
        end = at + header_bytes_needed(footer[at : at + HEADER_BYTES])
        header = footer[at:end]
        yield PackedFrame(offset, parse_header(header), header)
        at = end

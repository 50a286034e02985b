"""Decide whether a pack, or a payload in it, is what was written, to the last bit."""

from collections.abc import Callable

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import PackId
from ciuic.store.format.pack import MAGIC, PackedFrame, footer_frames
from ciuic.system.hashing import checksum

__all__ = ["sound_frames", "sound_payload"]


def sound_frames(
    read: Callable[[int, int], bytes], size_bytes: int, pack_id: PackId
) -> list[PackedFrame] | None:
    """Return the frames of a pack if ``read`` (length, offset) returns the pack undamaged.

    The ID covers the footer, and the footer's checksums cover the frames.

    Returns:
        None if anything is damaged, or a frame is of a later version.
    """
    try:
        frames = footer_frames(read, size_bytes, pack_id)
        has_magic = read(len(MAGIC), 0) == MAGIC
        return frames if has_magic and all(_is_sound(read, packed) for packed in frames) else None
    except (CorruptionError, UnknownFormatError):
        return None


def _is_sound(read: Callable[[int, int], bytes], packed: PackedFrame) -> bool:
    """Return whether ``read`` (length, offset) returns this frame, to the last bit.

    Raises:
        CorruptionError: The frame cannot be read.
    """
    data = memoryview(read(packed.frame.total_bytes, packed.offset_bytes))
    payload = data[len(packed.header) :]
    return (
        data[: len(packed.header)] == packed.header
        and len(payload) == packed.frame.stored_bytes
        and checksum(payload) == packed.frame.payload_checksum
    )


def sound_payload(read: Callable[[int, int], bytes], packed: PackedFrame) -> bytes | None:
    """Return the payload of a frame if it is what was written; its header may be damaged there.

    Raises:
        CorruptionError: The payload cannot be read.
    """
    payload = read(packed.frame.stored_bytes, packed.offset_bytes + len(packed.header))
    is_complete = len(payload) == packed.frame.stored_bytes
    return payload if is_complete and checksum(payload) == packed.frame.payload_checksum else None

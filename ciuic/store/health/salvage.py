"""Finds the frames of a pack whose footer is damaged.

Two sources remain: the frames' own headers, and the copies of them in what is left of the footer.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import PackId
from ciuic.store.directory.pack_file import read_footer
from ciuic.store.format.frame import HEADER_BYTES, header_bytes_needed, parse_header
from ciuic.store.format.frame import MAGIC as FRAME_MAGIC
from ciuic.store.format.pack import MAGIC, PackedFrame, footer_frames
from ciuic.store.health.window import SECTOR_BYTES, Window
from ciuic.store.parity.rebuild import open_parity_reader
from ciuic.system.hashing import checksum

__all__ = [
    "Salvaged",
    "by_offset",
    "find_frames",
    "frame_fault",
    "listed_or_salvaged",
    "repaired_frames",
    "salvage_frames",
]

_SCAN_BYTES: Final = 64 * 1024
_DOUBTS_MAX: Final = 1000
"""The most frames with a damaged payload that are followed by no other frame, and are searched for
frames inside. Each costs a hash, and a pack made to waste time could have a million of them."""
_OFFSET_BYTES: Final = 8


def repaired_frames(
    store_path: str, pack_id: PackId, fd: int, *, strict: bool = True
) -> list[PackedFrame]:
    """Read the footer of a damaged pack with its parity; without parity, salvage its frames.

    Raises:
        StoreError: The parity cannot be read, for a reason other than damage.
        OSError: The pack cannot be read.
        UnknownFormatError: ``strict``, and the pack is of a later version.
    """
    with (
        contextlib.suppress(CorruptionError),
        open_parity_reader(store_path, pack_id, fd) as reader,
    ):
        return footer_frames(reader.read, reader.size_bytes, pack_id, strict=strict)
    return salvage_frames(fd)


def listed_or_salvaged(fd: int, pack_id: PackId) -> list[PackedFrame]:
    """Return the frames of a pack from its footer or, without one, from the frame headers.

    Raises:
        OSError: The pack cannot be read, for a reason other than damage.
        UnknownFormatError: The footer lists a frame of a later version.
    """
    try:
        return read_footer(fd, pack_id)
    except CorruptionError:
        return salvage_frames(fd)


def salvage_frames(fd: int) -> list[PackedFrame]:
    """Find the frames of a pack without a sound footer, in the order of the pack.

    Their payloads may be damaged, and a damaged range may look like a frame. Readers check the ID
    of every chunk in any case.

    Raises:
        OSError: The pack cannot be read, for a reason other than damage.
    """
    with Window(fd) as window:
        return find_frames(window).frames


class Salvaged(NamedTuple):
    """The frames that were found in a pack without a sound footer.

    Attributes:
        frames: In the order of the pack.
        end: Where they end: where the rest of the footer begins, or with the pack.
        unknown: Which frame a later version may have written; empty if there is none.
    """

    frames: list[PackedFrame]
    end: int
    unknown: str


def find_frames(window: Window) -> Salvaged:
    """Like ``salvage_frames``; also return where the frames end, and what is not known."""
    found: dict[int, PackedFrame] = {}
    headers: set[bytes] = set()
    copies: list[PackedFrame] = []
    size = window.size_bytes
    at, end, doubts, unknown = len(MAGIC), size, 0, ""
    while (at := _find_magic(window, at)) < size:
        packed = None
        try:
            packed = _frame_at(window, at)
        except UnknownFormatError as error:
            unknown = error.message
        if packed is None:
            at += len(FRAME_MAGIC)
            continue
        fits = at + packed.frame.total_bytes <= size
        is_sound = fits and doubts < _DOUBTS_MAX and not frame_fault(window, packed)
        doubts += fits and not is_sound
        listed = None if is_sound else _offset_in_footer(window, packed)
        if listed is not None or (not is_sound and packed.header in headers):
            # The footer is at the end and holds only copies of headers.
            end = min(end, at - _OFFSET_BYTES)
            if listed is not None:
                copies.append(packed._replace(offset_bytes=listed))
            at += len(packed.header)
            continue
        found[at] = packed
        headers.add(packed.header)
        end_at = at + packed.frame.total_bytes
        # Damaged bytes that happen to look like a frame must not hide real frames.
        is_trusted = is_sound or _ends_well(window, end_at) or doubts >= _DOUBTS_MAX
        at = end_at if is_trusted else at + len(packed.header)
    for packed in _plausible(copies, found.values(), end):
        found.setdefault(packed.offset_bytes, packed)
    return Salvaged(_without_overlaps(by_offset(found.values())), end, unknown)


def frame_fault(window: Window, packed: PackedFrame) -> str:
    """Compare a frame in the pack with its checksums; returns what is wrong, or an empty string."""
    if packed.offset_bytes + packed.frame.total_bytes > window.size_bytes:
        return "it is cut short"
    try:
        data = window.view(packed.offset_bytes, packed.frame.total_bytes)
    except CorruptionError as error:
        return error.message
    if data[: len(packed.header)] != packed.header:
        return "its header is not what was written"
    if checksum(data[len(packed.header) :]) != packed.frame.payload_checksum:
        return "its payload does not match its checksum"
    return ""


def by_offset(frames: Iterable[PackedFrame]) -> list[PackedFrame]:
    """Sort frames by their offset in the pack."""
    return sorted(frames, key=lambda packed: packed.offset_bytes)


def _plausible(
    copies: list[PackedFrame], found: Iterable[PackedFrame], end: int
) -> Iterator[PackedFrame]:
    """Select the footer's frames that touch another frame, or the start or end of the frames.

    No checksum covers the offset of a copy, but frames follow one another without a gap.
    """
    known = [*copies, *found]
    begins = {packed.offset_bytes for packed in known} | {end}
    ends = {packed.offset_bytes + packed.frame.total_bytes for packed in known} | {len(MAGIC)}
    for packed in copies:
        end_at = packed.offset_bytes + packed.frame.total_bytes
        if packed.offset_bytes in ends or end_at in begins:
            yield packed


def _frame_at(window: Window, at: int) -> PackedFrame | None:
    """Return the frame that begins here; None if none does.

    Raises:
        UnknownFormatError: A frame that this version does not know begins here.
    """
    try:
        needed = header_bytes_needed(window.view(at, HEADER_BYTES))
        header = bytes(window.view(at, needed))
        return PackedFrame(at, parse_header(header), header)
    except CorruptionError:
        return None


def _offset_in_footer(window: Window, packed: PackedFrame) -> int | None:
    """Return the offset that precedes the header, if this can be a footer's copy of the header.

    The caller must know that this is not a sound frame: any bytes can precede a sound frame.
    """
    at = packed.offset_bytes - _OFFSET_BYTES
    try:
        offset = int.from_bytes(window.view(at, _OFFSET_BYTES), "little")
    except CorruptionError:
        return None
    return offset if len(MAGIC) <= offset <= at - packed.frame.total_bytes else None


def _ends_well(window: Window, at: int) -> bool:
    """Return whether another frame begins here, or the pack ends here."""
    if at >= window.size_bytes:
        return at == window.size_bytes
    try:
        return bytes(window.view(at, len(FRAME_MAGIC))) == FRAME_MAGIC
    except CorruptionError:
        return False


def _without_overlaps(frames: list[PackedFrame]) -> list[PackedFrame]:
    """Drop frames that begin inside the header of the frame before them."""
    kept: list[PackedFrame] = []
    for packed in frames:
        last = kept[-1] if kept else None
        if last is None or packed.offset_bytes >= last.offset_bytes + len(last.header):
            kept.append(packed)
    return kept


def _find_magic(window: Window, start: int) -> int:
    """Return where the next frame may begin, from ``start`` on; else the size of the pack."""
    at = start
    while at < window.size_bytes:
        length = _SCAN_BYTES - at % _SCAN_BYTES
        try:
            data = bytes(window.view(at, length + len(FRAME_MAGIC) - 1))
        except CorruptionError:
            # Continue sector by sector around the sector that cannot be read.
            length = SECTOR_BYTES - at % SECTOR_BYTES
            try:
                data = bytes(window.view(at, length))
            except CorruptionError:
                data = b""
        found = data.find(FRAME_MAGIC)
        if found >= 0:
            return at + found
        at += length
    return window.size_bytes

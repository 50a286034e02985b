"""Looking at a pack as a disk has it: every byte is read and compared with its checksums.

Nothing is decoded: XXH3 of each frame as it is stored finds what rots, as fast as the disk
reads. It is read past the page cache where the file system can do that, since what is in memory
says nothing about the disk, and the training's own data stays in it. A frame that fails is read
a second time before it counts as damaged: cables and controllers fail for a moment, too.

A pack without a sound footer is looked through for whatever still names frames: their own
headers, and what is left of the footer's copies of them.
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ciuic.errors import (
    CancelledError,
    CorruptionError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.hashing import checksum
from ciuic.memory import BufferPool
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import fails_on_disk, open_regular
from ciuic.store.frame import HEADER_BYTES, header_bytes_needed, parse_header
from ciuic.store.frame import MAGIC as FRAME_MAGIC
from ciuic.store.mending import opened_mender
from ciuic.store.pack import MAGIC, PackedFrame, footer_frames, read_footer

__all__ = [
    "BadFrame",
    "PackCheck",
    "healed_frames",
    "inspect_pack",
    "pack_frames",
    "salvage_frames",
]

_WINDOW_BYTES: Final = 4 * 1024 * 1024
_SECTOR_BYTES: Final = 4096
_SCAN_BYTES: Final = 64 * 1024
_FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
"""More than any frame takes: 64 MiB of payload, and the table of 65,536 chunks."""
_DOUBTS_MAX: Final = 1000
"""Frames with a wrong payload and nothing behind them that are not simply stepped over: each is
hashed, and a pack made to waste time could have a million."""
_OFFSET_BYTES: Final = 8
_windows: Final = BufferPool(_WINDOW_BYTES)


class BadFrame(NamedTuple):
    """A stretch of a pack that is not what was written.

    Attributes:
        offset_bytes: Where it begins.
        length_bytes: How long it is.
        chunks: What was stored there; empty where nothing tells, or where nothing was.
        what: What is wrong with it.
        kind: Of the chunks: ``DATA``, ``RECIPE`` or ``TREE``; 0 without any.
    """

    offset_bytes: int
    length_bytes: int
    chunks: tuple[bytes, ...]
    what: str
    kind: int = 0


class PackCheck(NamedTuple):
    """What was found in a pack.

    Attributes:
        pack: Its ID.
        read_bytes: Length of what was read.
        footer_ok: The footer is whole, and this pack's.
        bad: What is damaged, in the order of the pack.
        what: Empty if the pack is sound; otherwise what is wrong with it as a whole.
    """

    pack: bytes
    read_bytes: int
    footer_ok: bool
    bad: tuple[BadFrame, ...]
    what: str


def inspect_pack(
    store_path: str, pack: bytes, *, cancelled: Callable[[], bool] = lambda: False
) -> PackCheck:
    """Read a whole pack and compare it with its checksums.

    Args:
        store_path: The store's directory.
        pack: The pack's ID.
        cancelled: Asked before each read; ends the work when it turns true.

    Raises:
        CancelledError: ``cancelled`` turned true.
        UnreachableError: The file system can't give it out.
        StoreError: It can't be read for another reason. Damage in it is not raised.
        UnknownFormatError: It is sound, and of a later version.
    """
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(pack))
    with store_faults("read", path):
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return PackCheck(pack, 0, footer_ok=False, bad=(), what="it is gone")
        except UnreachableError:
            raise
        except CorruptionError:
            return PackCheck(pack, 0, footer_ok=False, bad=(), what="it is not a regular file")
        try:
            with _Window(fd, cancelled) as window:
                return _inspect(window, pack)
        finally:
            os.close(fd)


def pack_frames(store_path: str, pack: bytes) -> list[PackedFrame]:
    """What a pack says that it holds: by its footer, or by whatever else tells.

    Raises:
        StoreError: It can't be read.
        UnknownFormatError: It is of a later version.
    """
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(pack))
    with store_faults("read", path):
        fd = open_regular(path)
        try:
            return read_footer(fd, pack)
        except CorruptionError:
            return salvage_frames(fd)
        finally:
            os.close(fd)


def healed_frames(store_path: str, pack: bytes, fd: int) -> list[PackedFrame]:
    """What a pack without a footer held, by its parity; failing that what can be made out.

    Raises:
        StoreError: The parity can't be read, for a reason that is not damage.
        OSError: The pack can't be.
        UnknownFormatError: It is of a later version.
    """
    with (
        contextlib.suppress(CorruptionError),
        opened_mender(store_path, pack, fd) as mender,
    ):
        return footer_frames(mender.read, mender.size_bytes, pack)
    return salvage_frames(fd)


def salvage_frames(fd: int) -> list[PackedFrame]:
    """Every frame that a pack without a sound footer still tells of, in the order of the pack.

    Their payloads may be damaged, and what lies in a damaged stretch may look like a frame
    without being one: whoever uses a chunk checks its ID, as ever.

    Raises:
        OSError: The pack can't be read, for a reason that is not damage.
    """
    with _Window(fd) as window:
        return _salvage(window)[0]


def _inspect(window: "_Window", pack: bytes) -> PackCheck:
    has_magic = _has_magic(window)
    frames, problem, end = _frames_of(window, pack)
    suspects = list(_suspects(window, frames, may_overlap=bool(problem)))
    window.forget()
    bad = [_bad(one, what or _fault(window, one)) for one, what in suspects]
    bad = [one for one in bad if one.what]
    if problem:
        bad += _gaps(frames, end)
    window.forget()
    if not has_magic and not _has_magic(window):
        bad.append(BadFrame(0, len(MAGIC), (), "the first bytes are not those of a pack"))
    bad.sort()
    what = problem
    if bad and not problem:
        what = (
            "a stretch of it is damaged" if len(bad) == 1 else f"{len(bad)} stretches are damaged"
        )
    return PackCheck(pack, window.size_bytes, not problem, tuple(bad), what)


def _has_magic(window: "_Window") -> bool:
    try:
        return bytes(window.view(0, len(MAGIC))) == MAGIC
    except CorruptionError:
        return False


def _frames_of(window: "_Window", pack: bytes) -> tuple[list[PackedFrame], str, int]:
    """The frames, what is wrong with the footer, and where the frames' part of the pack ends."""
    try:
        with contextlib.suppress(CorruptionError):
            return _by_offset(read_footer(window.fd, pack)), "", window.size_bytes
        os.posix_fadvise(window.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return _by_offset(read_footer(window.fd, pack)), "", window.size_bytes
    except CorruptionError as error:
        frames, end = _salvage(window)
        return frames, error.message, end


def _by_offset(frames: Iterable[PackedFrame]) -> list[PackedFrame]:
    return sorted(frames, key=lambda one: one.offset_bytes)


def _suspects(
    window: "_Window", frames: list[PackedFrame], *, may_overlap: bool
) -> Iterator[tuple[PackedFrame, str]]:
    """Frames that fail a first time, and what is wrong where reading again can't mend it."""
    end = 0
    for one in frames:
        if one.offset_bytes < end and not may_overlap:
            # Not hashed: a footer made to waste time could list one stretch a million times.
            yield one, "it overlaps another frame"
        elif _fault(window, one):
            yield one, ""
        end = max(end, one.offset_bytes + one.frame.total_bytes)


def _bad(one: PackedFrame, what: str) -> BadFrame:
    names = tuple([name for name, _ in one.frame.chunks])
    return BadFrame(one.offset_bytes, one.frame.total_bytes, names, what, one.frame.kind)


def _fault(window: "_Window", one: PackedFrame) -> str:
    """What is wrong with a frame as it stands in the pack; empty if nothing is."""
    if one.offset_bytes + one.frame.total_bytes > window.size_bytes:
        return "it is cut short"
    if one.frame.total_bytes > _FRAME_BYTES_MAX:
        return "it is longer than a frame can be"
    try:
        data = window.view(one.offset_bytes, one.frame.total_bytes)
    except CorruptionError as error:
        return error.message
    if data[: len(one.header)] != one.header:
        return "its header is not what was written"
    if checksum(data[len(one.header) :]) != one.frame.payload_checksum:
        return "its payload does not match its checksum"
    return ""


def _gaps(frames: list[PackedFrame], end: int) -> Iterator[BadFrame]:
    """What lies between the frames of a pack whose footer does not say that nothing does."""
    at = len(MAGIC)
    for one in frames:
        if one.offset_bytes > at:
            yield BadFrame(at, one.offset_bytes - at, (), "no frame can be made out here")
        at = max(at, one.offset_bytes + one.frame.total_bytes)
    if end > at:
        yield BadFrame(at, end - at, (), "no frame can be made out here")


def _salvage(window: "_Window") -> tuple[list[PackedFrame], int]:
    """As ``salvage_frames``, and where what is left of the footer begins, or the pack ends."""
    found: dict[int, PackedFrame] = {}
    headers: set[bytes] = set()
    copies: list[PackedFrame] = []
    size = window.size_bytes
    at, end, doubts = len(MAGIC), size, 0
    while (at := _find_magic(window, at)) < size:
        one = _frame_at(window, at)
        if one is None:
            at += len(FRAME_MAGIC)
            continue
        fits = at + one.frame.total_bytes <= size
        is_sound = fits and doubts < _DOUBTS_MAX and not _fault(window, one)
        doubts += fits and not is_sound
        listed = None if is_sound else _listed_by_footer(window, one)
        if listed is not None or (not is_sound and one.header in headers):
            # The footer is at the end, and holds nothing but such copies.
            end = min(end, at - _OFFSET_BYTES)
            if listed is not None:
                copies.append(one._replace(offset_bytes=listed))
            at += len(one.header)
            continue
        found[at] = one
        headers.add(one.header)
        behind = at + one.frame.total_bytes
        # What only looks like a frame, in a damaged stretch, must not hide the real ones.
        trusted = is_sound or _ends_well(window, behind) or doubts >= _DOUBTS_MAX
        at = behind if trusted else at + len(one.header)
    for one in _in_line(copies, found.values(), end):
        found.setdefault(one.offset_bytes, one)
    return _without_overlaps(_by_offset(found.values())), end


def _in_line(
    copies: list[PackedFrame], found: Iterable[PackedFrame], end: int
) -> Iterator[PackedFrame]:
    """Those of the footer's frames whose offset, which no checksum of theirs covers, can be right.

    Frames follow one another without a gap.
    """
    known = [*copies, *found]
    begins = {one.offset_bytes for one in known} | {end}
    ends = {one.offset_bytes + one.frame.total_bytes for one in known} | {len(MAGIC)}
    for one in copies:
        if one.offset_bytes in ends or one.offset_bytes + one.frame.total_bytes in begins:
            yield one


def _frame_at(window: "_Window", at: int) -> PackedFrame | None:
    try:
        needed = header_bytes_needed(window.view(at, HEADER_BYTES))
        header = bytes(window.view(at, needed))
        return PackedFrame(at, parse_header(header), header)
    except (CorruptionError, UnknownFormatError):
        return None


def _listed_by_footer(window: "_Window", one: PackedFrame) -> int | None:
    """The offset that a footer gives for the frame, if this can be a footer's copy of its header.

    Asked only of what is not a sound frame: what stands before one can be any eight bytes.
    """
    at = one.offset_bytes - _OFFSET_BYTES
    try:
        offset = int.from_bytes(window.view(at, _OFFSET_BYTES), "little")
    except CorruptionError:
        return None
    return offset if len(MAGIC) <= offset <= at - one.frame.total_bytes else None


def _ends_well(window: "_Window", at: int) -> bool:
    """Another frame begins here, or what is no frame any more."""
    if at >= window.size_bytes:
        return at == window.size_bytes
    try:
        return bytes(window.view(at, len(FRAME_MAGIC))) == FRAME_MAGIC
    except CorruptionError:
        return False


def _without_overlaps(frames: list[PackedFrame]) -> list[PackedFrame]:
    """Frames that begin inside an earlier one's header are impossible; inside its payload, not."""
    kept: list[PackedFrame] = []
    for one in frames:
        last = kept[-1] if kept else None
        if last is None or one.offset_bytes >= last.offset_bytes + len(last.header):
            kept.append(one)
    return kept


def _find_magic(window: "_Window", start: int) -> int:
    """Where the next frame may begin, from ``start`` on; the size of the pack if nowhere."""
    at = start
    while at < window.size_bytes:
        length = _SCAN_BYTES - at % _SCAN_BYTES
        try:
            data = bytes(window.view(at, length + len(FRAME_MAGIC) - 1))
        except CorruptionError:
            # Around the sector that can't be read.
            length = _SECTOR_BYTES - at % _SECTOR_BYTES
            try:
                data = bytes(window.view(at, length))
            except CorruptionError:
                data = b""
        found = data.find(FRAME_MAGIC)
        if found >= 0:
            return at + found
        at += length
    return window.size_bytes


class _Window:
    """A part of a file in memory, read in large blocks and past the page cache if that can be.

    Args:
        fd: An open file; stays open, and at its place.
        cancelled: Asked before each read.
    """

    def __init__(self, fd: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.fd = fd
        self._cancelled = cancelled
        self.size_bytes = os.fstat(fd).st_size
        self._buffer = _windows.take()
        self._large: mmap.mmap | None = None
        self._direct_fd = _open_direct(fd)
        self._view = memoryview(b"")
        self._begin = 0
        self._careful_until = 0

    def __enter__(self) -> "_Window":
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        _windows.give_back(self._buffer)
        if self._direct_fd is not None:
            os.close(self._direct_fd)

    def forget(self) -> None:
        """What is asked for next is read anew, from the disk if the system lets us."""
        self._view = memoryview(b"")
        self._large = None
        if self._direct_fd is None:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview:
        """Bytes of the file, fewer at its end; good until the next call.

        Raises:
            CorruptionError: A sector among them can't be read.
            CancelledError: There is to be no more reading.
            OSError: Anything else that is wrong.
        """
        end = min(offset_bytes + length_bytes, self.size_bytes)
        if offset_bytes < self._begin or end > self._begin + len(self._view):
            self._load(offset_bytes, end)
        start = offset_bytes - self._begin
        return self._view[start : max(start, end - self._begin)]

    def _load(self, start: int, end: int) -> None:
        begin = start - start % _SECTOR_BYTES
        wanted = -(-(end - begin) // _SECTOR_BYTES) * _SECTOR_BYTES
        self._view = memoryview(b"")
        if begin >= self._careful_until and wanted <= _WINDOW_BYTES:
            try:
                self._fill(self._buffer, begin, _WINDOW_BYTES)
            except CorruptionError:
                # Piece by piece over this stretch, or one bad sector would cost its neighbours.
                self._careful_until = begin + _WINDOW_BYTES
            else:
                return
        buffer = self._buffer
        if wanted > _WINDOW_BYTES:
            if self._large is None or len(self._large) < wanted:
                self._large = mmap.mmap(-1, wanted)
            buffer = self._large
        self._fill(buffer, begin, wanted)

    def _fill(self, buffer: mmap.mmap, begin: int, length: int) -> None:
        whole = memoryview(buffer)
        filled = 0
        while filled < length:
            count = self._read(whole[filled:length], begin + filled)
            filled += count
            # Behind a read that was cut short a direct one could not go on: it must be aligned.
            if count == 0 or filled % _SECTOR_BYTES:
                break
        self._view = whole[:filled]
        self._begin = begin

    def _read(self, into: memoryview, at: int) -> int:
        if self._cancelled():
            raise CancelledError("the scrub was asked to stop")
        try:
            if self._direct_fd is not None:
                try:
                    return os.preadv(self._direct_fd, [into], at)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                # Some file systems take the flag and refuse the read.
                os.close(self._direct_fd)
                self._direct_fd = None
            return os.preadv(self.fd, [into], at)
        except OSError as error:
            if not fails_on_disk(error):
                raise
            raise CorruptionError(f"byte {at} of a pack can't be read") from error


def _open_direct(fd: int) -> int | None:
    """The same file once more, read past the page cache; None where that can't be had."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None

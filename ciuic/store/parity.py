"""Parity: what lets a damaged pack be read as it was written. docs/format.md, "Parity".

A pack is seen as segments of equal length, one behind the other. Byte t of each segment and byte
t of each row of parity make one word of a Reed-Solomon code, so that a stretch that is lost costs
each word as few bytes as can be. Which bytes are wrong is told by a checksum of every sector, of
the pack and of the parity itself; the parity's file holds them twice: at its front and at its end.

The parity comes into being while the pack is written, from memory: reading a pack back would cost
more than everything else. ``mending.py`` does the way back.
"""

import functools
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ciuic import durable
from ciuic.errors import CorruptionError, UnreachableError
from ciuic.hashing import checksum, checksums
from ciuic.memory import BufferPool
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_if_possible, read_or_zeros
from ciuic.store.galois import Coder, address

__all__ = [
    "PARITY_DEFAULT",
    "Parity",
    "ParityMaker",
    "Shape",
    "coder_for",
    "inspect_parity",
    "make_parity",
    "parity_path",
    "shape_for",
    "shape_while_writing",
    "write_parity",
]

PARITY_DEFAULT: Final = 0.04
"""The share of a pack that is spent on its parity where no configuration says otherwise."""
_MAGIC: Final = b"CIUICPR1"
_HEADER: Final = struct.Struct("<8sQIIIIQ32sQ")
_SUMMED: Final = _HEADER.size - 8
_CODE: Final = 1
_ROWS: Final = 4
_SEGMENTS_MIN, _SEGMENTS_MAX = 4, 200
_BLOCK_BYTES: Final = 4096
_SMALL_SECTOR_BYTES: Final = 512
_SMALL_PACK_BYTES: Final = 1024 * 1024
_SECTORS_KNOWN: Final = frozenset({512, 1024, 2048, 4096, 8192, 16384, 32768, 65536})
_CODE_WIDTH: Final = 256
_SEGMENT_BYTES_MAX: Final = 1 << 40
_FOOTER_ROOM_BYTES: Final = 3 * 1024 * 1024
_PAGE_SUMS: Final = 511
_PAGE_BYTES: Final = (_PAGE_SUMS + 1) * 8
_PAGES_KEPT: Final = 64
_READ_BYTES: Final = 4 * 1024 * 1024
_WINDOW_BYTES: Final = 1024 * 1024
_CACHED_BYTES: Final = 128 * 1024
"""Of each row of parity; a call costs as much as some KB of arithmetic."""
_LOST_SHARE_MAX: Final = 8
"""Of a parity file that was cut short at least an eighth must be left."""
_buffers: Final = BufferPool(_READ_BYTES)


class Shape(NamedTuple):
    """How a pack is cut for its parity.

    Attributes:
        segments: How many there are; the last ones may lie behind the pack's end: zeros.
        rows: Of parity, each as long as a segment.
        sector_bytes: The stretch that has a checksum of its own.
        segment_bytes: A multiple of it.
    """

    segments: int
    rows: int
    sector_bytes: int
    segment_bytes: int

    @property
    def parity_bytes(self) -> int:
        """Length of all rows."""
        return self.rows * self.segment_bytes

    @property
    def reach_bytes(self) -> int:
        """The longest stretch that can be mended wherever it lies, if nothing else is damaged."""
        return self.rows * self.segment_bytes - self.sector_bytes + 1


def parity_path(store_path: str, pack: bytes) -> str:
    """Where the parity of a pack lies, if there is one."""
    return os.path.join(store_path, layout.PARITY, layout.pack_name(pack))


def shape_for(size_bytes: int, share: float) -> Shape:
    """How to cut a pack of this length so that its parity takes this share of it, above 0 to 1."""
    segment_bytes = _rounded_up(-(-size_bytes // _segments(share)), _BLOCK_BYTES)
    segments = -(-size_bytes // segment_bytes)
    sector_bytes = _SMALL_SECTOR_BYTES if size_bytes < _SMALL_PACK_BYTES else _BLOCK_BYTES
    return Shape(segments, _rows(segments, share), sector_bytes, segment_bytes)


def shape_while_writing(full_bytes: int, share: float) -> Shape:
    """How to cut a pack that is still being written and will be a little over ``full_bytes``."""
    segments = _segments(share)
    segment_bytes = _rounded_up(-(-full_bytes // segments), _BLOCK_BYTES)
    room = -(-(full_bytes + _FOOTER_ROOM_BYTES) // segment_bytes)
    rows = _rows(segments, share)
    return Shape(min(room, _CODE_WIDTH - rows), rows, _BLOCK_BYTES, segment_bytes)


def _segments(share: float) -> int:
    """Into how many segments a large pack is cut: many small ones, if the share allows it.

    The more of them make one word, the more sectors can be lost wherever they lie.
    """
    return max(_SEGMENTS_MIN, min(_SEGMENTS_MAX, int(_ROWS / share)))


def _rows(segments: int, share: float) -> int:
    # What binary fractions add to a product must not become a row of its own.
    return max(1, math.ceil(share * segments - 1e-9))


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class ParityMaker:
    """Takes in a pack from its first byte to its last, and has its parity then.

    Attributes:
        shape: How the pack is cut.
        size_bytes: Of the pack so far.
        fits: It has not become longer than the shape allows; otherwise nothing comes of this.

    Raises:
        StoreError: This machine can't compute parity.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.size_bytes = 0
        self.fits = True
        self._coder = coder_for(shape.segments, shape.rows)
        self._sums: list[int] = []
        # Private: a child that was forked would write to the same memory as its parent. All of it
        # at once: page by page it takes three times as long.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self._rows = mmap.mmap(-1, shape.parity_bytes, flags=private)

    def add(self, buffer: mmap.mmap, length_bytes: int) -> None:
        """Take in the next bytes, which stand at the start of ``buffer``.

        All but the last ones must be whole sectors.
        """
        shape = self.shape
        if self.size_bytes + length_bytes > shape.segments * shape.segment_bytes:
            self.fits = False
            return
        source, rows = address(buffer), address(self._rows)
        stretches = list(_in_segments(self.size_bytes, length_bytes, shape.segment_bytes))
        # The same places of all segments, one after another: the parity stays in the core's cache.
        for start in range(0, shape.segment_bytes, _CACHED_BYTES):
            for segment, at, end, offset in stretches:
                low, high = max(at, start), min(end, start + _CACHED_BYTES)
                if low < high:
                    places = [rows + low + row * shape.segment_bytes for row in range(shape.rows)]
                    self._coder.add(segment, source + offset + low - at, high - low, places)
        self.size_bytes += length_bytes
        self._sums += _sums_of(buffer, length_bytes, shape.sector_bytes)

    def parts(self, pack: bytes) -> list[bytes | mmap.mmap]:
        """What the parity's file holds, in pieces, when all of the pack has been taken in."""
        shape = self.shape
        sums = self._sums + _sums_of(self._rows, shape.parity_bytes, shape.sector_bytes)
        header = _encode_header(pack, self.size_bytes, shape)
        table = b"".join(_pages(pack, sums))
        return [header, table, self._rows, table, header]


def _in_segments(
    begins_bytes: int, length_bytes: int, segment_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    """Parts of a stretch of a pack: segment, first byte and end in it, offset in the stretch."""
    done = 0
    while done < length_bytes:
        segment, at = divmod(begins_bytes + done, segment_bytes)
        end = min(segment_bytes, at + length_bytes - done)
        yield segment, at, end, done
        done += end - at


def _sums_of(buffer: mmap.mmap, length_bytes: int, sector_bytes: int) -> list[int]:
    with memoryview(buffer)[:length_bytes] as view:
        return checksums(view, sector_bytes)


def _pages(pack: bytes, sums: Sequence[int]) -> Iterator[bytes]:
    for number, start in enumerate(range(0, len(sums), _PAGE_SUMS)):
        part = sums[start : start + _PAGE_SUMS]
        page = struct.pack(f"<{len(part)}Q", *part)
        yield page + _page_sum(pack, number, page)


def _page_sum(pack: bytes, number: int, page: bytes) -> bytes:
    return checksum(pack + number.to_bytes(8, "little") + page).to_bytes(8, "little")


def _encode_header(pack: bytes, size_bytes: int, shape: Shape) -> bytes:
    fields = (_MAGIC, size_bytes, shape.segments, shape.rows, shape.sector_bytes, _CODE)
    bare = _HEADER.pack(*fields, shape.segment_bytes, pack, 0)[:_SUMMED]
    return bare + checksum(bare).to_bytes(8, "little")


def write_parity(store_path: str, pack: bytes, maker: ParityMaker) -> None:
    """Give a pack its parity; seen at once, durable when ``parity/`` is synced.

    Raises:
        StoreError: It can't be written; nothing of it is left.
    """
    directory = os.path.join(store_path, layout.PARITY)
    with store_faults("write to", directory):
        if not os.path.isdir(directory):
            durable.make_directory(directory, 0o700)
        name = os.path.join(store_path, layout.TEMPORARY, durable.temporary_name("parity-"))
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for part in maker.parts(pack):
                view = memoryview(part)
                while view:
                    view = view[os.write(fd, view) :]
            durable.publish(fd, name, parity_path(store_path, pack))
            # Nobody reads it soon, and the training's data is better company.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            durable.remove_file(name)
            raise
        finally:
            os.close(fd)


def make_parity(fd: int, share: float) -> ParityMaker:
    """The parity of a pack that is there already, from its file.

    Raises:
        OSError: The pack can't be read.
    """
    maker = ParityMaker(shape_for(os.fstat(fd).st_size, share))
    buffer = _buffers.take()
    try:
        while count := _fill(fd, buffer, maker.size_bytes):
            maker.add(buffer, count)
    finally:
        _buffers.give_back(buffer)
    return maker


def _fill(fd: int, buffer: mmap.mmap, offset_bytes: int) -> int:
    """Fill the buffer from a file, but for its end; a read may give back less than was asked."""
    filled = 0
    with memoryview(buffer) as view:
        while count := os.preadv(fd, [view[filled:]], offset_bytes + filled):
            filled += count
    return filled


class Parity:
    """A parity file, open. Whatever it says is checked before it is used.

    Attributes:
        size_bytes: Of the pack, as it was.
        shape: How the pack was cut.

    Raises:
        CorruptionError: Neither of its headers can be used.
    """

    def __init__(self, fd: int, pack: bytes) -> None:
        self._fd = fd
        self._pack = pack
        self._pages: dict[int, tuple[int, ...] | None] = {}
        length = os.fstat(fd).st_size
        try:
            self.size_bytes, self.shape = _parse_header(read_if_possible(fd, _HEADER.size, 0), pack)
        except CorruptionError:
            end = max(0, length - _HEADER.size)
            self.size_bytes, self.shape = _parse_header(
                read_if_possible(fd, _HEADER.size, end), pack
            )
        if self.shape.parity_bytes > _LOST_SHARE_MAX * length:
            raise CorruptionError("most of the parity is missing")
        self.sectors = -(-self.size_bytes // self.shape.sector_bytes)
        self._sums = self.sectors + self.shape.parity_bytes // self.shape.sector_bytes
        table_bytes = 8 * (self._sums + -(-self._sums // _PAGE_SUMS))
        self._tables = (_HEADER.size, _HEADER.size + table_bytes + self.shape.parity_bytes)
        self._rows_at = _HEADER.size + table_bytes
        self.file_bytes = self._tables[1] + table_bytes + _HEADER.size

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def sum_of(self, sector: int) -> int | None:
        """The checksum of a sector of the pack, or behind those of the parity; None: it is lost."""
        number, at = divmod(sector, _PAGE_SUMS)
        if number not in self._pages:
            while len(self._pages) >= _PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
            copies = (self._page(number, table) for table in self._tables)
            self._pages[number] = next((one for one in copies if one is not None), None)
        page = self._pages[number]
        return None if page is None else page[at]

    def read_row(self, row: int, offset_bytes: int, length_bytes: int) -> bytes:
        """A stretch of a row of parity; what can't be read is zeros."""
        at = self._rows_at + row * self.shape.segment_bytes + offset_bytes
        return read_or_zeros(self._fd, length_bytes, at, self.shape.sector_bytes)

    def problem(self) -> str:
        """What is wrong with the file, which is read in full; empty if nothing is."""
        if os.fstat(self._fd).st_size != self.file_bytes:
            return "it is not as long as it should be"
        header = _encode_header(self._pack, self.size_bytes, self.shape)
        ends = (0, self.file_bytes - _HEADER.size)
        if any(read_if_possible(self._fd, _HEADER.size, at) != header for at in ends):
            return "one of its headers is damaged"
        pages = range(-(-self._sums // _PAGE_SUMS))
        if any(self._page(one, table) is None for table in self._tables for one in pages):
            return "one of its tables is damaged"
        shape = self.shape
        sectors = shape.segment_bytes // shape.sector_bytes
        for row in range(shape.rows):
            for at in range(0, sectors, _WINDOW_BYTES // shape.sector_bytes):
                count = min(_WINDOW_BYTES // shape.sector_bytes, sectors - at)
                data = self.read_row(row, at * shape.sector_bytes, count * shape.sector_bytes)
                for number in range(count):
                    part = data[number * shape.sector_bytes : (number + 1) * shape.sector_bytes]
                    if checksum(part) != self.sum_of(self.sectors + row * sectors + at + number):
                        return "some of its parity is damaged"
        return ""

    def _page(self, number: int, table: int) -> tuple[int, ...] | None:
        count = min(_PAGE_SUMS, self._sums - number * _PAGE_SUMS)
        data = read_if_possible(self._fd, 8 * (count + 1), table + number * _PAGE_BYTES)
        page = data[:-8]
        if len(page) != 8 * count or _page_sum(self._pack, number, page) != data[-8:]:
            return None
        return struct.unpack(f"<{count}Q", page)


def _parse_header(data: bytes, pack: bytes) -> tuple[int, Shape]:
    if len(data) != _HEADER.size:
        raise CorruptionError("the parity is cut short")
    magic, size, segments, rows, sector, code, segment, name, own_sum = _HEADER.unpack(data)
    if magic != _MAGIC or checksum(data[:_SUMMED]) != own_sum:
        raise CorruptionError("the parity's header is damaged")
    if name != pack:
        raise CorruptionError("the parity is that of another pack")
    if code != _CODE:
        raise CorruptionError(f"parity of kind {code} is not known to this version of ciuic")
    possible = (
        sector in _SECTORS_KNOWN
        and segments >= 1
        and rows >= 1
        and segments + rows <= _CODE_WIDTH
        and 0 < segment <= _SEGMENT_BYTES_MAX
        and segment % sector == 0
        and 0 < size <= segments * segment
    )
    if not possible:
        raise CorruptionError("the parity's header says what can't be")
    return size, Shape(segments, rows, sector, segment)


def inspect_parity(store_path: str, pack: bytes) -> str:
    """What is wrong with the parity of a pack, which is read in full; empty if nothing is.

    Raises:
        UnreachableError: Its file system can't give it out.
        StoreError: It can't be read for a reason that is not damage.
    """
    path = parity_path(store_path, pack)
    with store_faults("read", path):
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return "it is missing"
        except UnreachableError:
            raise
        except CorruptionError:
            return "it is not a regular file"
        try:
            return Parity(fd, pack).problem()
        except CorruptionError as error:
            return error.message
        finally:
            os.close(fd)


@functools.lru_cache(8)
def coder_for(segments: int, rows: int) -> Coder:
    """The code of so many segments and rows; made once, used by all threads."""
    return Coder(segments, rows)

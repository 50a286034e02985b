"""Compute the parity of a pack, and write its file. docs/format.md, "Parity".

The parity is computed from memory while the pack is written: reading a pack back would cost more
than everything else.
"""

import mmap
import os
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.parity.encoding import encode_header, encode_pages, rows_offset_bytes
from ciuic.store.parity.galois import coder_for
from ciuic.store.parity.parity_file import parity_path
from ciuic.store.parity.shape import Shape, shape_for
from ciuic.store.records import layout
from ciuic.system import durable, nofollow
from ciuic.system.buffers import BufferPool
from ciuic.system.core import Core, core
from ciuic.system.hashing import checksum, checksums

__all__ = ["ParityMaker", "make_parity", "write_parity"]

_SUM_BYTES: Final = 8
_READ_BYTES: Final = 4 * 1024 * 1024
_CACHED_BYTES: Final = 128 * 1024
"""Bytes of each row of parity at a time without the compiled core, which cuts them itself."""
_buffers: Final = BufferPool(_READ_BYTES)


class ParityMaker:
    """Computes the parity of a pack that it receives from the first byte to the last.

    Args:
        shape: How the pack is cut.
        compiled: The compiled core; None: numpy computes the same, slower.

    Attributes:
        shape: How the pack is cut.
        size_bytes: Length of the pack so far.
        fits: The pack is not longer than the shape allows; otherwise its parity is not valid.
    """

    def __init__(self, shape: Shape, compiled: Core | None) -> None:
        self.shape = shape
        self.size_bytes = 0
        self.fits = True
        self._coder = coder_for(shape.segments, shape.rows, compiled)
        self._sums = array("Q")
        self._core = compiled
        # Private: a forked child would write to its parent's memory. Populated at once: page by
        # page takes three times as long.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self._rows = mmap.mmap(-1, shape.parity_bytes, flags=private)

    def add(self, buffer: mmap.mmap, length_bytes: int) -> None:
        """Take in the next bytes, from the start of ``buffer``.

        All calls but the last must pass whole sectors.
        """
        shape = self.shape
        if self.size_bytes + length_bytes > shape.segments * shape.segment_bytes:
            self.fits = False
            return
        with memoryview(buffer)[:length_bytes] as data:
            if self._core is None:
                self._add_by_numpy(data)
                self._sums += checksums(data, shape.sector_bytes)
            else:
                self._add_compiled(self._core, data)
        self.size_bytes += length_bytes

    def _add_compiled(self, compiled: Core, data: memoryview) -> None:
        """Add to the parity, and append the checksums of the sectors, in one pass."""
        shape = self.shape
        sums = array("Q", bytes(_SUM_BYTES * (len(data) // shape.sector_bytes)))
        cut = (shape.segments, shape.rows, shape.sector_bytes, shape.segment_bytes)
        compiled.functions.parity_add(
            compiled.targets, cut, self._coder.matrix, self.size_bytes, data, self._rows, sums
        )
        self._sums += sums
        rest = data[len(sums) * shape.sector_bytes :]
        if rest:
            self._sums.append(checksum(rest))

    def _add_by_numpy(self, data: memoryview) -> None:
        shape = self.shape
        parts = list(_in_segments(self.size_bytes, len(data), shape.segment_bytes))
        # The same offsets of all segments, one after another: the parity stays in the core's cache.
        for start in range(0, shape.segment_bytes, _CACHED_BYTES):
            for part in parts:
                low, high = max(part.begin, start), min(part.end, start + _CACHED_BYTES)
                if low < high:
                    at = part.buffer_offset + low - part.begin
                    rows = self._row_ranges(low, high)
                    self._coder.add(part.segment, data[at : at + high - low], rows)

    def _row_ranges(self, low: int, high: int) -> list[memoryview]:
        """Return the bytes ``low`` to ``high`` of each row."""
        begins = range(low, self.shape.parity_bytes, self.shape.segment_bytes)
        return [memoryview(self._rows)[begin : begin + high - low] for begin in begins]

    def pieces(self, pack_id: PackId) -> list[bytes | mmap.mmap]:
        """Return the content of the parity file, in order, when the pack is complete."""
        shape = self.shape
        with memoryview(self._rows)[: shape.parity_bytes] as rows:
            sums = self._sums + checksums(rows, shape.sector_bytes)
        header = encode_header(pack_id, self.size_bytes, shape)
        table = b"".join(encode_pages(pack_id, sums))
        padding = bytes(rows_offset_bytes(len(table)) - len(header) - len(table))
        return [header, table, padding, self._rows, table, header]


class _Part(NamedTuple):
    """The part of a buffer that is in one segment.

    Attributes:
        segment: Its number.
        begin: First byte, counted in the segment.
        end: The end of the part, counted in the segment.
        buffer_offset: Of the first byte, counted in the buffer.
    """

    segment: int
    begin: int
    end: int
    buffer_offset: int


def _in_segments(offset_bytes: int, length_bytes: int, segment_bytes: int) -> Iterator[_Part]:
    """Cut a buffer that begins at ``offset_bytes`` of a pack at the ends of segments."""
    done = 0
    while done < length_bytes:
        segment, begin = divmod(offset_bytes + done, segment_bytes)
        end = min(segment_bytes, begin + length_bytes - done)
        yield _Part(segment, begin, end, done)
        done += end - begin


def make_parity(fd: int, share: float) -> ParityMaker:
    """Compute the parity of an existing pack from its file.

    Raises:
        OSError: The pack cannot be read.
    """
    maker = ParityMaker(shape_for(os.fstat(fd).st_size, share), core())
    buffer = _buffers.take()
    try:
        while count := _fill(fd, buffer, maker.size_bytes):
            maker.add(buffer, count)
    finally:
        _buffers.give_back(buffer)
    return maker


def _fill(fd: int, buffer: mmap.mmap, offset_bytes: int) -> int:
    """Fill the buffer from a file up to the file's end; one read may return less than asked."""
    filled = 0
    with memoryview(buffer) as view:
        while count := os.preadv(fd, [view[filled:]], offset_bytes + filled):
            filled += count
    return filled


def write_parity(store_path: str, pack_id: PackId, maker: ParityMaker) -> None:
    """Write the parity file of a pack; it is durable when ``parity/`` is synced.

    Raises:
        StoreError: The file cannot be written; nothing of it is left.
    """
    directory = os.path.join(store_path, layout.PARITY)
    with store_faults("write to", directory):
        if not nofollow.is_directory(directory):
            durable.make_directory(directory, 0o700)
        temporary = os.path.join(store_path, layout.TEMPORARY, durable.temporary_name("parity-"))
        fd = nofollow.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for piece in maker.pieces(pack_id):
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            durable.publish(fd, temporary, parity_path(store_path, pack_id))
            # The file is not read soon: leave the page cache to the training's data.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            durable.remove_file(temporary)
            raise
        finally:
            os.close(fd)

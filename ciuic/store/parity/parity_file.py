"""Read the parity file of a pack. docs/format.md, "Parity".

A pack is divided into consecutive segments of equal length. Byte t of each segment and byte
t of each row of parity make one word of a Reed-Solomon code, so a lost range costs each word as
few bytes as possible. A checksum of every sector, of the pack and of the parity itself, tells
which bytes are wrong. The parity file holds the checksums twice: at its front and at its end.

``parity_writer`` makes the file, and ``rebuild`` reads a damaged pack with its help.
"""

import os
from typing import Final

from ciuic.errors import CorruptionError, UnreachableError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_if_possible, read_or_zeros
from ciuic.store.parity.encoding import (
    HEADER_BYTES,
    PAGE_BYTES,
    PAGE_SUMS,
    Header,
    decode_page,
    encode_header,
    parse_header,
    rows_offset_bytes,
    table_bytes,
)
from ciuic.store.records import layout
from ciuic.system.hashing import checksum

__all__ = ["Parity", "inspect_parity", "parity_path"]

_PAGES_KEPT: Final = 64
_WINDOW_BYTES: Final = 1024 * 1024
_LOST_FACTOR_MAX: Final = 8
"""At least an eighth of a parity file must be left for the file to be used."""


def parity_path(store_path: str, pack_id: PackId) -> str:
    """Return the path of a pack's parity file, whether or not the file exists."""
    return os.path.join(store_path, layout.PARITY, layout.pack_name(pack_id))


class Parity:
    """An open parity file. Everything it says is checked before it is used.

    Attributes:
        size_bytes: Length of the pack as it was written.
        shape: How the pack was cut.
        sectors: Sectors of the pack.
        file_bytes: Length of an undamaged parity file of this shape.

    Raises:
        CorruptionError: Neither of its headers can be used.
    """

    def __init__(self, fd: int, pack_id: PackId) -> None:
        self._fd = fd
        self._pack_id = pack_id
        self._pages: dict[int, tuple[int, ...] | None] = {}
        length_bytes = os.fstat(fd).st_size
        self.size_bytes, self.shape = _read_header(fd, pack_id, length_bytes)
        if self.shape.parity_bytes > _LOST_FACTOR_MAX * length_bytes:
            raise CorruptionError("most of the parity is missing")
        self.sectors = -(-self.size_bytes // self.shape.sector_bytes)
        self._sums_count = self.sectors + self.shape.parity_bytes // self.shape.sector_bytes
        length = table_bytes(self._sums_count)
        self._rows_at = rows_offset_bytes(length)
        self._tables_at = (HEADER_BYTES, self._rows_at + self.shape.parity_bytes)
        self.file_bytes = self._tables_at[1] + length + HEADER_BYTES

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def sum_of(self, sector: int) -> int | None:
        """Return the checksum of a sector; None if it is lost.

        The sectors of the parity rows are numbered after those of the pack.
        """
        number, place = divmod(sector, PAGE_SUMS)
        if number not in self._pages:
            while len(self._pages) >= _PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
            copies = (self._page(number, table_at) for table_at in self._tables_at)
            self._pages[number] = next((page for page in copies if page is not None), None)
        page = self._pages[number]
        return None if page is None else page[place]

    def read_row(self, row: int, offset_bytes: int, length_bytes: int) -> bytes:
        """Return a range of a row of parity, with zeros for what cannot be read."""
        at = self._rows_at + row * self.shape.segment_bytes + offset_bytes
        return read_or_zeros(self._fd, length_bytes, at, self.shape.sector_bytes)

    def problem(self) -> str:
        """Read the whole file; returns what is wrong with it, or an empty string."""
        if os.fstat(self._fd).st_size != self.file_bytes:
            return "it is not as long as it should be"
        header = encode_header(self._pack_id, self.size_bytes, self.shape)
        ends = (0, self.file_bytes - HEADER_BYTES)
        if any(read_if_possible(self._fd, HEADER_BYTES, at) != header for at in ends):
            return "one of its headers is damaged"
        pages = range(-(-self._sums_count // PAGE_SUMS))
        if any(self._page(number, at) is None for at in self._tables_at for number in pages):
            return "one of its tables is damaged"
        if not all(self._is_row_sound(row) for row in range(self.shape.rows)):
            return "some of its parity is damaged"
        return ""

    def _is_row_sound(self, row: int) -> bool:
        sector_bytes = self.shape.sector_bytes
        sectors = self.shape.segment_bytes // sector_bytes
        first = self.sectors + row * sectors
        per_window = _WINDOW_BYTES // sector_bytes
        for begin in range(0, sectors, per_window):
            count = min(per_window, sectors - begin)
            data = self.read_row(row, begin * sector_bytes, count * sector_bytes)
            for number in range(count):
                sector = data[number * sector_bytes : (number + 1) * sector_bytes]
                if checksum(sector) != self.sum_of(first + begin + number):
                    return False
        return True

    def _page(self, number: int, table_at: int) -> tuple[int, ...] | None:
        count = min(PAGE_SUMS, self._sums_count - number * PAGE_SUMS)
        data = read_if_possible(self._fd, 8 * (count + 1), table_at + number * PAGE_BYTES)
        return decode_page(self._pack_id, number, data, count)


def _read_header(fd: int, pack_id: PackId, length_bytes: int) -> Header:
    """Read the header at the start of the file; if it is damaged, the one at its end."""
    try:
        return parse_header(read_if_possible(fd, HEADER_BYTES, 0), pack_id)
    except CorruptionError:
        end = max(0, length_bytes - HEADER_BYTES)
        return parse_header(read_if_possible(fd, HEADER_BYTES, end), pack_id)


def inspect_parity(store_path: str, pack_id: PackId) -> str:
    """Read a pack's whole parity file; returns what is wrong with it, or an empty string.

    Raises:
        UnreachableError: The file system cannot open the file.
        StoreError: It cannot be read for a reason that is not damage.
    """
    path = parity_path(store_path, pack_id)
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
            return Parity(fd, pack_id).problem()
        except CorruptionError as error:
            return error.message
        finally:
            os.close(fd)

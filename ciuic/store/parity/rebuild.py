"""Reads a damaged pack as it was written, with the help of its parity.

Memory is bounded, whatever a parity file claims. The result is only a proposal: callers check the
checksums of frames and the IDs of chunks.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_or_zeros
from ciuic.store.parity.galois import coder_for
from ciuic.store.parity.parity_file import Parity, parity_path
from ciuic.system.core import core
from ciuic.system.hashing import checksum

__all__ = ["ParityReader", "open_parity_reader"]

_WINDOW_BYTES: Final = 1024 * 1024
_STRETCH_BYTES: Final = 64 * 1024
"""The part of each segment that is computed at a time: at most 16 MiB of all segments."""
_SOUND, _UNKNOWN, _LOST = range(3)


class ParityReader:
    """Reads a pack as it was written, as far as its parity reaches.

    Args:
        fd: The open pack; stays open.
        parity: The pack's parity; stays open.

    Attributes:
        size_bytes: Length of the pack as it was written.

    Raises:
        CorruptionError: Too much of the pack is missing.
    """

    def __init__(self, fd: int, parity: Parity) -> None:
        self._fd = fd
        self._parity = parity
        self._shape = shape = parity.shape
        self._per_segment = shape.segment_bytes // shape.sector_bytes
        self._per_stretch = max(1, _STRETCH_BYTES // shape.sector_bytes)
        self._solved: tuple[int, dict[int, bytes]] = (-1, {})
        self.size_bytes = parity.size_bytes
        if self.size_bytes - os.fstat(fd).st_size > shape.parity_bytes:
            raise CorruptionError("more of the pack is missing than its parity can restore")

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """Return up to ``length_bytes`` bytes of the pack, as they were written.

        Raises:
            CorruptionError: More is damaged than the parity can restore.
            OSError: The pack or its parity cannot be read, for a reason that is not damage.
        """
        sector_bytes = self._shape.sector_bytes
        end = min(offset_bytes + length_bytes, self.size_bytes)
        first, last = offset_bytes // sector_bytes, -(-end // sector_bytes)
        per_window = _WINDOW_BYTES // sector_bytes
        parts = [
            self._window(at, min(per_window, last - at)) for at in range(first, last, per_window)
        ]
        begin = offset_bytes - first * sector_bytes
        return b"".join(parts)[begin : begin + max(0, end - offset_bytes)]

    def _window(self, first: int, count: int) -> bytes:
        data = self._read_pack(first, count)
        sector_bytes = self._shape.sector_bytes
        lost = [
            first + number
            for number in range(count)
            if self._state(first + number, data, number * sector_bytes) != _SOUND
        ]
        for number in lost:
            at = (number - first) * sector_bytes
            data[at : at + sector_bytes] = self._repaired(number)
        return bytes(data)

    def _repaired(self, sector: int) -> bytes:
        row = sector % self._per_segment
        begin = row - row % self._per_stretch
        if self._solved[0] != begin:
            self._solved = (begin, self._solve(begin))
        found = self._solved[1].get(sector)
        if found is None:
            at = sector * self._shape.sector_bytes
            raise CorruptionError(f"around byte {at}, more is damaged than parity can restore")
        return found

    def _state(self, sector: int, data: bytearray, at: int) -> int:
        """Return the state of a sector of the pack that was read into ``data``."""
        if sector >= self._parity.sectors:
            return _SOUND  # past the end: zeros
        length = min(self._shape.sector_bytes, self.size_bytes - sector * self._shape.sector_bytes)
        return self._compared(sector, data, at, length)

    def _compared(self, sector: int, data: bytearray, at: int, length: int) -> int:
        wanted = self._parity.sum_of(sector)
        if wanted is None:
            return _UNKNOWN
        with memoryview(data)[at : at + length] as part:
            return _SOUND if checksum(part) == wanted else _LOST

    def _read_pack(self, first: int, count: int) -> bytearray:
        """Read sectors of the pack; unreadable sectors and those past the end are zeros."""
        sector_bytes = self._shape.sector_bytes
        begin = first * sector_bytes
        length = max(0, min(count * sector_bytes, self.size_bytes - begin))
        data = bytearray(read_or_zeros(self._fd, length, begin, sector_bytes))
        data.extend(bytes(count * sector_bytes - len(data)))
        return data

    def _solve(self, begin: int) -> dict[int, bytes]:
        """Compute the lost sectors in the same range of all segments, as far as possible."""
        count = min(self._per_stretch, self._per_segment - begin)
        segments = [
            self._read_pack(number * self._per_segment + begin, count)
            for number in range(self._shape.segments)
        ]
        offset, length = begin * self._shape.sector_bytes, count * self._shape.sector_bytes
        rows = [
            bytearray(self._parity.read_row(row, offset, length)) for row in range(self._shape.rows)
        ]
        stretch = _Stretch(begin, segments, rows)
        solved: dict[int, bytes] = {}
        plans = [self._plan(stretch, number) for number in range(count)]
        start = 0
        for number in range(1, count + 1):
            # Neighbors with the same losses are computed in one call.
            if number == count or plans[number] != plans[start]:
                solved.update(self._computed(stretch, range(start, number), plans[start]))
                start = number
        return solved

    def _plan(self, stretch: "_Stretch", number: int) -> "_Plan":
        """Choose the segments to compute and the rows of parity to use, for one sector of each."""
        at = number * self._shape.sector_bytes
        lost, unknown, used = [], [], []
        for segment, data in enumerate(stretch.segments):
            sector = segment * self._per_segment + stretch.begin + number
            state = self._state(sector, data, at)
            if state == _LOST:
                lost.append(segment)
            elif state == _UNKNOWN:
                unknown.append(segment)
        for row, data in enumerate(stretch.rows):
            sector = self._parity.sectors + row * self._per_segment + stretch.begin + number
            if self._compared(sector, data, at, self._shape.sector_bytes) == _SOUND:
                used.append(row)
        # Sectors without a checksum count as lost; if that is too many, they count as sound, as
        # the caller has a checksum of what it reads.
        if len(lost) + len(unknown) <= len(used):
            lost, unknown = sorted(lost + unknown), []
        return _Plan(tuple(lost), tuple(unknown), tuple(used[: len(lost)]))

    def _computed(
        self, stretch: "_Stretch", numbers: range, plan: "_Plan"
    ) -> Iterator[tuple[int, bytes]]:
        """Compute the missing sectors of neighbors; yields each with its number in the pack."""
        sector_bytes = self._shape.sector_bytes
        start, length = numbers.start * sector_bytes, len(numbers) * sector_bytes
        if plan.lost and len(plan.lost) == len(plan.used):
            coder_for(self._shape.segments, self._shape.rows, core()).solve(
                lost=plan.lost,
                used=plan.used,
                segments=[_part(data, start, length) for data in stretch.segments],
                parity=[_part(stretch.rows[row], start, length) for row in plan.used],
            )
        for segment in (*plan.lost, *plan.unknown):
            for number in numbers:
                sector = segment * self._per_segment + stretch.begin + number
                at = number * sector_bytes
                data = stretch.segments[segment]
                if self._state(sector, data, at) != _LOST:
                    yield sector, bytes(data[at : at + sector_bytes])


class _Stretch(NamedTuple):
    """The same range of all segments and rows of parity, from the sector ``begin`` on."""

    begin: int
    segments: list[bytearray]
    rows: list[bytearray]


class _Plan(NamedTuple):
    """For one sector: the segments to compute, the doubtful segments, the rows to use."""

    lost: tuple[int, ...]
    unknown: tuple[int, ...]
    used: tuple[int, ...]


def _part(data: bytearray, start: int, length: int) -> memoryview:
    return memoryview(data)[start : start + length]


@contextlib.contextmanager
def open_parity_reader(store_path: str, pack_id: PackId, fd: int) -> Iterator[ParityReader]:
    """Open the parity of an open pack, and yield a reader of both.

    Raises:
        CorruptionError: The pack has no parity, or none that can be used.
        StoreError: The parity cannot be read for another reason.
    """
    path = parity_path(store_path, pack_id)
    with store_faults("read", path):
        try:
            parity_fd = open_regular(path)
        except FileNotFoundError:
            raise CorruptionError("the pack has no parity") from None
    try:
        with store_faults("read", path):
            reader = ParityReader(fd, Parity(parity_fd, pack_id))
        yield reader
    finally:
        os.close(parity_fd)

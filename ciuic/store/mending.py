"""Reading a damaged pack as it was written, with the help of its parity.

Everything here works in bounded memory whatever a parity file says of itself. What is given back
is a proposal: frames have checksums and chunks have IDs, and whoever asks checks those.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.hashing import checksum
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_or_zeros
from ciuic.store.galois import ParityUnavailableError, address
from ciuic.store.parity import Parity, coder_for, parity_path

__all__ = ["Mender", "opened_mender"]

_WINDOW_BYTES: Final = 1024 * 1024
_STRETCH_BYTES: Final = 64 * 1024
"""Of each segment that is worked on at a time: 16 MiB in all at most."""
_SOUND, _UNKNOWN, _LOST = range(3)


class Mender:
    """Reads a pack as it was written, as far as its parity reaches.

    Args:
        fd: The pack, open; stays open.
        parity: The pack's; stays open.

    Attributes:
        size_bytes: Of the pack as it was.
        mended_sectors: How many were computed instead of being read.

    Raises:
        CorruptionError: Too much of the pack is missing, or this machine can't compute parity:
            what is damaged stays so, and whatever is not can still be read.
    """

    def __init__(self, fd: int, parity: Parity) -> None:
        self._fd = fd
        self._parity = parity
        self._shape = shape = parity.shape
        self._per_segment = shape.segment_bytes // shape.sector_bytes
        self._per_stretch = max(1, _STRETCH_BYTES // shape.sector_bytes)
        self._solved: tuple[int, dict[int, bytes]] = (-1, {})
        self.size_bytes = parity.size_bytes
        self.mended_sectors = 0
        if self.size_bytes - os.fstat(fd).st_size > shape.parity_bytes:
            raise CorruptionError("more of the pack is missing than its parity can give back")
        try:
            coder_for(shape.segments, shape.rows)
        except ParityUnavailableError as error:
            raise CorruptionError(error.message) from error

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """Up to so many bytes of the pack, as they were written.

        Raises:
            CorruptionError: More is damaged than the parity can give back.
            OSError: The pack or its parity can't be read, for a reason that is not damage.
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
            data[at : at + sector_bytes] = self._mended(number)
        return bytes(data)

    def _mended(self, sector: int) -> bytes:
        row = sector % self._per_segment
        begin = row - row % self._per_stretch
        if self._solved[0] != begin:
            self._solved = (begin, self._solve(begin))
        found = self._solved[1].get(sector)
        if found is None:
            at = sector * self._shape.sector_bytes
            raise CorruptionError(f"around byte {at} more is damaged than parity can give back")
        self.mended_sectors += 1
        return found

    def _state(self, sector: int, data: bytearray, at: int) -> int:
        """What is known of a sector of the pack that was read to ``data``."""
        if sector >= self._parity.sectors:
            return _SOUND  # behind the end: zeros
        length = min(self._shape.sector_bytes, self.size_bytes - sector * self._shape.sector_bytes)
        return self._compared(sector, data, at, length)

    def _compared(self, sector: int, data: bytearray, at: int, length: int) -> int:
        wanted = self._parity.sum_of(sector)
        if wanted is None:
            return _UNKNOWN
        with memoryview(data)[at : at + length] as part:
            return _SOUND if checksum(part) == wanted else _LOST

    def _read_pack(self, first: int, count: int) -> bytearray:
        """Sectors of the pack; zeros for what can't be read and behind its end."""
        sector_bytes = self._shape.sector_bytes
        begin = first * sector_bytes
        length = max(0, min(count * sector_bytes, self.size_bytes - begin))
        data = bytearray(read_or_zeros(self._fd, length, begin, sector_bytes))
        data.extend(bytes(count * sector_bytes - len(data)))
        return data

    def _solve(self, begin: int) -> dict[int, bytes]:
        """All that is lost in the same stretch of all segments, as far as it can be computed."""
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
            # Neighbours to which the same has happened are computed in one go.
            if number == count or plans[number] != plans[start]:
                solved.update(self._computed(stretch, range(start, number), plans[start]))
                start = number
        return solved

    def _plan(self, stretch: "_Stretch", number: int) -> "_Plan":
        """Which segments are to be computed from which rows of parity, for one sector of each."""
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
        # What nothing is known of counts as lost; where that is too much, as sound: whoever asks
        # has a checksum of what it wants.
        if len(lost) + len(unknown) <= len(used):
            lost, unknown = sorted(lost + unknown), []
        return _Plan(tuple(lost), tuple(unknown), tuple(used[: len(lost)]))

    def _computed(
        self, stretch: "_Stretch", numbers: range, plan: "_Plan"
    ) -> Iterator[tuple[int, bytes]]:
        """The sectors that some neighbours lack, each with its number in the pack."""
        sector_bytes = self._shape.sector_bytes
        start = numbers.start * sector_bytes
        if plan.lost and len(plan.lost) == len(plan.used):
            coder_for(self._shape.segments, self._shape.rows).solve(
                lost=plan.lost,
                used=plan.used,
                segments=[address(one) + start for one in stretch.segments],
                parity=[address(stretch.rows[row]) + start for row in plan.used],
                length_bytes=len(numbers) * sector_bytes,
            )
        for segment in (*plan.lost, *plan.unknown):
            for number in numbers:
                sector = segment * self._per_segment + stretch.begin + number
                at = number * sector_bytes
                data = stretch.segments[segment]
                if self._state(sector, data, at) != _LOST:
                    yield sector, bytes(data[at : at + sector_bytes])


class _Stretch(NamedTuple):
    """The same sectors of all segments and rows of parity, from the number ``begin`` on."""

    begin: int
    segments: list[bytearray]
    rows: list[bytearray]


class _Plan(NamedTuple):
    """For one sector: segments to be computed, those that are doubtful, rows of parity to use."""

    lost: tuple[int, ...]
    unknown: tuple[int, ...]
    used: tuple[int, ...]


@contextlib.contextmanager
def opened_mender(store_path: str, pack: bytes, fd: int) -> Iterator[Mender]:
    """What reads an open pack with the help of its parity.

    Raises:
        CorruptionError: There is no parity for it, or none that can be used.
        StoreError: The parity can't be read for another reason.
    """
    path = parity_path(store_path, pack)
    with store_faults("read", path):
        try:
            parity_fd = open_regular(path)
        except FileNotFoundError:
            raise CorruptionError("there is no parity for the pack") from None
    try:
        with store_faults("read", path):
            mender = Mender(fd, Parity(parity_fd, pack))
        yield mender
    finally:
        os.close(parity_fd)

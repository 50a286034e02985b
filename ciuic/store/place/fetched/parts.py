"""Parts of packs that were fetched from a bucket: they are kept, so that each is fetched once.

    the last 40 MiB     in memory
    what came before    in a file without a name in the cache directory, up to a share of the free
                        space; without that space, it is forgotten, and fetched again when needed

The base of a delta is read once for each file that has a delta against it. The kernel removes the
file when the process ends, however it ends.
"""

import bisect
import threading
from collections import OrderedDict
from typing import Final

from ciuic.ids import PackId
from ciuic.store.place.fetched.spill import PART_BYTES_MAX, Spill

__all__ = ["FetchedPart", "FetchedParts"]

_MEMORY_BYTES_MAX: Final = 40 * 1024 * 1024


class FetchedPart:
    """A part of a pack.

    Attributes:
        pack_id: The pack.
        begin: Where it begins in the pack.
        end: The first byte behind it.
        ahead_end: Up to here, what follows it is probably read next.
        data: Its bytes; None: they are in the file, or forgotten.
        kept: The file that has it; None: none has.
        slot: The number of its place in that file.
        unread_bytes: How much of it ``pass_by`` did not name yet.
    """

    __slots__ = ("ahead_end", "begin", "data", "end", "kept", "pack_id", "slot", "unread_bytes")

    def __init__(
        self, pack_id: PackId, begin: int, data: bytes | memoryview, ahead_end: int
    ) -> None:
        self.pack_id = pack_id
        self.begin = begin
        self.end = begin + len(data)
        self.ahead_end = ahead_end
        self.data: bytes | memoryview | None = data
        self.kept: Spill | None = None
        self.slot = -1
        self.unread_bytes = len(data)


class FetchedParts:
    """The parts of one store that are kept. All methods may be called from any thread.

    Args:
        directory: Where the file is made.

    Attributes:
        dropped: Packs that have lost a part. More is read in turn than can be kept, so to fetch one
            of these packs whole would cost that each time.
    """

    def __init__(self, directory: str) -> None:
        self.dropped: set[PackId] = set()
        self._directory = directory
        self._lock = threading.Lock()
        self._of_pack: dict[PackId, list[FetchedPart]] = {}
        self._in_memory: OrderedDict[FetchedPart, None] = OrderedDict()
        self._memory_bytes = 0
        self._in_file: OrderedDict[FetchedPart, None] = OrderedDict()
        self._spill: Spill | None = None
        self._is_closed = False

    def find(self, pack_id: PackId, at: int) -> FetchedPart | None:
        """Return the part that has this byte of a pack; None if none is kept."""
        with self._lock:
            part = self._part_at(pack_id, at)
            if part is None:
                return None
            for recent in (self._in_memory, self._in_file):
                if part in recent:
                    recent.move_to_end(part)
                    return part
            self._forget(part)  # it was passed by, and is read again
            return None

    def covered_to(self, pack_id: PackId, at: int) -> int:
        """Return the end of the part that has this byte, kept or passed by; ``at`` if none has."""
        with self._lock:
            part = self._part_at(pack_id, at)
            return at if part is None else part.end

    def gap(self, pack_id: PackId, at: int, begin: int, end: int) -> tuple[int, int]:
        """Return the part of a range around a byte of a pack that was not fetched."""
        with self._lock:
            parts = self._of_pack.get(pack_id, [])
            number = bisect.bisect_right(parts, at, key=_begin)
            begin = max(begin, parts[number - 1].end) if number else begin
            return begin, min(end, parts[number].begin) if number < len(parts) else end

    def read(self, part: FetchedPart, begin: int, end: int) -> bytes | memoryview | None:
        """Return bytes of a part; None if it was forgotten meanwhile."""
        data, kept, slot = part.data, part.kept, part.slot
        if data is not None:
            return memoryview(data)[begin - part.begin : end - part.begin]
        found = kept.read(slot, begin - part.begin, end - begin) if kept is not None else b""
        # Another part may have taken the slot while this thread was reading.
        if len(found) == end - begin and part.kept is kept and part.slot == slot:
            return found
        with self._lock:
            self._forget(part)
        return None

    def add(self, part: FetchedPart) -> None:
        """Keep a part in memory, unless bytes of it are kept; move older parts to the file."""
        moving: list[tuple[FetchedPart, Spill, int]] = []
        with self._lock:
            parts = self._of_pack.get(part.pack_id, [])
            number = bisect.bisect_right(parts, part.begin, key=_begin)
            overlaps = number > 0 and parts[number - 1].end > part.begin
            overlaps |= number < len(parts) and parts[number].begin < part.end
            if overlaps or self._is_closed:
                return
            parts.insert(number, part)
            self._of_pack[part.pack_id] = parts
            self._in_memory[part] = None
            self._memory_bytes += part.end - part.begin
            while self._memory_bytes > _MEMORY_BYTES_MAX and len(self._in_memory) > 1:
                self._move_oldest(moving)
        for old, spill, slot in moving:
            self._write(old, spill, slot)

    def pass_by(self, pack_id: PackId, begin: int, end: int) -> None:
        """Forget the parts in memory that were read to their ends: they are not read again."""
        with self._lock:
            for part in self._of_pack.get(pack_id, []):
                part.unread_bytes -= max(0, min(end, part.end) - max(begin, part.begin))
                if part.unread_bytes <= 0:
                    self._drop(part)

    def forget(self, pack_id: PackId, begin: int, end: int) -> bool:
        """Forget the parts that have bytes of a range; return whether there were any."""
        with self._lock:
            parts = self._of_pack.get(pack_id, [])
            found = [part for part in parts if part.begin < end and begin < part.end]
            for part in found:
                self._forget(part)
        return bool(found)

    def close(self) -> None:
        """Forget everything, and keep nothing from now on."""
        with self._lock:
            self._is_closed = True
            for part in [*self._in_memory, *self._in_file]:
                self._forget(part)
            self._spill = None

    def _part_at(self, pack_id: PackId, at: int) -> FetchedPart | None:
        parts = self._of_pack.get(pack_id, [])
        number = bisect.bisect_right(parts, at, key=_begin) - 1
        return parts[number] if number >= 0 and at < parts[number].end else None

    def _move_oldest(self, moving: list[tuple[FetchedPart, Spill, int]]) -> None:
        """Find a place in the file for the oldest part in memory, or forget the part."""
        part = next(iter(self._in_memory))
        if part.end - part.begin > PART_BYTES_MAX:  # the end of a pack; a slot is shorter
            self._forget(part)
            return
        if self._spill is None:
            self._spill = Spill(self._directory)
        spill = self._spill
        slots_max = spill.slots_max()
        while self._in_file and len(self._in_file) >= slots_max:
            old = next(iter(self._in_file))
            self.dropped.add(old.pack_id)
            self._forget(old)
        # A part that was forgotten while it is written still has its slot.
        if spill.taken >= slots_max:
            self.dropped.add(part.pack_id)
            self._forget(part)
            if not slots_max and spill.is_begun and not spill.has_failed:
                self._spill = Spill(self._directory)  # the old file is closed: its blocks are free
            return
        # Until it is written, the part has its bytes, and other threads find it.
        del self._in_memory[part]
        self._memory_bytes -= part.end - part.begin
        self._in_file[part] = None
        moving.append((part, spill, spill.take_slot()))

    def _write(self, part: FetchedPart, spill: Spill, slot: int) -> None:
        """Write a part to the file; forget it if that fails."""
        data = part.data
        is_written = data is not None and spill.write(slot, data)
        with self._lock:
            if is_written and part in self._in_file:
                part.kept, part.slot, part.data = spill, slot, None
                return
            spill.give_back(slot)
            if part in self._in_file:
                self.dropped.add(part.pack_id)
                self._forget(part)

    def _forget(self, part: FetchedPart) -> None:
        parts = self._of_pack.get(part.pack_id, [])
        if part in parts:
            parts.remove(part)
        if not parts:
            self._of_pack.pop(part.pack_id, None)
        self._drop(part)

    def _drop(self, part: FetchedPart) -> None:
        """Drop the bytes of a part, and remember that it was fetched."""
        if part in self._in_memory:
            del self._in_memory[part]
            self._memory_bytes -= part.end - part.begin
        self._in_file.pop(part, None)
        kept, slot = part.kept, part.slot
        part.kept, part.slot, part.data = None, -1, None
        if kept is not None:
            kept.give_back(slot)


def _begin(part: FetchedPart) -> int:
    return part.begin

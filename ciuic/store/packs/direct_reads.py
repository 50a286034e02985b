"""Reads stretches of packs past the page cache, ahead of the threads that decode them.

Of a load that reads everything once, a third of the processor time went to putting pages into the
page cache and to copying them out of it. Stretches that are in the page cache already are left to
ordinary reads, and so is everything unusual: those say what is wrong.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, NamedTuple

from ciuic.errors import CiuicError, ResourceError
from ciuic.ids import PackId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.place.packs import OpenPack
from ciuic.system.workers.threads import start

__all__ = ["STRETCH_BYTES_MAX", "DirectReads", "Stretch", "are_cold"]

_BUFFERS: Final = 4
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_ALIGNMENT: Final = 4096
"""A multiple of every logical block size in use; see "O_DIRECT" in open(2)."""
STRETCH_BYTES_MAX: Final = _BUFFER_BYTES - 2 * _ALIGNMENT
_LOOKED_AT: Final = 8
_PATIENCE_S: Final = 5.0
"""After this time, a thread reads in the ordinary way: an interrupt may have lost a buffer."""


class Stretch(NamedTuple):
    """Neighboring frames of a pack.

    Attributes:
        pack_id: The pack.
        begin: Where the first frame begins.
        end: Where the last one ends, at most ``STRETCH_BYTES_MAX`` later.
        uses: How often ``DirectReads.done`` is called for them.
    """

    pack_id: PackId
    begin: int
    end: int
    uses: int


class DirectReads:
    """Reads stretches, a few ahead of their use. ``close`` ends it.

    Args:
        packs: The packs of the store.
        stretches: The stretches in the order of their use.
    """

    def __init__(self, packs: OpenPacks, stretches: Sequence[Stretch]) -> None:
        self._packs = packs
        self._stretches = stretches
        self._left = [stretch.uses for stretch in stretches]
        self._lock = threading.Lock()
        self._found: list[Future[memoryview | None]] = [Future() for _ in stretches]
        self._used: dict[int, mmap.mmap] = {}
        self._free: SimpleQueue[mmap.mmap | None] = SimpleQueue()
        for _ in range(min(_BUFFERS, len(stretches))):
            self._free.put(_buffer())
        self._direct: tuple[PackId, int] | None = None
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        try:
            start(self._thread)
        except ResourceError:
            self._end()

    def frame(self, number: int, place: ChunkPlace) -> memoryview | None:
        """Return the bytes of a frame, until ``done``; None: it is to be read in the ordinary way.

        Args:
            number: The number of its stretch.
            place: The frame.
        """
        try:
            data = self._found[number].result(_PATIENCE_S)
        except TimeoutError:
            return None
        if data is None:
            return None
        begin = place.offset_bytes - self._stretches[number].begin
        return data[begin : begin + place.frame_bytes]

    def done(self, number: int) -> None:
        """Say that a part of a stretch is not used any more: see ``Stretch.uses``."""
        with self._lock:
            self._left[number] -= 1
            buffer = None if self._left[number] else self._used.pop(number, None)
        if buffer is not None:
            self._free.put(buffer)

    def close(self) -> None:
        """End the thread; no frame is used any more."""
        self._free.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for number, stretch in enumerate(self._stretches):
                buffer = self._free.get()
                if buffer is None:
                    return
                data = self._read(stretch, buffer)
                with self._lock:
                    is_used = self._left[number] > 0
                    if is_used:
                        self._used[number] = buffer
                if not is_used:
                    self._free.put(buffer)
                self._found[number].set_result(data if is_used else None)
        finally:
            self._end()

    def _end(self) -> None:
        """Leave the stretches that are not read to ordinary reads."""
        if self._direct is not None:
            os.close(self._direct[1])
        for found in self._found:
            if not found.done():
                found.set_result(None)

    def _read(self, stretch: Stretch, buffer: mmap.mmap) -> memoryview | None:
        """Read a stretch; None: it is cached, is not in a file, or cannot be read like this."""
        length = stretch.end - stretch.begin
        try:
            pack = self._packs.get(stretch.pack_id)
        except CiuicError:
            return None
        with contextlib.suppress(OSError):
            if pack.fd >= 0 and not _is_cached(pack.fd, stretch):
                skip = stretch.begin % _ALIGNMENT
                wanted = -(-(skip + length) // _ALIGNMENT) * _ALIGNMENT
                view = memoryview(buffer)[:wanted]
                fd = self._opened(stretch.pack_id, pack)
                if os.preadv(fd, [view], stretch.begin - skip) >= skip + length:
                    return view[skip : skip + length]
        pack.read_ahead(stretch.begin, length)
        return None

    def _opened(self, pack_id: PackId, pack: OpenPack) -> int:
        """Return a file that is read past the page cache; others read ``pack`` at the same time."""
        if self._direct is None or self._direct[0] != pack_id:
            if self._direct is not None:
                last, self._direct = self._direct[1], None
                os.close(last)
            # Not by its name: the pack may have been removed since, and this opens the same file.
            fd = os.open(f"/proc/self/fd/{pack.fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            self._direct = pack_id, fd
        return self._direct[1]


def are_cold(packs: OpenPacks, stretches: Sequence[Stretch]) -> bool:
    """Return whether most of these stretches are not in the page cache; this looks at a few."""
    few = stretches[:: max(1, len(stretches) // _LOOKED_AT)]
    with contextlib.suppress(CiuicError):
        opened = [(packs.get(stretch.pack_id), stretch) for stretch in few]
        cold = [pack.fd >= 0 and not _is_cached(pack.fd, stretch) for pack, stretch in opened]
        return sum(cold) > len(few) / 2
    return False


def _buffer() -> mmap.mmap:
    """Return memory in large pages: getting small ones took as long as the reads saved."""
    made = mmap.mmap(-1, _BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel has none
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _is_cached(fd: int, stretch: Stretch) -> bool:
    """Return whether a stretch is in the page cache, or the file system does not say so."""
    middle = (stretch.begin + stretch.end) // 2
    try:
        return os.preadv(fd, [bytearray(1)], middle, os.RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return True

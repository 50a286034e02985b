"""Buffers that are reused, and settings that make malloc reuse freed memory.

The first access to a page costs a page fault, and on a virtual machine a second fault in the host:
fresh memory was filled at 200 to 550 MB/s while the disk took 1.7 GB/s (decision 0004).
"""

import gc
import mmap
import threading
from typing import Final

__all__ = [
    "BufferPool",
    "collect_rarely",
    "give_back_holes",
    "give_back_unused",
    "keep_little",
    "prepare_for_bulk",
]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEEP_BYTES: Final = 1 << 30
_ARENAS: Final = 4
_MAPPED_ALONE_BYTES: Final = 128 * 1024
_KEEP_LITTLE_BYTES: Final = 64 * 1024
_OBJECTS_PER_COLLECTION: Final = 100_000


def collect_rarely() -> None:
    """Make the garbage collector run rarely.

    A hundred thousand entries have no reference cycles, and searching them took a tenth of the
    time.
    """
    gc.set_threshold(_OBJECTS_PER_COLLECTION)


def prepare_for_bulk() -> None:
    """Make malloc reuse freed blocks of some MiB instead of unmapping them: mallopt(3).

    Freed memory is never more than was in use at once, which the callers bound. Without mallopt in
    the C library, nothing changes. The garbage collector runs rarely.
    """
    # Imported here and below: loading it takes as long as a small restore.
    import ctypes

    collect_rarely()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def keep_little() -> None:
    """Make malloc return freed memory to the system early: mallopt(3).

    For a process that mostly waits. By default, malloc keeps twice as much as the largest block
    that was ever freed, in each of its arenas. Threads share one: they wait for each other anyway.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_ALONE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_LITTLE_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def give_back_holes() -> None:
    """Return free memory between blocks in use to the system: malloc_trim(3).

    Blocks of many lengths leave holes that no later block fits: a snapshot of 2 GiB took 190 MB of
    memory, one of 8 GiB took 240 MB. One call every few hundred MiB has no measurable cost.
    """
    import ctypes

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def give_back_unused() -> None:
    """Return to the system what work has left: objects in cycles, and free memory.

    For a process that waits after ``prepare_for_bulk``, which makes both stay: the daemon of a
    store in a bucket. A scrub leaves memory too.
    """
    gc.collect()
    give_back_holes()


class BufferPool:
    """Page-aligned buffers of one size that are reused."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []

    def take(self) -> mmap.mmap:
        """Return a buffer; it still holds the bytes of its last user."""
        with self._lock:
            if self._free:
                return self._free.pop()
        # Private: in a shared mapping, which is the default, a forked child would overwrite its
        # parent's buffers.
        return mmap.mmap(-1, self._size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a buffer to the pool."""
        with self._lock:
            self._free.append(buffer)

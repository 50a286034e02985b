"""A pack in a bucket, which is read in parts.

What follows a part is often read next, so the parts of a sequence grow up to 4 MiB, and the next
ones, also those of the pack that is read next, are fetched while the caller decodes. No byte is
fetched again while it is kept, or while another thread fetches it.

A small pack is one part: a snapshot reads the trees of its parent, which are in packs of their own,
in another order than they were written in. An index segment usually has the end of a pack, with its
list of frames.
"""

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError as DroppedError
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.errors import ChunkMissingError, MissingError, StoreError
from ciuic.ids import PackId
from ciuic.store.format.pack import TRAILER_BYTES
from ciuic.store.place.fetched.answers import LastAnswers
from ciuic.store.place.fetched.parts import FetchedPart, FetchedParts
from ciuic.store.place.fetched.spill import PART_BYTES_MAX
from ciuic.store.place.place import ByteRange, Place
from ciuic.store.place.segments.segments import Segments

__all__ = ["Fetching", "ObjectPack"]

_PART_BYTES_MIN: Final = 128 * 1024
_WHOLE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Reading a pack of this length takes about as long as one more request."""
_AHEAD_BYTES_MIN: Final = 1024 * 1024
"""Reads in a row fetch the next part ahead when parts have grown to this length."""
_AHEAD_AT_ONCE: Final = 8
_PARTS_AHEAD: Final = 8
"""Parts that are fetched ahead of a read. The memory for parts has room for all of them."""
_SEQUENCES_MAX: Final = 8
"""Sequences of reads in one pack at once: several threads read it, for several files."""
_EXPECTED_MAX: Final = 16
_PLANNED_MAX: Final = 64


class _Fetch(NamedTuple):
    """A part that is fetched: its range, and its bytes.

    Attributes:
        ahead_end: Up to here, what follows it is probably read next.
        is_ahead: No thread needed it when it was begun.
    """

    begin: int
    end: int
    ahead_end: int
    is_ahead: bool
    data: "Future[bytes | memoryview]"


class _Planned(NamedTuple):
    """A range of a pack that will be read."""

    pack: "ObjectPack"
    begin: int
    end: int


class Fetching:
    """What the packs of a store share: the parts that are kept, and the threads that fetch ahead.

    Args:
        directory: In the cache, for parts that do not fit into memory.

    Attributes:
        parts: The parts that are kept.
        answers: What the server last said about the packs.
    """

    def __init__(self, directory: str) -> None:
        self.parts = FetchedParts(directory)
        self.answers = LastAnswers()
        self._pool = ThreadPoolExecutor(_AHEAD_AT_ONCE, thread_name_prefix="ahead")
        self._idle = threading.BoundedSemaphore(_AHEAD_AT_ONCE)
        self._plan_lock = threading.Lock()
        self._planned: list[_Planned] = []

    def plan(self, pack: "ObjectPack", begin: int, end: int) -> None:
        """Note a range that is read after those that were noted before."""
        with self._plan_lock:
            for number, known in enumerate(self._planned):
                if known.pack is pack and known.begin <= begin <= known.end:
                    self._planned[number] = known._replace(end=max(end, known.end))
                    return
            self._planned = [*self._planned[1 - _PLANNED_MAX :], _Planned(pack, begin, end)]

    def go_on(self, pack: "ObjectPack", at: int, left: int) -> None:
        """Begin to fetch what is read after a planned range, up to this many parts.

        Args:
            pack: The pack that is read.
            at: It is read up to here, or fetched.
            left: How many parts.
        """
        with self._plan_lock:
            planned = self._planned
        numbers = range(len(planned))
        here = [n for n in numbers if planned[n].pack is pack and planned[n].begin < at]
        here = [n for n in here if at <= planned[n].end]
        for following in planned[here[-1] + 1 :] if here else ():
            if left:
                left = following.pack.fetch_ahead(following.begin, following.end, left)

    def begin(self, task: Callable[[], bytes | memoryview]) -> "Future[bytes | memoryview] | None":
        """Run a task in a thread; None: all threads are busy, or the packs were closed."""
        if not self._idle.acquire(blocking=False):
            return None
        try:
            future = self._pool.submit(task)
        except RuntimeError:
            self._idle.release()
            return None
        future.add_done_callback(lambda _: self._idle.release())
        return future

    def close(self) -> None:
        """Keep nothing, and fetch nothing ahead from now on."""
        self.parts.close()
        self._planned = []
        self._pool.shutdown(wait=False, cancel_futures=True)


class ObjectPack:
    """A pack that is read in parts. See ``OpenPack``.

    Args:
        place: The place of the store.
        key: The key of the pack.
        pack_id: Its ID.
        size_bytes: Its length.
        segments: The index segments of the store.
        fetching: What the packs of the store share.
    """

    fd = -1

    def __init__(
        self,
        place: Place,
        key: str,
        pack_id: PackId,
        size_bytes: int,
        *,
        segments: Segments,
        fetching: Fetching,
    ) -> None:
        self.name = f"{place.name}/{key}"
        self._place = place
        self._key = key
        self._pack_id = pack_id
        self._size_bytes = size_bytes
        self._segments = segments
        self._fetching = fetching
        self._parts = fetching.parts
        self._lock = threading.Lock()
        self._sequences: OrderedDict[int, int] = OrderedDict({-1: _PART_BYTES_MIN})
        """Where sequences of reads have come to, and the length of the last part of each."""
        self._expected: list[tuple[int, int]] = []
        self._under_way: list[_Fetch] = []

    @property
    def size_bytes(self) -> int:
        """See ``OpenPack``."""
        return self._size_bytes

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """See ``OpenPack``."""
        end = min(offset_bytes + length_bytes, self._size_bytes)
        data = bytes(self._read(offset_bytes, end))
        if end == self._size_bytes - TRAILER_BYTES and self._segments.learns:  # the footer
            trailer = self._read(end, self._size_bytes)
            self._segments.learn(self._pack_id, self._size_bytes, data + trailer)
        return data

    def view(self, length_bytes: int, offset_bytes: int) -> bytes | memoryview:
        """See ``OpenPack``: a part of a fetched part."""
        return self._read(offset_bytes, min(offset_bytes + length_bytes, self._size_bytes))

    def read_ahead(self, offset_bytes: int, length_bytes: int, *, is_in_turn: bool = False) -> None:
        """See ``OpenPack``: the next reads in this range are larger."""
        begin, end = offset_bytes, min(offset_bytes + length_bytes, self._size_bytes)
        if is_in_turn:
            self._fetching.plan(self, begin, end)
        with self._lock:
            if self._expected and self._expected[-1][0] <= begin <= self._expected[-1][1]:
                last_begin, last_end = self._expected.pop()
                begin, end = last_begin, max(end, last_end)
            self._expected = [*self._expected[1 - _EXPECTED_MAX :], (begin, end)]

    def pass_by(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: what is kept is bounded anyway."""

    def done(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: a part that was read to its end is not kept."""
        self._parts.pass_by(self._pack_id, offset_bytes, offset_bytes + length_bytes)

    def doubt(self, offset_bytes: int, length_bytes: int) -> bool:
        """See ``OpenPack``: the next read asks the server again."""
        self._parts.forget(self._pack_id, offset_bytes, offset_bytes + length_bytes)
        return True  # also if another thread has just forgotten it

    def _read(self, begin: int, end: int) -> bytes | memoryview:
        found: list[bytes | memoryview] = []
        while begin < end:
            piece = self._piece(begin, end)
            found.append(piece)
            begin += len(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def _piece(self, begin: int, end: int) -> bytes | memoryview:
        """Return the bytes from ``begin``, up to ``end`` or to the end of a part."""
        while True:
            mine: Future[bytes | memoryview] = Future()
            try:
                piece = self._looked_for(begin, end, mine)
            finally:
                # Also after an interrupt at any line: other threads may wait for this one.
                if not mine.done():
                    mine.set_exception(DroppedError())
                if any(one.data is mine for one in self._under_way):
                    with self._lock:
                        self._under_way = [one for one in self._under_way if one.data is not mine]
            if piece is not None:
                return piece

    def _looked_for(
        self, begin: int, end: int, mine: "Future[bytes | memoryview]"
    ) -> bytes | memoryview | None:
        """Return a piece: kept, under way, or fetched as ``mine``; None if it is to try again."""
        # Without the lock: the first look into the segments fetches them.
        part = self._parts.find(self._pack_id, begin) or self._listed(begin, end)
        with self._lock:
            part = part or self._parts.find(self._pack_id, begin)
            if part is not None:
                at, ahead_end = part.end, part.ahead_end
            else:
                fetch = self._fetch_at(begin) or self._begun(begin, end, mine)
                at, ahead_end = fetch.end, fetch.ahead_end
            left = self._go_on(at, ahead_end, _PARTS_AHEAD)
        # The lock is free: other threads read what is kept while this one waits.
        if left and ahead_end:
            self._fetching.go_on(self, ahead_end, left)
        if part is not None:
            return self._parts.read(part, begin, min(end, part.end))
        data = self._run(fetch) if fetch.data is mine else self._awaited(fetch)
        return None if data is None else memoryview(data)[begin - fetch.begin : end - fetch.begin]

    def _listed(self, begin: int, end: int) -> FetchedPart | None:
        """Return the end of the pack if that is wanted, and an index segment has it."""
        if end != self._size_bytes:
            return None
        data = self._segments.end(self._pack_id, end)
        if end - len(data) > begin:
            return None
        part = FetchedPart(self._pack_id, end - len(data), data, 0)
        self._parts.add(part)
        return part

    def _begun(self, begin: int, end: int, mine: "Future[bytes | memoryview]") -> _Fetch:
        """Return what this thread is to fetch for a range, so that no other thread does."""
        fetch = _Fetch(*self._part_for(begin, end), False, mine)
        self._under_way.append(fetch)
        return fetch

    def _fetch_at(self, at: int) -> _Fetch | None:
        return next((one for one in self._under_way if one.begin <= at < one.end), None)

    def fetch_ahead(self, begin: int, end: int, left: int) -> int:
        """Begin to fetch a range that is read soon, up to ``left`` parts; returns what is left."""
        with self._lock:
            return self._go_on(begin, end, left)

    def _go_on(self, at: int, ahead_end: int, left: int) -> int:
        """Begin to fetch what follows a part, while the caller decodes that part.

        Returns:
            How many parts are left of ``left``.
        """
        while left and at < ahead_end:
            left -= 1
            under_way = self._fetch_at(at)
            covered_to = self._parts.covered_to(self._pack_id, at)
            if under_way is not None or covered_to > at:
                at = covered_to if under_way is None else under_way.end
                continue
            _, end = self._gap(at, at, _end_of_part(at, ahead_end))
            begun = self._fetching.begin(functools.partial(self._fetch, at, end, ahead_end))
            if begun is None:
                return 0
            # It cannot have ended: that needs the lock.
            self._under_way.append(_Fetch(at, end, ahead_end, True, begun))
            self._note_sequence(self._sequence_to(at, at + 1), end, PART_BYTES_MAX)
            at = end
        return left

    def _run(self, fetch: _Fetch) -> bytes | memoryview:
        """Fetch a part in this thread."""
        try:
            data = self._fetch(fetch.begin, fetch.end, fetch.ahead_end)
        except BaseException as error:
            # An interrupt is of this thread alone: the others try themselves.
            fetch.data.set_exception(error if isinstance(error, StoreError) else DroppedError())
            raise
        fetch.data.set_result(data)
        return data

    def _awaited(self, fetch: _Fetch) -> bytes | memoryview | None:
        """Wait for what another thread fetches; returns None if this thread is to try itself."""
        try:
            return fetch.data.result()
        except StoreError:
            if not fetch.is_ahead:
                raise
            # That may have been hours ago, and the server may be back.
        except DroppedError:
            with self._lock, contextlib.suppress(ValueError):
                self._under_way.remove(fetch)
        return None

    def _fetch(self, begin: int, end: int, ahead_end: int) -> bytes | memoryview:
        answers = self._fetching.answers
        try:
            if answers.is_missing(self._pack_id):
                raise ChunkMissingError(f"pack {self._pack_id.hex()[:12]} is gone")
            (data,) = self._place.get_ranges(self._key, [ByteRange(begin, end - begin)])
            self._parts.add(FetchedPart(self._pack_id, begin, data, ahead_end))
            return data
        except MissingError as error:
            answers.note_missing(self._pack_id)
            raise ChunkMissingError(f"pack {self._pack_id.hex()[:12]} is gone") from error
        finally:
            # After it is kept: a thread that looks finds it in one place or the other.
            with self._lock:
                self._under_way = [one for one in self._under_way if one.begin != begin]

    def _gap(self, at: int, begin: int, end: int) -> tuple[int, int]:
        """Return the part of a range around a byte that is neither kept nor under way."""
        begin, end = self._parts.gap(self._pack_id, at, begin, end)
        for one in self._under_way:
            if one.end <= at:
                begin = max(begin, one.end)
            else:
                end = min(end, one.begin)
        return begin, end

    def _part_for(self, begin: int, end: int) -> tuple[int, int, int]:
        """Return the part to fetch for a range: more of what is probably read next.

        Returns:
            Where it begins and ends, and up to where what follows it is probably read next.
        """
        if end == self._size_bytes:  # the trailer: the footer is in front of it
            return (*self._gap(begin, max(0, min(begin, end - _PART_BYTES_MIN)), end), 0)
        if self._size_bytes <= _WHOLE_BYTES_MAX and self._pack_id not in self._parts.dropped:
            return (*self._gap(begin, 0, self._size_bytes), 0)
        for expected_begin, expected_end in self._expected:
            if expected_begin <= begin < expected_end:
                ahead_end = max(end, min(expected_end, self._size_bytes))
                return (*self._bounded(begin, ahead_end), ahead_end)
        before = self._sequence_to(begin, end)
        last = 0 if before is None else self._sequences[before]
        length = min(PART_BYTES_MAX, 2 * last) or _PART_BYTES_MIN
        part_begin, part_end = self._bounded(begin, max(end, begin + length))
        self._note_sequence(before, part_end, length)
        return part_begin, part_end, self._size_bytes if length >= _AHEAD_BYTES_MIN else end

    def _bounded(self, begin: int, end: int) -> tuple[int, int]:
        return self._gap(begin, begin, _end_of_part(begin, min(end, self._size_bytes)))

    def _sequence_to(self, begin: int, end: int) -> int | None:
        """Return where the sequence has come to that a range continues; None: there is none."""
        ends = self._sequences
        return next((one for one in ends if begin - _PART_BYTES_MIN <= one < end), None)

    def _note_sequence(self, before: int | None, end: int, length: int) -> None:
        if before is not None:
            self._sequences.pop(before, None)
        self._sequences[end] = length
        while len(self._sequences) > _SEQUENCES_MAX:
            self._sequences.popitem(last=False)


def _end_of_part(begin: int, end: int) -> int:
    """Return where the first part of a range ends: servers store objects in stripes."""
    is_short = end - begin <= PART_BYTES_MAX
    return end if is_short else (begin // PART_BYTES_MAX + 1) * PART_BYTES_MAX

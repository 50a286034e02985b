"""The packs of a store in a bucket: one object each. See ``store.place.packs``.

ciuic reads a pack in parts. What follows a part is often read next, so the parts of a sequence grow
up to 8 MiB. While the caller decodes one, the next one is fetched. 64 MiB of parts stay in memory.

A small pack is one part: a snapshot reads the trees of its parent, which are in packs of their own,
in another order than they were written in. An index segment usually has the end of a pack, with its
list of frames.
"""

import contextlib
import os
import threading
from collections import OrderedDict
from concurrent.futures import CancelledError as DroppedError
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.errors import ChunkMissingError, MissingError, StoreError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.pack import TRAILER_BYTES
from ciuic.store.place.place import ByteRange, Place
from ciuic.store.place.segments.segments import Segments
from ciuic.store.records import layout
from ciuic.system import durable

__all__ = ["ObjectPack", "PackObjects"]

_PART_BYTES_MIN: Final = 128 * 1024
_PART_BYTES_MAX: Final = 8 * 1024 * 1024
_WHOLE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Reading a pack of this length takes about as long as one more request."""
_AHEAD_BYTES_MIN: Final = 1024 * 1024
"""Reads in a row fetch the next part ahead when parts have grown to this length."""
_AHEAD_AT_ONCE: Final = 4
_PARTS_MAX: Final = 2
"""Parts in memory of each pack."""
_MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Parts in memory of all packs, for all readers."""
_OPEN_MAX: Final = 256
_LISTED_AT_ONCE: Final = 1000
"""Keys that a server names in one answer."""
_UPLOADS_AT_ONCE: Final = 2
"""Each holds a pack of about 64 MiB in memory."""


class _Ahead(NamedTuple):
    """A part that is being fetched: its range, and its bytes."""

    begin: int
    end: int
    part: Future[bytes]


class ObjectPack:
    """A pack that is read in parts. See ``OpenPack``."""

    fd = -1

    def __init__(
        self, place: Place, pack_id: PackId, size_bytes: int, segments: Segments, recent: "_Recent"
    ) -> None:
        self._place = place
        self._segments = segments
        self._recent = recent
        self._key = _key(pack_id)
        self._pack_id = pack_id
        self.name = f"{place.name}/{self._key}"
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._parts: OrderedDict[int, bytes] = OrderedDict()
        self._next_bytes = _PART_BYTES_MIN
        self._end_bytes = -1
        self._expected: list[tuple[int, int]] = []
        self._ahead: _Ahead | None = None
        self._ahead_end = 0
        """Up to here, what follows the last part is probably read next."""

    @property
    def size_bytes(self) -> int:
        """See ``OpenPack``."""
        return self._size_bytes

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """See ``OpenPack``."""
        end = min(offset_bytes + length_bytes, self._size_bytes)
        if end <= offset_bytes:
            return b""
        with self._lock:
            data = self._read(offset_bytes, end)
            if end == self._size_bytes - TRAILER_BYTES and self._segments.learns:  # the footer
                trailer = self._read(end, self._size_bytes)
                self._segments.learn(self._pack_id, self._size_bytes, data + trailer)
        return data

    def forget_parts(self) -> None:
        """Keep no part in memory; another thread may be reading."""
        self._parts = OrderedDict()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.part.cancel()

    def _read(self, begin: int, end: int) -> bytes:
        parts = self._parts  # another thread may replace it
        for part_begin, part in parts.items():
            if part_begin <= begin and end <= part_begin + len(part):
                parts.move_to_end(part_begin)
                break
        else:
            part_begin, part = self._part_of(begin, end)
            parts[part_begin] = part
            while len(parts) > _PARTS_MAX:
                parts.popitem(last=False)
        ahead_bytes = _PART_BYTES_MAX if self._ahead is not None else 0
        self._recent.note(self._pack_id, self, sum(map(len, parts.values())) + ahead_bytes)
        return part[begin - part_begin : end - part_begin]

    def _part_of(self, begin: int, end: int) -> tuple[int, bytes]:
        """Fetch a part that has this range; returns where it begins."""
        if end == self._size_bytes:
            listed = self._segments.end(self._pack_id, self._size_bytes)
            if listed and end - len(listed) <= begin:
                return end - len(listed), listed
        found = self._taken_ahead(begin, end)
        if found is not None:
            return found
        part_begin, part_end = self._part_for(begin, end)
        self._fetch_ahead(part_end)
        part = self._fetch(part_begin, part_end)
        self._end_bytes = part_end
        return part_begin, part

    def _taken_ahead(self, begin: int, end: int) -> tuple[int, bytes] | None:
        """Return the part that was fetched ahead if it ends the range, with what is before it."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if not ahead.begin < end <= ahead.end:
            ahead.part.cancel()
            return None
        before = b""
        if begin < ahead.begin:  # a frame that begins in the last part
            for part_begin, part in self._parts.items():
                if part_begin <= begin and part_begin + len(part) == ahead.begin:
                    before = part[begin - part_begin :]
            if not before:
                ahead.part.cancel()
                return None
        self._fetch_ahead(ahead.end)
        self._end_bytes, self._next_bytes = ahead.end, _PART_BYTES_MAX
        try:
            part = ahead.part.result()
        except ChunkMissingError:
            raise
        except (StoreError, DroppedError):
            # That may have been hours ago, and the server may be back.
            part = self._fetch(ahead.begin, ahead.end)
        return ahead.begin - len(before), before + part

    def _fetch(self, begin: int, end: int) -> bytes:
        try:
            (part,) = self._place.get_ranges(self._key, [ByteRange(begin, end - begin)])
        except MissingError as error:
            raise ChunkMissingError(f"pack {self._pack_id.hex()[:12]} is gone") from error
        return part

    def _fetch_ahead(self, begin: int) -> None:
        """Begin to fetch what follows a part, while the caller decodes that part."""
        end = min(begin + _PART_BYTES_MAX, self._ahead_end)
        if begin < end:
            with contextlib.suppress(RuntimeError):  # the packs were closed meanwhile
                self._ahead = _Ahead(begin, end, self._recent.pool.submit(self._fetch, begin, end))

    def read_ahead(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: the next reads in this range are larger."""
        with self._lock:
            self._expected = [*self._expected[-3:], (offset_bytes, offset_bytes + length_bytes)]

    def pass_by(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: the number of parts in memory is bounded anyway."""

    def _part_for(self, begin: int, end: int) -> tuple[int, int]:
        """Return the part to read for a range: more of what is probably read next."""
        self._ahead_end = 0
        if end == self._size_bytes:  # the trailer: the footer is in front of it
            return max(0, min(begin, end - _PART_BYTES_MIN)), end
        if self._size_bytes <= _WHOLE_BYTES_MAX and self._pack_id not in self._recent.dropped:
            return 0, self._size_bytes
        for expected_begin, expected_end in self._expected:
            if expected_begin <= begin < expected_end:
                self._ahead_end = min(expected_end, self._size_bytes)
                ahead = min(expected_end, begin + _PART_BYTES_MAX)
                return begin, min(max(end, ahead), self._size_bytes)
        if begin - _PART_BYTES_MIN <= self._end_bytes < end:
            self._next_bytes = min(_PART_BYTES_MAX, 2 * self._next_bytes)
            if self._next_bytes >= _AHEAD_BYTES_MIN:
                self._ahead_end = self._size_bytes
        else:
            self._next_bytes = _PART_BYTES_MIN
        return begin, min(max(end, begin + self._next_bytes), self._size_bytes)


class _Recent:
    """The packs that were read last, with their parts in memory. May be used from any thread.

    Attributes:
        dropped: Packs whose parts had to go. More packs are read in turn than fit into memory, so
            to read one of these whole would cost that each time.
    """

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(_AHEAD_AT_ONCE, thread_name_prefix="ahead")
        self.dropped: set[PackId] = set()
        self._lock = threading.Lock()
        self._packs: OrderedDict[PackId, tuple[ObjectPack, int]] = OrderedDict()
        self._bytes = 0

    def get(self, pack_id: PackId) -> ObjectPack | None:
        with self._lock:
            pack, _ = self._packs.get(pack_id, (None, 0))
            return pack

    def note(self, pack_id: PackId, pack: ObjectPack, size_bytes: int) -> None:
        """Note that a pack is read now, and how much of it is in memory."""
        with self._lock:
            other, before = self._packs.pop(pack_id, (pack, 0))
            if other is not pack:
                other.forget_parts()
            self._packs[pack_id] = (pack, size_bytes)
            self._bytes += size_bytes - before
            while self._bytes > _MEMORY_BYTES_MAX or len(self._packs) > _OPEN_MAX:
                old_id, (old, old_bytes) = self._packs.popitem(last=False)
                self._bytes -= old_bytes
                old.forget_parts()
                if old_bytes:
                    self.dropped.add(old_id)

    def close(self) -> None:
        """Keep nothing in memory, and fetch nothing ahead from now on."""
        with self._lock:
            for pack, _ in self._packs.values():
                pack.forget_parts()
            self._packs.clear()
            self._bytes = 0
        self.pool.shutdown(wait=False, cancel_futures=True)


class PackObjects:
    """The objects in ``packs/``. See ``Packs``.

    Args:
        place: The place of the store.
        segments: Its index segments.
    """

    def __init__(self, place: Place, segments: Segments) -> None:
        self._place = place
        self._segments = segments
        self._lock = threading.Lock()
        self._sizes: dict[PackId, int] = {}
        self._listed: dict[PackId, int] = {}
        """Lengths of packs, from index segments. Some of these packs may be gone."""
        self._asked = 0
        self._recent = _Recent()
        self._pool = ThreadPoolExecutor(_UPLOADS_AT_ONCE, thread_name_prefix="upload")
        self._turns = threading.BoundedSemaphore(_UPLOADS_AT_ONCE)
        self._uploads: dict[PackId, Future[None]] = {}
        self._failure: BaseException | None = None

    def sizes(self) -> dict[PackId, int]:
        """See ``Packs``."""
        found: dict[PackId, int] = {}
        for listed in self._place.list(layout.PACKS):
            pack_id = layout.parse_pack_name(listed.key.rpartition("/")[2])
            if pack_id is not None and listed.size_bytes is not None:
                found[pack_id] = listed.size_bytes
        with self._lock:
            self._sizes = found
        self._segments.outdate()
        return dict(found)

    def listed(self) -> dict[PackId, int]:
        """See ``Packs``."""
        found = self._segments.listed()
        with self._lock:
            self._listed = found
        return dict(found)

    def names(self) -> set[str]:
        """See ``Packs``."""
        return {layout.pack_name(pack_id) for pack_id in self.sizes()}

    def size_bytes(self, pack_id: PackId) -> int | None:
        """See ``Packs``; asks once for each pack."""
        with self._lock:
            known = self._sizes.get(pack_id)
            self._asked += known is None
            is_cheaper_listed = 0 < len(self._listed) < self._asked * _LISTED_AT_ONCE
        if known is not None:
            return known
        if is_cheaper_listed:
            self._listed = {}
            return self.sizes().get(pack_id)
        self._wait_for(pack_id)
        try:
            size_bytes = self._place.size_bytes(_key(pack_id))
        except MissingError:
            return None
        with self._lock:
            self._sizes[pack_id] = size_bytes
        return size_bytes

    def open(self, pack_id: PackId) -> ObjectPack:
        """See ``Packs``; all readers share the last few packs, with their parts in memory."""
        size_bytes = self._listed.get(pack_id) or self.size_bytes(pack_id)
        if size_bytes is None:
            raise ChunkMissingError(f"pack {pack_id.hex()[:12]} is gone")
        with self._lock:  # one pack, although two readers open it at once
            pack = self._recent.get(pack_id)
            if pack is None:
                pack = ObjectPack(self._place, pack_id, size_bytes, self._segments, self._recent)
                self._recent.note(pack_id, pack, 0)
            return pack

    def publish(self, path: str, pack_id: PackId) -> None:
        """Begin to upload a completed pack, and remove its file; ``sync`` waits for the end.

        Raises:
            StoreError: The file cannot be read, or an earlier upload has failed.
        """
        # First the turn, then the content: a pack in memory is up to 64 MiB.
        self._turns.acquire()
        try:
            self._raise_failure()
            with store_faults("read", path), open(path, "rb") as file:
                data = file.read(os.fstat(file.fileno()).st_size)
            with self._lock:
                self._uploads[pack_id] = self._pool.submit(self._upload, pack_id, data)
        except BaseException:
            self._turns.release()
            raise
        with store_faults("remove", path):
            durable.remove_file(path)

    def sync(self) -> None:
        """Wait until every pack is uploaded, which makes it durable, and list them in a segment.

        Raises:
            StoreError: Not all are; every later call raises this, too.
        """
        with self._lock:
            uploads = list(self._uploads.values())
        for upload in uploads:
            self._failure = upload.exception() or self._failure
        self._raise_failure()
        with self._lock:
            self._uploads = {}
        self._segments.publish()

    def close(self) -> None:
        """See ``Packs``."""
        self._recent.close()

    def _upload(self, pack_id: PackId, data: bytes) -> None:
        try:
            self._raise_failure()
            self._place.put(_key(pack_id), data)
            self._segments.add(pack_id, data)
        except StoreError as error:
            self._failure = error
            raise
        finally:
            self._turns.release()

    def _wait_for(self, pack_id: PackId) -> None:
        with self._lock:
            upload = self._uploads.get(pack_id)
        if upload is not None:
            upload.exception()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _key(pack_id: PackId) -> str:
    return f"{layout.PACKS}/{layout.pack_name(pack_id)}"

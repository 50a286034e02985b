"""The index segments of a store in a bucket, and this machine's copies of them.

    segments/<hash>    the ends of packs, which list what is in each

Without segments, a machine that has no chunk index would read the end of each pack with a request
of its own. A writer lists the ends of its packs in a segment before it commits, and sessions merge
segments, so that few requests are enough.

No chunk depends on a segment. A listing of ``packs/`` says which packs are there, and a reader
checks an end against the ID of its pack. So a segment may be lost, may be damaged, may name packs
that were removed, and may be deleted while another machine reads it: that machine reads the packs.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ciuic.errors import CorruptionError, MissingError, StoreError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at
from ciuic.store.directory.folder import Folder
from ciuic.store.format.pack import PackedFrame, footer_frames, is_end
from ciuic.store.format.segment import HEAD_BYTES, PackEnd, Segment, encode_segment, table_bytes
from ciuic.store.place.place import Place
from ciuic.store.records import layout

__all__ = ["SMALL_AT_ONCE", "Segments"]

_BYTES: Final = 32 * 1024 * 1024
"""The maximum length of a segment, unless a single end is longer."""
_BYTES_MAX: Final = 256 * 1024 * 1024
_LEARNED_BYTES_MAX: Final = 2 * _BYTES
_FULL_BYTES: Final = _BYTES // 2
"""A segment of at least this length is no longer merged."""
MERGED_AT_ONCE: Final = 16
"""This many segments of similar length are merged into one, so each end is written four or five
times in all."""
_SMALL_BYTES: Final = 1024 * 1024
SMALL_AT_ONCE: Final = 4
"""This many segments below ``_SMALL_BYTES`` are merged into one. Each costs a new machine a
request, and writing that little again costs less than the packs beside it."""
_REQUESTS_AT_ONCE: Final = 4
_ATTEMPTS: Final = 3
_STALE_SHARE: Final = 4
"""A prune writes a segment again if a quarter of its packs are gone."""
_EMPTY: Final = Segment(encode_segment([]))


class Segments:
    """The segments of one store. All methods may be called from any thread.

    Args:
        place: The place of the store.
        path: The cache directory.

    Attributes:
        learns: This process is a writer, and lists the packs that no segment has, too.
    """

    def __init__(self, place: Place, path: str) -> None:
        self.learns = False
        self._place = place
        self._copies = Folder(path, layout.SEGMENTS)
        self._lock = threading.RLock()
        self._is_current = False
        self._tables: list[tuple[str, Segment]] = []
        self._places: dict[PackId, tuple[int, int]] = {}
        """The number of a table, and the row."""
        self._fresh: dict[PackId, PackEnd] = {}
        self._fresh_bytes = 0
        self._has_published = False

    def outdate(self) -> None:
        """Look for new segments before the next pack counts as unlisted."""
        self._is_current = False

    def end(self, pack_id: PackId, size_bytes: int) -> bytes:
        """Return the end of a pack; no bytes if no segment has it.

        Args:
            pack_id: The pack.
            size_bytes: Its length.

        Raises:
            StoreError: The bucket cannot be read.
        """
        with self._lock:
            if pack_id not in self._places:
                self._bring_up_to_date()
            data = self._read(pack_id) if pack_id in self._places else b""
        return data if is_end(data, pack_id, size_bytes) else b""

    def listed(self) -> dict[PackId, int]:
        """Map the packs that segments list to their lengths; some of them may be gone.

        Every pack that a committed snapshot needs is in a segment: a session writes its segment
        before it commits.

        Raises:
            StoreError: The bucket cannot be read.
        """
        with self._lock:
            self._bring_up_to_date()
            entries = [table.entry(row) for _, table in self._tables for row in range(len(table))]
        return {entry.pack_id: entry.size_bytes for entry in entries}

    def frames(self, pack_id: PackId) -> list[PackedFrame]:
        """Return the frames of a pack, also if it was cut or is gone; none if no segment has it.

        Raises:
            StoreError: The bucket cannot be read.
        """
        size_bytes = self.listed().get(pack_id, 0)
        data = self.end(pack_id, size_bytes)
        begin = size_bytes - len(data)

        def read(length_bytes: int, offset_bytes: int) -> bytes:
            return data[offset_bytes - begin :][:length_bytes]

        return footer_frames(read, size_bytes, pack_id, strict=False) if data else []

    def add(self, pack_id: PackId, size_bytes: int, end: bytes) -> None:
        """List a pack of this session, which is in the bucket, in the next segment.

        Args:
            pack_id: The pack.
            size_bytes: Its length.
            end: Its end.
        """
        self._add(PackEnd(pack_id, size_bytes, end))

    def learn(self, pack_id: PackId, size_bytes: int, data: bytes) -> None:
        """List a pack that no segment has, if this process is a writer.

        Args:
            pack_id: The pack.
            size_bytes: Its length.
            data: Its end, as it was read.
        """
        is_wanted = self.learns and self._fresh_bytes < _LEARNED_BYTES_MAX
        if is_wanted and pack_id not in self._places and is_end(data, pack_id, size_bytes):
            self._add(PackEnd(pack_id, size_bytes, data))

    def publish(self) -> None:
        """Put the ends that ``add`` and ``learn`` noted into segments.

        Raises:
            StoreError: The bucket failed.
        """
        with self._lock:
            fresh, self._fresh, self._fresh_bytes = self._fresh, {}, 0
        if fresh:
            self._put(iter(fresh.values()))
            self._has_published = True

    def tidy(self, gone: Collection[PackId] = ()) -> None:
        """Merge segments if this session has added some, or packs are gone.

        Args:
            gone: Packs that were removed and never come back.

        Raises:
            StoreError: The bucket failed. The segments that are there can be used.
        """
        self.publish()
        if not self._has_published and not gone:
            return
        self._has_published = False
        sizes = self._listed()
        tiers: dict[int, list[str]] = {}
        for name, size_bytes in sizes.items():
            if size_bytes < _FULL_BYTES:
                tier = 0 if size_bytes < _SMALL_BYTES else size_bytes.bit_length() // 4
                tiers.setdefault(tier, []).append(name)
        for tier, names in tiers.items():
            if len(names) >= (MERGED_AT_ONCE if tier else SMALL_AT_ONCE):
                self._replace(names, gone)
        if gone:
            self._replace(self._stale(sizes, frozenset(gone)), gone)

    def _add(self, end: PackEnd) -> None:
        with self._lock:
            self._fresh[end.pack_id] = end
            self._fresh_bytes += len(end.data)

    def _put(self, ends: Iterator[PackEnd]) -> set[str]:
        """Put ends into segments; returns the names of these."""
        names = set()
        for group in _grouped(ends):
            data = encode_segment(group)
            name = layout.segment_name(data)
            self._place.put(_key(name), data)
            names.add(name)
            with contextlib.suppress(StoreError):  # without a copy, the next run fetches it
                self._write_copy(name, data)
                with self._lock:
                    self._note(name, Segment(data))
        return names

    def _replace(self, names: Collection[str], gone: Collection[PackId]) -> None:
        """Put what these segments list into new ones, and then delete them."""
        # A damaged copy here would take sound ends out of the bucket.
        with contextlib.suppress(StoreError):
            self._copies.remove_all(name for name in names if not self._is_as_put(name))
        self._fetch_all([name for name in names if not self._copies.has(name)])
        tables = self._copied(names)
        written = self._put(self._ends(tables, gone))
        self._place.delete(_key(name) for name in tables.keys() - written)

    def _is_as_put(self, name: str) -> bool:
        """Return whether the copy of a segment has the content that its name is the hash of."""
        with contextlib.suppress(StoreError):
            return layout.segment_name(self._copies.read(name, _BYTES_MAX)) == name
        return False

    def _ends(self, tables: dict[str, Segment], gone: Collection[PackId]) -> Iterator[PackEnd]:
        """Yield the ends that segments list, each once and without damaged ones."""
        seen = set(gone)
        for name, table in sorted(tables.items()):
            for row in range(len(table)):
                pack_id, size_bytes, offset, length = table.entry(row)
                if pack_id in seen:
                    continue
                data = self._read_copy(name, offset, length)
                if is_end(data, pack_id, size_bytes):
                    seen.add(pack_id)
                    yield PackEnd(pack_id, size_bytes, data)

    def _stale(self, names: Collection[str], gone: frozenset[PackId]) -> list[str]:
        """Return the segments with many packs that are gone, if there is a copy here."""
        return [
            name
            for name, table in self._copied(names).items()
            if len(table) <= _STALE_SHARE * len(gone.intersection(table.pack_ids()))
        ]

    def _bring_up_to_date(self) -> None:
        if not self._is_current:
            self._is_current = True
            self._fetch()

    def _listed(self) -> dict[str, int]:
        """List the segments: the length of each."""
        found = {}
        for listed in self._place.list(layout.SEGMENTS):
            name = layout.parse_segment_name(listed.name)
            if name is not None and listed.size_bytes is not None:
                found[name] = listed.size_bytes
        return found

    def _fetch(self) -> None:
        """Make the copies here agree with the bucket, and read their tables."""
        for _ in range(_ATTEMPTS):
            listed = self._listed().keys()
            copied = self._copies.names(layout.parse_segment_name)
            with contextlib.suppress(StoreError):
                self._copies.remove_all(copied - listed)
            if self._fetch_all(sorted(listed - copied)):
                break  # else some were merged meanwhile: their packs are in others
        self._tables = []
        self._places = {}
        for name, table in self._copied(self._copies.names(layout.parse_segment_name)).items():
            self._note(name, table)

    def _fetch_all(self, names: list[str]) -> bool:
        """Fetch segments; returns false if one of them is gone."""
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "segments") as pool:
            return all(list(pool.map(self._fetch_one, names)))

    def _fetch_one(self, name: str) -> bool:
        try:
            data = self._place.get(_key(name), _BYTES_MAX)
        except MissingError:
            return False
        except CorruptionError:
            return True  # the answer was cut short
        with contextlib.suppress(StoreError):
            self._write_copy(name, data)
        return True

    def _write_copy(self, name: str, data: bytes) -> None:
        self._copies.make()
        self._copies.create_all({name: data})

    def _copied(self, names: Collection[str]) -> dict[str, Segment]:
        """Read the tables of the segments that have a copy here.

        A damaged segment says nothing. This leaves out a segment of a later version, which stays.
        """
        found = {}
        for name in names:
            with contextlib.suppress(StoreError):
                try:
                    length = table_bytes(self._copies.read(name, HEAD_BYTES))
                    found[name] = Segment(self._copies.read(name, length))
                except CorruptionError:
                    found[name] = _EMPTY
        return found

    def _note(self, name: str, table: Segment) -> None:
        number = len(self._tables)
        self._tables.append((name, table))
        self._places.update(
            (pack_id, (number, row)) for row, pack_id in enumerate(table.pack_ids())
        )

    def _read(self, pack_id: PackId) -> bytes:
        number, row = self._places[pack_id]
        name, table = self._tables[number]
        entry = table.entry(row)
        return self._read_copy(name, entry.offset_bytes, entry.length_bytes)

    def _read_copy(self, name: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a part of a copy; no bytes if that fails."""
        path = self._copies.path_of(name)
        with contextlib.suppress(StoreError), store_faults("read", path):
            fd = open_regular(path)
            try:
                return read_at(fd, min(length_bytes, _BYTES_MAX), offset_bytes)
            finally:
                os.close(fd)
        return b""


def _grouped(ends: Iterator[PackEnd]) -> Iterator[list[PackEnd]]:
    group: list[PackEnd] = []
    size_bytes = 0
    for end in ends:
        if group and size_bytes + len(end.data) > _BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(end)
        size_bytes += len(end.data)
    if group:
        yield group


def _key(name: str) -> str:
    return f"{layout.SEGMENTS}/{name}"

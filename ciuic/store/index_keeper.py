"""Opens the chunk index, rebuilds it from the packs, and drops it.

The packs are authoritative, and the chunk index is a cache of their footers. A writer brings it up
to date before it looks up chunks. A reader uses it as it is; without a usable index, it builds
a private one from the packs.
"""

import contextlib
import os
import sqlite3
from collections.abc import Collection, Mapping
from typing import Final

from ciuic.errors import (
    ChunkMissingError,
    CiuicError,
    CorruptionError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.locks import WriteLocks
from ciuic.store.directory.ownership import has_safe_catalog, is_foreign
from ciuic.store.directory.reserve import with_reserve
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.chunk_index import ChunkIndex, private_index
from ciuic.store.index.database import IN_MEMORY, ON_SCRATCH, IndexDamagedError
from ciuic.store.place.packs import Packs, footer_of, walked_frames
from ciuic.store.records import layout
from ciuic.system import durable, nofollow

__all__ = ["IndexKeeper", "PackLists"]

_MANY_PACKS: Final = 10_000
"""With fewer packs, a reader lists them: a bucket names 1,000 in each answer, and a few answers
cost less than reading the packs that no segment lists."""

PackLists = Mapping[PackId, list[PackedFrame]]
"""The frames that packs list."""


class IndexKeeper:
    """The chunk index of one open store.

    Args:
        store_path: The directory of the chunk index, and of parity.
        packs: The store's packs.
        write_locks: The store's write locks; a reader takes them briefly to save a rebuilt index.
        store_id: The ID of the store.
        is_read_only: This version must not write to the store: a rebuilt index is not saved.
        others_remove: Other machines may remove packs beside this process, as in a bucket.

    Attributes:
        writable: The store is open for writing.
        is_alone: No other process has the chunk index open for writing, so its file may go.
        is_rebuilt: The chunk index was built from the packs, so it cannot know which are missing.
    """

    def __init__(
        self,
        store_path: str,
        packs: Packs,
        write_locks: WriteLocks,
        store_id: str,
        *,
        is_read_only: bool = False,
        others_remove: bool = False,
    ) -> None:
        self.writable = False
        self.is_alone = False
        self.is_rebuilt = False
        self._is_read_only = is_read_only
        self._others_remove = others_remove
        self._store_path = store_path
        self._store_id = store_id
        self._packs = packs
        self._path = os.path.join(store_path, layout.CATALOG)
        self._write_locks = write_locks
        self._is_foreign = is_foreign(store_path)
        self._shut_packs: frozenset[PackId] = frozenset()
        self._index: ChunkIndex | None = None
        self._temporary: list[ChunkIndex] = []

    def close(self) -> None:
        """Close every index that was opened; harmless twice."""
        for index in (self._index, *self._temporary):
            if index is not None:
                index.close()
        self._index = None
        self._temporary = []

    @property
    def index(self) -> ChunkIndex:
        """The chunk index, rebuilt if it is missing or damaged."""
        if self._index is None:
            self._index = self._open_for_writing() if self.writable else self._open_for_reading()
        return self._index

    @property
    def existing(self) -> ChunkIndex | None:
        """The chunk index if it is there and undamaged; it is never rebuilt here."""
        if self._index is None and not self.writable and self._is_safe:
            with contextlib.suppress(StoreError, sqlite3.Error):
                self._index = self._file(write=False)
        return self._index

    def open_for_writer(
        self, *, is_alone: bool, shut_packs: frozenset[PackId] = frozenset()
    ) -> None:
        """Open the index and bring it up to date; on a full disk, use one in memory.

        Args:
            is_alone: No other process changes the store.
            shut_packs: Packs that a prune has condemned: see ``ChunkIndex.shut_packs``.
        """
        self.writable = True
        self._shut_packs = shut_packs
        self.is_alone = is_alone
        try:
            with_reserve(self._store_path, lambda: self._bring_up_to_date(self.index))
        except StoreFullError:
            if self._index is not None:
                self._index.close()
            self._index = self._private(IN_MEMORY)
            self._reconcile(self._index)  # the next writer finds what changes now from the packs

    def totals(self) -> tuple[int, int, int]:
        """Plain bytes of all file content, bytes of all packs, number of chunks."""
        try:
            return self.index.totals()
        except IndexDamagedError:
            self.discard()
            return self.from_packs().totals()

    def discard(self) -> None:
        """Remove a damaged index, so that the next process rebuilds it. Errors are ignored."""
        if self._is_foreign or self._is_read_only:
            return
        with contextlib.suppress(CiuicError, OSError):
            # If other processes add meanwhile, the file stays: the next process that is alone
            # removes it.
            if self.is_alone or self._write_locks.try_alone():
                self._remove()

    def drop(self) -> None:
        """Remove the index of a store that is open for writing, to free its disk space."""
        if self._index is not None:
            self._index.close()
            self._index = None
        self._remove()

    def renew(self, shut_packs: frozenset[PackId] | None = None) -> None:
        """Make the index agree with the packs again; after ``drop``, rebuild it.

        Args:
            shut_packs: See ``open_for_writer``; None: as before.
        """
        self._shut_packs = self._shut_packs if shut_packs is None else shut_packs
        self._bring_up_to_date(self.index)

    def from_packs(self, without: Collection[PackId] = ()) -> ChunkIndex:
        """Build a private index from the packs; damaged footers are repaired or salvaged.

        Args:
            without: Packs to leave out.
        """
        packs = self._packs.sizes()
        for pack_id in without:
            packs.pop(pack_id, None)
        try:
            return self._filled(ON_SCRATCH, packs)
        except StoreFullError:
            return self._filled(IN_MEMORY, packs)

    def list_pack(self, pack_id: PackId) -> list[PackedFrame]:
        """Return the frames that a pack lists; salvage them if its footer is damaged.

        Raises:
            CorruptionError: The pack is gone or cannot be read.
            UnknownFormatError: It is of a later version.
        """
        return self._frames_of(pack_id, repair=True)

    def list_packs(self, pack_ids: Collection[PackId]) -> PackLists:
        """Do so for each pack. Those that are gone or cannot be read are left out."""
        listed = {}
        for pack_id in pack_ids:
            with contextlib.suppress(CorruptionError):
                listed[pack_id] = self.list_pack(pack_id)
        return listed

    def recorded_in(self, pack_id: PackId) -> dict[ChunkId, int]:
        """Return the chunks that the index places in a pack, and their kinds; it is not rebuilt."""
        with contextlib.suppress(StoreError):
            if self.existing is not None:
                return self.existing.chunks_in(pack_id)
        return {}

    @property
    def _is_safe(self) -> bool:
        """Another user cannot abuse this process by means of the file: see ``ownership``."""
        return not self._is_foreign and has_safe_catalog(self._path)

    def _open_for_reading(self) -> ChunkIndex:
        """Open the index as it is, or rebuild it from the packs, and save it if possible."""
        existing = self.existing
        if existing is not None:
            return existing
        if self._is_foreign or self._is_read_only:
            return self.from_packs()
        # If no writer holds the lock, a reader rebuilds the index for all later processes.
        with contextlib.suppress(CiuicError, OSError):
            self._write_locks.take_alone()
            self.is_alone = True
            try:
                made = self._open_for_writing()
                if not self._fill_from_segments(made):
                    self._bring_up_to_date(made)
                made.close()
                return self._file(write=False)
            finally:
                self.is_alone = False
                self._write_locks.release()
        return self.from_packs()

    def _fill_from_segments(self, index: ChunkIndex) -> bool:
        """Fill a new index of a large store without listing its packs; return whether it is filled.

        A reader may do so: it looks at the packs themselves if a chunk is not where an index says,
        or is in no pack of it. A writer lists the packs, since it relies on what is there.
        """
        listed = self._packs.listed()
        if len(listed) < _MANY_PACKS or index.packs():
            return False
        index.begin()
        self._add_packs(index, listed)
        index.commit()
        return True

    def _open_for_writing(self) -> ChunkIndex:
        if self._is_foreign:
            return ChunkIndex(ON_SCRATCH, write=True)
        if not self._is_safe:
            if not self.is_alone:
                return ChunkIndex(ON_SCRATCH, write=True)
            self._remove()
        try:
            return self._file(write=True)
        except IndexDamagedError:
            if not self.is_alone:
                # Its file must stay: SQLite would take its journal for that of a new file.
                return ChunkIndex(ON_SCRATCH, write=True)
            self._remove()
            return self._file(write=True)

    def _file(self, *, write: bool) -> ChunkIndex:
        return ChunkIndex(self._path, write=write, store_id=self._store_id)

    def _remove(self) -> None:
        with store_faults("replace", self._path):
            for suffix in ("", *layout.CATALOG_SUFFIXES):
                durable.remove_file(self._path + suffix)

    def _bring_up_to_date(self, index: ChunkIndex) -> None:
        """Make the index agree with the packs, after crashes and deletions."""
        try:
            self._reconcile(index)
        except StoreFullError:
            index.rollback()
            raise
        except IndexDamagedError:
            index.close()
            if self.is_alone:
                self._remove()
                self._index = self._open_for_writing()
            else:
                self._index = ChunkIndex(ON_SCRATCH, write=True)
            self._reconcile(self._index)

    def _reconcile(self, index: ChunkIndex) -> None:
        index.shut_packs = self._shut_packs
        present, recorded = self._begin_and_list(index)
        index.damage = self._packs.damage()
        if recorded == present:
            index.rollback()  # nothing has changed, so there is nothing to make durable
            return
        changed = [pack_id for pack_id, size in recorded.items() if present.get(pack_id) != size]
        if changed and self._is_shared(index):
            # The other machine's prune does not hinder the process of this machine that is adding:
            # a large index takes longer to rebuild than that process waits for its turn.
            index.close()
            self._index = self._private(ON_SCRATCH)
            self._reconcile(self._index)
            return
        # In a bucket, other machines prune, and what they delete stays shut.
        gone = {one for one in changed if one not in present and one not in self._shut_packs}
        cut = {chunk for one in changed if one in present for chunk in index.chunks_in(one)}
        self.is_rebuilt |= not recorded
        if changed:
            # A pack is gone or was truncated. Its chunks may also be in another pack, but the index
            # has only one place per chunk: rebuild it.
            index.clear()
            recorded = {}
        new = {pack_id: size for pack_id, size in present.items() if pack_id not in recorded}
        # First: what a check has found says nothing about a pack that is there again.
        index.note_there(new)
        self._add_packs(index, new)
        # The chunks of packs that are gone do not count as lost: the removal by a prune may not be
        # recorded, if its disk was full. Nothing but damage cuts a pack.
        index.note_gone(gone)
        if cut:
            index.note_lost(cut - index.places(list(cut)).keys())
        index.commit()

    def _private(self, place: str) -> ChunkIndex:
        """Return a private index. It knows, as this machine's does, which chunks are damaged."""
        is_there = self._is_safe and nofollow.exists(self._path)
        return private_index(place, self._path if is_there else "")

    def _is_shared(self, index: ChunkIndex) -> bool:
        """Other processes add by this index, while other machines may remove packs."""
        return self._others_remove and not self.is_alone and not index.is_private

    def _begin_and_list(self, index: ChunkIndex) -> tuple[dict[PackId, int], dict[PackId, int]]:
        """Begin a transaction; returns the packs that are there, and those that are recorded."""
        if not self._is_shared(index):
            # Before the packs are listed: a pack that another process records later must not be
            # missing in that listing.
            index.begin()
            return self._packs.sizes(), index.packs()
        # Others that add would have to wait while a server lists its packs. So what they record
        # meanwhile, which is there, is added to the listing.
        before = index.packs()
        present = self._packs.sizes()
        if before.items() <= present.items():  # else a private index is filled
            self._fetch_lists(present.keys() - before.keys())
        index.begin()
        recorded = index.packs()
        present |= {one: size for one, size in recorded.items() if one not in before}
        return present, recorded

    def _fetch_lists(self, pack_ids: Collection[PackId]) -> None:
        """Read what packs list, so that a server is not waited for when they are recorded."""
        for pack_id in pack_ids:
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                self._frames_of(pack_id, repair=False)

    def _filled(self, place: str, packs: dict[PackId, int]) -> ChunkIndex:
        index = ChunkIndex(place, write=True)
        self._temporary.append(index)
        self._add_packs(index, packs, repair=True)
        return index

    def _add_packs(
        self, index: ChunkIndex, packs: dict[PackId, int], *, repair: bool = False
    ) -> None:
        """Record packs from their footers; a pack that cannot be read is left out.

        Args:
            index: The index to fill.
            packs: Size in bytes of each pack.
            repair: Also record chunks that only parity can restore. Readers need them; a writer
                stores them again.
        """
        # Shut packs first, so that chunks which are in others as well get their places there.
        for pack_id, size in sorted(
            packs.items(), key=lambda one: (one[0] not in index.shut_packs, one)
        ):
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                index.add_pack(pack_id, size, self._frames_of(pack_id, repair=repair))
        index.settle(lambda pack_id: self._frames_of(pack_id, repair=repair))

    def _frames_of(self, pack_id: PackId, *, repair: bool) -> list[PackedFrame]:
        try:
            pack = self._packs.open(pack_id)
        except ChunkMissingError as error:
            raise CorruptionError("a prune has removed it meanwhile") from error
        with store_faults("read", pack.name):
            try:
                return footer_of(pack, pack_id, strict=False)
            except CorruptionError:
                if not repair or pack.fd < 0:
                    return list(walked_frames(pack))  # up to what cannot be read
                # Imported late, as parity is: nothing is damaged in most runs.
                from ciuic.store.health.salvage import repaired_frames

                return repaired_frames(self._store_path, pack_id, pack.fd, strict=False)

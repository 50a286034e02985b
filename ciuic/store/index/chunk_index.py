"""The chunk index: where each chunk is, and a copy of the manifests' summaries.

It is a cache in SQLite and may be deleted at any time: the packs and manifests are authoritative,
and the index is rebuilt from the packs' footers. A row is written only when its pack is on stable
storage, and the rows of a removed pack are dropped before a writer looks up any chunk.
"""

import contextlib
import struct
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.pack import PackedFrame
from ciuic.store.index.chain_walk import reaching, some_of_chain, whole_chains
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index.places import ChunkPlace, Emptied, Row, rows_of
from ciuic.store.index.records import Records
from ciuic.store.records.damage import KnownDamage
from ciuic.system.hashing import ID_BYTES

__all__ = ["ChunkIndex", "private_index"]

_INSERT_CHUNK: Final = (
    "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
    " pack = excluded.pack, offset_bytes = excluded.offset_bytes,"
    " frame_bytes = excluded.frame_bytes, start_bytes = excluded.start_bytes,"
    " length_bytes = excluded.length_bytes WHERE EXISTS"
    " (SELECT 1 FROM reference WHERE reference.id = chunk.id AND reference.pack = chunk.pack)"
)
_REPLACE_CHUNK: Final = "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)"
_TABLES: Final = ("chunk", "reference")
_BATCH: Final = 500
_ROWS_AT_ONCE: Final = 10_000
_NUMBERS: Final = struct.Struct("<IIIIB")
"""The ranges of a place's numbers: packing them is the fastest way to check them."""
_OFFSET_SHIFT: Final = 16
"""An offset has up to 48 bits."""


class ChunkIndex(Records):
    """The open chunk index. All methods may be called from any thread.

    Attributes:
        shut_packs: Packs that a prune of another session has condemned. A snapshot that relied on
            them could lose chunks, so ``usable`` leaves their chunks out. Reads still find them.
        damage: Copies of chunks that are damaged, as the records of the store say: ``usable``
            leaves them out, too, and a copy elsewhere becomes the place of the chunk.
    """

    shut_packs: frozenset[PackId] = frozenset()
    damage = KnownDamage()

    @property
    def has_unusable(self) -> bool:
        """Some places are left out by ``usable``."""
        return bool(self.shut_packs or self.damage)

    def add_pack(self, pack_id: PackId, size_bytes: int, frames: Sequence[PackedFrame]) -> None:
        """Record a pack and its chunks. The pack must be durable before ``commit``.

        If the pack was recorded before, the new file replaces a damaged one, so its last check is
        forgotten. After ``clear``, the check stays.
        """
        self.remove_pack(pack_id)
        with self._lock, self._faults():
            cursor = self._db.execute(
                "INSERT INTO pack (name, size_bytes) VALUES (?, ?)", (pack_id, size_bytes)
            )
            number = cursor.lastrowid or 0
            alone, deltas = rows_of(number, frames)
            self._db.executemany(_INSERT_CHUNK, sorted(alone))
            outdone = self._shut_numbers() if deltas and pack_id not in self.shut_packs else set()
            self._insert_deltas(number, deltas, outdone)
            # After ``clear``: chunks that a check found damaged are not in this pack.
            self._db.execute(
                "DELETE FROM chunk WHERE id IN (SELECT id FROM lost_chunk) AND pack IN"
                " (SELECT number FROM pack JOIN pack_check USING (name)"
                " WHERE name = ? AND what != '')",
                (pack_id,),
            )
        if self.has_unusable and pack_id not in self.shut_packs:
            self._leave_unusable(pack_id, frames)

    def add_checked_pack(
        self, pack_id: PackId, size_bytes: int, frames: Sequence[PackedFrame], checked_ns: int
    ) -> None:
        """Record a durable pack that was read and found sound at this time, and commit."""
        self.add_pack(pack_id, size_bytes, frames)
        self.put_check(pack_id, checked_ns, size_bytes, "")
        self.commit()

    def remove_pack(self, pack_id: PackId) -> None:
        """Forget a pack, all chunks that are recorded in it, and its last check."""
        with self._lock, self._faults():
            # The first statement writes: it takes the lock of the file, and no other process can
            # record the pack between the look for it and an insertion.
            self._db.execute(
                "DELETE FROM pack_check WHERE name IN (SELECT name FROM pack WHERE name = ?)",
                (pack_id,),
            )
            found = self._db.execute("SELECT number FROM pack WHERE name = ?", (pack_id,))
            # Without the pack, each statement would still look at every chunk: they have no index
            # by pack, which every snapshot would have to maintain.
            for number in found.fetchall():
                for table in _TABLES:
                    self._db.execute(f"DELETE FROM {table} WHERE pack = ?", number)  # noqa: S608 - ours
                self._db.execute("DELETE FROM pack WHERE number = ?", number)

    def remove_packs(self, pack_ids: Sequence[PackId]) -> None:
        """Like ``remove_pack`` for many packs, in one pass over all chunks."""
        with self._lock, self._faults():
            # A transaction that was rolled back leaves the table behind.
            self._db.execute("DROP TABLE IF EXISTS gone")
            self._db.execute("CREATE TEMP TABLE gone (name BLOB PRIMARY KEY) WITHOUT ROWID")
            self._db.executemany(
                "INSERT INTO gone VALUES (?)", [(pack_id,) for pack_id in pack_ids]
            )
            numbers = "SELECT number FROM pack JOIN gone USING (name)"
            for table in _TABLES:
                self._db.execute(f"DELETE FROM {table} WHERE pack IN ({numbers})")  # noqa: S608 - ours
            self._db.execute("DELETE FROM pack_check WHERE name IN (SELECT name FROM gone)")
            self._db.execute("DELETE FROM pack WHERE name IN (SELECT name FROM gone)")
            self._db.execute("DROP TABLE gone")

    def replace_places(
        self, pack_id: PackId, frames: Iterable[PackedFrame], chunk_ids: Container[ChunkId]
    ) -> None:
        """Record chunks at their places in this pack, in place of any other.

        Args:
            pack_id: A recorded pack.
            frames: Its frames.
            chunk_ids: The chunks to record; chunks that are not in the frames are ignored.
        """
        with self._lock, self._faults():
            found = self._db.execute("SELECT number FROM pack WHERE name = ?", (pack_id,))
            for (number,) in found.fetchall():
                alone, deltas = rows_of(number, frames)
                rows = [row for row in (*alone, *deltas) if row[0] in chunk_ids]
                self._db.executemany(_REPLACE_CHUNK, sorted(rows))

    def move(
        self,
        pack_id: PackId,
        size_bytes: int,
        frames: Iterable[PackedFrame],
        emptied: Iterable[Emptied],
    ) -> None:
        """Record a pack that holds copies of the needed chunks of other packs; forget those packs.

        The new pack becomes the recorded place of every chunk in it. Of a delta it does so only if
        no other pack has that chunk with a chain that is as short.

        Args:
            pack_id: The new pack. It must be durable before ``commit``.
            size_bytes: Its length.
            frames: Its frames.
            emptied: The packs that are no longer needed, and their chunks.
        """
        with self._lock, self._faults():
            # A killed run may have recorded the same pack.
            self._db.execute("DELETE FROM pack WHERE name = ?", (pack_id,))
            cursor = self._db.execute(
                "INSERT INTO pack (name, size_bytes) VALUES (?, ?)", (pack_id, size_bytes)
            )
            number = cursor.lastrowid or 0
            alone, deltas = rows_of(number, frames)
            self._db.executemany(_REPLACE_CHUNK, sorted(alone))
            has_references = self._db.execute("SELECT 1 FROM reference LIMIT 1").fetchone()
            tables = _TABLES if has_references else _TABLES[:1]
            for old in emptied:
                found = self._db.execute("SELECT number FROM pack WHERE name = ?", (old.pack_id,))
                # Rows are deleted by their IDs: every snapshot would have to maintain an index by
                # pack.
                for (old_number,) in found.fetchall():
                    gone = [(chunk_id, old_number) for chunk_id in sorted(old.chunk_ids)]
                    for table in tables:
                        self._db.executemany(
                            f"DELETE FROM {table} WHERE id = ? AND pack = ?",  # noqa: S608 - ours
                            gone,
                        )
                self._db.execute("DELETE FROM pack_check WHERE name = ?", (old.pack_id,))
                self._db.execute("DELETE FROM pack WHERE name = ?", (old.pack_id,))
            self._insert_deltas(number, deltas)

    def clear(self) -> None:
        """Forget all packs and chunks; keep the other records."""
        with self._lock, self._faults():
            for table in (*_TABLES, "again", "pack"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - ours

    def settle(self, frames_of: Callable[[PackId], Sequence[PackedFrame]]) -> None:
        """Choose the places of deltas again, after packs were added in any order: see ``chains``.

        This looks at all deltas with several copies, and not only at those of the added packs: a
        pack may be listed before the packs of its bases, and these then decide how long the chains
        of what was there before are.

        Args:
            frames_of: Lists a pack; raises ``CorruptionError`` or ``UnknownFormatError``.
        """
        again = self.stored_again()
        if not again:
            return
        # Imported here and below: most commands record no delta.
        from ciuic.store.index.chains import better_places

        with self._lock, self._faults():
            better = better_places(self._db.execute, again, self._shut_numbers())
            names = dict(self._db.execute("SELECT number, name FROM pack")) if better else {}
        chunks: dict[PackId, set[ChunkId]] = {}
        for chunk_id, number in better.items():
            chunks.setdefault(names[number], set()).add(chunk_id)
        for pack_id, chunk_ids in chunks.items():
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                self.replace_places(pack_id, frames_of(pack_id), chunk_ids)

    def packs(self) -> dict[PackId, int]:
        """Return the size in bytes of every recorded pack."""
        with self._lock, self._faults():
            return dict(self._db.execute("SELECT name, size_bytes FROM pack"))

    def _leave_unusable(self, pack_id: PackId, frames: Sequence[PackedFrame]) -> None:
        """Record chunks at their places in this pack if their recorded places are unusable.

        A delta with another base stays where it is: its chain could lead back to itself.
        """
        chunk_ids = [chunk_id for packed in frames for chunk_id, _ in packed.frame.chunks]
        places = self.places(chunk_ids)
        moved = {
            chunk_id
            for packed in frames
            for chunk_id, _ in packed.frame.chunks
            if chunk_id in places
            and self._is_unusable(places[chunk_id])
            and not self.damage.touches(pack_id, packed.offset_bytes, packed.frame.total_bytes)
            and set(packed.frame.delta_bases) <= set(places[chunk_id].delta_bases)
        }
        self.replace_places(pack_id, frames, moved - self._damaged_in(pack_id, moved))

    def _is_unusable(self, place: ChunkPlace) -> bool:
        return place.pack_id in self.shut_packs or self._touches_damage(place)

    def _touches_damage(self, place: ChunkPlace) -> bool:
        return self.damage.touches(place.pack_id, place.offset_bytes, place.frame_bytes)

    def _damaged_in(self, pack_id: PackId, chunk_ids: Collection[ChunkId]) -> set[ChunkId]:
        """Return those of the chunks that are known as lost, if this pack is known as damaged."""
        query = (
            "SELECT id FROM lost_chunk WHERE EXISTS"
            " (SELECT 1 FROM pack_check WHERE name = ? AND what != '')"
        )
        with self._lock, self._faults():
            found = self._db.execute(query, (pack_id,)) if chunk_ids else ()
            return {row[0] for row in found}.intersection(chunk_ids)

    def usable(self, chunk_ids: Sequence[ChunkId]) -> set[ChunkId]:
        """Return the chunks that are in a pack with their whole delta chains.

        Leaves out chunks in packs of ``shut_packs``, and those of ``damage``: a snapshot may not
        rely on them.
        """
        found = set(chunk_ids)
        deltas: dict[ChunkId, tuple[ChunkId, ...]] = {}
        with self._lock, self._faults():
            for start in range(0, len(chunk_ids), _BATCH):
                part = sorted(chunk_ids[start : start + _BATCH])
                # Most chunks are there and are not deltas: every row that SQLite need not return
                # saves as much time as the search for its chunk.
                query = (
                    "SELECT column1, chunk.id IS NOT NULL, base"  # noqa: S608 - question marks only
                    f" FROM (VALUES {_marks(len(part), '(?)')})"
                    " LEFT JOIN chunk ON chunk.id = column1"
                    " LEFT JOIN reference ON reference.id = chunk.id"
                    " AND reference.pack = chunk.pack"
                    " WHERE chunk.id IS NULL OR base IS NOT NULL"
                )
                # The binding looks for an adapter for each argument that is bytes.
                arguments = [bytearray(chunk_id) for chunk_id in part]
                for chunk_id, is_there, base in self._db.execute(query, arguments):
                    if is_there:
                        deltas[chunk_id] = _bases_of(base)
                    else:
                        found.discard(chunk_id)
        if deltas:
            whole = whole_chains(deltas, self.places)
            found -= {chunk_id for chunk_id in deltas if chunk_id not in whole}
        if not self.has_unusable:
            return found
        return found - reaching(found, self.places, self._is_unusable)

    def is_damaged(self, chunk_id: ChunkId) -> bool:
        """Return whether a chunk has a place with its whole chain, and some of it is damaged."""
        return some_of_chain(chunk_id, self.places, self._touches_damage)

    def places(self, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, ChunkPlace]:
        """Return the places of chunks; chunks that are in no pack are left out."""
        found: dict[ChunkId, ChunkPlace] = {}
        with self._lock, self._faults():
            for start in range(0, len(chunk_ids), _BATCH):
                part = chunk_ids[start : start + _BATCH]
                query = (
                    "SELECT chunk.id, name, offset_bytes, frame_bytes, start_bytes, length_bytes,"  # noqa: S608 - as above
                    " kind, base FROM chunk JOIN pack ON pack.number = chunk.pack"
                    " LEFT JOIN reference ON reference.id = chunk.id"
                    " AND reference.pack = chunk.pack"
                    f" WHERE chunk.id IN ({_marks(len(part))})"
                )
                arguments = [bytearray(chunk_id) for chunk_id in part]  # as above
                self._add_places(self._db.execute(query, arguments), found)
        return found

    def chunk_ids(self) -> Iterator[list[tuple[ChunkId, int]]]:
        """Iterate over ID and kind of every chunk in the order of the IDs, in batches.

        The index must not be used for anything else until the iteration has ended.
        """
        with self._lock, self._faults():
            cursor = self._db.execute("SELECT id, kind FROM chunk ORDER BY id")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                if not all(_is_id(chunk_id) for chunk_id, _ in rows):
                    raise self._impossible_chunk()
                yield rows

    def stored_shares(self) -> Iterator[list[tuple[ChunkId, int]]]:
        """Iterate over every data chunk in the order of the IDs, and its share of its frame.

        The index must not be used for anything else until the iteration has ended.
        """
        with self._lock, self._faults():
            cursor = self._db.execute(
                "SELECT id, frame_bytes * length_bytes / max(plain_bytes, 1) FROM chunk JOIN"
                " (SELECT pack, offset_bytes, sum(length_bytes) AS plain_bytes FROM chunk"
                " GROUP BY pack, offset_bytes) USING (pack, offset_bytes)"
                " WHERE kind = 1 ORDER BY id"
            )
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                if not all(_is_id(chunk_id) and _is_length(taken) for chunk_id, taken in rows):
                    raise self._impossible_chunk()
                yield rows

    def delta_bases(self) -> Iterator[list[tuple[ChunkId, ChunkId]]]:
        """Iterate over every delta with each of its delta bases, in batches."""
        with self._lock, self._faults():
            cursor = self._db.execute("SELECT id, base FROM reference")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                if not all(_is_id(delta) and _are_bases(bases) for delta, bases in rows):
                    raise self._impossible_chunk()
                yield [(delta, base) for delta, bases in rows for base in _bases_of(bases)]

    def chunks_in(self, pack_id: PackId) -> dict[ChunkId, int]:
        """Return the chunks that are recorded in a pack, and their kinds."""
        with self._lock, self._faults():
            return dict(
                self._db.execute(
                    "SELECT id, kind FROM chunk"
                    " WHERE pack = (SELECT number FROM pack WHERE name = ?)",
                    (pack_id,),
                )
            )

    def stored_again(self) -> set[ChunkId]:
        """Return the chunks that are deltas in more than one pack."""
        with self._lock, self._faults():
            # Packs may be gone that had a chunk of the table.
            rows = self._db.execute(
                "SELECT id FROM again WHERE"
                " (SELECT count(*) FROM reference WHERE reference.id = again.id) > 1"
            )
            return {row[0] for row in rows}

    def totals(self) -> tuple[int, int, int]:
        """Return plain bytes of all file content, bytes of all packs, and the number of chunks."""
        with self._lock, self._faults():
            (plain, count) = self._db.execute(
                "SELECT coalesce(sum(CASE kind WHEN 1 THEN length_bytes END), 0), count(*)"
                " FROM chunk"
            ).fetchone()
            (stored,) = self._db.execute("SELECT coalesce(sum(size_bytes), 0) FROM pack").fetchone()
        return plain, stored, count

    def _shut_numbers(self) -> set[int]:
        """Return the numbers of the packs of ``shut_packs``; the caller holds the lock."""
        query = "SELECT number FROM pack WHERE name = ?"
        return {row[0] for name in self.shut_packs for row in self._db.execute(query, (name,))}

    def _insert_deltas(
        self,
        number: int,
        deltas: Mapping[Row, tuple[ChunkId, ...]],
        outdone: Collection[int] = (),
    ) -> None:
        """Insert the deltas of a pack, after its other chunks; the caller holds the lock.

        They replace deltas whose chains are longer or broken, and those in the packs ``outdone``.
        """
        if not deltas:
            return
        from ciuic.store.index.chains import deltas_to_leave

        bases = {row[0]: found for row, found in deltas.items()}
        left = deltas_to_leave(self._db.execute, bases, outdone)
        rows = sorted([row for row in deltas if row[0] not in left])
        self._db.executemany(_REPLACE_CHUNK, rows)
        self._db.executemany(
            "INSERT OR REPLACE INTO reference VALUES (?, ?, ?)",
            [(row[0], number, b"".join(bases)) for row, bases in deltas.items()],
        )
        # Few deltas are in several packs, and ``settle`` must not search all deltas for them.
        self._db.executemany(
            "INSERT OR IGNORE INTO again SELECT id FROM reference WHERE id = ? AND pack != ?",
            sorted([(row[0], number) for row in deltas]),
        )

    def _add_places(
        self, rows: Iterable[tuple[Any, ...]], found: dict[ChunkId, ChunkPlace]
    ) -> None:
        """Convert rows; ``Any`` because SQLite returns whatever type the file holds."""
        check = _NUMBERS.pack
        pack_ids: set[PackId] = set()
        try:
            for chunk_id, pack_id, offset, frame_bytes, start, length, kind, bases in rows:
                if pack_id not in pack_ids and _is_id(pack_id):
                    pack_ids.add(pack_id)
                if pack_id not in pack_ids or (bases is not None and not _are_bases(bases)):
                    raise IndexDamagedError(
                        f"the chunk index {self._path} has an impossible pack ID"
                    )
                check(offset >> _OFFSET_SHIFT, frame_bytes, start, length, kind)
                found[chunk_id] = ChunkPlace(
                    pack_id,
                    offset,
                    frame_bytes,
                    start,
                    length,
                    kind,
                    () if bases is None else _bases_of(bases),
                )
        except (struct.error, TypeError) as error:
            raise IndexDamagedError(
                f"the chunk index {self._path} has an impossible place of a chunk"
            ) from error

    def _impossible_chunk(self) -> IndexDamagedError:
        return IndexDamagedError(f"the chunk index {self._path} has an impossible chunk")


def private_index(place: str, path: str) -> ChunkIndex:
    """Return a private chunk index without packs, with the records of the index at ``path``.

    Args:
        place: ``ON_SCRATCH`` or ``IN_MEMORY``.
        path: The other index; empty if there is none.
    """
    index = ChunkIndex(place, write=True)
    if path:
        with contextlib.suppress(StoreError):
            index.adopt(path)
    return index


def _is_length(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 32


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == ID_BYTES


def _are_bases(value: object) -> bool:
    return isinstance(value, bytes) and len(value) in {ID_BYTES, 2 * ID_BYTES}


def _bases_of(value: bytes) -> tuple[ChunkId, ...]:
    """Return the delta bases of a row: their IDs are one after another."""
    return tuple([ChunkId(value[at : at + ID_BYTES]) for at in range(0, len(value), ID_BYTES)])


def _marks(count: int, one: str = "?") -> str:
    return ",".join([one] * count)

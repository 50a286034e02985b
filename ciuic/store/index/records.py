"""What the chunk index records besides packs: snapshots, checks, lost chunks and drills.

Footers of packs do not contain it, so an index that is rebuilt takes it over from the old file.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.store.index.database import SCHEMA_VERSIONS, Database, IndexDamagedError, uri_quoted
from ciuic.store.index.places import CheckRecord, DrillRecord

__all__ = ["GONE", "UNNAMED", "Records"]

_TABLES: Final = ("snapshot", "pack_check", "lost_chunk", "drill")
_DOCUMENTS: Final = "damaged_document"
"""A table that earlier versions do not have and ignore: it is made when it is first needed."""
_MAKE_DOCUMENTS: Final = (
    f"CREATE TABLE IF NOT EXISTS {_DOCUMENTS}"
    " (path TEXT PRIMARY KEY, what TEXT NOT NULL, found_ns INTEGER NOT NULL) WITHOUT ROWID"
)
_DRILLS_KEPT: Final = 200
UNNAMED: Final = PackId(bytes(32))
"""Instead of the ID of a pack that is gone, if it is not known."""
GONE: Final = "it is gone"
"""As a check of a pack; see ``inspect_pack``."""
_SUSPECT: Final = "a chunk in it is damaged"
"""Instead of the check of a pack: a snapshot has read the chunk. No check has read the pack."""


class Records(Database):
    """The records in the open database.

    Attributes:
        has_dropped: The places of chunks were dropped since the database was opened.
    """

    has_dropped = False

    def adopt(self, path: str) -> None:
        """Copy the records of another chunk index into this one.

        Raises:
            IndexDamagedError: The other index is damaged. Nothing is copied.
        """
        with self._lock, self._faults():
            self._db.execute("ATTACH DATABASE ? AS old", (f"file:{uri_quoted(path)}?mode=ro",))
            try:
                (version,) = self._db.execute("PRAGMA old.user_version").fetchone()
                for table in _TABLES if version in SCHEMA_VERSIONS else ():
                    self._db.execute(f"INSERT INTO {table} SELECT * FROM old.{table}")  # noqa: S608 - ours
                if self._has_documents("old."):
                    self._db.execute(_MAKE_DOCUMENTS)
                    self._db.execute(f"INSERT INTO {_DOCUMENTS} SELECT * FROM old.{_DOCUMENTS}")  # noqa: S608 - ours
                self._db.commit()
            finally:
                self._db.rollback()  # copies nothing from a damaged file
                self._db.execute("DETACH DATABASE old")

    def drop_chunks(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Forget the places of damaged chunks, so that the next writer stores them again."""
        rows = [(chunk_id,) for chunk_id in chunk_ids]
        self.has_dropped = True
        with self._lock, self._faults():
            self._db.executemany("DELETE FROM chunk WHERE id = ?", rows)
            self._db.executemany("INSERT OR IGNORE INTO lost_chunk VALUES (?)", rows)

    def drop_damaged(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Forget the places of chunks that were read there and are damaged, and commit.

        Until a scrub has read their packs, an index that is built again from the packs does not
        name those places either.
        """
        with self._lock, self._faults():
            self._db.executemany(
                "INSERT INTO pack_check SELECT name, 0, 0, ?"
                " FROM chunk JOIN pack ON number = pack WHERE id = ?"
                " ON CONFLICT (name) DO UPDATE SET what = excluded.what WHERE what = ''",
                [(_SUSPECT, chunk_id) for chunk_id in chunk_ids],
            )
        self.drop_chunks(chunk_ids)
        self.commit()  # other processes that add wait for an open change

    def note_lost(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Record chunks that are no longer in any pack as lost."""
        with self._lock, self._faults():
            self._db.executemany(
                "INSERT OR IGNORE INTO lost_chunk VALUES (?)",
                [(chunk_id,) for chunk_id in chunk_ids],
            )

    def note_gone(self, pack_ids: Iterable[PackId]) -> None:
        """Record packs that are gone, until ``forget_gone``: snapshots may need them."""
        with self._lock, self._faults():
            self._db.executemany(
                "INSERT OR REPLACE INTO pack_check VALUES (?, 0, 0, ?)",
                [(pack_id, GONE) for pack_id in pack_ids],
            )

    def has_gone(self) -> bool:
        """Return whether packs are recorded as gone."""
        with self._lock, self._faults():
            query = "SELECT 1 FROM pack_check WHERE what = ? LIMIT 1"
            return self._db.execute(query, (GONE,)).fetchone() is not None

    def confirm_gone(self, checked_ns: int) -> None:
        """Note that snapshots need what the packs had that are recorded as gone, as a scrub found.

        Before that, a pack counts as gone only for a copy, which then sends more: the removal by a
        prune may not be recorded, if its disk was full.
        """
        with self._lock, self._faults():
            self._db.execute(
                "UPDATE pack_check SET checked_ns = ? WHERE what = ? AND checked_ns = 0",
                (checked_ns, GONE),
            )

    def forget_lost(self) -> None:
        """Forget the chunks that are lost, unless some pack is known as damaged.

        The caller knows that no snapshot needs one of them. A damaged pack would bring one back
        when the index is built again.
        """
        with self._lock, self._faults():
            self._db.execute(
                "DELETE FROM lost_chunk WHERE NOT EXISTS"
                " (SELECT 1 FROM pack_check WHERE what != '')"
            )

    def put_damaged_documents(self, found: Mapping[str, str], found_ns: int) -> None:
        """Record which manifests and marks are damaged, in place of what was recorded.

        Args:
            found: What is wrong with each, by its path in the store.
            found_ns: When they were read.
        """
        with self._lock, self._faults():
            if not found and not self._has_documents():
                return
            self._db.execute(_MAKE_DOCUMENTS)
            self._db.execute(f"DELETE FROM {_DOCUMENTS}")  # noqa: S608 - ours
            self._db.executemany(
                f"INSERT INTO {_DOCUMENTS} VALUES (?, ?, ?)",  # noqa: S608 - ours
                [(path, what, found_ns) for path, what in found.items()],
            )

    def keep_damaged_documents(self, paths: Collection[str]) -> None:
        """Forget the others that are recorded as damaged: they were repaired."""
        with self._lock, self._faults():
            if self._has_documents():
                gone = [(path,) for (path,) in self._db.execute(f"SELECT path FROM {_DOCUMENTS}")]  # noqa: S608 - ours
                self._db.executemany(
                    f"DELETE FROM {_DOCUMENTS} WHERE path = ?",  # noqa: S608 - ours
                    [row for row in gone if row[0] not in paths],
                )

    def damaged_documents(self) -> dict[str, tuple[str, int]]:
        """Map the damaged manifests and marks to what is wrong, and to when that was found."""
        with self._lock, self._faults():
            rows = (
                self._db.execute(f"SELECT path, what, found_ns FROM {_DOCUMENTS}").fetchall()  # noqa: S608 - ours
                if self._has_documents()
                else []
            )
        return {
            path: (what, found_ns)
            for path, what, found_ns in rows
            if isinstance(path, str) and isinstance(what, str) and isinstance(found_ns, int)
        }

    def _has_documents(self, schema: str = "") -> bool:
        query = f"SELECT 1 FROM {schema}sqlite_master WHERE name = ?"  # noqa: S608 - ours
        return self._db.execute(query, (_DOCUMENTS,)).fetchone() is not None

    def forget_gone(self) -> None:
        """Forget which packs are gone."""
        with self._lock, self._faults():
            self._db.execute("DELETE FROM pack_check WHERE what = ?", (GONE,))

    def note_there(self, pack_ids: Iterable[PackId]) -> None:
        """Forget that these packs are gone: for a while, the disk could not list them."""
        with self._lock, self._faults():
            self._db.executemany(
                "DELETE FROM pack_check WHERE name = ? AND what = ?",
                [(pack_id, GONE) for pack_id in pack_ids],
            )

    def lost_chunks(self) -> set[ChunkId]:
        """Return the dropped chunks that have been neither stored again nor repaired since."""
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT id FROM lost_chunk WHERE id NOT IN (SELECT id FROM chunk)"
            ).fetchall()
        return {row[0] for row in rows}

    def put_check(self, pack_id: PackId, checked_ns: int, read_bytes: int, what: str) -> None:
        """Record that a pack was read in full.

        Args:
            pack_id: The pack.
            checked_ns: When it was read.
            read_bytes: How many bytes were read.
            what: What was wrong with it; empty if nothing was.
        """
        with self._lock, self._faults():
            self._db.execute(
                "INSERT OR REPLACE INTO pack_check VALUES (?, ?, ?, ?)",
                (pack_id, checked_ns, read_bytes, what),
            )

    def checks(self) -> dict[PackId, CheckRecord]:
        """Return the last check of each pack that was ever checked, including removed packs.

        A pack in which a snapshot has found damage counts as unchecked: see ``drop_damaged``.
        """
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT name, checked_ns, read_bytes, what FROM pack_check WHERE what != ?",
                (_SUSPECT,),
            ).fetchall()
        return {row[0]: self._check(row) for row in rows}

    def suspects(self) -> set[PackId]:
        """Return the packs in which a snapshot has found damage, and that no check has read since.

        See ``drop_damaged``.
        """
        with self._lock, self._faults():
            rows = self._db.execute("SELECT name FROM pack_check WHERE what = ?", (_SUSPECT,))
            return {row[0] for row in rows}

    def _check(self, row: tuple[Any, ...]) -> CheckRecord:
        """Convert a row; ``Any`` because SQLite returns whatever type the file holds."""
        match row:
            case (bytes(), int(checked_ns), int(read_bytes), str(what)):
                return CheckRecord(checked_ns, read_bytes, what)
        raise IndexDamagedError(f"the chunk index {self._path} has an impossible check of a pack")

    def put_drill(self, drill: DrillRecord) -> None:
        """Record a drill; the oldest ones are dropped."""
        with self._lock, self._faults():
            self._db.execute("INSERT OR REPLACE INTO drill VALUES (?, ?, ?, ?, ?, ?, ?)", drill)
            self._db.execute(
                "DELETE FROM drill WHERE done_ns NOT IN"
                " (SELECT done_ns FROM drill ORDER BY done_ns DESC LIMIT ?)",
                (_DRILLS_KEPT,),
            )

    def drills(self) -> list[DrillRecord]:
        """Return the drills, newest first."""
        with self._lock, self._faults():
            rows = self._db.execute("SELECT * FROM drill ORDER BY done_ns DESC").fetchall()
        return [self._drill(row) for row in rows]

    def _drill(self, row: tuple[Any, ...]) -> DrillRecord:
        match row:
            case (int(), str(), int(), int(), float(), 0 | 1, str()):
                return DrillRecord(*row)
        raise IndexDamagedError(f"the chunk index {self._path} has an impossible drill")

    def snapshots(self) -> dict[SnapshotId, tuple[int, int, bytes]]:
        """Return file size, file mtime and encoded summary of every recorded snapshot."""
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT id, file_bytes, file_mtime_ns, summary FROM snapshot"
            ).fetchall()
        return {row[0]: (row[1], row[2], row[3]) for row in rows if isinstance(row[3], bytes)}

    def put_snapshot(
        self,
        snapshot_id: SnapshotId,
        file_bytes: int,
        file_mtime_ns: int,
        taken_ns: int,
        summary: bytes,
    ) -> None:
        """Record the summary of a manifest, with the size and mtime of the manifest's file."""
        with self._lock, self._faults():
            self._db.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?)",
                (snapshot_id, file_bytes, file_mtime_ns, taken_ns, summary),
            )

    def drop_snapshots(self, snapshot_ids: Iterable[SnapshotId]) -> None:
        """Remove the records of snapshots."""
        with self._lock, self._faults():
            self._db.executemany(
                "DELETE FROM snapshot WHERE id = ?",
                [(snapshot_id,) for snapshot_id in snapshot_ids],
            )

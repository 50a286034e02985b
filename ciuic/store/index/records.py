"""What the chunk index records besides packs: snapshots, checks of packs, and lost chunks.

Footers of packs do not contain it, so an index that is rebuilt takes it over from the old file.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.store.index.database import SCHEMA_VERSION, Database, IndexDamagedError, uri_quoted
from ciuic.store.index.places import CheckRecord

__all__ = ["Records"]

_TABLES: Final = ("snapshot", "pack_check", "lost_chunk")


class Records(Database):
    """The records in the open database."""

    def adopt(self, path: str) -> None:
        """Copy the records of another chunk index into this one.

        Raises:
            IndexDamagedError: The other index is damaged. Nothing is copied.
        """
        with self._lock, self._faults():
            self._db.execute("ATTACH DATABASE ? AS old", (f"file:{uri_quoted(path)}?mode=ro",))
            try:
                (version,) = self._db.execute("PRAGMA old.user_version").fetchone()
                for table in _TABLES if version == SCHEMA_VERSION else ():
                    self._db.execute(f"INSERT INTO {table} SELECT * FROM old.{table}")  # noqa: S608 - ours
                self._db.commit()
            finally:
                self._db.rollback()  # copies nothing from a damaged file
                self._db.execute("DETACH DATABASE old")

    def drop_chunks(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Forget the places of damaged chunks, so that the next writer stores them again."""
        rows = [(chunk_id,) for chunk_id in chunk_ids]
        with self._lock, self._faults():
            self._db.executemany("DELETE FROM chunk WHERE id = ?", rows)
            self._db.executemany("INSERT OR IGNORE INTO lost_chunk VALUES (?)", rows)

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
        """Return the last check of each pack that was ever checked, including removed packs."""
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT name, checked_ns, read_bytes, what FROM pack_check"
            ).fetchall()
        return {row[0]: self._check(row) for row in rows}

    def _check(self, row: tuple[Any, ...]) -> CheckRecord:
        """Convert a row; ``Any`` because SQLite returns whatever type the file holds."""
        match row:
            case (bytes(), int(checked_ns), int(read_bytes), str(what)):
                return CheckRecord(checked_ns, read_bytes, what)
        raise IndexDamagedError(f"the chunk index {self._path} has an impossible check of a pack")

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

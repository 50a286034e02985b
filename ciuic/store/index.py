"""The catalog database: where each chunk lies, and a copy of what the manifests say.

A cache in SQLite. It may be deleted at any time: packs and manifests are the truth, and it is
made anew from their footers. It never says "there" of a chunk unless the pack that holds it was
on stable storage when the row was written, and rows of a pack that is gone are dropped before
anything is looked up for writing.

No write-ahead log: SQLite before 3.51.3 can corrupt a database when a WAL is reset, and that is
what most systems have. One large transaction a barrier costs less than the log would save.
"""

import contextlib
import os
import sqlite3
import struct
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciuic.errors import BusyError, StoreError, StoreFullError
from ciuic.hashing import ID_BYTES
from ciuic.store.faults import store_faults
from ciuic.store.frame import CHAIN_MAX
from ciuic.store.pack import PackedFrame

__all__ = ["ChunkPlace", "Emptied", "Index", "IndexDamagedError"]

_SCHEMA_VERSION: Final = 3
_SCHEMA: Final = f"""
CREATE TABLE pack (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, size_bytes INTEGER NOT NULL
);
CREATE TABLE chunk (
    id BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset_bytes INTEGER NOT NULL,
    frame_bytes INTEGER NOT NULL, start_bytes INTEGER NOT NULL, length_bytes INTEGER NOT NULL,
    kind INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE snapshot (
    id TEXT PRIMARY KEY, file_bytes INTEGER NOT NULL, file_mtime_ns INTEGER NOT NULL,
    taken_ns INTEGER NOT NULL, summary BLOB NOT NULL
);
CREATE TABLE pack_check (
    name BLOB PRIMARY KEY, checked_ns INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    what TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE lost_chunk (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE reference (
    id BLOB, pack INTEGER, base BLOB NOT NULL, PRIMARY KEY (id, pack)
) WITHOUT ROWID;
PRAGMA user_version = {_SCHEMA_VERSION};
"""
_INSERT_CHUNK: Final = (
    "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
    " pack = excluded.pack, offset_bytes = excluded.offset_bytes,"
    " frame_bytes = excluded.frame_bytes, start_bytes = excluded.start_bytes,"
    " length_bytes = excluded.length_bytes WHERE EXISTS"
    " (SELECT 1 FROM reference WHERE reference.id = chunk.id AND reference.pack = chunk.pack)"
)
_REPLACE_CHUNK: Final = "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)"
_OF_PACKS: Final = ("chunk", "reference")
_BATCH: Final = 500
_ROWS_AT_ONCE: Final = 10_000
_BUSY_MS: Final = 10_000
_NUMBERS: Final = struct.Struct("<IIIIB")
"""What the numbers of a place fit into: packing them is the fastest way to check them."""
_OFFSET_SHIFT: Final = 16
"""An offset has up to 48 bits."""


class ChunkPlace(NamedTuple):
    """Where a chunk lies.

    Attributes:
        pack: The pack's ID.
        offset_bytes: Of its frame in the pack.
        frame_bytes: Length of that frame, header included.
        start_bytes: Of the chunk in the frame's decoded payload.
        length_bytes: Of the chunk itself.
        kind: ``DATA``, ``RECIPE`` or ``TREE``.
        reference: The chunk that it is stored as a difference from; empty: it stands alone.
    """

    pack: bytes
    offset_bytes: int
    frame_bytes: int
    start_bytes: int
    length_bytes: int
    kind: int
    reference: bytes = b""


class Emptied(NamedTuple):
    """A pack whose needed chunks lie elsewhere by now, and all that it held."""

    pack: bytes
    chunks: Sequence[bytes]


class Index:
    """The open database. All methods may be called from any thread.

    Args:
        path: The database file; ``""`` for a private temporary one.
        write: Create and change it; otherwise it is opened read-only.
    """

    def __init__(self, path: str, *, write: bool) -> None:
        self._lock = threading.Lock()
        self._path = path
        with self._faults():
            self._db = _connect(path, write=write)
            if write:
                self._prepare()

    def close(self) -> None:
        """Give up what was not committed and close."""
        self._db.close()

    def commit(self) -> None:
        """What was added is durable, and seen by others."""
        with self._lock, self._faults():
            self._db.commit()

    def rollback(self) -> None:
        """Forget what was added since the last commit."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.rollback()

    def add_pack(self, name: bytes, size_bytes: int, frames: Iterable[PackedFrame]) -> None:
        """Record a pack and its chunks. The pack must be durable before ``commit``.

        What was known of a file of that name is forgotten with its rows; what was known of one
        that is only recorded again, after ``clear``, stays.
        """
        self.remove_pack(name)  # the same name again: the old file was damaged and is replaced
        with self._lock, self._faults():
            cursor = self._db.execute(
                "INSERT INTO pack (name, size_bytes) VALUES (?, ?)", (name, size_bytes)
            )
            number = cursor.lastrowid
            self._insert(number or 0, _INSERT_CHUNK, frames)
            # Recorded anew after ``clear``: what a check has found to be damaged is not there.
            self._db.execute(
                "DELETE FROM chunk WHERE id IN (SELECT id FROM lost_chunk) AND pack IN"
                " (SELECT number FROM pack JOIN pack_check USING (name)"
                " WHERE name = ? AND what != '')",
                (name,),
            )

    def remove_pack(self, name: bytes) -> None:
        """Forget a pack, all chunks that are said to lie in it, and its last check."""
        with self._lock, self._faults():
            self._db.execute(
                "DELETE FROM pack_check WHERE name IN (SELECT name FROM pack WHERE name = ?)",
                (name,),
            )
            for table in _OF_PACKS:
                self._db.execute(
                    f"DELETE FROM {table} WHERE pack ="  # noqa: S608 - ours
                    " (SELECT number FROM pack WHERE name = ?)",
                    (name,),
                )
            self._db.execute("DELETE FROM pack WHERE name = ?", (name,))

    def remove_packs(self, names: Sequence[bytes]) -> None:
        """As ``remove_pack`` for many, in one pass over all chunks."""
        with self._lock, self._faults():
            # Of a transaction that was rolled back it is left.
            self._db.execute("DROP TABLE IF EXISTS gone")
            self._db.execute("CREATE TEMP TABLE gone (name BLOB PRIMARY KEY) WITHOUT ROWID")
            self._db.executemany("INSERT INTO gone VALUES (?)", [(one,) for one in names])
            numbers = "SELECT number FROM pack JOIN gone USING (name)"
            for table in _OF_PACKS:
                self._db.execute(f"DELETE FROM {table} WHERE pack IN ({numbers})")  # noqa: S608 - ours
            self._db.execute("DELETE FROM pack_check WHERE name IN (SELECT name FROM gone)")
            self._db.execute("DELETE FROM pack WHERE name IN (SELECT name FROM gone)")
            self._db.execute("DROP TABLE gone")

    def point(self, name: bytes, frames: Iterable[PackedFrame], chunks: Container[bytes]) -> None:
        """Chunks lie in a pack that is recorded, wherever else they lie.

        Args:
            name: The pack.
            frames: What it holds.
            chunks: Those of its chunks that are meant.
        """
        with self._lock, self._faults():
            found = self._db.execute("SELECT number FROM pack WHERE name = ?", (name,))
            for (number,) in found.fetchall():
                alone, deltas = _places_of(number, frames)
                rows = [row for row in (*alone, *deltas) if row[0] in chunks]
                self._db.executemany(_REPLACE_CHUNK, sorted(rows))

    def move(
        self,
        name: bytes,
        size_bytes: int,
        frames: Iterable[PackedFrame],
        emptied: Iterable[Emptied],
    ) -> None:
        """Record a pack that took what was still needed of others, and forget those.

        Chunks that it holds lie there from now on, wherever they lay before.

        Args:
            name: The new pack. It must be durable before ``commit``.
            size_bytes: Its length.
            frames: What it holds.
            emptied: Packs that are not needed any more, and what they held.
        """
        with self._lock, self._faults():
            # Left by a run that was killed; what it holds is what the new one holds.
            self._db.execute("DELETE FROM pack WHERE name = ?", (name,))
            cursor = self._db.execute(
                "INSERT INTO pack (name, size_bytes) VALUES (?, ?)", (name, size_bytes)
            )
            self._insert(cursor.lastrowid or 0, _REPLACE_CHUNK, frames)
            references = self._db.execute("SELECT 1 FROM reference LIMIT 1").fetchone()
            tables = _OF_PACKS if references else _OF_PACKS[:1]
            for old in emptied:
                found = self._db.execute("SELECT number FROM pack WHERE name = ?", (old.pack,))
                # One by one by their IDs: there is no index by pack, which every snapshot
                # would have to keep up.
                for (number,) in found.fetchall():
                    gone = [(one, number) for one in sorted(old.chunks)]
                    for table in tables:
                        self._db.executemany(
                            f"DELETE FROM {table} WHERE id = ? AND pack = ?",  # noqa: S608 - ours
                            gone,
                        )
                self._db.execute("DELETE FROM pack_check WHERE name = ?", (old.pack,))
                self._db.execute("DELETE FROM pack WHERE name = ?", (old.pack,))

    def clear(self) -> None:
        """Forget all packs and chunks, and keep what checks have found."""
        with self._lock, self._faults():
            for table in (*_OF_PACKS, "pack"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - ours

    def packs(self) -> dict[bytes, int]:
        """Size in bytes of every pack that is recorded, by its ID."""
        with self._lock, self._faults():
            return dict(self._db.execute("SELECT name, size_bytes FROM pack"))

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of ``ids`` that are in some pack, with all that they are a difference from."""
        found: set[bytes] = set()
        deltas: dict[bytes, bytes] = {}
        with self._lock, self._faults():
            for start in range(0, len(ids), _BATCH):
                part = ids[start : start + _BATCH]
                query = (
                    "SELECT id, base FROM chunk LEFT JOIN reference USING (id, pack)"  # noqa: S608 - question marks only
                    f" WHERE id IN ({_marks(len(part))})"
                )
                for name, base in self._db.execute(query, part):
                    found.add(name)
                    if base is not None:
                        deltas[name] = base
        if deltas:
            whole = self._whole_chains(deltas)
            found -= {name for name in deltas if name not in whole}
        return found

    def _whole_chains(self, deltas: dict[bytes, bytes]) -> set[bytes]:
        """Those chunks whose references are there, and theirs, as far as it goes."""
        below = dict(deltas)
        whole: set[bytes] = set()
        for _ in range(CHAIN_MAX):
            places = self.places(list(dict.fromkeys(below.values())))
            found = {name: places[base] for name, base in below.items() if base in places}
            whole |= {name for name, place in found.items() if not place.reference}
            below = {name: place.reference for name, place in found.items() if place.reference}
            if not below:
                break
        return whole

    def places(self, ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        """Where chunks lie; those that are in no pack are left out."""
        found: dict[bytes, ChunkPlace] = {}
        with self._lock, self._faults():
            for start in range(0, len(ids), _BATCH):
                part = ids[start : start + _BATCH]
                query = (
                    "SELECT chunk.id, name, offset_bytes, frame_bytes, start_bytes, length_bytes,"  # noqa: S608 - as above
                    " kind, base FROM chunk JOIN pack ON pack.number = chunk.pack"
                    " LEFT JOIN reference ON reference.id = chunk.id"
                    " AND reference.pack = chunk.pack"
                    f" WHERE chunk.id IN ({_marks(len(part))})"
                )
                self._add_places(self._db.execute(query, part), found)
        return found

    def chunk_ids(self) -> Iterator[list[tuple[bytes, int]]]:
        """ID and kind of every chunk in the order of the IDs, so many at a time.

        Nothing else may be asked before the iteration has ended.
        """
        with self._lock, self._faults():
            cursor = self._db.execute("SELECT id, kind FROM chunk ORDER BY id")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                if not all(_is_id(name) for name, _ in rows):
                    raise IndexDamagedError(f"the catalog {self._path} names a chunk that can't be")
                yield rows

    def chunks_in(self, pack: bytes) -> dict[bytes, int]:
        """Chunks that are said to lie in a pack, and their kind."""
        with self._lock, self._faults():
            return dict(
                self._db.execute(
                    "SELECT id, kind FROM chunk"
                    " WHERE pack = (SELECT number FROM pack WHERE name = ?)",
                    (pack,),
                )
            )

    def stored_again(self) -> set[bytes]:
        """Chunks that more than one pack has as a difference."""
        with self._lock, self._faults():
            rows = self._db.execute("SELECT id FROM reference GROUP BY id HAVING count(*) > 1")
            return {row[0] for row in rows}

    def drop_chunks(self, ids: Sequence[bytes]) -> None:
        """Forget where chunks lie that are known to be damaged: whoever has them stores them."""
        rows = [(one,) for one in ids]
        with self._lock, self._faults():
            self._db.executemany("DELETE FROM chunk WHERE id = ?", rows)
            self._db.executemany("INSERT OR IGNORE INTO lost_chunk VALUES (?)", rows)

    def lost_chunks(self) -> set[bytes]:
        """Chunks that were dropped, and have not been stored again or mended since."""
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT id FROM lost_chunk WHERE id NOT IN (SELECT id FROM chunk)"
            ).fetchall()
        return {row[0] for row in rows}

    def put_check(self, name: bytes, checked_ns: int, read_bytes: int, what: str) -> None:
        """Record that a pack was read in full, when, and what was wrong: ``""`` for nothing."""
        with self._lock, self._faults():
            self._db.execute(
                "INSERT OR REPLACE INTO pack_check VALUES (?, ?, ?, ?)",
                (name, checked_ns, read_bytes, what),
            )

    def checks(self) -> dict[bytes, tuple[int, int, str]]:
        """When each pack was last read in full, how many bytes, and what was wrong; by its ID.

        Packs that are gone may be among them; those that were never checked are not.
        """
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT name, checked_ns, read_bytes, what FROM pack_check"
            ).fetchall()
        return {row[0]: self._check(row) for row in rows}

    def totals(self) -> tuple[int, int, int]:
        """Plain bytes of all file content, bytes of all packs, number of chunks."""
        with self._lock, self._faults():
            (plain, count) = self._db.execute(
                "SELECT coalesce(sum(CASE kind WHEN 1 THEN length_bytes END), 0), count(*)"
                " FROM chunk"
            ).fetchone()
            (stored,) = self._db.execute("SELECT coalesce(sum(size_bytes), 0) FROM pack").fetchone()
        return plain, stored, count

    def snapshots(self) -> dict[str, tuple[int, int, bytes]]:
        """File size, file mtime and encoded summary of every snapshot that is recorded."""
        with self._lock, self._faults():
            rows = self._db.execute(
                "SELECT id, file_bytes, file_mtime_ns, summary FROM snapshot"
            ).fetchall()
        return {row[0]: (row[1], row[2], row[3]) for row in rows if isinstance(row[3], bytes)}

    def put_snapshot(
        self, name: str, file_bytes: int, file_mtime_ns: int, taken_ns: int, summary: bytes
    ) -> None:
        """Record what a manifest says."""
        with self._lock, self._faults():
            self._db.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?)",
                (name, file_bytes, file_mtime_ns, taken_ns, summary),
            )

    def drop_snapshots(self, names: Iterable[str]) -> None:
        """Let go of what was recorded of snapshots."""
        with self._lock, self._faults():
            self._db.executemany("DELETE FROM snapshot WHERE id = ?", ((one,) for one in names))

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in {0, _SCHEMA_VERSION}:
            raise sqlite3.DatabaseError("schema of another version")
        if version == 0:
            self._db.executescript(_SCHEMA)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise _translated(error, self._path) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise IndexDamagedError(f"the catalog {self._path} is damaged: {error}") from error

    def _insert(self, number: int, statement: str, frames: Iterable[PackedFrame]) -> None:
        """Rows of a pack's chunks; the lock is held."""
        alone, deltas = _places_of(number, frames)
        self._db.executemany(statement, sorted(alone))
        # A difference gives way to what stands alone, and to another one: a chunk is stored again
        # only where the chain of the first is broken.
        self._db.executemany(statement, sorted(deltas))
        self._db.executemany(
            "INSERT OR REPLACE INTO reference VALUES (?, ?, ?)",
            [(row[0], number, base) for row, base in deltas.items()],
        )

    def _check(self, row: tuple[Any, ...]) -> tuple[int, int, str]:
        """A row as a check, if it can be one."""
        match row:
            case (bytes(), int(checked_ns), int(read_bytes), str(what)):
                return checked_ns, read_bytes, what
        raise IndexDamagedError(f"the catalog {self._path} has a check that can't be")

    def _add_places(self, rows: Iterable[tuple[Any, ...]], found: dict[bytes, ChunkPlace]) -> None:
        """Rows as places, if they can be some: SQLite gives back whatever type stands there."""
        check = _NUMBERS.pack
        try:
            for name, pack, offset, frame_bytes, start, length, kind, base in rows:
                if not _is_id(pack) or (base is not None and not _is_id(base)):
                    raise IndexDamagedError(f"the catalog {self._path} names a pack that can't be")
                check(offset >> _OFFSET_SHIFT, frame_bytes, start, length, kind)
                place = ChunkPlace(pack, offset, frame_bytes, start, length, kind, base or b"")
                found[name] = place
        except (struct.error, TypeError) as error:
            raise IndexDamagedError(
                f"the catalog {self._path} names a place that can't be"
            ) from error


class IndexDamagedError(StoreError):
    """The database is not one, or is damaged: it is to be made anew from the packs."""

    default_hint = "Run the command again: the catalog is a cache, and is made anew."


def _connect(path: str, *, write: bool) -> sqlite3.Connection:
    if write and path:
        # SQLite would make it with the umask's mode.
        with store_faults("open", path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    mode = "rw" if write else "ro"
    target = f"file:{_uri_quoted(path)}?mode={mode}" if path else ""
    db = sqlite3.connect(target, uri=bool(path), check_same_thread=False, timeout=_BUSY_MS / 1000)
    db.execute("PRAGMA cache_size = -32768")
    if write:
        db.execute("PRAGMA journal_mode = TRUNCATE")
        db.execute("PRAGMA synchronous = FULL")
    else:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError("no schema, or that of another version")
    return db


def _uri_quoted(path: str) -> str:
    """A path in an SQLite URI, where three characters would end it: sqlite.org/uri.html."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _translated(error: sqlite3.OperationalError, path: str) -> StoreError:
    # Errors of the binding itself ("could not decode") carry no code: what it read is damaged.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"cannot write {path}: no space left on the device")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BusyError(f"the catalog {path} is in use by another process")
    if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
        return StoreError(
            f"cannot use {path}: {error}",
            hint="Look at the store's disk and permissions; if the file itself is at fault, remove"
            " it: it is a cache, and is made anew.",
        )
    return IndexDamagedError(f"the catalog {path} is damaged: {error}")


_Row = tuple[bytes, int, int, int, int, int, int]


def _places_of(number: int, frames: Iterable[PackedFrame]) -> tuple[list[_Row], dict[_Row, bytes]]:
    """Rows of the chunks in a pack that stand alone; of the others, with what they build on.

    Of a chunk that is in it in several ways one counts, so that its row and its reference speak of
    the same: one that stands alone, or else the last.
    """
    listed = list(frames)
    alone = list(_rows(number, [one for one in listed if not one.frame.is_delta]))
    deltas = {
        row[0]: (row, one.frame.reference)
        for one in listed
        if one.frame.is_delta
        for row in _rows(number, [one])
    }
    for row in alone if deltas else ():
        deltas.pop(row[0], None)
    return alone, dict(deltas.values())


def _rows(number: int, frames: Iterable[PackedFrame]) -> Iterator[_Row]:
    for packed in frames:
        frame, offset = packed.frame, packed.offset_bytes
        total, kind = frame.total_bytes, frame.kind
        start = 0
        for name, length in frame.chunks:
            yield name, number, offset, total, start, length, kind
            start += length


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == ID_BYTES


def _marks(count: int) -> str:
    return ",".join("?" * count)

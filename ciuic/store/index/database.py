"""The SQLite file of the chunk index: its schema, its transactions, and its errors.

It has no write-ahead log: SQLite before 3.51.3 can corrupt a database when a WAL is reset, and most
systems have an older SQLite. Large transactions, each for many packs, cost less than the log would
save.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Final

from ciuic.errors import BusyError, StoreError, StoreFullError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_or_create
from ciuic.system.hashing import derived_hash

__all__ = [
    "IN_MEMORY",
    "ON_SCRATCH",
    "SCHEMA_VERSION",
    "SCHEMA_VERSIONS",
    "Database",
    "IndexDamagedError",
    "uri_quoted",
]

ON_SCRATCH: Final = ""
"""A private database, which SQLite moves to a temporary file if it outgrows the cache."""
IN_MEMORY: Final = ":memory:"
"""A private database that needs no disk space."""
_PRIVATE: Final = frozenset({ON_SCRATCH, IN_MEMORY})

SCHEMA_VERSION: Final = 5
SCHEMA_VERSIONS: Final = (4, SCHEMA_VERSION)
"""Versions with the same records; a writer moves a file of the first to the second."""
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
CREATE TABLE drill (
    done_ns INTEGER PRIMARY KEY, snapshot TEXT NOT NULL, files INTEGER NOT NULL,
    restored_bytes INTEGER NOT NULL, restore_s REAL NOT NULL, is_full INTEGER NOT NULL,
    outcome TEXT NOT NULL
);
CREATE TABLE reference (
    id BLOB, pack INTEGER, base BLOB NOT NULL, PRIMARY KEY (id, pack)
) WITHOUT ROWID;
CREATE TABLE again (id BLOB PRIMARY KEY) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
"""
_FROM_4: Final = (
    "CREATE TABLE again (id BLOB PRIMARY KEY) WITHOUT ROWID",
    "INSERT INTO again SELECT id FROM reference GROUP BY id HAVING count(*) > 1",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_BUSY_MS: Final = 60_000
"""How long to wait for another process, which holds the file for one commit."""
_STEPS: Final = 100_000
"""Instructions of SQLite's machine between two looks at signals: about 3 milliseconds."""


class IndexDamagedError(StoreError):
    """The file is not a database, or is damaged: it must be rebuilt from the packs."""

    default_hint = "Run the command again: it rebuilds the chunk index, which is a cache."


class Database:
    """The open database. All methods may be called from any thread.

    Args:
        path: The database file; ``ON_SCRATCH`` or ``IN_MEMORY`` for a private database.
        write: Open it for writing, and create it if it is missing; otherwise open it read-only.
        store_id: The store that the file is about; empty: a private database.

    Raises:
        IndexDamagedError: The file is not a database of this schema, or is about another store.
        StoreError: The file cannot be opened for another reason.
    """

    def __init__(self, path: str, *, write: bool, store_id: str = "") -> None:
        self._lock = threading.Lock()
        self._path = path
        self._about = _number_of(store_id)
        with self._faults():
            self._db = _connect(path, write=write)
            try:
                if write:
                    self._prepare()
                self._refuse_other_store()
            except BaseException:
                self._db.close()
                raise

    @property
    def is_private(self) -> bool:
        """No other process can open it."""
        return self._path in _PRIVATE

    def close(self) -> None:
        """Close the database; uncommitted changes are lost."""
        self._db.close()

    def begin(self) -> None:
        """Keep other processes from changing the index until ``commit`` or ``rollback``."""
        with self._lock, self._faults():
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make all changes durable and visible to other processes."""
        with self._lock, self._faults():
            self._db.commit()

    def rollback(self) -> None:
        """Undo all changes since the last commit."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.rollback()

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in {0, *SCHEMA_VERSIONS}:
            raise sqlite3.DatabaseError("schema of another version")
        if version == SCHEMA_VERSIONS[0]:
            self._move_from_4()
        if version == 0:
            self._db.executescript(f"PRAGMA application_id = {self._about};{_SCHEMA}")

    def _move_from_4(self) -> None:
        """Bring the file to this version: a new one would not know which chunks are damaged."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have done it meanwhile.
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            for statement in _FROM_4 if version == SCHEMA_VERSIONS[0] else ():
                self._db.execute(statement)
            self._db.commit()
        except BaseException:
            self._db.rollback()
            raise

    def _refuse_other_store(self) -> None:
        """Refuse the file of another store: its records are about snapshots of that store.

        Raises:
            sqlite3.DatabaseError: It is.
        """
        (about,) = self._db.execute("PRAGMA application_id").fetchone()
        if self._about and about not in {0, self._about}:
            raise sqlite3.DatabaseError("it is the index of another store")

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                # SQLite has replaced the exception of a signal handler, raised in _look_at_signals.
                raise KeyboardInterrupt from error
            raise _translated(error, self._path) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise IndexDamagedError(f"the chunk index {self._path} is damaged: {error}") from error


def _connect(path: str, *, write: bool) -> sqlite3.Connection:
    """Open the database file; with ``write``, create it if it is missing."""
    is_private = path in _PRIVATE
    if write and not is_private:
        # SQLite would create the file with the mode that the umask gives.
        with store_faults("open", path):
            os.close(open_or_create(path))
    mode = "rw" if write else "ro"
    target = path if is_private else f"file:{uri_quoted(path)}?mode={mode}"
    db = sqlite3.connect(target, uri=True, check_same_thread=False, timeout=_BUSY_MS / 1000)
    db.execute("PRAGMA cache_size = -32768")
    db.set_progress_handler(_look_at_signals, _STEPS)
    if write:
        db.execute("PRAGMA journal_mode = TRUNCATE")
        # After a power cut, the last transaction may be undone: see decision 0005.
        db.execute("PRAGMA synchronous = NORMAL")
    else:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError("no schema, or that of another version")
    return db


def _number_of(store_id: str) -> int:
    """Return the number that a file of this store has in its header; 0 if it has none."""
    if not store_id:
        return 0
    return int.from_bytes(derived_hash("ciuic chunk index", store_id.encode())[:4], "big") >> 1 | 1


def _look_at_signals() -> int:
    """Let Python run signal handlers in the middle of a query of a large store."""
    return 0


def uri_quoted(path: str) -> str:
    """Quote a path for an SQLite URI, which three characters would end: sqlite.org/uri.html."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _translated(error: sqlite3.OperationalError, path: str) -> StoreError:
    """Return the store's error for an error of SQLite."""
    # Errors of Python's binding ("could not decode") have no code; they mean damaged data.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"cannot write {path}: no space left on the device")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BusyError(f"the chunk index {path} is in use by another process")
    if code == sqlite3.SQLITE_READONLY and not os.path.exists(path):
        # SQLite writes to no file that has lost its name, and calls it read-only.
        return StoreError(
            f"{path} was removed while it was in use",
            hint="Run the command again: the file is a cache, and is rebuilt.",
        )
    if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
        return StoreError(
            f"cannot use {path}: {error}",
            hint="Check the store's disk and permissions. If the file itself is at fault, remove"
            " it: it is a cache, and is rebuilt.",
        )
    return IndexDamagedError(f"the chunk index {path} is damaged: {error}")

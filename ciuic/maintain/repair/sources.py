"""Sources of lost chunks outside the store: the reflink copy of a file, or the live file.

Bytes are accepted only if they hash to the chunk's ID.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import (
    CorruptionError,
    PathNotFoundError,
    SnapshotNotFoundError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import Entry
from ciuic.store.records.kinds import DATA, chunk_id_of
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.recipe_nodes import Piece, iter_pieces
from ciuic.store.store import Store
from ciuic.view.locator import Locator, locate
from ciuic.view.reflinks import ReflinkCopies

__all__ = ["LIVE_FILE", "REFLINK_COPY", "Origin", "find_in_file", "read_origin"]

REFLINK_COPY: Final = "hot copy"
LIVE_FILE: Final = "live file"
_NOT_HERE: Final = (
    CorruptionError,
    PathNotFoundError,
    SnapshotNotFoundError,
    UnknownFormatError,
    OSError,
)
"""Errors about one path, snapshot or file: another one may have the bytes. An I/O error of the
store is not among them."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Origin(NamedTuple):
    """The place where a lost chunk was found.

    Attributes:
        chunk_id: ID of the chunk.
        how: ``REFLINK_COPY`` or ``LIVE_FILE``.
        snapshot_id: A snapshot that has the file.
        path: The file's absolute path.
        offset_bytes: Offset in the file.
        length_bytes: Length of the chunk.
    """

    chunk_id: ChunkId
    how: str
    snapshot_id: SnapshotId
    path: bytes
    offset_bytes: int
    length_bytes: int


def find_in_file(
    store: Store, manifest: Manifest, locator: Locator, path: bytes, wanted: set[ChunkId]
) -> Iterator[Origin]:
    """Yield the wanted chunks that a file's reflink copy or the live file still has.

    Args:
        store: The store, for the file's recipe.
        manifest: Manifest of a snapshot that has the file.
        locator: Finds paths in that snapshot.
        path: Absolute path of the file.
        wanted: Chunk IDs.
    """
    with contextlib.suppress(*_NOT_HERE), contextlib.ExitStack() as stack:
        entry = locator.locate(path).entry
        if not entry.is_file:
            return
        left = dict.fromkeys(wanted)
        for how in (REFLINK_COPY, LIVE_FILE):
            fd = stack.enter_context(_opened(store, manifest, path, entry, how))
            if fd is None:
                continue
            for offset, piece in _whole_pieces(store, entry):
                if piece.id in left:
                    origin = Origin(
                        piece.id, how, manifest.summary.id, path, offset, piece.length_bytes
                    )
                    if _bytes_of(fd, origin) is not None:
                        del left[origin.chunk_id]
                        yield origin


def read_origin(store: Store, origin: Origin) -> bytes | None:
    """Read a chunk from its origin; None if the file has changed or cannot be read."""
    with contextlib.suppress(*_NOT_HERE):
        manifest = store.manifest(origin.snapshot_id)
        entry = locate(store, manifest, origin.path).entry
        with _opened(store, manifest, origin.path, entry, origin.how) as fd:
            return None if fd is None else _bytes_of(fd, origin)
    return None


def _whole_pieces(store: Store, entry: Entry) -> Iterator[tuple[int, Piece]]:
    """Yield the pieces that may be whole chunks, with their offsets in the file."""
    if entry.level == 0 and entry.content:
        yield 0, Piece(entry.size_bytes, ChunkId(entry.content))
        return
    offset = 0
    for piece in iter_pieces(store.reader.node, entry):
        if piece.id and piece.start_bytes == 0:
            yield offset, piece
        offset += piece.length_bytes


def _bytes_of(fd: int, origin: Origin) -> bytes | None:
    data = os.pread(fd, origin.length_bytes, origin.offset_bytes)
    return data if chunk_id_of(DATA, data) == origin.chunk_id else None


@contextlib.contextmanager
def _opened(
    store: Store, manifest: Manifest, path: bytes, entry: Entry, how: str
) -> Iterator[int | None]:
    """Yield the open reflink copy or live file; None if it cannot be opened."""
    copies = ReflinkCopies(store, manifest)
    fd = copies.open(path, entry) if how == REFLINK_COPY else _open_live(path)
    try:
        yield fd
    finally:
        copies.close()
        if fd is not None:
            os.close(fd)


def _open_live(path: bytes) -> int | None:
    """Open a regular file; None otherwise. Directories above it may be symlinks now."""
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None

"""Where else the bytes of a lost chunk may be: in a hot copy, or in the file itself.

Nothing is believed: bytes count as a chunk's when they hash to its ID.
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
from ciuic.model import Entry
from ciuic.store import Store
from ciuic.store.frame import DATA, chunk_id
from ciuic.store.manifest import Manifest
from ciuic.store.nodes import Piece, iter_pieces
from ciuic.verbs.browse import locate
from ciuic.verbs.hot import HotCopies

__all__ = ["HOT", "LIVE", "Origin", "find_in_file", "read_origin"]

HOT: Final = "hot copy"
LIVE: Final = "live file"
_NOT_HERE: Final = (
    CorruptionError,
    PathNotFoundError,
    SnapshotNotFoundError,
    UnknownFormatError,
    OSError,
)
"""About this path or snapshot, or about the file: any other one may have the bytes. A store that
fails is another matter."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Origin(NamedTuple):
    """Where a lost chunk's bytes were found.

    Attributes:
        chunk: Its ID.
        how: ``HOT`` or ``LIVE``.
        snapshot_id: Whose tree names the file.
        path: The file's absolute path.
        offset_bytes: In the file.
        length_bytes: Of the chunk.
    """

    chunk: bytes
    how: str
    snapshot_id: str
    path: bytes
    offset_bytes: int
    length_bytes: int


def find_in_file(
    store: Store, manifest: Manifest, path: bytes, wanted: set[bytes]
) -> Iterator[Origin]:
    """Those of the wanted chunks that a file's hot copy or the file itself still has.

    Args:
        store: The store, for the file's recipe.
        manifest: Of a snapshot that has the file.
        path: Absolute.
        wanted: Chunk IDs.
    """
    with contextlib.suppress(*_NOT_HERE), contextlib.ExitStack() as stack:
        entry = locate(store, manifest, path).entry
        if not entry.is_file:
            return
        left = dict.fromkeys(wanted)
        for how in (HOT, LIVE):
            fd = stack.enter_context(_opened(store, manifest, path, entry, how))
            if fd is None:
                continue
            for offset, piece in _whole_pieces(store, entry):
                if piece.id in left:
                    origin = Origin(
                        piece.id, how, manifest.summary.id, path, offset, piece.length_bytes
                    )
                    if _bytes_of(fd, origin) is not None:
                        del left[piece.id]
                        yield origin


def read_origin(store: Store, origin: Origin) -> bytes | None:
    """The chunk's bytes, if they are still where they were found."""
    with contextlib.suppress(*_NOT_HERE):
        manifest = store.manifest(origin.snapshot_id)
        entry = locate(store, manifest, origin.path).entry
        with _opened(store, manifest, origin.path, entry, origin.how) as fd:
            return None if fd is None else _bytes_of(fd, origin)
    return None


def _whole_pieces(store: Store, entry: Entry) -> Iterator[tuple[int, Piece]]:
    """Pieces that may be a whole chunk, and where in the file they lie."""
    if entry.level == 0 and entry.content:
        yield 0, Piece(entry.size_bytes, entry.content)
        return
    offset = 0
    for piece in iter_pieces(store.reader.node, entry):
        if piece.id and piece.start_bytes == 0:
            yield offset, piece
        offset += piece.length_bytes


def _bytes_of(fd: int, origin: Origin) -> bytes | None:
    data = os.pread(fd, origin.length_bytes, origin.offset_bytes)
    return data if chunk_id(DATA, data) == origin.chunk else None


@contextlib.contextmanager
def _opened(
    store: Store, manifest: Manifest, path: bytes, entry: Entry, how: str
) -> Iterator[int | None]:
    """The hot copy or the live file, open; None if it can't be had."""
    copies = HotCopies(store, manifest)
    fd = copies.open(path, entry) if how == HOT else _open_live(path)
    try:
        yield fd
    finally:
        copies.close()
        if fd is not None:
            os.close(fd)


def _open_live(path: bytes) -> int | None:
    """A regular file, whatever names on the way are links by now."""
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None

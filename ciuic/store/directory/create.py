"""Creates a store: directories and locks first, the header last."""

import contextlib
import os
from typing import Final

from ciuic.errors import StoreError, UsageError
from ciuic.store.directory.faults import CREATE, store_faults
from ciuic.store.directory.files import open_or_create
from ciuic.store.directory.find import read_header, refuse_shared
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.records import layout
from ciuic.store.records.header import CHUNK_BYTES_DEFAULT, CONTENT, FORMAT, Chunking, Header
from ciuic.system import durable, nofollow
from ciuic.system.clock import Clock, rfc3339

__all__ = ["create_store"]

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


def create_store(
    path: str,
    clock: Clock,
    *,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    chunking: str = CONTENT,
    average_bytes: int = 0,
    least_bytes: int = 0,
    owner: int | None = None,
) -> bool:
    """Create a store at ``path`` if there is none; returns whether it was created.

    The header is written last. A store without one was not finished, and the next call finishes it.

    Args:
        path: The store's directory.
        clock: Gives the time of creation.
        chunk_bytes: Maximum chunk size.
        chunking: See ``Chunking.kind``.
        average_bytes: See ``Chunking``; 0: follows from ``chunk_bytes``.
        least_bytes: See ``Chunking``; 0: follows from ``chunk_bytes``.
        owner: Number of another user who may own the directory.

    Raises:
        UsageError: No store can have these lengths.
        StoreError: The store cannot be created; or ``path`` is not empty and not a store.
    """
    cut = Chunking.of(chunking, chunk_bytes, average_bytes, least_bytes)
    if cut.problem:
        raise UsageError(cut.problem, hint="'ciuic init --help' has the limits.")
    with store_faults("find", path):
        path = nofollow.resolved(path)
    if nofollow.exists(os.path.join(path, layout.HEADER)):
        read_header(path)
        return False
    refuse_foreign(path, owner)
    with store_faults(CREATE, path):
        _make_directories(path)
        header = Header(
            format=FORMAT,
            required=[],
            store_id=os.urandom(16).hex(),
            created=rfc3339(clock.now_ns()),
            chunking=cut,
        )
        durable.write_whole(
            os.path.join(path, layout.HEADER),
            header.encode(),
            temporary_directory=os.path.join(path, layout.TEMPORARY),
            mode=_FILE_MODE,
        )
    return True


def _make_directories(path: str) -> None:
    """Create directories and locks, unless the path holds something else."""
    if nofollow.exists(path) and not nofollow.is_directory(path):
        raise StoreError(
            f"{path} is a file, not a directory", hint="Choose another place for the store."
        )
    _refuse_strangers(path)
    _refuse_headless(path)
    _make_parents(path)
    durable.make_directory(path, _DIRECTORY_MODE)
    with contextlib.suppress(PermissionError):  # another user's: refuse_shared checks the mode
        nofollow.change_mode(path, _DIRECTORY_MODE)
    refuse_shared(path)
    for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
        durable.make_directory(os.path.join(path, name), _DIRECTORY_MODE)
    for name in (layout.WRITE_LOCK, layout.ADD_LOCK, layout.READ_LOCK):
        os.close(open_or_create(os.path.join(path, name)))


def _refuse_strangers(path: str) -> None:
    own = {"lost+found", layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY, layout.CONTROL_SOCKET}
    own |= {layout.WRITE_LOCK, layout.ADD_LOCK, layout.READ_LOCK, layout.DAEMON_LOCK}
    own |= {layout.CATALOG, *(layout.CATALOG + suffix for suffix in layout.CATALOG_SUFFIXES)}
    own |= {layout.PARITY, layout.QUARANTINE, layout.MARKS, layout.RETIRED, layout.PRUNING}
    own |= {layout.RESERVE, layout.RUN_LOCK, layout.COPIES, layout.RESTORED}
    if nofollow.is_directory(path):
        strangers = sorted(set(nofollow.list_names(path)) - own)
        if strangers:
            raise StoreError(
                f"{path} is not empty: it holds '{strangers[0]}'",
                hint="Choose an empty or new directory for the store.",
            )


def _refuse_headless(path: str) -> None:
    """Refuse snapshots without a header: a new header might specify another chunking."""
    for name in (layout.PACKS, layout.SNAPSHOTS):
        inner = os.path.join(path, name)
        if nofollow.is_directory(inner) and nofollow.list_names(inner):
            read_header(path)


def _make_parents(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    if not nofollow.is_directory(parent):
        _make_parents(parent)
        durable.make_directory(parent, 0o755)

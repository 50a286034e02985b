"""Reuse the parent's recipe of a file, if a reflink copy shows which ranges have changed."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from ciuic.chunking import Chunker
from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.snapshot.read.changed_ranges import (
    Gap,
    Kept,
    plan_changes,
    unchanged_chunks,
    unchanged_whole_chunks,
)
from ciuic.snapshot.read.parent_nodes import parent_nodes
from ciuic.snapshot.read.source_file import SourceFile
from ciuic.source.byte_range import ByteRange
from ciuic.source.file import OpenFile
from ciuic.source.freeze.extents import changed_ranges, data_ranges
from ciuic.store.records.recipe_nodes import Piece, iter_pieces
from ciuic.store.store import Store

__all__ = ["Tracked", "data_in", "expected_pieces", "plan_recipe", "track"]


class Tracked(NamedTuple):
    """The parent snapshot's recipe of a file, and the ranges that have changed since.

    Attributes:
        pieces: The old recipe.
        changed: Ranges of the new file that may differ.
        data: Ranges of the new file that are not holes.
    """

    pieces: list[Piece]
    changed: list[ByteRange]
    data: list[ByteRange]


def track(store: Store, file: SourceFile, opened: OpenFile) -> Tracked | None:
    """Compare a frozen file with the reflink copy of the parent snapshot.

    This includes files that were being written then: the store has the bytes of the copy.

    Returns:
        None if the file has no recipe or no copy, or the file system has no extent maps.
    """
    old, previous = file.old, file.previous
    if old is None or previous is None or not old.level:
        return None
    fd = previous.open(file.path, old)
    if fd is None:
        return None
    try:
        changed = changed_ranges(fd, old.size_bytes, opened.fd, opened.before.st_size)
        data = data_ranges(opened.fd)
        if changed is None or data is None:
            return None
        return Tracked(list(iter_pieces(parent_nodes(store), old)), changed, data)
    except CorruptionError:
        return None
    finally:
        os.close(fd)


def plan_recipe(
    store: Store, tracked: Tracked, size_bytes: int, chunker: Chunker
) -> list[Kept | Gap] | None:
    """Plan the recipe of a file from the changed ranges; None if the store lacks an old chunk."""
    plan = list(plan_changes(tracked.pieces, tracked.changed, size_bytes, chunker=chunker))
    wanted = {ChunkId(part.piece.id) for part in plan if isinstance(part, Kept) and part.piece.id}
    return plan if store.index.usable(list(wanted)) == wanted else None


def expected_pieces(
    store: Store, tracked: Tracked, size_bytes: int, chunker: Chunker
) -> Iterator[Kept]:
    """Yield the old pieces that a full read must find again."""
    from ciuic.chunking.content import ContentChunker

    if isinstance(chunker, ContentChunker):
        places = store.index.places
        return unchanged_whole_chunks(tracked.pieces, tracked.changed, size_bytes, places=places)
    chunk_bytes = store.header.chunking.size_bytes
    return unchanged_chunks(
        tracked.pieces, tracked.changed, size_bytes, chunker=chunker, chunk_bytes=chunk_bytes
    )


def data_in(gaps: list[Gap], data: list[ByteRange]) -> Iterator[ByteRange]:
    """Yield the parts of the gaps that have data; both lists must be in order."""
    at = 0
    for gap in gaps:
        end = gap.offset_bytes + gap.length_bytes
        while at < len(data) and data[at].offset_bytes + data[at].length_bytes <= gap.offset_bytes:
            at += 1
        inner = at
        while inner < len(data) and data[inner].offset_bytes < end:
            stretch = data[inner]
            first = max(gap.offset_bytes, stretch.offset_bytes)
            last = min(end, stretch.offset_bytes + stretch.length_bytes)
            yield ByteRange(first, last - first)
            inner += 1

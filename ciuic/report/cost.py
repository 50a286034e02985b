"""Counts new content: bytes of chunks that a newer snapshot has and an older one does not.

Chunks are compared, not files: a file that was copied or renamed has no new content. Memory: about
ten bytes for each chunk of the store (``ciuic.store.gc.mark``).
"""

from collections.abc import Callable, Iterator
from typing import Final

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import NO_CONTENT, Entry
from ciuic.store.gc.mark import Marks, mark_tree
from ciuic.store.records.kinds import DATA
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import Store

__all__ = ["NewContent"]

_BATCH: Final = 4096


class NewContent:
    """Counts the bytes of files that are not in a snapshot; each chunk counts once.

    Args:
        store: An open store.
        before: The snapshot. The constructor reads all its trees.
        progress: Receives the number of roots that are read, and of all roots.

    Raises:
        CorruptionError: A tree of the snapshot or the chunk index is damaged.
    """

    def __init__(
        self,
        store: Store,
        before: Manifest,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self._store = store
        self._marks = Marks(store.index)
        trees = [root.tree for root in before.roots if root.tree]
        for number, tree in enumerate(trees):
            progress(number, len(trees))
            mark_tree(store.reader, self._marks, tree, check=lambda: None)

    def of(self, entry: Entry) -> int:
        """Count the bytes of a file's chunks that are neither in the snapshot nor counted yet.

        Raises:
            CorruptionError: The file's recipe is damaged.
        """
        if entry.lacks_content:
            raise CorruptionError(NO_CONTENT)
        if not entry.is_file or not entry.content:
            return 0
        if not entry.level:
            return self._add({ChunkId(entry.content): entry.size_bytes})
        return sum([self._add(lengths) for lengths in self._batches(entry)])

    def _batches(self, entry: Entry) -> Iterator[dict[ChunkId, int]]:
        """Yield batches of chunks, with the number of bytes that the file uses of each."""
        lengths: dict[ChunkId, int] = {}
        for piece in iter_pieces(self._store.reader.node, entry):
            if piece.id:
                used_bytes = piece.start_bytes + piece.length_bytes
                chunk_id = ChunkId(piece.id)
                lengths[chunk_id] = max(lengths.get(chunk_id, 0), used_bytes)
            if len(lengths) >= _BATCH:
                yield lengths
                lengths = {}
        yield lengths

    def _add(self, lengths: dict[ChunkId, int]) -> int:
        chunk_ids = list(lengths)
        needed = self._marks.needed(DATA, chunk_ids)
        new = [chunk_id for chunk_id, is_old in zip(chunk_ids, needed, strict=True) if not is_old]
        self._marks.add_data(new)
        # A file may use a slice of a chunk, but the store holds the whole chunk.
        places = self._store.reader.places(new)
        return sum(
            [
                places[chunk_id].length_bytes if chunk_id in places else lengths[chunk_id]
                for chunk_id in new
            ]
        )

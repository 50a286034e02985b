"""Checking recipes of any size in bounded memory and time: each node is read once.

A recipe may refer to the same node many times: a few nodes can describe a terabyte of zeros, or
more bytes than any disk holds. So the result for each node is kept. The pieces of a file are looked
up leaf by leaf and never listed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.records.kinds import RECIPE
from ciuic.store.records.nodes import EMPTY_NODE, LEVEL_MAX, WRONG_HINT, GetNode, index_children
from ciuic.store.records.recipe_nodes import PIECES_MAX, Piece, check_pieces, leaf_pieces

__all__ = ["FindLost", "Recipes"]


FindLost = Callable[[Sequence[Piece]], Mapping[ChunkId, ChunkId]]
"""Returns the chunks of these pieces that cannot be read, each with the chunk that is lost: the
chunk itself, or one of its delta bases."""


class _Extent(NamedTuple):
    """What is below a node.

    Attributes:
        length_bytes: Of all pieces.
        pieces: Number of pieces.
        is_sound: All their chunks can be read.
    """

    length_bytes: int
    pieces: int
    is_sound: bool


class Recipes:
    """Checks recipes, and remembers the result for each node.

    Args:
        get: Reads nodes.
        find_lost: Receives the pieces of each leaf, without the holes.
        checks_hints: Count wrong lengths in index nodes as damage. A restore does not use them.
    """

    def __init__(self, get: GetNode, find_lost: FindLost, *, checks_hints: bool = False) -> None:
        self._get = get
        self._find_lost = find_lost
        self._checks_hints = checks_hints
        self._known: list[dict[ChunkId, _Extent]] = [{} for _ in range(LEVEL_MAX + 1)]
        self._leaves: dict[ChunkId, list[Piece]] = {}

    def forget_leaves(self) -> None:
        """Drop the leaves that ``read_ahead`` has kept."""
        self._leaves = {}

    def read_ahead(self, entry: Entry) -> list[ChunkId]:
        """Return the chunks of a file whose recipe is a single leaf; the decoded leaf is kept.

        Raises:
            CorruptionError: The leaf is missing or damaged.
        """
        node_id = ChunkId(entry.content)
        if entry.level != 1 or node_id in self._known[0]:
            return []
        pieces = self._leaves.get(node_id)
        if pieces is None:
            pieces = self._leaves[node_id] = leaf_pieces(self._get(RECIPE, node_id))
        return [piece.id for piece in pieces if piece.id]

    def lost(self, entry: Entry) -> dict[ChunkId, ChunkId]:
        """Map each chunk of an unreadable recipe to the chunk that is lost.

        Raises:
            CorruptionError: A node is missing or damaged, or the pieces do not have the length of
                the file.
        """
        lost: dict[ChunkId, ChunkId] = {}
        met: set[tuple[int, ChunkId]] = set()
        extent = self._measure(ChunkId(entry.content), entry.level - 1, lost, met, is_top=True)
        check_pieces(extent.length_bytes, entry.size_bytes)
        return lost

    def is_sound(self, entry: Entry) -> bool:
        """Return whether the file's recipe was found sound before, for a file of this length."""
        if not 0 < entry.level <= LEVEL_MAX + 1:
            return False
        known = self._known[entry.level - 1].get(ChunkId(entry.content))
        return known is not None and known.is_sound and known.length_bytes == entry.size_bytes

    def _measure(
        self,
        node_id: ChunkId,
        level: int,
        lost: dict[ChunkId, ChunkId],
        met: set[tuple[int, ChunkId]],
        *,
        is_top: bool = False,
    ) -> _Extent:
        """Measure a node, and add its lost chunks to ``lost``.

        Args:
            node_id: The node.
            level: Of the node; 0 is a leaf.
            lost: Updated in place.
            met: Damaged nodes whose chunks are in ``lost`` already; updated in place.
            is_top: The node is the top of a recipe: only this may be empty.
        """
        if not 0 <= level <= LEVEL_MAX:
            raise CorruptionError(f"a node cannot be at level {level}")
        known = self._known[level].get(node_id)
        if known is not None and (known.is_sound or (level, node_id) in met):
            return known
        if level == 0:
            found = self._measure_leaf(node_id, lost, is_top=is_top)
        else:
            length = pieces = 0
            is_sound = True
            for child in index_children(self._get(RECIPE, node_id), level):
                below = self._measure(child.id, level - 1, lost, met)
                if self._checks_hints and (child.count, child.first) != (below.length_bytes, b""):
                    raise CorruptionError(WRONG_HINT)
                length += below.length_bytes
                pieces += below.pieces
                is_sound &= below.is_sound
                if pieces > PIECES_MAX:
                    raise CorruptionError(f"a file has more than {PIECES_MAX:,} pieces")
            found = _Extent(length, pieces, is_sound)
        self._known[level][node_id] = found
        if not found.is_sound:
            met.add((level, node_id))
        return found

    def _measure_leaf(
        self, node_id: ChunkId, lost: dict[ChunkId, ChunkId], *, is_top: bool
    ) -> _Extent:
        pieces = self._leaves.pop(node_id, None)
        if pieces is None:
            pieces = leaf_pieces(self._get(RECIPE, node_id))
        if not pieces and not is_top:
            raise CorruptionError(EMPTY_NODE)
        lengths = [piece.length_bytes for piece in pieces]
        if lengths and min(lengths) <= 0:
            raise CorruptionError("a file has a piece without a length")
        bad = self._find_lost([piece for piece in pieces if piece.id])
        lost.update(bad)
        return _Extent(sum(lengths), len(pieces), not bad)

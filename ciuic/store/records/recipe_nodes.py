"""Recipe nodes: the pieces of one large file, in order."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import NO_CONTENT, Entry
from ciuic.store.records.kinds import RECIPE
from ciuic.store.records.nodes import (
    EMPTY_NODE,
    Builder,
    GetNode,
    LeveledNode,
    Node,
    child_ids,
    decode_node,
    index_children,
)
from ciuic.system.hashing import ID_BYTES

__all__ = [
    "HOLE",
    "PIECES_MAX",
    "Piece",
    "RecipeBuilder",
    "check_pieces",
    "cut",
    "iter_pieces",
    "leaf_pieces",
    "pieces_from",
]

HOLE: Final = ChunkId(b"")
PIECES_MAX: Final = 1 << 28
"""The most pieces of a file: 256 TiB in pieces of 1 MiB, 1 TiB in pieces of 4 KiB."""
_MEASURED_LEVEL: Final = 3
"""ciuic measures recipes of more levels before it follows them. An honest file with that many
levels is longer than 8 GiB; measuring ends a hostile one at once."""
_ITEMS_MAX: Final = 512
_CUT_MASK: Final = 127
_I64_MAX: Final = 2**63 - 1
_TOO_LONG: Final = "a file's pieces are longer than the file"
_TOO_MANY: Final = f"a file has more than {PIECES_MAX:,} pieces"


class Piece(msgspec.Struct, array_like=True):
    """A range of a file: bytes of a chunk, or a hole if ``id`` is empty.

    Attributes:
        length_bytes: At least 1.
        id: The chunk.
        start_bytes: Where the bytes begin in the chunk. A piece that is shorter than its chunk is
            a slice: the part of an old chunk that is left after a change in its middle.
    """

    length_bytes: int
    id: ChunkId
    start_bytes: int = 0


class _Leaf(LeveledNode, array_like=True):
    items: list[Piece]


_decoder = msgspec.msgpack.Decoder(_Leaf)


class RecipeBuilder(Builder[Piece]):
    """Builds the recipe nodes of one file.

    Args:
        put: Stores nodes.
    """

    kind = RECIPE
    items_max = _ITEMS_MAX
    cut_mask = _CUT_MASK

    def _cuts_after(self, item: Piece) -> bool:
        return bool(item.id) and int.from_bytes(item.id[:2], "little") & self.cut_mask == 0

    def _first(self, item: Piece) -> bytes:  # noqa: ARG002 - recipes are searched by position
        return b""

    def _fields(self, items: list[Piece]) -> Sequence[object]:
        # Each piece has only one encoding: equal contents must have equal IDs.
        return [piece if piece.start_bytes else (piece.length_bytes, piece.id) for piece in items]

    def _weight(self, items: list[Piece]) -> int:
        return sum([piece.length_bytes for piece in items])


def iter_pieces(get: GetNode, entry: Entry) -> Iterator[Piece]:
    """Iterate over the pieces of a regular file in order; their lengths add up to ``size_bytes``.

    Raises:
        CorruptionError: A node is missing or is not what its parent says, or the pieces do not add
            up to the file's size.
    """
    if not entry.content:
        if entry.size_bytes:
            raise CorruptionError(NO_CONTENT)
        return
    content_id = ChunkId(entry.content)
    if entry.level == 0:
        yield Piece(entry.size_bytes, content_id)
        return
    if entry.level > _MEASURED_LEVEL:
        top = Node(RECIPE, entry.level - 1, content_id)
        _, length_bytes = _measure(get, top, entry.size_bytes, {}, is_top=True)
        check_pieces(length_bytes, entry.size_bytes)
    total = 0
    for count, piece in enumerate(_iter_leaf_pieces(get, content_id, entry.level - 1)):
        total += piece.length_bytes
        if count >= PIECES_MAX:
            raise CorruptionError(_TOO_MANY)
        if piece.length_bytes <= 0 or total > entry.size_bytes:
            raise CorruptionError(_TOO_LONG)
        yield piece
    check_pieces(total, entry.size_bytes)


def _iter_leaf_pieces(
    get: GetNode, node_id: ChunkId, level: int, *, is_top: bool = True
) -> Iterator[Piece]:
    if level == 0:
        pieces = leaf_pieces(get(RECIPE, node_id))
        if not pieces and not is_top:
            raise CorruptionError(EMPTY_NODE)
        yield from pieces
        return
    for child in index_children(get(RECIPE, node_id), level):
        yield from _iter_leaf_pieces(get, child.id, level - 1, is_top=False)


def _measure(
    get: GetNode,
    node: Node,
    size_bytes: int,
    known: dict[Node, tuple[int, int]],
    *,
    is_top: bool = False,
) -> tuple[int, int]:
    """Return how many pieces are below a recipe node, and their bytes; reads each node once.

    Raises:
        CorruptionError: The pieces do not fit into a file of this size, or a node is missing or
            damaged.
    """
    found = known.get(node)
    if found is not None:
        return found
    data = get(RECIPE, node.id)
    if node.level == 0:
        pieces = leaf_pieces(data)
        if not pieces and not is_top:
            raise CorruptionError(EMPTY_NODE)
        found = len(pieces), sum([piece.length_bytes for piece in pieces])
    else:
        children = [Node(RECIPE, node.level - 1, child) for child in child_ids(data, node.level)]
        below = [_measure(get, child, size_bytes, known) for child in children]
        found = sum([count for count, _ in below]), sum([length for _, length in below])
    if found[1] > size_bytes:
        check_pieces(found[1], size_bytes)
    if found[0] > PIECES_MAX:
        raise CorruptionError(_TOO_MANY)
    known[node] = found
    return found


def check_pieces(total_bytes: int, size_bytes: int) -> None:
    """Check that the lengths of a file's pieces add up to its size.

    Raises:
        CorruptionError: They do not.
    """
    if total_bytes != size_bytes:
        what = "longer" if total_bytes > size_bytes else "shorter"
        raise CorruptionError(f"a file's pieces are {what} than the file")


def pieces_from(get: GetNode, entry: Entry, offset_bytes: int) -> Iterator[tuple[int, Piece]]:
    """Iterate over the pieces of a regular file from the byte at an offset on, with their offsets.

    Nodes before that byte are not read, so the counts in index nodes must be right.

    Raises:
        CorruptionError: As ``iter_pieces``, or a count in an index node is wrong.
    """
    if entry.level == 0:
        yield from ((0, piece) for piece in iter_pieces(get, entry))
        return
    top = Node(RECIPE, entry.level - 1, ChunkId(entry.content))
    yield from _pieces_below(get, top, 0, entry.size_bytes, offset_bytes)


def _pieces_below(
    get: GetNode, node: Node, at: int, end: int, wanted: int
) -> Iterator[tuple[int, Piece]]:
    """Iterate over the pieces of a node that covers the file from ``at`` to ``end``."""
    data = get(RECIPE, node.id)
    if node.level == 0:
        for piece in leaf_pieces(data):
            if piece.length_bytes <= 0 or at + piece.length_bytes > end:
                raise CorruptionError(_TOO_LONG)
            if at + piece.length_bytes > wanted:
                yield at, piece
            at += piece.length_bytes
    else:
        for child in index_children(data, node.level):
            if child.count <= 0 or at + child.count > end:
                raise CorruptionError(_TOO_LONG)
            if at + child.count > wanted:
                inner = Node(RECIPE, node.level - 1, child.id)
                yield from _pieces_below(get, inner, at, at + child.count, wanted)
            at += child.count
    check_pieces(at, end)


def leaf_pieces(data: bytes) -> list[Piece]:
    """Decode a leaf of a recipe, and check each piece but its length.

    Raises:
        CorruptionError: ``data`` is not a leaf, or a piece has an ID or a start that no chunk has.
    """
    items = decode_node(_decoder, data, 0).items
    for piece in items:
        if len(piece.id) not in {0, ID_BYTES}:
            raise CorruptionError("a recipe names a chunk by an ID of a wrong length")
        if piece.start_bytes and not (piece.id and 0 < piece.start_bytes <= _I64_MAX):
            raise CorruptionError("a recipe names bytes that no chunk has")
    return items


def cut(chunk: memoryview, piece: Piece) -> memoryview:
    """Return the bytes of a piece out of its chunk.

    Raises:
        CorruptionError: The chunk is too short.
    """
    end = piece.start_bytes + piece.length_bytes
    if end > len(chunk):
        raise CorruptionError("a chunk is shorter than the recipe of its file says")
    return chunk[piece.start_bytes : end]

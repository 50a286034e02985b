"""Tree and recipe nodes: how directories and large files are spelled in chunks.

Both are the same shape: a sequence of items, cut into leaves of bounded size, with index nodes
above them when one leaf is not enough. Cuts depend on an item and not on its position, so that
one more file in a directory of a million, or one changed block in a terabyte, rewrites one leaf
and the nodes above it. Encoding: msgpack arrays, docs/format.md, "Nodes".
"""

import bisect
import operator
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from ciuic.errors import CorruptionError
from ciuic.hashing import ID_BYTES, checksum
from ciuic.model import Entry
from ciuic.store.frame import RECIPE, TREE

__all__ = [
    "HOLE",
    "LEVEL_MAX",
    "GetNode",
    "Lookup",
    "Node",
    "Piece",
    "PutNode",
    "RecipeBuilder",
    "TreeBuilder",
    "cut",
    "iter_pieces",
    "iter_tree",
    "pieces_from",
    "references",
]

PutNode = Callable[[int, bytes], bytes]
"""Stores a node of a kind and returns its ID."""
GetNode = Callable[[int, bytes], bytes]
"""Reads a node of a kind by its ID, checked."""

HOLE: Final = b""
LEVEL_MAX: Final = 8
"""With at least 32 children a node, more than any file system holds; bounds hostile depth."""
_ITEMS_MIN: Final = 32
_TREE_ITEMS_MAX: Final = 2048
_RECIPE_ITEMS_MAX: Final = 512
_TREE_CUT_MASK: Final = 511
_RECIPE_CUT_MASK: Final = 127
_U32_MAX: Final = 2**32 - 1
_I64_MIN: Final = -(2**63)
_I64_MAX: Final = 2**63 - 1
_DEVICE_BITS: Final = 0xFFF_000F_FFFF
"""Linux has 12 bits for a device's major number and 20 for its minor one."""


class Piece(msgspec.Struct, array_like=True):
    """A stretch of a file: bytes of a chunk, or a hole when ``id`` is empty.

    Attributes:
        length_bytes: At least 1.
        id: Of the chunk.
        start_bytes: Where in the chunk they begin. Less than all of a chunk is a slice: what is
            left of it where a file was changed in the middle.
    """

    length_bytes: int
    id: bytes
    start_bytes: int = 0


class Node(NamedTuple):
    """A node that another one refers to."""

    kind: int
    level: int
    id: bytes


class _Child(msgspec.Struct, array_like=True):
    """One child of an index node; ``first`` is a tree leaf's first name, empty in recipes."""

    count: int
    first: bytes
    id: bytes


class _TreeLeaf(msgspec.Struct, array_like=True):
    level: int
    items: list[Entry]


class _RecipeLeaf(msgspec.Struct, array_like=True):
    level: int
    items: list[Piece]


class _Index(msgspec.Struct, array_like=True):
    level: int
    items: list[_Child]


_encoder = msgspec.msgpack.Encoder()
_tree_decoder = msgspec.msgpack.Decoder(_TreeLeaf)
_recipe_decoder = msgspec.msgpack.Decoder(_RecipeLeaf)
_index_decoder = msgspec.msgpack.Decoder(_Index)

Item = TypeVar("Item", Entry, Piece)


class _Builder(Generic[Item]):
    """Cuts a sequence of items into nodes and stores them bottom up: children first."""

    def __init__(self, kind: int, put: PutNode, *, items_max: int, mask: int) -> None:
        self._kind = kind
        self._put = put
        self._items_max = items_max
        self._mask = mask
        self._leaf: list[Item] = []
        self._children: list[list[_Child]] = []

    def add(self, item: Item) -> None:
        """Append the next item; trees want them sorted by name."""
        self._leaf.append(item)
        count = len(self._leaf)
        if count >= self._items_max or (count >= _ITEMS_MIN and self._cuts_after(item)):
            self._flush_leaf()

    def finish(self) -> tuple[bytes, int]:
        """Store what is left; returns the top node's ID and level."""
        if self._leaf or not self._children:
            self._flush_leaf()
        level = 0
        while level < len(self._children):
            children = self._children[level]
            if len(children) == 1 and level == len(self._children) - 1:
                return children[0].id, level
            self._flush_index(level)
            level += 1
        raise AssertionError("the loop ends at the level with one child")

    def _cuts_after(self, item: Item) -> bool:
        raise NotImplementedError

    def _first(self, item: Item) -> bytes:
        raise NotImplementedError

    def _flush_leaf(self) -> None:
        items = self._leaf
        name = self._put(self._kind, _encoder.encode([0, self._fields(items)]))
        child = _Child(self._weight(items), self._first(items[0]) if items else b"", name)
        self._leaf = []
        self._add_child(0, child)

    def _fields(self, items: list[Item]) -> Sequence[object]:
        """What is encoded of a leaf's items."""
        return items

    def _weight(self, items: list[Item]) -> int:
        raise NotImplementedError

    def _add_child(self, level: int, child: _Child) -> None:
        if level == len(self._children):
            self._children.append([])
        children = self._children[level]
        children.append(child)
        count = len(children)
        cut = int.from_bytes(child.id[:2], "little") & self._mask == 0
        if count >= self._items_max or (count >= _ITEMS_MIN and cut):
            self._flush_index(level)

    def _flush_index(self, level: int) -> None:
        children = self._children[level]
        if not children:
            return
        self._children[level] = []
        name = self._put(self._kind, _encoder.encode([level + 1, children]))
        total = sum([child.count for child in children])
        self._add_child(level + 1, _Child(total, children[0].first, name))


class TreeBuilder(_Builder[Entry]):
    """Builds the tree nodes of one directory."""

    def __init__(self, put: PutNode) -> None:
        super().__init__(TREE, put, items_max=_TREE_ITEMS_MAX, mask=_TREE_CUT_MASK)

    def _cuts_after(self, item: Entry) -> bool:
        return checksum(item.name) & self._mask == 0

    def _first(self, item: Entry) -> bytes:
        return item.name

    def _weight(self, items: list[Entry]) -> int:
        return len(items)


class RecipeBuilder(_Builder[Piece]):
    """Builds the recipe nodes of one file."""

    def __init__(self, put: PutNode) -> None:
        super().__init__(RECIPE, put, items_max=_RECIPE_ITEMS_MAX, mask=_RECIPE_CUT_MASK)

    def _cuts_after(self, item: Piece) -> bool:
        return bool(item.id) and int.from_bytes(item.id[:2], "little") & self._mask == 0

    def _first(self, item: Piece) -> bytes:  # noqa: ARG002 - recipes are searched by position
        return b""

    def _fields(self, items: list[Piece]) -> Sequence[object]:
        # One spelling only for each piece: equal contents must have equal IDs.
        return [one if one.start_bytes else (one.length_bytes, one.id) for one in items]

    def _weight(self, items: list[Piece]) -> int:
        return sum([piece.length_bytes for piece in items])


class Lookup:
    """Finds entries of one directory by name, reading one node a level.

    The nodes on the way to the last name are kept: of names that are asked for in their order, no
    node is read twice.

    Args:
        get: Reads nodes.
        name: Of the directory's top node.
        level: Likewise.

    Raises:
        CorruptionError: There is no such level.
    """

    def __init__(self, get: GetNode, name: bytes, level: int) -> None:
        if level < 0:
            raise CorruptionError(f"a node can't be at level {level}")
        self._get = get
        self._top = name
        self._level = level
        self._indexes: dict[int, tuple[bytes, list[_Child]]] = {}
        self._leaf: tuple[bytes, dict[bytes, Entry]] | None = None

    def find(self, wanted: bytes) -> Entry | None:
        """The entry of this name; None if there is none.

        Raises:
            CorruptionError: A node on the way is missing or is not what its parent says.
        """
        name = self._top
        for level in range(self._level, 0, -1):
            children = self._children(name, level)
            behind = bisect.bisect_right(children, wanted, key=operator.attrgetter("first"))
            if behind == 0:
                return None
            name = children[behind - 1].id
        return self._entries(name).get(wanted)

    def _children(self, name: bytes, level: int) -> list[_Child]:
        kept = self._indexes.get(level)
        if kept is None or kept[0] != name:
            kept = self._indexes[level] = (name, _children(self._get(TREE, name), level))
        return kept[1]

    def _entries(self, name: bytes) -> dict[bytes, Entry]:
        kept = self._leaf
        if kept is None or kept[0] != name:
            entries = _entries(self._get(TREE, name))
            kept = self._leaf = (name, {one.name: one for one in entries})
        return kept[1]


def iter_tree(get: GetNode, name: bytes, level: int) -> Iterator[Entry]:
    """The entries of a directory in the order of their names.

    Raises:
        CorruptionError: A node is missing or is not what its parent says.
    """
    last = None
    for entry in _iter_entries(get, name, level):
        # Without this a few nodes that name each other many times over would never end.
        if last is not None and entry.name <= last:
            raise CorruptionError("the names of a directory are not in order")
        last = entry.name
        yield entry


def iter_pieces(get: GetNode, entry: Entry) -> Iterator[Piece]:
    """The pieces of a regular file in order; together they are ``size_bytes`` long.

    Raises:
        CorruptionError: As ``iter_tree``, or the pieces do not add up to the file's size.
    """
    if not entry.content:
        if entry.size_bytes:
            raise CorruptionError("a file without content has a length")
        return
    if entry.level == 0:
        yield Piece(entry.size_bytes, entry.content)
        return
    total = 0
    for piece in _iter_recipe(get, entry.content, entry.level - 1):
        total += piece.length_bytes
        if piece.length_bytes <= 0 or total > entry.size_bytes:
            raise CorruptionError("a file's pieces are longer than the file")
        yield piece
    if total != entry.size_bytes:
        raise CorruptionError("a file's pieces are shorter than the file")


def pieces_from(get: GetNode, entry: Entry, offset_bytes: int) -> Iterator[tuple[int, Piece]]:
    """The piece of a regular file that holds a byte, and all behind it, with their offsets.

    What lies before is not read; an index node has to be right about what is below it.

    Raises:
        CorruptionError: As ``iter_pieces``.
    """
    if entry.level == 0:
        yield from ((0, piece) for piece in iter_pieces(get, entry))
        return
    yield from _recipe_from(
        get, Node(RECIPE, entry.level - 1, entry.content), 0, entry.size_bytes, offset_bytes
    )


def references(kind: int, data: bytes, level: int) -> tuple[list[Node], list[bytes]]:
    """The nodes and the data chunks that a node refers to, as they stand in it.

    Raises:
        CorruptionError: It is not a node of this kind and level, or refers to what can't be.
    """
    if level > 0:
        return [Node(kind, level - 1, one.id) for one in _children(data, level)], []
    if kind == RECIPE:
        return [], [piece.id for piece in _pieces(data) if piece.id]
    nodes, chunks = [], []
    # Whatever else may be wrong with an entry, what it refers to is no garbage.
    for entry in _decoded(_tree_decoder, data, 0).items:
        content, format_bits = entry.content, stat.S_IFMT(entry.mode & _U32_MAX)
        if not content:
            continue
        if format_bits == stat.S_IFDIR:
            nodes.append(Node(TREE, entry.level, content))
        elif format_bits == stat.S_IFREG and entry.level:
            nodes.append(Node(RECIPE, entry.level - 1, content))
        elif format_bits == stat.S_IFREG:
            chunks.append(content)
    return nodes, chunks


def cut(chunk: memoryview, piece: Piece) -> memoryview:
    """The bytes of a piece, out of its chunk.

    Raises:
        CorruptionError: The chunk does not have them.
    """
    end = piece.start_bytes + piece.length_bytes
    if end > len(chunk):
        raise CorruptionError("a chunk is shorter than its file wants it")
    return chunk[piece.start_bytes : end]


def _iter_entries(get: GetNode, name: bytes, level: int, *, is_top: bool = True) -> Iterator[Entry]:
    if level == 0:
        entries = _entries(get(TREE, name))
        if not entries and not is_top:
            raise CorruptionError("a node refers to one that is empty")
        yield from entries
        return
    for child in _children(get(TREE, name), level):
        yield from _iter_entries(get, child.id, level - 1, is_top=False)


def _iter_recipe(get: GetNode, name: bytes, level: int, *, is_top: bool = True) -> Iterator[Piece]:
    if level == 0:
        pieces = _pieces(get(RECIPE, name))
        if not pieces and not is_top:
            raise CorruptionError("a node refers to one that is empty")
        yield from pieces
        return
    for child in _children(get(RECIPE, name), level):
        yield from _iter_recipe(get, child.id, level - 1, is_top=False)


def _recipe_from(
    get: GetNode, node: Node, at: int, end: int, wanted: int
) -> Iterator[tuple[int, Piece]]:
    """The pieces of a node that spells a file from ``at`` to ``end``."""
    data = get(RECIPE, node.id)
    if node.level == 0:
        for piece in _pieces(data):
            if piece.length_bytes <= 0 or at + piece.length_bytes > end:
                raise CorruptionError("a file's pieces are longer than the file")
            if at + piece.length_bytes > wanted:
                yield at, piece
            at += piece.length_bytes
    else:
        for child in _children(data, node.level):
            if child.count <= 0 or at + child.count > end:
                raise CorruptionError("a file's pieces are longer than the file")
            if at + child.count > wanted:
                inner = Node(RECIPE, node.level - 1, child.id)
                yield from _recipe_from(get, inner, at, at + child.count, wanted)
            at += child.count
    if at != end:
        raise CorruptionError("a file's pieces are shorter than the file")


def _pieces(data: bytes) -> list[Piece]:
    """The pieces of a leaf, free of what no chunk has."""
    items = _decoded(_recipe_decoder, data, 0).items
    for piece in items:
        if len(piece.id) not in {0, ID_BYTES}:
            raise CorruptionError("a recipe names a chunk by an ID of a wrong length")
        if piece.start_bytes and not (piece.id and 0 < piece.start_bytes <= _I64_MAX):
            raise CorruptionError("a recipe names bytes that no chunk has")
    return items


def _entries(data: bytes) -> list[Entry]:
    """The entries of a leaf, free of what no file system has and no system call takes."""
    items = _decoded(_tree_decoder, data, 0).items
    for one in items:
        if (
            (one.mode | one.uid | one.gid) >> 32
            or one.size_bytes >> 63
            or not _I64_MIN <= one.mtime_ns <= _I64_MAX
            or not _I64_MIN <= one.ctime_ns <= _I64_MAX
            or (one.ino | one.link_dev) >> 64
            or one.rdev & ~_DEVICE_BITS
            or (b"\0" in one.content and one.is_symlink)
            or (one.xattrs and any(b"\0" in name for name, _ in one.xattrs))
        ):
            raise CorruptionError("an entry holds a value that is out of range")
    return items


def _children(data: bytes, level: int) -> list[_Child]:
    if not 0 < level <= LEVEL_MAX:
        raise CorruptionError(f"a node can't be at level {level}")
    items = _decoded(_index_decoder, data, level).items
    if not items:
        raise CorruptionError("a node refers to nothing")
    return items


_Node = TypeVar("_Node", _TreeLeaf, _RecipeLeaf, _Index)


def _decoded(decoder: "msgspec.msgpack.Decoder[_Node]", data: bytes, level: int) -> _Node:
    try:
        node = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a node can't be decoded: {error}") from error
    if node.level != level:
        raise CorruptionError(f"a node of level {node.level} stands where level {level} must be")
    return node

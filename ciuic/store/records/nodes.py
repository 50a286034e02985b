"""What tree nodes and recipe nodes share: the list of items, cut into leaves and index nodes.

A list of items is cut into leaves of bounded size, with index nodes above them if one leaf is not
enough. A cut depends on the item and not on its position. One more file in a directory of a
million, or one changed block in a terabyte, therefore rewrites one leaf and the index nodes above
it. Encoding: msgpack arrays, docs/format.md, "Nodes".
"""

import bisect
import operator
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId

__all__ = [
    "EMPTY_NODE",
    "ITEMS_MIN",
    "LEVEL_MAX",
    "WRONG_HINT",
    "Builder",
    "Child",
    "GetNode",
    "Index",
    "LeveledNode",
    "Node",
    "PutNode",
    "child_ids",
    "child_with",
    "decode_node",
    "encode_node",
    "index_children",
]

PutNode = Callable[[int, bytes], ChunkId]
"""Stores a node of a kind and returns its ID."""
GetNode = Callable[[int, ChunkId], bytes]
"""Reads a node of a kind by its ID, and checks it."""

LEVEL_MAX: Final = 8
"""More than any file system needs, as index nodes but the last have at least 32 children. It bounds
the depth of hostile nodes."""
ITEMS_MIN: Final = 32
EMPTY_NODE: Final = "an index node refers to an empty node"
WRONG_HINT: Final = "an index node states a wrong count or first name; a restore does not use these"


class Node(NamedTuple):
    """A node that another node or an entry refers to."""

    kind: int
    level: int
    id: ChunkId


class Child(msgspec.Struct, array_like=True):
    """A child of an index node.

    Attributes:
        count: Entries below it, or bytes of the file below it.
        first: The first name below it; empty in recipes.
        id: The child's ID.
    """

    count: int
    first: bytes
    id: ChunkId


class LeveledNode(msgspec.Struct, array_like=True):
    """What every node begins with: its level, 0 for a leaf."""

    level: int


class Index(LeveledNode, array_like=True):
    """An index node."""

    items: list[Child]


encode_node: Final = msgspec.msgpack.Encoder().encode
_index_decoder = msgspec.msgpack.Decoder(Index)

Item = TypeVar("Item")


class Builder(Generic[Item]):
    """Cuts a list of items into nodes, and stores children before their parents.

    Args:
        put: Stores nodes.

    Attributes:
        kind: ``TREE`` or ``RECIPE``.
        items_max: The most items of a node.
        cut_mask: A node ends after an item whose hash is 0 under this mask.
    """

    kind: ClassVar[int]
    items_max: ClassVar[int]
    cut_mask: ClassVar[int]

    def __init__(self, put: PutNode) -> None:
        self._put = put
        self._leaf: list[Item] = []
        self._children: list[list[Child]] = []

    def add(self, item: Item) -> None:
        """Append the next item. Entries of a tree must come sorted by name."""
        self._leaf.append(item)
        count = len(self._leaf)
        if count >= ITEMS_MIN and (count >= self.items_max or self._cuts_after(item)):
            self._flush_leaf()

    def finish(self) -> tuple[ChunkId, int]:
        """Store the remaining nodes and return the ID and level of the top node."""
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
        node_id = self._put(self.kind, encode_node([0, self._fields(items)]))
        child = Child(self._weight(items), self._first(items[0]) if items else b"", node_id)
        self._leaf = []
        self._add_child(0, child)

    def _fields(self, items: list[Item]) -> Sequence[object]:
        """Return the encoded form of a leaf's items."""
        return items

    def _weight(self, items: list[Item]) -> int:
        """Return the ``count`` of a leaf, for its parent."""
        raise NotImplementedError

    def _add_child(self, level: int, child: Child) -> None:
        if level == len(self._children):
            self._children.append([])
        children = self._children[level]
        children.append(child)
        count = len(children)
        cuts = int.from_bytes(child.id[:2], "little") & self.cut_mask == 0
        if count >= self.items_max or (count >= ITEMS_MIN and cuts):
            self._flush_index(level)

    def _flush_index(self, level: int) -> None:
        children = self._children[level]
        if not children:
            return
        self._children[level] = []
        node_id = self._put(self.kind, encode_node([level + 1, children]))
        total = sum([child.count for child in children])
        self._add_child(level + 1, Child(total, children[0].first, node_id))


def child_ids(data: bytes, level: int) -> list[ChunkId]:
    """Return the IDs of an index node's children, in order.

    Raises:
        CorruptionError: ``data`` is not an index node of this level.
    """
    return [child.id for child in index_children(data, level)]


def index_children(data: bytes, level: int) -> list[Child]:
    """Decode an index node and return its children, at least one.

    Raises:
        CorruptionError: ``data`` is not an index node of this level.
    """
    if not 0 < level <= LEVEL_MAX:
        raise CorruptionError(f"a node cannot be at level {level}")
    children = decode_node(_index_decoder, data, level).items
    if not children:
        raise CorruptionError("an index node has no children")
    return children


def child_with(children: Sequence[Child], name: bytes) -> ChunkId | None:
    """Return the ID of the child that may have the entry of this name; None if none can."""
    number = bisect.bisect_right(children, name, key=operator.attrgetter("first"))
    return children[number - 1].id if number else None


AnyNode = TypeVar("AnyNode", bound=LeveledNode)


def decode_node(decoder: "msgspec.msgpack.Decoder[AnyNode]", data: bytes, level: int) -> AnyNode:
    """Decode a node and check its level.

    Raises:
        CorruptionError: ``data`` is not a node of this kind and level.
    """
    try:
        node = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a node cannot be decoded: {error}") from error
    if node.level != level:
        raise CorruptionError(f"a node is of level {node.level} where level {level} is expected")
    return node

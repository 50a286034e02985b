"""Walking trees of any size and shape in bounded memory and time. docs/format.md, "Limits".

A directory is read leaf by leaf. On the way down, only the lowest directories keep decoded nodes.
The others remember their position, and read that leaf again. A tree counts as damaged if it is
deeper than any snapshot, or if it has more paths than a store of this size can hold, which is
possible only if the same directories are referenced over and over.
"""

import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.store.records.kinds import TREE
from ciuic.store.records.nodes import EMPTY_NODE, LEVEL_MAX, Child, GetNode, index_children
from ciuic.store.records.tree_nodes import DEPTH_MAX, UNORDERED, leaf_entries
from ciuic.units import counted

__all__ = ["KEPT_MAX", "TOO_DEEP", "Cursor", "IndexHints", "PathBudget", "path_limit", "relax"]

_PATHS_MIN: Final = 1 << 16
_PATHS_PER_BYTE: Final = 8
"""Even the entry of an empty file takes more than a byte in its pack. Hard links and bind mounts
can give a few directories many paths."""
_HELD_BYTES: Final = 4 * 1024 * 1024
"""Encoded size of the nodes that all directories on the way down keep; decoded, ten times that."""
_LOST_MAX: Final = 1000
"""Nodes of one directory that a walk goes past: in a hostile store they could have no end."""
KEPT_MAX: Final = 16
"""Directories that keep nodes; the children of index nodes are not counted."""
TOO_DEEP: Final = f"it is more than {DEPTH_MAX} directories deep"


def path_limit(pack_sizes: Sequence[int]) -> int:
    """Return the number of paths that one walk may meet, from the lengths of all packs."""
    return _PATHS_MIN + _PATHS_PER_BYTE * sum(pack_sizes)


def _too_many(limit: int) -> str:
    return f"it holds more than {counted(limit, 'path')}, which a store of this size cannot"


class PathBudget:
    """Counts the paths of one walk.

    Args:
        pack_sizes: Returns the lengths of the store's packs; called above the smallest limit.
    """

    def __init__(self, pack_sizes: Callable[[], Sequence[int]]) -> None:
        self._pack_sizes: Callable[[], Sequence[int]] | None = pack_sizes
        self._limit = _PATHS_MIN
        self._count = 0

    @property
    def is_spent(self) -> bool:
        """The walk has met more paths than the limit."""
        return self._count > self._limit

    def spend(self, count: int) -> None:
        """Count more paths.

        Raises:
            CorruptionError: These exceed the limit.
        """
        self._count += count
        if not self.is_spent:
            return
        if self._pack_sizes is not None:
            self._limit = path_limit(self._pack_sizes())
            self._pack_sizes = None
        if self.is_spent:
            raise CorruptionError(_too_many(self._limit))


class IndexHints:
    """Compares the counts and first names in a directory's index nodes with its leaves.

    Attributes:
        is_wrong: One of them is wrong. A restore does not use them; a search for a name does.
        is_cut: A node of the directory cannot be read, so ``is_wrong`` means nothing.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.is_wrong = False
        self._stated: dict[int, tuple[int, bytes]] = {}
        self._found: dict[int, tuple[int, bytes]] = {}

    def enter(self, level: int, child: Child) -> None:
        """Go on with a child of an index node of this level; the child before it ends here."""
        self.leave(level)
        self._stated[level] = child.count, child.first

    def add_leaf(self, leaf: Sequence[Entry]) -> None:
        """Count the entries of a leaf for each index node above it."""
        for level in self._stated:
            count, first = self._found.get(level, (0, leaf[0].name if leaf else b""))
            self._found[level] = count + len(leaf), first

    def leave(self, level: int) -> None:
        """Compare the last child of an index node of this level."""
        stated, found = self._stated.pop(level, None), self._found.pop(level, None)
        self.is_wrong |= stated is not None and stated != found


class Cursor:
    """The entries of one directory in the order of their names.

    Args:
        get: Reads nodes.
        directory: The directory's entry, with content.
        depth: The number of directories above it in the walk.
        budget: Counts each entry; None: the entries are not counted.
        hints: Compares what index nodes state with what is below them; None: not compared.

    Attributes:
        held_bytes: Encoded size of the nodes that it keeps decoded.
    """

    def __init__(
        self,
        get: GetNode,
        directory: Entry,
        *,
        depth: int,
        budget: PathBudget | None = None,
        hints: IndexHints | None = None,
    ) -> None:
        self._get = get
        self._budget = budget
        self._hints = hints
        self._is_too_deep = depth >= DEPTH_MAX
        tree_id = ChunkId(directory.content)
        # Node, level, number of the next child: from the top down to the index above the next leaf.
        self._way: list[tuple[ChunkId, int, int]] = [(tree_id, directory.level, 0)]
        self._indexes: dict[int, tuple[ChunkId, list[Child]]] = {}
        self._is_small = directory.level == 0
        self._leaf_id: ChunkId | None = None
        self._leaf: list[Entry] | None = None
        self._at = 0
        self._last = b""
        self.held_bytes = 0
        self._lost = 0

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        found = self.next()
        if found is None:
            raise StopIteration
        return found

    def next(self) -> Entry | None:
        """Return the next entry; None after the last.

        Raises:
            CorruptionError: A node is missing or damaged, the directory is too deep, or there are
                too many entries.
        """
        while True:
            leaf = self._current()
            if self._at < len(leaf):
                self._at += 1
                return leaf[self._at - 1]
            if self.next_leaf() is None:
                return None

    def next_directory(self) -> Entry | None:
        """Return the next directory that is not empty in the current leaf; None after the last."""
        leaf = self._current()
        for at in range(self._at, len(leaf)):
            entry = leaf[at]
            if entry.content and stat.S_IFMT(entry.mode) == stat.S_IFDIR:
                self._at = at + 1
                return entry
        self._at = len(leaf)
        return None

    def next_leaf(self) -> list[Entry] | None:
        """Return all entries of the next leaf; None after the last.

        ``next`` and ``next_directory`` continue at its first entry.

        Raises:
            CorruptionError: As ``next``.
        """
        if self._is_too_deep:
            raise CorruptionError(TOO_DEEP)
        found = self._next_leaf_id()
        if found is None:
            self.rest()
            self._leaf_id = None
            return None
        leaf = self._load(found)
        if leaf and leaf[0].name <= self._last:
            raise CorruptionError(UNORDERED)
        if not leaf and not self._is_small:
            raise CorruptionError(EMPTY_NODE)
        if self._budget is not None:
            self._budget.spend(len(leaf))
        if self._hints is not None:
            self._hints.add_leaf(leaf)
        self._leaf_id, self._leaf, self._at = found, leaf, 0
        self._last = leaf[-1].name if leaf else self._last
        return leaf

    def pass_leaf(self) -> None:
        """Skip the rest of the current leaf, and drop what is decoded."""
        self._at = len(self._current())
        self._leaf_id, self._leaf, self.held_bytes = None, None, 0

    def go_past(self) -> bool:
        """Go on behind the node that ``next`` could not read; returns false if that is no use."""
        self._leaf_id, self._leaf, self.held_bytes = None, None, 0
        self._lost += 1
        return bool(self._way) and not self._is_too_deep and self._lost <= _LOST_MAX

    def rest(self) -> None:
        """Drop the decoded nodes. They are read again when they are needed."""
        self._leaf = None
        self._indexes.clear()
        self.held_bytes = 0

    def _current(self) -> list[Entry]:
        if not self._leaf_id:
            return []
        if self._leaf is None:
            self._leaf = self._load(self._leaf_id)
        return self._leaf

    def _load(self, node_id: ChunkId) -> list[Entry]:
        data = self._get(TREE, node_id)
        self.held_bytes = len(data)
        return leaf_entries(data)

    def _next_leaf_id(self) -> ChunkId | None:
        while self._way:
            node_id, level, number = self._way.pop()
            if not 0 <= level <= LEVEL_MAX:
                raise CorruptionError(f"a node cannot be at level {level}")
            if level == 0:
                return node_id
            children = self._children(node_id, level)
            if number < len(children):
                child = children[number]
                self._way.append((node_id, level, number + 1))
                self._way.append((child.id, level - 1, 0))
                if self._hints is not None:
                    self._hints.enter(level, child)
            elif self._hints is not None:
                self._hints.leave(level)
        return None

    def _children(self, node_id: ChunkId, level: int) -> list[Child]:
        kept = self._indexes.get(level)
        if kept is None or kept[0] != node_id:
            kept = self._indexes[level] = (node_id, index_children(self._get(TREE, node_id), level))
        return kept[1]


def relax(way: Sequence[Cursor]) -> None:
    """Make all directories on the way down drop their decoded nodes, except the lowest ones.

    Must be called whenever a directory was entered: it stops at a directory that has dropped its
    nodes before.
    """
    held_bytes = 0
    for number, cursor in enumerate(reversed(way)):
        if number and held_bytes and not cursor.held_bytes:
            break
        held_bytes += cursor.held_bytes
        if number and (held_bytes > _HELD_BYTES or number >= KEPT_MAX):
            cursor.rest()

"""The walk through trees that finds damage: a directory that was found sound is walked once."""

import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.model import Entry, Root
from ciuic.store.records.nodes import WRONG_HINT, GetNode
from ciuic.store.records.tree_nodes import DEPTH_MAX, read_root
from ciuic.view.located import inner_path
from ciuic.view.tree_walk import KEPT_MAX, TOO_DEEP, Cursor, IndexHints, PathBudget, relax

__all__ = ["DamageWalk", "Directory", "Visit"]

_NAMED_MAX: Final = 100_000
"""Damaged paths of a tree. After these, equal directories with damage are named once each."""
_UNREADABLE: Final = "the directory cannot be read"
_SAME_DAMAGE: Final = "it holds the same damage as other directories"


class Directory:
    """A directory that the walk has entered.

    Attributes:
        parent: The directory above it; None at the top.
        path: Of the directory.
        tree: ID of its top node.
        is_sound: No damage is known in it or below it.
        depth: How many levels of directories are below it, as far as known.
        paths: How many paths are below it, as far as known.
    """

    __slots__ = ("depth", "is_sound", "parent", "path", "paths", "tree")

    def __init__(self, parent: "Directory | None", path: bytes, tree: ChunkId) -> None:
        self.parent = parent
        self.path = path
        self.tree = tree
        self.is_sound = True
        self.depth = 0
        self.paths = 0

    def add_below(self, depth: int, paths: int) -> None:
        """Count a directory in this one, with ``depth`` levels and ``paths`` paths below it."""
        self.depth = max(self.depth, depth + 1)
        self.paths += paths


class Visit(NamedTuple):
    """A step of the walk.

    Attributes:
        directory: Where the walk is.
        files: The files of a leaf that was read. None: the walk leaves the directory, or cannot
            read it.
        failure: Why the directory cannot be read; empty if it can.
        lacks_node: It cannot be read because of the node that was read last.
    """

    directory: Directory
    files: Sequence[Entry] | None = None
    failure: str = ""
    lacks_node: bool = False

    @property
    def is_last(self) -> bool:
        """The walk leaves the directory: all its entries, and all below it, were visited."""
        return self.files is None and not self.failure


class _Level(NamedTuple):
    """A directory on the way down, its entries, and whether its index nodes are right."""

    directory: Directory
    cursor: Cursor
    hints: IndexHints | None


class DamageWalk:
    """Walks trees. The caller judges the files, marks directories, and records them.

    It may do so later than the walk visits them, for many directories together.

    Args:
        get: Reads nodes.
        pack_sizes: Returns the lengths of the store's packs.
        checks_hints: A directory whose index nodes state wrong counts or names counts as damaged.
            A restore does not use these.
    """

    def __init__(
        self,
        get: GetNode,
        pack_sizes: Callable[[], Sequence[int]],
        *,
        checks_hints: bool = False,
    ) -> None:
        self._get = get
        self._pack_sizes = pack_sizes
        self._checks_hints = checks_hints
        self._sound: dict[ChunkId, tuple[int, int]] = {}
        self._unsound: set[ChunkId] = set()
        self._named = 0

    def visit_root(self, root: Root) -> Iterator[Visit]:
        """Visit all directories of a root, as ``visit``; nothing if it has no tree."""
        if not root.tree:
            return
        try:
            top = read_root(self._get, root.tree)
        except (CorruptionError, UnknownFormatError) as error:
            directory = Directory(None, root.path, root.tree)
            yield Visit(directory, None, f"{_UNREADABLE}: {error.message}", lacks_node=True)
            return
        if top.content:
            yield from self.visit(root.path, top)

    def visit(self, path: bytes, top: Entry) -> Iterator[Visit]:
        """Visit a directory and all directories below it: each of their leaves, failures, the end.

        Args:
            path: Of the directory.
            top: Its entry, with content.
        """
        self._named = 0
        budget = PathBudget(self._pack_sizes)
        # Not by recursion: trees can be deeper than the stack.
        levels = [self._entered([], path, top, budget)]
        while levels:
            level = levels[-1]
            inner, files = None, None
            try:
                inner = level.cursor.next_directory()
                if inner is not None and self._is_known(level, inner, len(levels), budget):
                    continue
                files = _next_files(level) if inner is None else None
            except (CorruptionError, UnknownFormatError) as error:
                if level.hints is not None:
                    level.hints.is_cut = True
                yield _failure(levels, error.message, budget)
                if budget.is_spent:
                    return
            if inner is not None:
                inside = inner_path(level.directory.path, inner.name)
                levels.append(self._entered(levels, inside, inner, budget))
                if self._named >= _NAMED_MAX and inner.content in self._unsound:
                    yield Visit(levels.pop().directory, None, _SAME_DAMAGE)
            elif files is not None:
                yield Visit(level.directory, files)
            else:
                if level.hints is not None and level.hints.is_wrong and not level.hints.is_cut:
                    yield Visit(level.directory, None, WRONG_HINT)
                yield self._left(levels)

    def mark_damaged(self, directory: Directory, named: int) -> None:
        """Mark a directory and all above it as damaged: ``named`` more paths of it are named."""
        self._named += named
        above: Directory | None = directory
        while above is not None and above.is_sound:
            above.is_sound = False
            above = above.parent

    def record(self, directory: Directory) -> None:
        """Remember whether a directory is sound that the walk has left and the caller judged."""
        if directory.is_sound:
            self._sound[directory.tree] = directory.depth, directory.paths
            self._unsound.discard(directory.tree)
        else:
            self._unsound.add(directory.tree)

    def is_unsound(self, tree: bytes) -> bool:
        """Return whether a directory with this top node was found to be damaged."""
        return tree in self._unsound

    def _entered(
        self, levels: list[_Level], path: bytes, entry: Entry, budget: PathBudget
    ) -> _Level:
        hints = IndexHints() if self._checks_hints and entry.level > 0 else None
        cursor = Cursor(self._get, entry, depth=len(levels), budget=budget, hints=hints)
        relax([*[level.cursor for level in levels[-KEPT_MAX:]], cursor])
        parent = levels[-1].directory if levels else None
        return _Level(Directory(parent, path, ChunkId(entry.content)), cursor, hints)

    def _is_known(self, level: _Level, inner: Entry, depth: int, budget: PathBudget) -> bool:
        """Return whether an equal directory was walked before, and this one is sound as well."""
        known = self._sound.get(ChunkId(inner.content))
        if known is None or depth + known[0] >= DEPTH_MAX:
            return False
        level.directory.add_below(*known)
        budget.spend(known[1])
        return True

    @staticmethod
    def _left(levels: list[_Level]) -> Visit:
        directory = levels.pop().directory
        if levels:
            levels[-1].directory.add_below(directory.depth, directory.paths)
        return Visit(directory)


def _next_files(level: _Level) -> list[Entry] | None:
    """Return the files of the next leaf; None if there is none."""
    leaf = level.cursor.next_leaf()
    if leaf is None:
        return None
    # Not by ``is_file``: that would be a call for each of a million entries.
    files = [entry for entry in leaf if stat.S_IFMT(entry.mode) == stat.S_IFREG]
    level.directory.paths += len(leaf)
    if len(files) == len(leaf):
        level.cursor.pass_leaf()
    return files


def _failure(levels: list[_Level], message: str, budget: PathBudget) -> Visit:
    """The lowest directory cannot be read, or the whole tree is too large."""
    # Too many paths are not damage of the one directory that holds the last of them.
    level = levels[0] if budget.is_spent else levels[-1]
    lacks_node = not budget.is_spent and TOO_DEEP not in message
    return Visit(level.directory, None, f"{_UNREADABLE}: {message}", lacks_node)

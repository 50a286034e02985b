"""Finding an absolute path in a snapshot."""

import itertools
import os
import re
from functools import cached_property
from typing import Final

from ciuic.errors import CorruptionError, PathNotFoundError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.model import Entry, Root, bash_quoted, path_text
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.nodes import GetNode
from ciuic.store.records.tree_nodes import Lookup
from ciuic.store.store import Store
from ciuic.view.left_out import LeftOut
from ciuic.view.listing import children
from ciuic.view.located import (
    Located,
    PartRoot,
    inner_path,
    read_root_entry,
    unread_root_error,
)

__all__ = ["Locator", "Nodes", "locate"]

_SUGGESTED_MAX: Final = 3
_COMPARED_MAX: Final = 10_000
"""Names that are compared with a name that was not found."""
_BYTE: Final = rb"\\(?:x([0-9a-f]{2})|udc([89a-f][0-9a-f]))"
"""A byte as tables and as JSON show it."""


def locate(store: Store, manifest: Manifest, path: bytes) -> Located:
    """Return the entry of an absolute path.

    Raises:
        PathNotFoundError: The snapshot does not have it; the hint suggests similar names.
        CorruptionError: A directory above it is damaged.
    """
    return Locator(store, manifest).locate(path)


class _Step:
    """A path on the way to another one; ``like`` is a step that may have read its directory."""

    def __init__(self, located: Located, get: GetNode, like: "_Step | None" = None) -> None:
        self.located = located
        self._get = get
        self._lookup: Lookup | None = None
        if like is not None and _tree(like.located.entry) == _tree(located.entry):
            self._lookup = like._lookup

    def inner(self, name: bytes) -> Located | None:
        """Return the entry of a name; None without one, or if this path is not a directory."""
        path, entry = self.located
        if not entry.is_directory or not entry.content:
            return None
        if self._lookup is None:
            self._lookup = Lookup(self._get, ChunkId(entry.content), entry.level)
        found = self._lookup.find(name)
        return None if found is None else Located(inner_path(path, name), found)


class Nodes:
    """Reads nodes; it tries one that cannot be read once."""

    def __init__(self, store: Store) -> None:
        self._reader = store.reader
        self._unreadable: dict[ChunkId, str] = {}

    def get(self, kind: int, name: ChunkId) -> bytes:
        """Return a node."""
        if name in self._unreadable:
            raise CorruptionError(self._unreadable[name])
        try:
            return self._reader.node(kind, name)
        except (CorruptionError, UnknownFormatError) as error:
            self._unreadable[name] = error.message
            raise


class Locator:
    """Finds paths in one snapshot.

    It remembers the directories above the last path: if paths are asked for in the order of a walk,
    no node is read twice. A node that cannot be read is tried once, however many paths need it.

    Args:
        store: An open store.
        manifest: The snapshot.
        like: A locator of another snapshot. What it has read of directories that are the same in
            both is not read again.
    """

    def __init__(self, store: Store, manifest: Manifest, *, like: "Locator | None" = None) -> None:
        self._store = store
        self._manifest = manifest
        self._way: list[_Step] = []
        self._top = b""
        """The tree of the root that ``_way`` begins with."""
        self._like: list[_Step] = [] if like is None else list(like._way)
        self._like_top = b"" if like is None else like._top
        # Neither the steps nor the nodes refer to this object: a cycle would keep the directories
        # of a thousand snapshots in memory until the garbage collector runs.
        self._node = Nodes(store).get

    @cached_property
    def left_out(self) -> LeftOut:
        """Tells why a path may be missing. Made when needed: it refers to this object."""
        return LeftOut(self._manifest, self._has)

    def _has(self, path: bytes) -> bool:
        try:
            return self.find(path) is not None
        except (CorruptionError, UnknownFormatError):
            return False

    def locate(self, path: bytes) -> Located:
        """Do as the function of that name."""
        path = _normal(path)
        found = self.find(path)
        if found is None:
            raise self._not_found(path)
        return found

    def find(self, path: bytes) -> Located | None:
        """Return the entry of an absolute path; None if the snapshot does not have it.

        Raises:
            CorruptionError: A directory above it is damaged.
        """
        path = _normal(path)
        root = _root_of(self._manifest, path)
        if root is None or not root.tree:
            return None
        way = self._way
        if not way or way[0].located.path != root.path:
            way[:] = [self._first_step(root)]
        names = _names(root, path)
        known = 0
        for name, step in zip(names, way[1:], strict=False):
            if step.located.entry.name != name:
                break
            known += 1
        del way[known + 1 :]
        for name in names[known:]:
            inner = way[-1].inner(name)
            if inner is None:
                return None
            like = self._like[len(way)] if len(way) < len(self._like) else None
            way.append(_Step(inner, self._node, like))
        return Located(path, way[-1].located.entry)

    def _first_step(self, root: Root) -> _Step:
        like = self._like[0] if self._like else None
        # The entry of a part of a root is in no node of its own.
        top = b"" if isinstance(root, PartRoot) else root.tree
        if like is not None and top and top == self._like_top:
            step = _Step(Located(root.path, like.located.entry), self._node, like)
        else:
            step = _Step(Located(root.path, read_root_entry(self._node, root)), self._node, like)
        self._top = top
        return step

    def _not_found(self, path: bytes) -> PathNotFoundError:
        """Return the error for a path that the snapshot does not have, with a hint."""
        root = _root_of(self._manifest, path)
        message = f"{path_text(path)} is not in snapshot {self._manifest.summary.id}"
        if root is None:
            covered = ", ".join(path_text(root.path) for root in self._manifest.roots)
            return PathNotFoundError(message, hint=f"It covers {covered}.")
        if not root.tree:
            return unread_root_error(root)
        meant = re.sub(_BYTE, _byte, path)
        if meant != path and self._has(meant):
            typed = bash_quoted(meant)
            return PathNotFoundError(
                message, hint=f"A name there has bytes that are shown so: write {typed} in bash."
            )
        rule = self.left_out.rule(path)
        if rule:
            return PathNotFoundError(
                f"{message}: left out by {rule}",
                hint="'ciuic list --path PATH' shows which snapshots have it.",
            )
        self.find(path)  # the rules have asked for other paths since
        nearest = self._way[-1].located
        name = _names(root, path)[len(self._way) - 1]
        return PathNotFoundError(message, hint=_suggestion(self._store, nearest, name))


def _tree(entry: Entry) -> tuple[bytes, int, bool]:
    return entry.content, entry.level, entry.is_directory


def _normal(path: bytes) -> bytes:
    return b"/" + os.path.normpath(path).lstrip(b"/")


def _names(root: Root, path: bytes) -> list[bytes]:
    """Return the names that lead from a root to a path in it."""
    return [name for name in path[len(root.path) :].split(b"/") if name]


def _root_of(manifest: Manifest, path: bytes) -> Root | None:
    for root in manifest.roots:
        if path == root.path or path.startswith(root.path.rstrip(b"/") + b"/"):
            return root
    return None


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex((match[1] or match[2]).decode())


def _suggestion(store: Store, nearest: Located, name: bytes) -> str:
    """Return a hint for a name that ``nearest``, the last path that was found, does not have."""
    at, entry = nearest
    if not entry.is_directory:
        return f"{path_text(at)} is not a directory in this snapshot."
    inside = itertools.islice(children(store, nearest), _COMPARED_MAX)
    names = {path_text(inner.entry.name): inner.path for inner in inside}
    # Imported here: the import takes longer than a list takes.
    import difflib

    close = difflib.get_close_matches(path_text(name), names, n=_SUGGESTED_MAX, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(path_text(names[found]) for found in close) + "?"
    return f"{path_text(at)} exists: 'ciuic ls' shows what it contains."

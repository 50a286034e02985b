"""Looking into snapshots: find a path, walk a tree, compare two."""

import fnmatch
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, PathNotFoundError, UnknownFormatError
from ciuic.model import Entry, Root, SnapshotSummary, path_text
from ciuic.store import Store
from ciuic.store.frame import DATA
from ciuic.store.manifest import Manifest
from ciuic.store.nodes import GetNode, Lookup, Piece, cut, iter_pieces, iter_tree

__all__ = [
    "Change",
    "Located",
    "Locator",
    "children",
    "diff",
    "find",
    "locate",
    "read_file",
    "root_entry",
    "walk",
]

_NEAR_MAX: Final = 3
_ZEROS: Final = memoryview(bytes(1024 * 1024))
_KEPT_MAX: Final = 16
"""Chunks, not bytes: the smallest may hold on to a frame."""


class Located(NamedTuple):
    """A path in a snapshot."""

    path: bytes
    entry: Entry


class Change(NamedTuple):
    """One difference between two snapshots.

    Attributes:
        sign: ``+`` added, ``-`` removed, ``M`` content changed, ``m`` metadata only, ``T`` type,
            ``?`` a root that one of them could not read.
        path: Absolute.
        before: What the first has there; None if nothing, or nothing is known.
        after: The same of the second.
    """

    sign: str
    path: bytes
    before: Entry | None
    after: Entry | None

    @property
    def size_before(self) -> int | None:
        """Bytes of the file in the first; None if it is not there."""
        return None if self.before is None else self.before.size_bytes

    @property
    def size_after(self) -> int | None:
        """Bytes of the file in the second; None if it is not there."""
        return None if self.after is None else self.after.size_bytes


def root_entry(store: Store, root: Root) -> Entry:
    """The entry of a root itself.

    Raises:
        PathNotFoundError: The root could not be read when the snapshot was taken.
        CorruptionError: Its tree is damaged.
    """
    return _root_entry(store.reader.node, root)


def _root_entry(get: GetNode, root: Root) -> Entry:
    if not root.tree:
        raise _missing(root)
    entry = next(iter_tree(get, root.tree, 0), None)
    if entry is None:
        raise CorruptionError(f"the tree of the root {path_text(root.path)} is empty")
    return entry


def _missing(root: Root) -> PathNotFoundError:
    return PathNotFoundError(
        f"{path_text(root.path)} was not there when the snapshot was taken: {root.missing}",
        hint="Choose an older snapshot; 'ciuic list' shows them all.",
    )


def locate(store: Store, manifest: Manifest, path: bytes) -> Located:
    """The entry of an absolute path.

    Raises:
        PathNotFoundError: The snapshot does not have it; the hint names what is near.
        CorruptionError: A directory on the way is damaged.
    """
    return Locator(store, manifest).locate(path)


class _Step:
    """A path on the way to another one."""

    def __init__(self, located: Located, get: GetNode) -> None:
        self.located = located
        self._get = get
        self._lookup: Lookup | None = None

    def inner(self, name: bytes) -> Located | None:
        """What it holds under this name, if it is a directory."""
        path, entry = self.located
        if not entry.is_directory or not entry.content:
            return None
        if self._lookup is None:
            self._lookup = Lookup(self._get, entry.content, entry.level)
        found = self._lookup.find(name)
        return None if found is None else Located(_join(path, name), found)


class Locator:
    """Finds paths in one snapshot.

    The way to the last path is kept: of paths that are asked for in the order of a walk no node is
    read twice. One that can't be read is tried once, however many paths lead through it.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._way: list[_Step] = []
        self._unreadable: dict[bytes, str] = {}

    def locate(self, path: bytes) -> Located:
        """As the function of that name."""
        path = _normal(path)
        found = self.find(path)
        if found is not None:
            return found
        root = _root_of(self._manifest, path)
        message = f"{path_text(path)} is not in snapshot {self._manifest.summary.id}"
        if root is None:
            covered = ", ".join(path_text(one.path) for one in self._manifest.roots)
            raise PathNotFoundError(message, hint=f"It covers {covered}.")
        if not root.tree:
            raise _missing(root)
        at, entry = self._way[-1].located
        name = _names(root, path)[len(self._way) - 1]
        raise PathNotFoundError(message, hint=_near(self._store, at, entry, name))

    def find(self, path: bytes) -> Located | None:
        """The entry of an absolute path; None if the snapshot does not have it.

        Raises:
            CorruptionError: A directory on the way is damaged.
        """
        path = _normal(path)
        root = _root_of(self._manifest, path)
        if root is None or not root.tree:
            return None
        way = self._way
        if not way or way[0].located.path != root.path:
            way[:] = [_Step(Located(root.path, _root_entry(self._node, root)), self._node)]
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
            way.append(_Step(inner, self._node))
        return Located(path, way[-1].located.entry)

    def _node(self, kind: int, name: bytes) -> bytes:
        if name in self._unreadable:
            raise CorruptionError(self._unreadable[name])
        try:
            return self._store.reader.node(kind, name)
        except (CorruptionError, UnknownFormatError) as error:
            self._unreadable[name] = error.message
            raise


def _normal(path: bytes) -> bytes:
    return b"/" + os.path.normpath(path).lstrip(b"/")


def _names(root: Root, path: bytes) -> list[bytes]:
    """The names on the way from a root to a path in it."""
    return [name for name in path[len(root.path) :].split(b"/") if name]


def children(store: Store, located: Located) -> Iterator[Located]:
    """What a directory holds, sorted by name; nothing for anything else."""
    path, entry = located
    if entry.is_directory and entry.content:
        for inner in iter_tree(store.reader.node, entry.content, entry.level):
            yield Located(_join(path, inner.name), inner)


def walk(store: Store, located: Located) -> Iterator[Located]:
    """A path and all below it, directories before what they hold."""
    waiting = [iter([located])]
    while waiting:
        one = next(waiting[-1], None)
        if one is None:
            waiting.pop()
            continue
        yield one
        waiting.append(children(store, one))


def read_file(store: Store, entry: Entry) -> Iterator[bytes | memoryview]:
    """The bytes of a regular file, in order, checked; a hole comes as zeros.

    Raises:
        CorruptionError: Some of it is missing or damaged.
    """
    chunks = _Chunks(store)
    for piece in _pieces(store, entry):
        yield chunks.cut(piece)


class _Chunks:
    """Chunks that were read lately: slices of one chunk follow one another closely in a file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[bytes, memoryview] = OrderedDict()

    def cut(self, piece: Piece) -> memoryview:
        """The bytes of a piece; a hole is no longer than ``_ZEROS``."""
        if not piece.id:
            return _ZEROS[: piece.length_bytes]
        chunk = self._kept.get(piece.id)
        if chunk is None:
            chunk = memoryview(self._store.reader.chunk(piece.id, kind=DATA))
            self._kept[piece.id] = chunk
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(piece.id)
        return cut(chunk, piece)


def find(
    store: Store, snapshots: list[SnapshotSummary], pattern: bytes
) -> Iterator[tuple[str, Located]]:
    """Paths that match a glob, in the order of the snapshots; equal directories are read once.

    A pattern with ``/`` is matched against whole paths, any other against names. A path that
    looks the same in several snapshots is given for the first of them.
    """
    matches = re.compile(fnmatch.translate(os.fsdecode(pattern))).match
    by_path = b"/" in pattern
    seen: set[tuple[bytes, bytes]] = set()
    for snapshot in snapshots:
        for root in store.manifest(snapshot.id).roots:
            if not root.tree or (root.path, root.tree) in seen:
                continue
            seen.add((root.path, root.tree))
            for found in _unseen(store, Located(root.path, root_entry(store, root)), seen):
                subject = found.path if by_path else os.path.basename(found.path)
                if matches(os.fsdecode(subject)):
                    yield snapshot.id, found


def _unseen(store: Store, top: Located, seen: set[tuple[bytes, bytes]]) -> Iterator[Located]:
    waiting = [iter([top])]
    while waiting:
        one = next(waiting[-1], None)
        if one is None:
            waiting.pop()
            continue
        path, entry = one
        if entry.is_directory:
            if (path, entry.content) in seen:
                continue
            seen.add((path, entry.content))
        elif (path, _identity(entry)) in seen:
            continue
        else:
            seen.add((path, _identity(entry)))
        yield one
        waiting.append(children(store, one))


def _identity(entry: Entry) -> bytes:
    return entry.content + entry.mtime_ns.to_bytes(9, "little", signed=True)


def diff(store: Store, before: Manifest, after: Manifest) -> Iterator[Change]:
    """What changed from one snapshot to the other, sorted by path within each root."""
    old_roots = {root.path: root for root in before.roots}
    new_roots = {root.path: root for root in after.roots}
    for path in sorted(old_roots.keys() | new_roots.keys()):
        old, new = old_roots.get(path), new_roots.get(path)
        if (old is not None and not old.tree) or (new is not None and not new.tree):
            # Nothing is known of it: that must not look as if all had been deleted.
            yield Change("?", path, None, None)
            continue
        yield from _compare(
            store,
            path,
            None if old is None else root_entry(store, old),
            None if new is None else root_entry(store, new),
        )


def _compare(store: Store, path: bytes, old: Entry | None, new: Entry | None) -> Iterator[Change]:
    """Changes at a path and below it. Not by recursion: trees are deeper than the stack is."""
    waiting = [iter([(path, old, new)])]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        change = _change(store, *pair)
        if change is not None:
            yield change
        if _tree(pair[1]) != _tree(pair[2]):
            waiting.append(_pairs(store, *pair))


def _change(store: Store, path: bytes, old: Entry | None, new: Entry | None) -> Change | None:
    if old is not None and new is not None:
        sign = _sign(store, old, new)
        return Change(sign, path, old, new) if sign else None
    if new is not None:
        return Change("+", path, None, new)
    return Change("-", path, old, None) if old is not None else None


def _pairs(
    store: Store, path: bytes, old: Entry | None, new: Entry | None
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    for name, one, other in _merged(_entries(store, old), _entries(store, new)):
        yield _join(path, name), one, other


def _sign(store: Store, old: Entry, new: Entry) -> str:
    if old.mode >> 12 != new.mode >> 12:
        return "T"
    if not old.is_directory and (old.size_bytes, old.rdev) != (new.size_bytes, new.rdev):
        return "M"
    if not old.is_directory and old.content != new.content and not _is_respelled(store, old, new):
        return "M"
    same = (old.mode, old.uid, old.gid, old.xattrs) == (new.mode, new.uid, new.gid, new.xattrs)
    moved = old.mtime_ns != new.mtime_ns and not old.is_directory
    return "" if same and not moved else "m"


def _is_respelled(store: Store, old: Entry, new: Entry) -> bool:
    """Two contents of one length are the same bytes, cut in other places.

    What is cut at the same places has other bytes as soon as one ID differs; what a file's change
    has left in slices is compared byte by byte, up to the first difference.
    """
    if not old.level and not new.level:
        return False
    chunks = _Chunks(store)
    try:
        for one, other in _side_by_side(_pieces(store, old), _pieces(store, new)):
            if one != other and chunks.cut(one) != chunks.cut(other):
                return False
    except (CorruptionError, UnknownFormatError):
        return False
    return True


def _pieces(store: Store, entry: Entry) -> Iterator[Piece]:
    """A file's pieces, holes in parts that fit into memory."""
    for piece in iter_pieces(store.reader.node, entry):
        left = piece
        while not left.id and left.length_bytes > len(_ZEROS):
            yield Piece(len(_ZEROS), b"")
            left = Piece(left.length_bytes - len(_ZEROS), b"")
        yield left


def _side_by_side(old: Iterator[Piece], new: Iterator[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """The same stretches of two files of one length, cut where either is."""
    one, other = next(old, None), next(new, None)
    while one is not None and other is not None:
        length = min(one.length_bytes, other.length_bytes)
        yield _head(one, length), _head(other, length)
        one = _tail(one, length) or next(old, None)
        other = _tail(other, length) or next(new, None)


def _head(piece: Piece, length_bytes: int) -> Piece:
    return Piece(length_bytes, piece.id, piece.start_bytes)


def _tail(piece: Piece, length_bytes: int) -> Piece | None:
    left = piece.length_bytes - length_bytes
    return Piece(left, piece.id, piece.start_bytes + length_bytes) if left else None


def _tree(entry: Entry | None) -> tuple[bytes, int] | None:
    if entry is None or not entry.is_directory:
        return None
    return entry.content, entry.level


def _entries(store: Store, entry: Entry | None) -> Iterator[Entry]:
    if entry is not None and entry.is_directory and entry.content:
        return iter_tree(store.reader.node, entry.content, entry.level)
    return iter(())


def _merged(
    old: Iterator[Entry], new: Iterator[Entry]
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """Both sorted sequences side by side, by name."""
    one, other = next(old, None), next(new, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.name < other.name):
            assert one is not None  # noqa: S101 - for the type checker: not both are None
            yield one.name, one, None
            one = next(old, None)
        elif one is None or other.name < one.name:
            yield other.name, None, other
            other = next(new, None)
        else:
            yield one.name, one, other
            one, other = next(old, None), next(new, None)


def _root_of(manifest: Manifest, path: bytes) -> Root | None:
    for root in manifest.roots:
        if path == root.path or path.startswith(root.path.rstrip(b"/") + b"/"):
            return root
    return None


def _near(store: Store, at: bytes, entry: Entry, name: bytes) -> str:
    """What a person may have meant, or where the path stops being known."""
    if not entry.is_directory:
        return f"{path_text(at)} is not a directory there."
    names = {path_text(one.name): _join(at, one.name) for one in _entries(store, entry)}
    # Only for who has mistyped: it takes longer to load than a list takes.
    import difflib

    close = difflib.get_close_matches(path_text(name), names, n=_NEAR_MAX, cutoff=0.5)
    if close:
        return "Near it are " + ", ".join(path_text(names[one]) for one in close) + "."
    return f"{path_text(at)} is there; see 'ciuic ls' for what it holds."


def _join(path: bytes, name: bytes) -> bytes:
    return path + name if path.endswith(b"/") else path + b"/" + name

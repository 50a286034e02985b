"""One mounted snapshot: its roots under their full paths, and the directories below them."""

import bisect
import stat
from array import array
from collections.abc import Iterator

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.model import Entry, Root
from ciuic.mount.nodes import Directory, Listed, Node, Owned, inode_numbers, unnumbered
from ciuic.mount.trees import Trees
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.hashing import checksum
from ciuic.view.listing import walk
from ciuic.view.located import Located, inner_path, root_entry

__all__ = ["MountedSnapshot", "added_entry"]


def added_entry(name: bytes, mode: int, taken_ns: int, content: bytes = b"") -> Entry:
    """Return the entry of a directory or link that the mount adds; root owns it."""
    return Entry(name, mode, 0, 0, taken_ns, taken_ns, 0, content=content)


class MountedSnapshot:
    """A snapshot as directories.

    Attributes:
        top: The directory with its roots under their full paths.
    """

    def __init__(self, store: Store, trees: Trees, manifest: Manifest) -> None:
        self._store = store
        self._trees = trees
        self._manifest = manifest
        self.id: SnapshotId = manifest.summary.id
        self._links = _LinkCounts(store, manifest)
        # A root that could not be read when the snapshot was taken is not in it.
        roots = [root for root in manifest.roots if root.tree]
        self.top = self._above(b"/", roots)

    def _above(self, path: bytes, roots: list[Root]) -> Node:
        """Return the node of a path that is a root, or above the given roots."""
        if roots and roots[0].path == path:
            return self.node(path, root_entry(self._store, roots[0]))
        taken_ns = self._manifest.summary.taken_ns
        entry = added_entry(b".", stat.S_IFDIR | 0o755, taken_ns)
        return Node(entry, Owned(self.id, path), _Above(self, path, roots))

    def inner(self, path: bytes, roots: list[Root]) -> Node:
        """Like ``_above``, for a path below ``top``.

        Raises:
            CorruptionError: The path is a root whose tree is damaged.
        """
        return self._above(path, roots)

    def node(self, path: bytes, entry: Entry) -> Node:
        """Return the node of an entry of the snapshot."""
        owned = Owned(self.id, path)
        if stat.S_ISDIR(entry.mode):
            return Node(entry, owned, _Stored(self, path, entry, self._trees))
        return Node(entry, owned, None, self._links if entry.link_dev else None)


class _Above(Directory):
    """A directory above roots, which the snapshot does not have."""

    def __init__(self, snapshot: MountedSnapshot, path: bytes, roots: list[Root]) -> None:
        self._snapshot = snapshot
        self._path = path
        self._by_name: dict[bytes, list[Root]] = {}
        for root in roots:
            name = root.path[len(path.rstrip(b"/")) + 1 :].partition(b"/")[0]
            self._by_name.setdefault(name, []).append(root)

    def find(self, name: bytes) -> Node | None:
        roots = self._by_name.get(name)
        if roots is None:
            return None
        return self._snapshot.inner(inner_path(self._path, name), roots)

    def names(self) -> Iterator[Listed]:
        # The name of a damaged root is shown too.
        yield unnumbered([added_entry(name, stat.S_IFDIR, 0) for name in self._by_name])


class _Stored(Directory):
    """A directory of the snapshot."""

    def __init__(self, snapshot: MountedSnapshot, path: bytes, entry: Entry, trees: Trees) -> None:
        self._snapshot = snapshot
        self._path = path
        self._entry = entry
        self._trees = trees

    def find(self, name: bytes) -> Node | None:
        entry = self._trees.find(self._entry, name)
        return None if entry is None else self._snapshot.node(inner_path(self._path, name), entry)

    def names(self) -> Iterator[Listed]:
        prefix = inner_path(self._path, b"")
        for entries in self._trees.entries(self._entry):
            yield Listed(entries, inode_numbers(self._snapshot.id, prefix, entries))


class _LinkCounts:
    """How many names each hard-linked file has in one snapshot.

    No entry records it, so the trees are walked, once, when it is asked for the first time.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._names: array[int] | None = None

    def count(self, entry: Entry) -> int:
        """Return the number of names; names in damaged directories are not counted."""
        if self._names is None:
            found = array("Q")
            for root in self._manifest.roots:
                self._add(root, found)
            # Eight bytes for each name: a package manager's cache has millions.
            self._names = array("Q", sorted(found))
        key = _key(entry)
        names = self._names
        return max(bisect.bisect_right(names, key) - bisect.bisect_left(names, key), 1)

    def _add(self, root: Root, found: "array[int]") -> None:
        if not root.tree:
            return
        try:
            top = Located(root.path, root_entry(self._store, root))
            for located in walk(self._store, top):
                entry = located.entry
                if entry.link_dev and not stat.S_ISDIR(entry.mode):
                    found.append(_key(entry))
        except (CorruptionError, UnknownFormatError):
            return  # reading the damaged directory raises the error


def _key(entry: Entry) -> int:
    return checksum(b"%d:%d" % (entry.link_dev, entry.ino))

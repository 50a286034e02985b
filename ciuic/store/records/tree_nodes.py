"""Tree nodes: the entries of one directory, sorted by name.

A reader refuses every entry that no directory has, so code that walks a tree needs no check of its
own: what it gets, a restore can create.
"""

import operator
import stat
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.model import BEING_WRITTEN, CONSISTENT, SKIPPED, UNREADABLE, Entry
from ciuic.store.records.kinds import TREE
from ciuic.store.records.nodes import (
    EMPTY_NODE,
    LEVEL_MAX,
    Builder,
    Child,
    GetNode,
    LeveledNode,
    child_with,
    decode_node,
    index_children,
)
from ciuic.system.hashing import ID_BYTES, checksum

__all__ = [
    "DEPTH_MAX",
    "NAME_BYTES_MAX",
    "TARGET_BYTES_MAX",
    "UNORDERED",
    "Lookup",
    "TreeBuilder",
    "decode_entries",
    "iter_tree",
    "leaf_entries",
    "read_root",
]

DEPTH_MAX: Final = 1024
"""The most nested directories, the root included. No snapshot has more. A deeper tree is hostile:
the paths of a tree that is 100,000 directories deep fill 10 GB."""
NAME_BYTES_MAX: Final = 1023
"""Most file systems allow 255 bytes, NTFS and exFAT 765, ZFS 1023."""
TARGET_BYTES_MAX: Final = 4095
"""Linux accepts no longer path as the target of a symlink."""
UNORDERED: Final = "the names of a directory are not in order"
_ITEMS_MAX: Final = 2048
_CUT_MASK: Final = 511
_DEVICE_BITS: Final = 0xFFF_000F_FFFF
"""Linux has 12 bits for a device's major number and 20 for its minor number."""
_FILE, _DIRECTORY, _SYMLINK = (mode >> 12 for mode in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK))
_SPECIAL: Final = frozenset([mode >> 12 for mode in (stat.S_IFIFO, stat.S_IFBLK, stat.S_IFCHR)])
_NO_NAMES: Final = frozenset([b"", b".", b".."])
_STATES: Final = frozenset([CONSISTENT, BEING_WRITTEN, UNREADABLE, SKIPPED])
_OUT_OF_RANGE: Final = "an entry holds a value that is out of range"


class _Leaf(LeveledNode, array_like=True):
    items: list[Entry]


class _AnyEntry(msgspec.Struct, array_like=True):
    """An entry whose values may be out of range; see ``Entry``."""

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    size_bytes: int = 0
    state: int = CONSISTENT
    content: bytes = b""
    level: int = 0
    link_dev: int = 0
    rdev: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class _AnyLeaf(LeveledNode, array_like=True):
    items: list[_AnyEntry]


_decoder = msgspec.msgpack.Decoder(_Leaf)
_any_decoder = msgspec.msgpack.Decoder(_AnyLeaf)
_rdev_of = operator.attrgetter("rdev")
_xattrs_of = operator.attrgetter("xattrs")


class TreeBuilder(Builder[Entry]):
    """Builds the tree nodes of one directory.

    Args:
        put: Stores nodes.
    """

    kind = TREE
    items_max = _ITEMS_MAX
    cut_mask = _CUT_MASK

    def _cuts_after(self, item: Entry) -> bool:
        return checksum(item.name) & self.cut_mask == 0

    def _first(self, item: Entry) -> bytes:
        return item.name

    def _weight(self, items: list[Entry]) -> int:
        return len(items)


class Lookup:
    """Finds entries of one directory by name, and reads one node per level.

    It keeps the nodes on the way to the last name. If names are looked up in order, no node is read
    twice.

    Args:
        get: Reads nodes.
        node_id: The directory's top node.
        level: The level of that node.

    Raises:
        CorruptionError: No node has this level.
    """

    def __init__(self, get: GetNode, node_id: ChunkId, level: int) -> None:
        if level < 0:
            raise CorruptionError(f"a node cannot be at level {level}")
        self._get = get
        self._top = node_id
        self._level = level
        self._indexes: dict[int, tuple[ChunkId, list[Child]]] = {}
        self._leaf: tuple[ChunkId, dict[bytes, Entry]] | None = None

    def find(self, name: bytes) -> Entry | None:
        """Return the entry of this name; None if there is none.

        Raises:
            CorruptionError: A node on the way is missing or is not what its parent says.
        """
        node_id = self._top
        for level in range(self._level, 0, -1):
            child = child_with(self._children(node_id, level), name)
            if child is None:
                return None
            node_id = child
        return self._entries(node_id).get(name)

    def _children(self, node_id: ChunkId, level: int) -> list[Child]:
        kept = self._indexes.get(level)
        if kept is None or kept[0] != node_id:
            children = index_children(self._get(TREE, node_id), level)
            kept = self._indexes[level] = (node_id, children)
        return kept[1]

    def _entries(self, node_id: ChunkId) -> dict[bytes, Entry]:
        kept = self._leaf
        if kept is None or kept[0] != node_id:
            entries = leaf_entries(self._get(TREE, node_id))
            kept = self._leaf = (node_id, {entry.name: entry for entry in entries})
        return kept[1]


def iter_tree(get: GetNode, node_id: ChunkId, level: int) -> Iterator[Entry]:
    """Iterate over the entries of a directory in the order of their names.

    Raises:
        CorruptionError: A node is missing, is not what its parent says, or holds an entry that no
            directory has.
    """
    last = b""
    for entries in _iter_leaves(get, node_id, level):
        # Without this check, a few nodes that name each other many times would never end.
        if entries and entries[0].name <= last:
            raise CorruptionError(UNORDERED)
        yield from entries
        last = entries[-1].name if entries else last


def _iter_leaves(
    get: GetNode, node_id: ChunkId, level: int, *, is_top: bool = True
) -> Iterator[list[Entry]]:
    if level == 0:
        entries = leaf_entries(get(TREE, node_id))
        if not entries and not is_top:
            raise CorruptionError(EMPTY_NODE)
        yield entries
        return
    for child in index_children(get(TREE, node_id), level):
        yield from _iter_leaves(get, child.id, level - 1, is_top=False)


def read_root(get: GetNode, node_id: ChunkId) -> Entry:
    """Return the entry of a root itself, from the node that the manifest names.

    Raises:
        CorruptionError: The node is missing, or is not the node of a root.
    """
    items = _ranged_entries(get(TREE, node_id))
    # Not is_directory: it fails for a mode that no file can have.
    if len(items) != 1 or items[0].name != b"." or items[0].mode >> 12 != _DIRECTORY:
        raise CorruptionError("the tree of a root is not a directory that is called '.'")
    _check_values(items)
    return items[0]


def leaf_entries(data: bytes) -> list[Entry]:
    """Decode a leaf of a tree and check each entry.

    Raises:
        CorruptionError: ``data`` is not a leaf, or an entry has a value that no directory has or
            no system call accepts.
    """
    items = _ranged_entries(data)
    _check_names([entry.name for entry in items])
    _check_values(items)
    return items


def decode_entries(data: bytes) -> list[_AnyEntry]:
    """Decode a leaf of a tree; the entries are not checked.

    Raises:
        CorruptionError: ``data`` is not a leaf.
    """
    return decode_node(_any_decoder, data, 0).items


def _ranged_entries(data: bytes) -> list[Entry]:
    """Decode a leaf of a tree; each number is in the range that the type of its field has.

    Raises:
        CorruptionError: ``data`` is not a leaf, or a number is out of range.
    """
    try:
        return decode_node(_decoder, data, 0).items
    except CorruptionError as error:
        decode_entries(data)  # says what else is wrong
        raise CorruptionError(_OUT_OF_RANGE) from error


def _check_names(names: list[bytes]) -> None:
    """Check all names at once: a loop over them takes as long as decoding them."""
    if not all(map(operator.lt, names, names[1:])):
        raise CorruptionError(UNORDERED)
    joined = b"/".join(names)
    if (
        not _NO_NAMES.isdisjoint(names)
        or joined.count(b"/") != max(len(names) - 1, 0)
        or b"\0" in joined
        or (len(joined) > NAME_BYTES_MAX and max(map(len, names)) > NAME_BYTES_MAX)
    ):
        raise CorruptionError("a directory holds a name that no file can have")


def _check_values(items: list[Entry]) -> None:
    """Check what the ranges of single numbers do not settle; few entries are checked one by one."""
    shapes = {(entry.mode >> 12, entry.state, entry.level, len(entry.content)) for entry in items}
    for shape in shapes:
        _check_shape(*shape)
    others = [entry for entry in items if entry.mode >> 12 != _FILE] if _has_others(shapes) else ()
    if (
        any(entry.size_bytes or (0 in entry.content and entry.is_symlink) for entry in others)
        or (any(map(_rdev_of, items)) and any(entry.rdev & ~_DEVICE_BITS for entry in items))
        or (any(map(_xattrs_of, items)) and not all(map(_has_xattr_names, items)))
    ):
        raise CorruptionError(_OUT_OF_RANGE)


def _has_others(shapes: Iterable[tuple[int, int, int, int]]) -> bool:
    """Return whether there are entries that are not regular files."""
    return any(kind != _FILE for kind, *_ in shapes)


def _has_xattr_names(entry: Entry) -> bool:
    """Return whether one inode can have extended attributes of these names, sorted."""
    names = [name for name, _ in entry.xattrs]
    return all(map(operator.lt, names, names[1:])) and not any(b"\0" in name for name in names)


def _check_shape(kind: int, state: int, level: int, content_bytes: int) -> None:
    """Check an entry's content and level against its type; a leaf has few distinct shapes."""
    is_content_id = content_bytes in {0, ID_BYTES}
    if kind == _FILE:
        fits = is_content_id and 0 <= level <= LEVEL_MAX + 1
    elif kind == _DIRECTORY:
        fits = is_content_id and 0 <= level <= LEVEL_MAX
    elif kind == _SYMLINK:
        fits = level == 0 and 0 < content_bytes <= TARGET_BYTES_MAX
    elif kind in _SPECIAL:
        fits = level == 0 and not content_bytes
    elif 0 <= kind < 1 << 4:
        raise CorruptionError("an entry is of an unknown file type")
    else:
        fits = False
    if not fits or state not in _STATES:
        raise CorruptionError(_OUT_OF_RANGE)

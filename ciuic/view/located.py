"""A path of a snapshot together with its entry."""

from typing import NamedTuple

from ciuic.errors import PathNotFoundError
from ciuic.model import Entry, Root, path_text
from ciuic.store.records.nodes import GetNode
from ciuic.store.records.tree_nodes import read_root
from ciuic.store.store import Store

__all__ = [
    "Located",
    "PartRoot",
    "inner_path",
    "read_root_entry",
    "root_entry",
    "unread_root_error",
]


class Located(NamedTuple):
    """A path in a snapshot."""

    path: bytes
    entry: Entry


class PartRoot(Root, frozen=True, kw_only=True):
    """A directory inside a root that is seen as a root itself.

    Attributes:
        entry: The directory. No node holds it alone, as one holds the entry of a root.
    """

    entry: Entry


def inner_path(directory: bytes, name: bytes) -> bytes:
    """Return the path of a name in a directory."""
    return directory + name if directory.endswith(b"/") else directory + b"/" + name


def root_entry(store: Store, root: Root) -> Entry:
    """Return the entry of a root itself.

    Raises:
        PathNotFoundError: The root could not be read when the snapshot was taken.
        CorruptionError: Its tree is damaged.
    """
    return read_root_entry(store.reader.node, root)


def read_root_entry(get: GetNode, root: Root) -> Entry:
    """Like ``root_entry``, with ``get`` to read the node."""
    if not root.tree:
        raise unread_root_error(root)
    if isinstance(root, PartRoot):
        return root.entry
    return read_root(get, root.tree)


def unread_root_error(root: Root) -> PathNotFoundError:
    """Return the error for a root that could not be read when the snapshot was taken."""
    return PathNotFoundError(
        f"{path_text(root.path)} could not be read when the snapshot was taken: {root.missing}",
        hint="Choose an older snapshot; 'ciuic list' shows them all.",
    )

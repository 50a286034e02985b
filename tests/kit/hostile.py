"""Stores with correct checksums, IDs and seals, and content that no honest snapshot has.

A user who can write to a store can make them. Each function commits one snapshot, ``HOSTILE``, to
an existing store.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ciuic import codec
from ciuic.codec import sparse_delta
from ciuic.model import Entry, ExcludeRules, Root, SnapshotSummary
from ciuic.store.adding import new_writer
from ciuic.store.format.frame import Frame
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records import manifest
from ciuic.store.records.kinds import DATA, RECIPE, TREE
from ciuic.store.store import open_store
from ciuic.system.hashing import checksum, data_id

__all__ = [
    "HOSTILE",
    "commit",
    "commit_chain",
    "commit_deep_tree",
    "commit_graph",
    "commit_many_files",
    "commit_recipe",
    "directory",
    "file",
    "node",
]

HOSTILE = "cs-bad000"
_HOUR_NS = 3_600_000_000_000

_Tree = tuple[bytes, int]
"""A directory's node and its level."""


def node(writer: StoreWriter, kind: int, level: int, items: Sequence[object]) -> bytes:
    """Store a node of any content; return its ID."""
    return writer.put_node(kind, msgspec.msgpack.encode([level, items]))


def file(name: bytes, content: bytes = b"", size_bytes: int = 0, level: int = 0) -> Entry:
    """Return the entry of a file of this user."""
    own, group = os.getuid(), os.getgid()
    return Entry(name, 0o100644, own, group, 1, 1, 9, size_bytes, content=content, level=level)


def directory(name: bytes, content: bytes, level: int = 0) -> Entry:
    """Return the entry of a directory of this user."""
    own, group = os.getuid(), os.getgid()
    return Entry(name, 0o040755, own, group, 1, 1, 8, content=content, level=level)


def commit(
    store_path: Path,
    root: Path | bytes,
    spelled: Callable[[StoreWriter], bytes],
    *,
    files: int = 1,
    logical_bytes: int = 1,
) -> None:
    """Commit a snapshot, newer than all others, whose root has this directory node.

    Args:
        store_path: The store's directory.
        root: Path of the root.
        spelled: Stores nodes and chunks; returns the ID of the root directory's leaf.
        files: What the manifest says.
        logical_bytes: What the manifest says.
    """
    with open_store(str(store_path), write=True) as store:
        writer = new_writer(store)
        tree = node(writer, TREE, 0, [directory(b".", spelled(writer))])
        writer.finish()
        store.commit(_manifest(os.fsencode(root), tree, files, logical_bytes))


def _manifest(root: bytes, tree: bytes, files: int, logical_bytes: int) -> manifest.Manifest:
    return manifest.Manifest(
        summary=SnapshotSummary(
            id=HOSTILE,
            kind="base",
            parent=None,
            taken_ns=4_000_000_000 * 1_000_000_000,
            files=files,
            logical_bytes=logical_bytes,
            new_bytes=0,
            stored_bytes=0,
            tags=(),
            trouble_count=0,
            roots=(root,),
        ),
        roots=(Root(root, tree),),
        host=os.uname().nodename,
        writer="hostile",
        read_bytes=0,
        capture_s=0.0,
        exclude=ExcludeRules(),
        trouble=(),
    )


def commit_recipe(store_path: Path, root: Path, size_bytes: int, *, fanout: int = 512) -> int:
    """Commit a file of at least this length in few bytes: each node names another many times.

    Returns:
        The length.
    """
    length = 0

    def spelled(writer: StoreWriter) -> bytes:
        nonlocal length
        block = bytes(1024 * 1024)
        writer.add_data([(data_id(block), block)])
        name = node(writer, RECIPE, 0, [[len(block), data_id(block)]] * fanout)
        length, level = len(block) * fanout, 0
        while length < size_bytes:
            level += 1
            name = node(writer, RECIPE, level, [[length, b"", name]] * fanout)
            length *= fanout
        return node(writer, TREE, 0, [file(b"huge", name, length, level + 1)])

    commit(store_path, root, spelled, logical_bytes=2**62)
    return length


def commit_deep_tree(store_path: Path, root: Path, depth: int) -> None:
    """Commit nested directories with a file at the bottom."""

    def spelled(writer: StoreWriter) -> bytes:
        name = node(writer, TREE, 0, [file(b"bottom")])
        for _ in range(depth):
            name = node(writer, TREE, 0, [directory(b"d", name)])
        return name

    commit(store_path, root, spelled)


def commit_graph(
    store_path: Path, root: Path, *, depth: int, width: int, bottom: bytes = b""
) -> None:
    """Commit directories that each hold the next one many times.

    Args:
        store_path: The store's directory.
        root: Path of the root.
        depth: The number of directories.
        width: How many times each holds the next.
        bottom: ID of the content of the only file, 5 bytes; empty: an empty file.
    """

    def spelled(writer: StoreWriter) -> bytes:
        name = node(writer, TREE, 0, [file(b"bottom", bottom, 5 if bottom else 0)])
        for _ in range(depth):
            name = node(
                writer, TREE, 0, [directory(b"%08d" % number, name) for number in range(width)]
            )
        return name

    commit(store_path, root, spelled)


def commit_many_files(store_path: Path, root: Path, count: int) -> None:
    """Commit a directory of this many small files, without the files in a file system."""

    def spelled(writer: StoreWriter) -> bytes:
        files: list[Entry] = []
        for start in range(0, count, 1024):
            blocks = [b"%d" % number for number in range(start, min(count, start + 1024))]
            chunks = [(data_id(block), block) for block in blocks]
            writer.add_data(chunks)
            names = [b"sample-%08d.json" % number for number in range(start, start + len(blocks))]
            files += [
                file(name, chunk_id, len(block))
                for name, (chunk_id, block) in zip(names, chunks, strict=True)
            ]
        level = 0
        leaves = [files[at : at + 32] for at in range(0, count, 32)]
        items = [[len(leaf), leaf[0].name, node(writer, TREE, 0, leaf)] for leaf in leaves]
        while len(items) > 1:
            level += 1
            groups = [items[at : at + 32] for at in range(0, len(items), 32)]
            items = [
                [sum([child[0] for child in group]), group[0][1], node(writer, TREE, level, group)]
                for group in groups
            ]
        return node(writer, TREE, 0, [directory(b"shards", items[0][2], level)])

    commit(store_path, root, spelled, files=count)


def commit_chain(store_path: Path, root: Path, links: int) -> None:
    """Commit chunks, each a delta against the chunk before; a file for each."""

    def spelled(writer: StoreWriter) -> bytes:
        last = bytes(4096)
        writer.add_data([(data_id(last), last)])
        files = [file(b"%08d" % 0, data_id(last), len(last))]
        for number in range(1, links + 1):
            chunk = number.to_bytes(4, "little") + last[4:]
            payload = sparse_delta.encode(chunk, last, 4, 0)
            assert payload is not None
            writer._put(*_delta_frame(chunk, data_id(last), bytes(payload)))
            files.append(file(b"%08d" % number, data_id(chunk), len(chunk)))
            last = chunk
        leaves = [files[at : at + 2048] for at in range(0, len(files), 2048)]
        children = [[len(leaf), leaf[0].name, node(writer, TREE, 0, leaf)] for leaf in leaves]
        if len(children) == 1:
            return node(writer, TREE, 0, leaves[0])
        inner = node(writer, TREE, 1, children)
        return node(writer, TREE, 0, [directory(b"chain", inner, 1)])

    commit(store_path, root, spelled, files=links + 1)


def _delta_frame(chunk: bytes, reference: bytes, payload: bytes) -> tuple[Frame, bytes]:
    frame = Frame(
        DATA, codec.SPARSE, (reference,), len(chunk), len(payload), checksum(payload),
        ((data_id(chunk), len(chunk)),),
    )  # fmt: skip
    return frame, payload

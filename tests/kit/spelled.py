"""Snapshots with recipes and manifests that a test makes and no writer would write."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ciuic.catalog import find_snapshot
from ciuic.model import SnapshotSummary
from ciuic.store.adding import new_writer
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.records.manifest import encode_manifest
from ciuic.store.records.recipe_nodes import Piece, RecipeBuilder
from ciuic.store.records.tree_nodes import TreeBuilder, iter_tree
from ciuic.store.store import Store, open_store
from ciuic.system.hashing import data_id
from ciuic.view.located import root_entry

__all__ = ["commit_spelled", "respell_summary", "spell"]


def commit_spelled(
    store_path: Path, name: bytes, pieces: Sequence[Piece], *, chunks: Sequence[bytes] = ()
) -> str:
    """Commit the newest snapshot again, with other pieces for a file in its root."""
    with open_store(os.fspath(store_path), write=True) as store:
        return spell(store, name, pieces, chunks=chunks)


def spell(
    store: Store, name: bytes, pieces: Sequence[Piece], *, chunks: Sequence[bytes] = ()
) -> str:
    """Do the same in a store that is open for writing; return the snapshot's ID."""
    newest = store.manifest(find_snapshot(store, "latest").id)
    top = root_entry(store, newest.roots[0])
    writer = new_writer(store)
    writer.add_data([(data_id(chunk), chunk) for chunk in chunks])
    recipe = RecipeBuilder(writer.put_node)
    for piece in pieces:
        recipe.add(piece)
    content, level = recipe.finish()
    size = sum(piece.length_bytes for piece in pieces)
    tree = TreeBuilder(writer.put_node)
    for entry in iter_tree(store.reader.node, top.content, top.level):
        if entry.name == name:
            entry.content, entry.level, entry.size_bytes = content, level + 1, size
        tree.add(entry)
    top.content, top.level = tree.finish()
    root = TreeBuilder(writer.put_node)
    root.add(top)
    tree_id, _ = root.finish()
    writer.finish()
    summary = msgspec.structs.replace(
        newest.summary,
        id=store.new_snapshot_id(),
        kind="delta",
        parent=newest.summary.id,
        taken_ns=newest.summary.taken_ns + 1_000_000_000,
    )
    roots = (msgspec.structs.replace(newest.roots[0], tree=tree_id),)
    store.commit(msgspec.structs.replace(newest, summary=summary, roots=roots))
    return summary.id


def respell_summary(store: Store, summary: SnapshotSummary) -> None:
    """Replace the summary in a manifest and its copy; no operation of ciuic does that."""
    data = encode_manifest(store.manifest(summary.id).with_summary(summary))
    Folder(store.path, layout.SNAPSHOTS).replace(layout.manifest_name(summary.id), data)
    store.manifests.copies.renew(summary.id, data)

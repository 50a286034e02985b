"""Makes a store of many snapshots of many files, in minutes instead of weeks.

The first snapshot is a real one of real files. The program's own writer makes the others in its own
format, with one file replaced in each. The last has the same content as the first, so that the next
snapshot finds no change. Runs with the interpreter that has ciuic. Arguments: the store, the
directory, the number of files, the number of snapshots.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import Entry, Root, SnapshotSummary
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.adding import new_writer
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records.manifest import Manifest, encode_manifest
from ciuic.store.records.tree_nodes import TreeBuilder, iter_tree
from ciuic.store.store import Store, open_store
from ciuic.system.clock import SystemClock
from ciuic.system.hashing import data_id

FILES_A_DIRECTORY = 1000
FILE_BYTES = 12
HOUR_NS = 3600 * 10**9


def make_files(source: Path, count: int) -> None:
    """Make `count` small files, a thousand per directory."""
    for number in range(count):
        if number % FILES_A_DIRECTORY == 0:
            directory = source / f"d{number // FILES_A_DIRECTORY:05d}"
            directory.mkdir(parents=True)
        (directory / f"f{number:07d}").write_bytes(b"%0*d" % (FILE_BYTES, number))


def make_snapshots(store: Store, source: Path, count: int) -> None:
    """Make `count` snapshots, an hour apart; the last is from now."""
    request = TakeRequest(roots=(os.fsencode(source),))
    report = take_snapshot(store, request, clock=SystemClock())
    first = store.manifest(report.id)
    get = store.reader.node
    (root,) = iter_tree(get, first.roots[0].tree, 0)
    directories = list(iter_tree(get, ChunkId(root.content), root.level))
    # One directory at a time, so that only its entries are in memory.
    writer = new_writer(store)
    manifests = [first] * (count - 1)
    for number in range(count - 2):
        place = number % len(directories)
        entries = list(
            iter_tree(get, ChunkId(directories[place].content), directories[place].level)
        )
        changed = [*directories]
        changed[place] = with_another_file(writer, directories[place], entries, number)
        tree = put_root(writer, root, changed)
        manifests[number] = msgspec.structs.replace(
            first, roots=(Root(first.roots[0].path, tree, "", first.roots[0].capture),)
        )
    writer.finish()
    names = {first.summary.id}
    for number, manifest in enumerate(manifests):
        # Store.new_snapshot_id would list the directory each time.
        while (name := SnapshotId(f"cs-{os.urandom(3).hex()}")) in names:
            pass
        names.add(name)
        path = Path(store.path, "snapshots", f"{name}.json")
        # Store.commit would wait for the disk each time.
        path.write_bytes(encode_manifest(renamed(manifest, name, first, number + 1, count)))
    os.sync()


def with_another_file(
    writer: StoreWriter, directory: Entry, entries: list[Entry], number: int
) -> Entry:
    """Return the entry of the directory after one of its files got another content."""
    content = b"%0*d" % (FILE_BYTES, number + 10**9)
    name = data_id(content)
    writer.add_data([(name, content)])
    at = number // FILES_A_DIRECTORY % len(entries)
    entries[at] = msgspec.structs.replace(entries[at], content=name)
    builder = TreeBuilder(writer.put_node)
    for entry in entries:
        builder.add(entry)
    tree, level = builder.finish()
    return msgspec.structs.replace(directory, content=tree, level=level)


def put_root(
    writer: StoreWriter, root: Entry, directories: Iterator[Entry] | list[Entry]
) -> ChunkId:
    """Return the tree of a root with these directories."""
    builder = TreeBuilder(writer.put_node)
    for entry in directories:
        builder.add(entry)
    tree, level = builder.finish()
    above = TreeBuilder(writer.put_node)
    above.add(msgspec.structs.replace(root, content=tree, level=level))
    name, _ = above.finish()
    return name


def renamed(manifest: Manifest, name: str, first: Manifest, number: int, count: int) -> Manifest:
    """Return the manifest with another ID and time; the newest has the time of the first."""
    summary: SnapshotSummary = msgspec.structs.replace(
        manifest.summary,
        id=name,
        kind="delta",
        taken_ns=first.summary.taken_ns - (count - 1 - number) * HOUR_NS + (number == count - 1),
    )
    return msgspec.structs.replace(manifest, summary=summary)


def main(store_path: str, directory: str, files: int, snapshots: int) -> None:
    """Make the files, then the snapshots."""
    source = Path(directory)
    make_files(source, files)
    with open_store(store_path, write=True) as store:
        make_snapshots(store, source, snapshots)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

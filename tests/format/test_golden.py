"""The golden store of format 1 never changes, and the current code reads it exactly."""

import json
import os
import shutil

import pytest

from ciuic.catalog import list_snapshots, lost_snapshots
from ciuic.errors import SnapshotNotFoundError
from ciuic.model import CONSISTENT
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.parity.parity_file import inspect_parity
from ciuic.store.records import layout
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.records.tree_nodes import iter_tree, read_root
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from tests.format import reader
from tests.format.make_golden import GOLDEN, survey

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
ROOT = bytes.fromhex(EXPECTED["root"])
FIRST, FORGOTTEN, NEWEST = EXPECTED["snapshots"]
LISTED = (FIRST, NEWEST)


@pytest.fixture
def store(tmp_path):
    """A copy, because version control keeps no empty directories, and opening creates an index."""
    path = tmp_path / "store"
    shutil.copytree(GOLDEN / "store", path)
    (path / layout.TEMPORARY).mkdir()
    return str(path)


def test_the_golden_store_is_listed(store):
    with open_store(store) as opened:
        listed = list_snapshots(opened)
    for one, expected in zip(reversed(listed), LISTED, strict=True):
        found = {"id": one.id, "kind": one.kind, "parent": one.parent, "taken_ns": one.taken_ns}
        assert found == {key: expected[key] for key in found}
        assert (one.roots, one.trouble_count) == ((ROOT,), 0)
        assert one.pinned == (expected is FIRST)


def test_the_golden_store_is_verified(store):
    with open_store(store) as opened:
        report = verify_all(opened, checksum=True, clock=SystemClock())
    assert report.ok
    assert len(report.snapshots) == len(LISTED)


def test_the_forgotten_snapshot_can_be_brought_back_and_the_purged_one_cannot(store):
    with open_store(store, write=True) as opened:
        (one,) = opened.trash.read()
        assert one.id == FORGOTTEN["id"]
        assert opened.trash.bring_back(one.id).summary.taken_ns == FORGOTTEN["taken_ns"]
        assert len(list_snapshots(opened)) == len(EXPECTED["snapshots"])
        with pytest.raises(SnapshotNotFoundError):
            opened.trash.bring_back(EXPECTED["retired"])
        assert opened.trash.retired.ids() == {EXPECTED["retired"]}


def test_the_parity_is_sound_and_repairs_damage(store, tmp_path):
    with open_store(store) as opened:
        packs = opened.pack_files()
    for name, size in packs.items():
        assert inspect_parity(store, name) == ""
        with open(os.path.join(store, layout.PACKS, layout.pack_name(name)), "r+b") as file:
            file.seek(size // 2)
            file.write(b"damage")
    test_the_golden_store_is_restored(store, tmp_path, NEWEST)


def test_the_golden_store_has_a_file_of_slices(store):
    with open_store(store) as opened:
        root = opened.manifest(NEWEST["id"]).roots[0]
        top = read_root(opened.reader.node, root.tree)
        entries = {one.name: one for one in iter_tree(opened.reader.node, top.content, top.level)}
        pieces = list(iter_pieces(opened.reader.node, entries[b"weights.bin"]))
    assert [bool(one.start_bytes) for one in pieces] == [False, False, True]
    assert pieces[0].id == pieces[2].id != pieces[1].id


@pytest.mark.parametrize("expected", EXPECTED["snapshots"], ids=lambda one: one["id"])
def test_the_golden_store_is_restored(store, tmp_path, expected):
    target = os.fsencode(tmp_path / "target")
    os.mkdir(target)
    if expected is FORGOTTEN:
        with open_store(store, write=True) as opened:
            opened.trash.bring_back(expected["id"])
    with open_store(store) as opened:
        manifest = opened.manifest(expected["id"])
        report = restore(opened, manifest, RestoreRequest((ROOT,), target), clock=SystemClock())
    # Only root can give files to root.
    assert {one.what.split(" ")[0] for one in report.failed} <= {"owner"}
    assert not report.damaged
    assert survey(os.path.join(target, os.path.basename(ROOT))) == expected["tree"]


@pytest.mark.parametrize("expected", LISTED, ids=lambda one: one["id"])
def test_the_reader_restores_the_golden_store(store, tmp_path, expected):
    target = os.fsencode(tmp_path / "target")
    reader.Restorer(reader.Store(store)).restore(expected["id"], target)
    assert survey(target + ROOT) == expected["tree"]


def test_the_golden_store_has_every_codec_and_extended_attributes(store):
    places = reader.Store(store)._places.values()
    assert {place.frame.codec for found in places for place in found} == {0, 1, 2}
    with open_store(store) as opened:
        root = opened.manifest(FIRST["id"]).roots[0]
        top = read_root(opened.reader.node, root.tree)
        entries = {one.name: one for one in iter_tree(opened.reader.node, top.content, top.level)}
    assert entries[b"notes.txt"].xattrs == ((b"user.by", b"\x00\xff"),)
    assert {one.state for one in entries.values()} == {CONSISTENT}


def test_a_snapshot_can_be_added_to_the_golden_store(store, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    shard = b"shard 1\n"
    (source / "again").write_bytes(shard)
    with open_store(store, write=True) as opened:
        request = TakeRequest((os.fsencode(source),))
        report = take_snapshot(opened, request, clock=SystemClock())
        assert report.parent is None, "no snapshot of the store has this directory"
        assert report.new_bytes == 0
        assert len(list_snapshots(opened)) == len(LISTED) + 1


def test_a_manifest_shows_whether_its_parent_was_purged_or_lost(store):
    """The parent of the newest snapshot was purged. The parent of the one in the trash is lost."""
    assert FORGOTTEN["parent"] == FIRST["id"]
    assert NEWEST["parent"] == EXPECTED["retired"]
    assert reader.Store(store).lost() == []
    for directory, _, names in os.walk(store):
        for name in names:
            if name.startswith(FIRST["id"]):
                os.unlink(os.path.join(directory, name))
    assert reader.Store(store).lost() == [FIRST["id"]]
    with open_store(store) as opened:
        assert lost_snapshots(opened) == [FIRST["id"]]

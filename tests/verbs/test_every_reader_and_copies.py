"""Whatever reads a snapshot for a user takes from a copy what the store has lost.

tests/verbs/test_read_through.py has ``restore``, ``cat``, ``checkout`` and ``mount``.
"""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import CorruptionError
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import flip_node, packs
from tests.kit.program import ciuic
from tests.kit.served import served
from tests.kit.tensors import safetensors
from tests.kit.trees import differences, photograph


@pytest.fixture
def copied(box: Box) -> Box:
    """A store with two snapshots, and its configured copy."""
    (box.source / "d").mkdir()
    (box.source / "d" / "model.safetensors").write_bytes(safetensors({"w": b"a" * 200_000}))
    (box.source / "d" / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    box.take()
    (box.source / "d" / "model.safetensors").write_bytes(safetensors({"w": b"b" * 200_000}))
    (box.source / "d" / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1}')
    box.take()
    copy = box.directory / "copy"
    box.config.write_text(f"{box.config.read_text()}copies = {copy}\n")
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    box.photo = photograph(box.source)
    return box


@pytest.fixture
def lost(copied: Box) -> Box:
    """The same, and the store has lost all packs."""
    for pack in packs(copied.store):
        pack.unlink()
    return copied


def commands(box: Box) -> dict[str, tuple[object, ...]]:
    older, newer = sorted(box.snapshots(), key=lambda one: one.taken_ns)
    log = box.source / "d" / "log.jsonl"
    return {
        "ls": ("ls", newer.id, box.source / "d"),
        "ls -R": ("ls", "-R", newer.id),
        "find": ("find", "model*"),
        "diff": ("diff", older.id, newer.id),
        "diff --tensors": ("diff", "--tensors", older.id, newer.id),
        "compare": ("compare", older.id, newer.id),
        "timeline": ("timeline", "--log", log),
    }


@pytest.mark.parametrize(
    "which",
    ["ls", "ls -R", "find", "diff", "diff --tensors", "compare", "timeline"],
)
def test_a_command_that_reads_asks_the_copy(lost: Box, which: str) -> None:
    command = commands(lost)[which]
    found = lost.ciuic(*command)
    assert found.code == 0, found
    assert "from the copy" in found.err
    there = ciuic("--store", lost.directory / "copy", *command)
    assert (found.code, found.out) == (there.code, there.out)
    shutil.rmtree(lost.directory / "copy")
    assert lost.ciuic(*command).out != found.out


@pytest.mark.parametrize("which", ["ls -R", "find", "diff", "compare", "timeline"])
def test_a_command_that_reads_leaves_the_copies_alone_if_told(lost: Box, which: str) -> None:
    command = commands(lost)[which]
    asked, alone = lost.ciuic(*command), lost.ciuic(*command, "--no-copies")
    assert "the copy" in asked.err
    assert "the copy" not in alone.err
    assert alone.out != asked.out


def test_the_page_says_what_a_copy_gave_and_leaves_it_alone_if_told(lost: Box) -> None:
    copy = lost.directory / "copy"
    page = f"/snapshots/latest?path={lost.source}/d"
    note = f'read from the copy <span class="path">{copy}</span>'
    with served(lost) as site:
        assert note in site.ask(page).body.decode()
        assert note not in site.ask("/").body.decode(), "the overview reads no content"
        work = {"do": "restore", "snapshot": "latest", "paths": [str(lost.source)]}
        begun = site.start(**work, destination=str(lost.directory / "out"), dry_run=False)
        site.ended(begun.document["id"])
        shown = site.ask(f"/jobs/{begun.document['id']}").body.decode()
        assert f'came from the copy <span class="path">{copy}</span>' in shown
    with served(lost, "--no-copies") as site:
        answer = site.ask(page)
        assert answer.status >= 400
        assert note not in answer.body.decode()


@pytest.mark.parametrize("options", [(), ("--tensor", "w")], ids=["versions", "tensor"])
def test_the_history_of_a_file_is_read_from_the_copy(copied: Box, options: tuple[str, ...]) -> None:
    path = copied.source / "d" / "model.safetensors"
    command = ("log", path, *options)
    before = copied.ciuic(*command)
    for snapshot in copied.snapshots():
        with open_store(str(copied.store)) as store:
            tree = store.manifest(snapshot.id).roots[0].tree
        flip_node(copied.store, tree)
    found = copied.ciuic(*command)
    assert (found.code, found.out) == (before.code, before.out)
    assert "chunks came from the copy" in found.err


def test_broken_checkpoints_are_recovered_from_the_copy(lost: Box) -> None:
    path = lost.source / "d" / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    found = lost.ciuic("recover", "--since", "@0")
    assert found.code == 0, found
    assert path.read_bytes() == whole


def test_the_page_shows_downloads_and_restores_what_the_copy_has(lost: Box, tmp_path: Path) -> None:
    path = lost.source / "d" / "model.safetensors"
    with served(lost) as site:
        tree = site.ask(f"/v1/snapshots/latest/tree?path={lost.source}/d")
        assert [one["path"] for one in tree.document["entries"]] == [
            str(lost.source / "d" / "log.jsonl"),
            str(path),
        ]
        content = site.ask(f"/v1/snapshots/latest/content?path={path}")
        assert (content.status, content.body) == (200, path.read_bytes())
        work = {"do": "restore", "snapshot": "latest", "paths": [str(lost.source)]}
        begun = site.start(**work, destination=str(tmp_path / "out"), dry_run=False)
        done = site.ended(begun.document["id"])
        assert done["state"] == "done", done
        assert done["report"]["copies"][0]["address"] == str(lost.directory / "copy")
        verified = site.start(do="verify", snapshot="latest", checksum=True)
        assert not site.ended(verified.document["id"])["report"]["ok"]
    assert not differences(lost.photo, photograph(tmp_path / "out" / "source"))


def test_the_page_leaves_a_copy_alone_that_it_could_not_read(lost: Box) -> None:
    copy = lost.directory / "copy"
    copy.rename(lost.directory / "away")
    address = f"/v1/snapshots/latest/content?path={lost.source}/d/log.jsonl"
    with served(lost) as site:
        assert site.ask(address).status >= 400
        (lost.directory / "away").rename(copy)
        assert site.ask(address).status >= 400, "it is tried again after some minutes"
    with served(lost) as site:
        assert site.ask(address).status == 200


def test_a_training_loads_from_the_copy_that_this_machine_has_made(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    weights = np.random.default_rng(1).normal(size=300_000).astype(np.float32)
    with SnapshotManager(store) as manager:
        manager.save_snapshot({"w": weights}, {}, 1, wait=True)
    assert ciuic("--store", store, "copy", "--to", copy, "--init").code == 0
    for pack in packs(store):
        pack.unlink()
    with SnapshotManager(store) as manager:
        with pytest.warns(RuntimeWarning, match=f"came from the copy {copy}") as told:
            state = manager.load_latest_snapshot()
        assert (state["model_state_dict"]["w"] == weights).all()
        assert not state.skipped
        assert [one.filename for one in told] == [__file__]
        assert not manager.verify()["ok"], "that is about this store alone"
        shutil.rmtree(copy)
        with warnings.catch_warnings(), pytest.raises(CorruptionError):
            warnings.simplefilter("error")
            manager.load_latest_snapshot()


def test_a_training_is_told_of_a_copy_that_could_not_be_asked(tmp_path: Path) -> None:
    store, away, copy = tmp_path / "store", tmp_path / "away", tmp_path / "copy"
    with SnapshotManager(store) as manager:
        manager.save_snapshot({"w": np.arange(300_000)}, {}, 1, wait=True)
    for one in (away, copy):
        assert ciuic("--store", store, "copy", "--to", one, "--init").code == 0
    for pack in packs(store):
        pack.unlink()
    shutil.rmtree(away)
    with SnapshotManager(store) as manager, pytest.warns(RuntimeWarning) as told:
        manager.load_latest_snapshot()
    texts = [str(one.message) for one in told]
    assert any(f"its copy {away} did not give all that is lost: " in text for text in texts), texts
    assert any(f"came from the copy {copy}" in text for text in texts), texts


def test_status_knows_a_copy_that_was_made_before_it_was_configured(box: Box) -> None:
    (box.source / "a").write_text("a")
    box.take()
    copy = box.directory / "copy"
    assert ciuic("--store", box.store, "copy", "--to", copy, "--init").code == 0
    box.config.write_text(f"{box.config.read_text()}copies = {copy}\n")
    assert f"{copy} has every snapshot" in box.ciuic("status").out
    assert box.ciuic("list", "--json").document[0]["copies"] == [str(copy)]
    other = box.directory / "other"
    box.config.write_text(box.config.read_text().replace(f"copies = {copy}", f"copies = {other}"))
    assert f"{other} has nothing from this machine yet" in box.ciuic("status").out


def test_the_index_of_another_store_is_replaced_and_no_snapshot_seems_lost(box: Box) -> None:
    (box.source / "a").write_text("a")
    box.take()
    alien = box.directory / "alien"
    assert ciuic("--store", alien, "init").code == 0
    assert ciuic("--store", alien, "snapshot", box.source).code == 0
    for reads in (True, False):
        shutil.copy(alien / "catalog.sqlite", box.store / "catalog.sqlite")
        if not reads:
            assert box.ciuic("snapshot").code == 0
        listed = ciuic("--store", box.store, "list", "--json")
        assert (listed.code, listed.err) == (0, "")
        assert {one["id"] for one in json.loads(listed.out)} == {one.id for one in box.snapshots()}
        assert box.verify().ok
        assert box.ciuic("prune").code == 0

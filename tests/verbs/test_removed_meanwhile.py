"""A prune removes a snapshot for good while a command reads it: that is not damage."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ciuic.catalog import list_snapshots
from ciuic.catalog.removed import naming_removal, refuse_removed
from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.errors import CorruptionError, OfflineError
from ciuic.ids import SnapshotId
from ciuic.maintain.repair import plan
from ciuic.maintain.repair.bucket import plan_in_bucket
from ciuic.report.versions import versions
from ciuic.store.directory.create import create_store
from ciuic.store.health.inspect import inspect_pack
from ciuic.store.place.bucket import StoreInBucket
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store, open_store
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_snapshots
from tests.kit.box import Box
from tests.kit.buckets import FolderMachine, write
from tests.kit.damage import pack_of
from tests.kit.program import environment

_PRUNING = """
import subprocess, sys
from ciuic.cli import main
from ciuic.store.store import Store
config, left, removed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sys.argv = ["ciuic", "--config", config, *sys.argv[4:]]
read = Store.manifest

def manifest(store, snapshot_id, **more):
    global left
    found = read(store, snapshot_id, **more)
    left -= 1
    if not left:
        command = [sys.executable, "-c", "from ciuic.cli import main; main()", "--config", config]
        command += ["forget", removed, "--prune", "--trash", "0"]
        nowhere = subprocess.DEVNULL
        subprocess.run(command, check=True, stdout=nowhere, stderr=nowhere)
    return found

Store.manifest = manifest
main()
"""
"""Runs a command, and a prune once the command has read this number of manifests."""


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Two snapshots that share nothing."""
    box = Box(tmp_path)
    for name in ("old", "new"):
        (box.source / "inner").mkdir(exist_ok=True)
        (box.source / "inner" / "model").write_bytes(os.urandom(3_000_000))
        (box.source / "inner" / name).write_text(name)
        box.take()
    return box


@dataclass
class Sharing:
    """Two machines that share a bucket with two snapshots, which have one file in common.

    Attributes:
        here: The machine that has taken them, and that has them in its cache.
        there: The other one.
        old: The first snapshot.
        new: The second one.
        copy: A place for a copy.
    """

    here: FolderMachine
    there: FolderMachine
    old: SnapshotId
    new: SnapshotId
    copy: Path

    def prune_old(self) -> None:
        """Forget the first snapshot on the other machine, and remove it for good."""
        self.there.forget(self.old)
        self.there.prune()


@pytest.fixture
def two(tmp_path: Path) -> Sharing:
    here, there = [FolderMachine(tmp_path / "bucket", tmp_path / name) for name in ("a", "b")]
    here.init()
    taken = []
    write(tmp_path / "source", ["both", "old"])
    taken.append(here.take_at(here.place(), tmp_path / "source").id)
    (tmp_path / "source" / "old").rename(tmp_path / "old")
    write(tmp_path / "source", ["new"])
    taken.append(here.take_at(here.place(), tmp_path / "source").id)
    there.clock.advance(3600)
    return Sharing(here, there, *taken, tmp_path / "copy")


def beside_prune(
    box: Box, removed: str, after: int, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PRUNING, box.config, str(after), removed, *arguments]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def snapshots(box: Box) -> list[str]:
    lines = box.ciuic("list", "--machine-readable").out.splitlines()
    return [line.split("|")[0] for line in lines]


@pytest.mark.parametrize("command", ["restore", "fallback", "cat", "ls", "diff"])
def test_a_snapshot_that_is_pruned_while_it_is_read_is_not_damaged(
    box: Box, tmp_path: Path, command: str
) -> None:
    new, old = snapshots(box)
    model = box.source / "inner" / "model"
    words: dict[str, list[str | Path]] = {
        "restore": ["restore", "-s", old, "-p", box.source, "-d", tmp_path / "o"],
        "fallback": ["restore", "-s", old, "-p", box.source, "-d", tmp_path / "o", "--fallback"],
        "cat": ["cat", old, model],
        "ls": ["ls", "-R", old],
        "diff": ["diff", old, new],
    }

    done = beside_prune(box, old, 4 if command == "diff" else 2, *words[command])

    assert f"{old} was forgotten, and a prune removed it" in done.stderr, done
    assert done.returncode == 1
    assert "repair" not in done.stderr
    assert box.ciuic("verify", "--all", "--checksum").code == 0


@pytest.mark.parametrize("options", [["--checksum"], [], ["--all", "--checksum"]])
def test_verify_names_a_snapshot_that_is_pruned_meanwhile_and_no_damage(
    box: Box, options: list[str]
) -> None:
    new, old = snapshots(box)
    ids = [] if "--all" in options else [new, old]

    done = beside_prune(box, old, 2, "verify", *ids, *options)

    removed = f"{old}: it was forgotten, and a prune removed it while it was read"
    assert done.stdout.splitlines() == [f"{new}: ok", removed]
    assert done.returncode == (1 if ids else 0)


def test_a_copy_leaves_out_a_snapshot_that_is_pruned_meanwhile(two: Sharing) -> None:
    with two.here.opened() as store:
        two.prune_old()
        chunking = store.header.chunking
        create_store(str(two.copy), SystemClock(), chunk_bytes=chunking.size_bytes)
        report = CopyReport(copy=str(two.copy), dry_run=False)
        with open_store(str(two.copy), write=True) as copy:
            copy_snapshots(store, copy, CopyRequest(), report, clock=SystemClock())

    assert report.refused == {two.old: "it was forgotten, and a prune removed it while it was read"}
    assert not report.is_damaged
    assert [copied.id for copied in report.copied] == [two.new]


def test_a_repair_of_a_bucket_takes_a_snapshot_that_is_pruned_meanwhile_for_no_damage(
    two: Sharing,
) -> None:
    with two.here.opened() as store:
        two.prune_old()
        found = plan_in_bucket(store)

    assert not found.is_damaged
    assert not found.lost


@pytest.mark.parametrize("checksum", [True, False])
def test_a_snapshot_in_a_bucket_that_is_pruned_while_it_is_verified_is_removed(
    two: Sharing, monkeypatch: pytest.MonkeyPatch, *, checksum: bool
) -> None:
    read = Store.manifest

    def manifest(store: Store, snapshot_id: SnapshotId, *, copy: bool = True) -> Manifest:
        found = read(store, snapshot_id, copy=copy)
        if snapshot_id == two.old:
            monkeypatch.undo()
            two.prune_old()
        return found

    monkeypatch.setattr(Store, "manifest", manifest)
    with two.here.opened() as store:
        chosen = list_snapshots(store)
        report = verify_snapshots(store, chosen, {}, checksum=checksum, clock=SystemClock())

    assert report.removed == (two.old,)
    assert [(one.id, one.ok) for one in report.snapshots] == [(two.new, True)]
    assert report.copies == ()


def test_a_repair_takes_packs_that_a_prune_removes_meanwhile_for_no_damage(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, old = snapshots(box)
    inspected = []

    def inspect(store_path, pack_id, **more):  # after the first pack, or while it is read
        if not inspected:
            assert box.ciuic("forget", old, "--prune", "--trash", "0").code == 0
        inspected.append(pack_id)
        return inspect_pack(store_path, pack_id, **more)

    monkeypatch.setattr(plan, "inspect_pack", inspect)
    with open_store(str(box.store)) as store:
        found = plan.plan_repair(store, parity=0.04)

    assert not found.packs
    assert not found.lost
    assert not found.stale_catalog
    assert set(found.bare) <= set(store.pack_files())
    assert len(inspected) > found.pack_count


def test_a_repair_names_a_pack_that_is_gone_without_a_prune(box: Box) -> None:
    pack_of(box.store, (box.source / "inner" / "model").read_bytes()[: 1024 * 1024]).unlink()
    with open_store(str(box.store)) as store:
        found = plan.plan_repair(store, parity=0.0)

    assert found.stale_catalog
    assert found.origins, "the live file has the chunks"


def test_find_leaves_out_a_snapshot_that_goes_meanwhile(box: Box) -> None:
    _, old = snapshots(box)

    done = beside_prune(box, old, 1, "find", "*")

    assert done.returncode == 0, done
    assert str(box.source / "inner" / "new") in done.stdout
    assert old not in done.stdout
    assert not done.stderr


def test_list_of_a_path_leaves_out_a_snapshot_that_goes_meanwhile(box: Box) -> None:
    new, old = snapshots(box)

    done = beside_prune(box, old, 1, "list", "--path", str(box.source / "inner" / "model"))

    assert done.returncode == 0, done
    assert new in done.stdout
    assert not done.stderr


def test_the_damaged_versions_of_a_path_cost_one_listing_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    source = tmp_path / "source"
    names = []
    for _ in range(4):
        write(source, ["file"])
        names.append(machine.take_at(machine.place(), source).id)
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(3600)
    asked: list[str] = []
    for method in ("has_manifest", "manifest_ids"):
        monkeypatch.setattr(StoreInBucket, method, counting(method, asked))
    with machine.opened() as store:
        snapshots = list_snapshots(store)
        other.forget(names[1])
        other.prune()
        for pack in (tmp_path / "bucket" / "packs").iterdir():
            pack.write_bytes(bytes(pack.stat().st_size))
        asked.clear()

        found = versions(store, snapshots, os.fsencode(source / "file"))

    assert [(one.snapshot.id, one.state) for one in found] == [
        (names[at], "damaged") for at in (3, 2, 0)
    ]
    assert asked == ["manifest_ids"]


def counting(method: str, asked: list[str]) -> Callable[..., object]:
    original = getattr(StoreInBucket, method)

    def called(*words: object) -> object:
        asked.append(method)
        return original(*words)

    return called


def test_damage_is_named_although_the_server_cannot_say_whether_it_was_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object) -> bool:
        raise OfflineError("no answer")

    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", ["file"])
    name = machine.take_at(machine.place(), tmp_path / "source").id
    monkeypatch.setattr(StoreInBucket, "has_manifest", offline)
    with machine.opened() as store:
        refuse_removed(store, name)
        with pytest.raises(CorruptionError, match="the pack is gone"), naming_removal(store, name):
            raise CorruptionError("the pack is gone")

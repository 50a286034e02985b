"""Repairs in any order heal what the last of them can, and none says that all is well too early.

Each store has a snapshot that was killed: in a bucket, its lease keeps packs that a repair has
condemned. The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.repair import repair_from_copy
from ciuic.copy.report import CopyReport
from ciuic.maintain.prune.bucket.prune import finish_condemned
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.store.records.kinds import DATA, TREE
from ciuic.store.records.layout import pack_name
from ciuic.store.store import Store
from tests.kit.buckets import FolderMachine, PlaceWithFaults, machine_with
from tests.kit.damage import flip_byte, flip_content

pytestmark = pytest.mark.root

_ORDERS = [
    ("from",),
    ("from", "apply", "from"),
    ("show", "apply", "from"),
    ("apply", "show", "apply", "from"),
]


@pytest.fixture
def one(tmp_path):
    """A machine with a snapshot in a bucket, and the lease of one that was killed."""
    return machine_with(tmp_path, ["a", "b"], 1_500_000)


@pytest.fixture
def copy(one, tmp_path):
    """A copy of the bucket, in another one."""
    machine = FolderMachine(tmp_path / "copy", tmp_path / "cache of the copy")
    machine.init()
    with one.opened() as source, machine.opened(write=True) as store:
        report = CopyReport(copy="copy", dry_run=False)
        copy_snapshots(source, store, CopyRequest(), report, clock=one.clock)
    return machine


def in_a_process_that_is_killed(act):
    process = os.fork()
    if not process:
        try:
            act()
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def kill_a_snapshot(machine, source):
    """Take a snapshot in a process that ends, by SIGKILL, just before it would commit."""

    def kill(_number, kind, key):
        if kind == "create" and key.startswith("snapshots/"):
            os.kill(os.getpid(), signal.SIGKILL)

    in_a_process_that_is_killed(
        lambda: machine.take_at(PlaceWithFaults(machine.place(), kill), source)
    )
    (lease,) = machine.names("leases")
    assert lease.startswith("snapshot-")


def damage(machine, kind):
    """Flip a byte of a file's content, or of the directory's node."""
    with machine.opened() as store:
        kinds = [chunk for batch in store.index.chunk_ids() for chunk in batch]
        chunk_ids = [one for one, its in kinds if its == kind]
        place = max(store.reader.places(chunk_ids).values(), key=lambda found: found.frame_bytes)
        path = Path(machine.address.removeprefix("file://"), "packs", pack_name(place.pack_id))
    flip_byte(path, place.offset_bytes + place.frame_bytes - 1)


def repair(machine, step, copy):
    """Like ``ciuic repair``, with ``--apply`` and ``--from`` as the step says; returns the plan."""
    if step == "show":
        with machine.opened() as store:
            return plan_in_bucket(store)
    with machine.opened_at(machine.place(), removes=True) as store:
        plan = plan_in_bucket(store)
        apply_in_bucket(store, plan)
        finish_condemned(store, clock=machine.clock)
    if step == "from" and plan.is_damaged:
        damaged = [one.id for one in plan.remaining]
        with machine.opened(write=True) as store, copy.opened() as other:
            repair_from_copy(store, other, damaged, plan.lost, parity=0.0, clock=machine.clock)
    return plan


@pytest.mark.parametrize("order", _ORDERS, ids="-".join)
@pytest.mark.parametrize("kind", [DATA, TREE], ids=["content", "directory"])
def test_repairs_of_a_bucket_beside_the_lease_of_a_killed_snapshot(
    one, copy, tmp_path, order, kind
):
    kill_a_snapshot(one, tmp_path / "source")
    damage(one, kind)
    shutil.rmtree(tmp_path / "source")
    for number, step in enumerate(order):
        was_sound = one.verify().ok
        assert repair(one, step, copy).is_damaged != was_sound, f"{step} said something else"
        # A machine that has never looked at this bucket reads the same.
        stranger = FolderMachine(tmp_path / "bucket", tmp_path / f"stranger{number}")
        assert stranger.verify().ok == one.verify().ok
    assert [name.partition("-")[0] for name in one.names("leases")] == ["snapshot"]
    one.check(listed=one.ids())
    one.prune(revoke_after_s=0)
    one.check(listed=one.ids())


def test_the_repair_of_another_machine_sees_what_a_condemned_pack_has_lost(one, copy, tmp_path):
    kill_a_snapshot(one, tmp_path / "source")
    damage(one, DATA)
    content = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    shutil.rmtree(tmp_path / "source")
    repair(one, "apply", copy)
    other = FolderMachine(tmp_path / "bucket", tmp_path / "other")
    other.clock.advance(3600)

    shown = repair(other, "show", copy)

    assert [len(bad.lost) for bad in shown.condemned] == [1]
    assert shown.packs == ()
    (tmp_path / "source").mkdir()
    for name, data in content.items():
        (tmp_path / "source" / name).write_bytes(data)
    assert len(repair(other, "apply", copy).origins) == 1
    one.check(listed=one.ids())
    one.prune(revoke_after_s=0)
    one.check(listed=one.ids())


@pytest.mark.parametrize("order", _ORDERS, ids="-".join)
def test_repairs_of_a_directory_beside_what_a_killed_snapshot_left(box, order, monkeypatch):
    (box.source / "file").write_bytes(b"content that is lost")
    box.take()
    copy = box.directory / "copy"
    assert box.ciuic("copy", "--to", copy, "--init").code == 0
    (box.source / "more").write_bytes(os.urandom(1_000_000))
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        in_a_process_that_is_killed(box.take)
    flip_content(box.store, b"content that is lost")
    shutil.rmtree(box.source)
    options = {"show": (), "apply": ("--apply",), "from": ("--apply", "--from", copy)}
    for step in order:
        was_sound = box.verify().ok
        outcome = box.ciuic("repair", *options[step])
        assert ("nothing is damaged" in outcome.out) == was_sound, (step, outcome)
    assert box.verify().ok
    assert outcome.code == 0

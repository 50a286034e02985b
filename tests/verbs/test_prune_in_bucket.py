"""Prune of a bucket, beside writers and other prunes: docs/protocol.md.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.errors import SnapshotNotFoundError, StoreError
from ciuic.maintain.forget import bring_back
from ciuic.maintain.label import change_tags
from ciuic.maintain.prune.bucket.waiting import REVOKE_AFTER_S
from ciuic.snapshot.memory import MemoryRequest, StoredFile, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.place.bucket import open_bucket
from ciuic.store.records.condemnation import TOMBSTONE_BYTES
from ciuic.system.clock import SystemClock
from ciuic.view.locator import Locator
from tests.kit.buckets import FolderMachine, KilledError, PlaceWithFaults, write
from tests.kit.machine import MIB

pytestmark = pytest.mark.root

STEP = 1 if os.environ.get("CIUIC_LONG") else 3
"""Every third moment in the short form."""


class World(NamedTuple):
    """Two machines that share a bucket, and the snapshots that they took."""

    top: Path
    one: FolderMachine
    two: FolderMachine
    source: Path
    old: Path
    garbage: list[str]
    kept: str


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A bucket with a pack that is not needed after a prune, and one that is fragmented."""
    top = tmp_path_factory.mktemp("prepared")
    one = FolderMachine(top / "bucket", top / "cache")
    assert one.init()[0]
    source = top / "source"
    write(source, ["a", "b", "c"])
    first = one.take_at(one.place(), source).id
    shutil.copytree(source, top / "old")
    for name in "abc":
        (source / name).unlink()
    write(source, ["d", "e"])
    second = one.take_at(one.place(), source).id
    (source / "e").unlink()
    third = one.take_at(one.place(), source).id
    one.forget(first, second)
    return top, [first, second], third


@pytest.fixture
def world(prepared, tmp_path):
    return copied(prepared, tmp_path / "world")


def copied(prepared, top):
    """Return a copy of the prepared bucket, with two machines that have not seen it."""
    origin, garbage, kept = prepared
    shutil.copytree(origin, top, symlinks=True)
    one, two = (FolderMachine(top / "bucket", top / name) for name in ("one", "two"))
    return World(top, one, two, origin / "source", origin / "old", garbage, kept)


def killed_at(number):
    """Return a hook: the process is killed before this change, and makes none later."""

    def before(at, _kind, _keys):
        if at >= number:
            raise KilledError

    return before


def leases(machine):
    """Return the leases, without the notes about abandoned copies."""
    return [name for name in machine.names("leases") if not name.startswith("dismissed-")]


def finish(world):
    """Prune until nothing is left to do; no session is at work any more."""
    for machine in (world.one, world.two):
        report = machine.prune(revoke_after_s=0)
        assert not report.waiting_for
    assert leases(world.two) == []
    left = [one.size_bytes for one in world.two.place().list("condemned")]
    assert set(left) <= {TOMBSTONE_BYTES}  # those of prunes that were revoked
    assert report.removed.packs == report.rewritten.packs == 0
    return report


def test_unneeded_chunks_are_removed(world):
    before = world.one.names("packs")

    foreseen = world.one.prune(dry_run=True)
    assert world.one.names("packs") == before
    assert world.one.names("snapshots") != []
    report = world.one.prune()

    for field in ("expired", "removed", "rewritten", "written", "kept", "freed_bytes"):
        assert getattr(report, field) == getattr(foreseen, field), field
    assert (report.removed.packs, report.rewritten.packs) == (1, 1)
    assert len(set(before) - set(world.one.names("packs"))) == 2
    for machine in (world.one, world.two):
        machine.check(listed=[world.kept])
    assert world.two.prune().freed_bytes == 0
    assert world.two.names("leases") == world.two.names("condemned") == []


def test_a_prune_that_is_killed_at_any_change_loses_nothing(prepared, tmp_path):
    number = 0
    while True:
        world = copied(prepared, tmp_path / str(number))
        place = PlaceWithFaults(world.one.place(), killed_at(number))
        with contextlib.suppress(KilledError):
            world.one.prune(place=place)
        world.two.check(listed=[world.kept])
        finish(world)
        world.one.check(listed=[world.kept])
        assert len(world.two.names("packs")) == 2
        if len(place.changes) <= number:
            break
        number += 1
    assert number > 8


def test_a_snapshot_that_began_before_keeps_what_it_relies_on(world):
    with world.one.opened_at(world.one.place()) as store:
        report = world.two.prune()
        assert report.condemned.packs == 2
        assert report.removed.packs == 0
        assert len(report.waiting_for) == 1
        taken = world.one.take_into(store, world.old)
        assert taken.new_bytes < 2000  # its chunks are in the pack that is condemned
    world.one.check(listed=[world.kept, taken.id])

    finish(world)

    for machine in (world.one, world.two):
        machine.check(listed=[world.kept, taken.id])


def test_a_snapshot_that_begins_later_does_not_rely_on_condemned_packs(world):
    with world.one.opened_at(world.one.place()):
        assert world.two.prune().condemned.packs == 2
        third = FolderMachine(world.top / "bucket", world.top / "three")
        taken = third.take_at(third.place(), world.old)
        again = third.take_at(third.place(), world.old)
    assert taken.new_bytes > 80_000
    assert again.new_bytes < 2000

    finish(world)

    for machine in (world.one, world.two, third):
        machine.check(listed=[world.kept, taken.id, again.id])


def test_no_snapshot_relies_on_a_pack_that_comes_back(world):
    """The upload of a session that was paused arrives again, and so does a prune's deletion."""
    place = world.two.place()
    packs = {name: place.get(f"packs/{name}", 10**9) for name in world.two.names("packs")}
    world.one.prune()
    deleted = packs.keys() - set(world.two.names("packs"))
    assert len(deleted) == 2
    for name in deleted:
        place.put(f"packs/{name}", packs[name])

    three = FolderMachine(world.top / "bucket", world.top / "three")
    taken = [machine.take_at(machine.place(), world.old).id for machine in (world.one, three)]
    assert deleted <= set(world.two.names("packs"))
    place.delete(f"packs/{name}" for name in deleted)
    for machine in (world.one, world.two, three):
        machine.check(listed=[world.kept, *taken])
    for name in deleted:
        place.put(f"packs/{name}", packs[name])

    assert world.two.prune().removed.packs == 2, "a later prune removes it"
    for machine in (world.one, world.two, three):
        machine.check(listed=[world.kept, *taken])


def test_a_snapshot_at_work_is_waited_for(world):
    """The writer ends while the prune waits, so that one prune does everything."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(world.one.opened_at(world.one.place()))
        slept = world.two.clock.sleep

        def sleep(duration_s):
            stack.close()
            slept(duration_s)

        world.two.clock.sleep = sleep
        report = world.two.prune(wait_s=5)
    assert (report.removed.packs, report.rewritten.packs) == (1, 1)
    assert not report.waiting_for
    world.one.check(listed=[world.kept])


class AfterLeases:
    """A place that is paused when the leases of a copy are there."""

    def __init__(self, place, act):
        self._place = place
        self._act = act

    def __getattr__(self, name):
        return getattr(self._place, name)

    def put(self, key, data):
        self._place.put(key, data)
        if key.startswith("leases/copy-"):
            self._act()


class LateCommit(AfterLeases):
    """A place whose user interrupts the request that creates a manifest; it still arrives later."""

    def create(self, key, data):
        if not key.startswith("snapshots/"):
            self._place.create(key, data)
            return
        self.arrive = lambda: self._place.create(key, data)
        raise KeyboardInterrupt


def test_an_interrupted_commit_that_still_arrives_is_waited_for(world):
    place = LateCommit(world.one.place(), None)
    with pytest.raises(KeyboardInterrupt), world.one.opened_at(place) as store:
        assert world.two.prune().condemned.packs == 2
        world.one.take_into(store, world.old)

    report = world.two.prune()
    place.arrive()

    assert report.removed.packs == 0
    assert len(report.waiting_for) == 1
    finish(world)
    for machine in (world.one, world.two):
        assert len(machine.ids()) == 2
        machine.check(listed=machine.ids())


def test_a_revoked_snapshot_is_not_committed(world):
    with world.one.opened_at(world.one.place()) as store:
        report = world.two.prune(revoke_after_s=0)
        assert len(report.revoked) == 1
        with pytest.raises(StoreError, match="was revoked") as refused:
            world.one.take_into(store, world.old)
        assert refused.value.hint.endswith(
            "uses again what was stored, until a prune removes that."
        )

    for machine in (world.one, world.two):
        machine.check(listed=[world.kept])
        with machine.opened() as store:
            assert store.manifests.ids() == {world.kept}
    assert len(world.one.names("snapshots")) == 2  # the tombstone stays
    finish(world)
    assert len(world.one.names("packs")) == 2  # the chunks of the revoked snapshot are gone


def test_a_session_is_revoked_when_its_lease_has_not_changed_for_long(world):
    with world.one.opened_at(world.one.place()):
        (lease,) = world.one.names("leases")
        for turn in range(3):
            world.two.clock.advance(REVOKE_AFTER_S - 60)
            world.two.place().put(f"leases/{lease}", b"%d" % turn)  # as its thread does
            assert world.two.prune(revoke_after_s=REVOKE_AFTER_S).revoked == ()
        world.two.clock.advance(REVOKE_AFTER_S - 60)
        assert world.two.prune(revoke_after_s=REVOKE_AFTER_S).revoked == ()
        world.two.clock.advance(60)
        assert world.two.prune(revoke_after_s=REVOKE_AFTER_S).revoked == (lease,)
    world.two.check(listed=[world.kept])


def test_a_lease_of_a_later_version_is_waited_for(world):
    world.one.place().put("leases/future-1", b"1")
    report = world.one.prune(revoke_after_s=0)
    assert report.waiting_for == ("future-1",)
    assert report.condemned.packs == 2
    world.one.place().delete(["leases/future-1"])
    finish(world)
    world.one.check(listed=[world.kept])


@pytest.mark.parametrize("revoke_after_s", [0, 1e9], ids=["revokes", "waits"])
def test_a_prune_at_any_moment_of_a_snapshot_loses_nothing(prepared, tmp_path, revoke_after_s):
    number = 0
    while True:
        world = copied(prepared, tmp_path / str(number))
        taken = []

        def prune(at, _kind, _keys, number=number, world=world):
            if at == number:
                world.two.prune(revoke_after_s=revoke_after_s)

        place = PlaceWithFaults(world.one.place(), prune)
        with contextlib.suppress(StoreError):
            taken.append(world.one.take_at(place, world.old).id)
        assert revoke_after_s == 0 or taken
        finish(world)
        for machine in (world.one, world.two):
            machine.check(listed=[world.kept, *taken])
        if len(place.changes) <= number:
            break
        number += STEP
    assert number > 3


@pytest.mark.parametrize("revoke_after_s", [0, 1e9], ids=["revokes", "waits"])
def test_a_prune_at_any_moment_of_a_prune_loses_nothing(prepared, tmp_path, revoke_after_s):
    number = 0
    while True:
        world = copied(prepared, tmp_path / str(number))
        taken = []

        def prune(at, _kind, _keys, number=number, world=world, taken=taken):
            if at == number:
                taken.append(world.two.take_at(world.two.place(), world.old).id)
                world.two.prune(revoke_after_s=revoke_after_s)

        place = PlaceWithFaults(world.one.place(), prune)
        with contextlib.suppress(StoreError):
            world.one.prune(place=place)
        finish(world)
        for machine in (world.one, world.two):
            machine.check(listed=[world.kept, *taken])
        if len(place.changes) <= number:
            break
        number += STEP
    assert number > 8


class Copies:
    """Copies of a snapshot of another store to the bucket, by several machines."""

    def __init__(self, world, top):
        self.source = FolderMachine(top / "other", top / "cache")
        assert self.source.init()[0]
        self.id = self.source.take_at(self.source.place(), world.old).id

    def copy(self, machine, place=None):
        report = CopyReport("bucket", dry_run=False)
        place = place or machine.place()
        with self.source.opened() as original, machine.opened_at(place) as store:
            copy_snapshots(original, store, CopyRequest(), report, clock=SystemClock())
        return [one.id for one in report.copied]

    def forget(self, machine, source):
        """Forget it, after a newer snapshot: the newest one cannot be forgotten."""
        machine.clock.advance(3600)
        machine.take_at(machine.place(), source)
        machine.forget(self.id)


@pytest.fixture
def copies(world, tmp_path):
    return Copies(world, tmp_path)


def at_commit(act):
    """Return a hook that calls ``act`` once, just before a manifest is created."""
    left = [act]

    def before(_number, kind, keys):
        if kind in {"create", "replace"} and keys.startswith("snapshots/") and left:
            left.pop()()

    return before


def test_a_revoked_copy_can_be_copied_again(world, copies):
    """Its ID is no longer free, but the manifest of a copy may replace a tombstone."""

    def revoke():
        world.two.prune(revoke_after_s=0)

    for _ in range(2):
        with pytest.raises(StoreError, match="was revoked"):
            copies.copy(world.one, PlaceWithFaults(world.one.place(), at_commit(revoke)))
        world.two.check(listed=[world.kept])
    assert copies.copy(world.one) == [copies.id]

    finish(world)
    for machine in (world.one, world.two):
        machine.check(listed=[world.kept, copies.id])


def test_a_copy_that_is_revoked_before_it_reads_anything_is_not_committed(world, copies):
    """No later prune knows of the copy, so it must not replace the tombstone."""
    relied_on = world.two.take_at(world.two.place(), world.old).id
    world.two.take_at(world.two.place(), world.source)

    def revoke():
        assert world.two.prune(revoke_after_s=0).revoked
        assert leases(world.two) == []

    def remove():
        world.two.forget(relied_on)
        assert world.two.prune().removed.packs

    place = PlaceWithFaults(AfterLeases(world.one.place(), revoke), at_commit(remove))
    with pytest.raises(StoreError, match="was revoked"):
        copies.copy(world.one, place)

    assert copies.id not in world.two.ids()
    world.two.check(listed=world.two.ids())


@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_copy_does_not_bring_back_what_was_copied_and_purged_meanwhile(world, copies, is_revoked):
    """Another machine copies the same snapshot, and purges it again."""
    three = FolderMachine(world.top / "bucket", world.top / "three")

    def come_and_go():
        if is_revoked:
            world.two.prune(revoke_after_s=0)
        else:
            assert world.two.prune().condemned.packs
        assert copies.copy(three) == [copies.id]
        world.two.prune(revoke_after_s=0)
        copies.forget(world.two, world.source)
        for _ in range(2):
            world.two.prune(revoke_after_s=0)
        assert copies.id not in world.two.ids()

    with pytest.raises(StoreError, match="was revoked"):
        copies.copy(world.one, PlaceWithFaults(world.one.place(), at_commit(come_and_go)))

    assert copies.id not in world.two.ids()
    world.two.check(listed=world.two.ids())
    assert copies.copy(world.one) == [], "it was removed for good"


class BeforeLeases(AfterLeases):
    """A place that is paused when a copy has read the keys, and has no lease yet."""

    def put(self, key, data):
        if key.startswith("leases/copy-"):
            self._act()
        self._place.put(key, data)


class BeforeKeys(AfterLeases):
    """A place that is paused when a copy has chosen its snapshots, before it reads the keys."""

    listings = 0

    def list(self, prefix=""):
        self.listings += prefix == "snapshots"
        if prefix == "snapshots" and self.listings == 2:
            self._act()
        return self._place.list(prefix)


@pytest.mark.parametrize("left", ["a tombstone", "nothing"])
@pytest.mark.parametrize("paused", [BeforeKeys, BeforeLeases])
def test_a_copy_adopts_nothing_that_was_purged_before_it_had_a_lease(world, copies, paused, left):
    """The purge did not see its lease, and what the purge left can be replaced."""
    three = FolderMachine(world.top / "bucket", world.top / "three")
    plain = world.two.place()
    acted = []

    def come_and_go():
        if acted:
            return
        acted.append(copies.copy(three))
        copies.forget(world.two, world.source)
        other = f"leases/copy-{copies.id}-{'0' * 16}"
        if left == "a tombstone":
            plain.put(other, b"1")
        with three.opened_at(three.place(), removes=True) as store:
            store.trash.empty([copies.id])
        plain.delete([other])
        assert (f"{copies.id}.json" in three.names("snapshots")) == (left == "a tombstone")

    assert copies.copy(world.one, paused(world.one.place(), come_and_go)) == []
    assert acted == [[copies.id]]

    assert copies.id not in world.one.ids()
    finish(world)
    world.one.check(listed=world.one.ids())


def test_a_mark_that_comes_after_the_manifest_has_gone_is_no_success(world):
    """Another machine forgets and prunes between the listing of marks and the new mark."""
    world.two.clock.advance(3600)
    newest = world.two.take_at(world.two.place(), world.old).id

    def act_at_mark(act, before):
        def hook(_number, kind, keys):
            if kind == "create" and keys.startswith("marks/"):
                before()
                world.two.prune()

        with world.one.opened() as store:
            store.bucket._place = PlaceWithFaults(store.bucket.place, hook)
            with pytest.raises(SnapshotNotFoundError) as caught:
                act(store)
        return caught.value.message

    undo = act_at_mark(lambda store: bring_back(store, world.garbage[0]), lambda: None)
    tag = act_at_mark(
        lambda store: change_tags(store, world.kept, add=["x"]),
        lambda: world.two.forget(world.kept),
    )
    assert "gone for good" in undo
    assert "removed for good" in tag
    finish(world)
    world.two.check(listed=[newest])
    assert world.two.names("marks") == []


@pytest.fixture
def condemned(tmp_path):
    """A machine whose last snapshot relies on packs that were condemned while it was taken.

    The packs go, as if a prune that saw this snapshot purged had judged them.
    """
    top = tmp_path
    one, two = (FolderMachine(top / "bucket", top / name) for name in ("one", "two"))
    assert one.init()[0]
    source = top / "source"
    write(source, ["large"], 5 * MIB)
    write(source, ["small"])
    # The data of the large file stays, and its recipe goes.
    (top / "other").mkdir()
    content = bytearray((source / "large").read_bytes())
    for at in (0, -1):
        content[at] ^= 1
        (top / "other" / f"changed at {at}").write_bytes(content)
        content[at] ^= 1
    one.take_at(one.place(), top / "other")
    first = one.take_at(one.place(), source)
    assert first.new_bytes < 60_000
    one.take_at(one.place(), top / "other")
    one.forget(first.id)
    with one.opened_at(one.place()) as store:
        assert two.prune().condemned.packs
        relying = one.take_into(store, source)
        assert relying.new_bytes < 2000

    def remove():
        bucket = open_bucket(one.place(), one.environ)
        for found in bucket.condemned.read():
            bucket.condemned.delete(found.packs)

    return one, source, relying.id, remove


def test_an_unchanged_file_is_stored_again_if_its_packs_are_condemned(condemned, tmp_path):
    one, source, _, remove = condemned

    one.take_at(one.place(), source)

    remove()
    three = FolderMachine(tmp_path / "bucket", tmp_path / "three")
    three.restore(source, tmp_path / "back")
    for name in ("large", "small"):
        assert (tmp_path / "back" / "source" / name).read_bytes() == (source / name).read_bytes()


def test_a_stored_file_is_stored_again_if_its_packs_are_condemned(condemned, tmp_path):
    one, source, relying, remove = condemned
    request = MemoryRequest((MemoryFile(b"state.json", (b"{}",)),))

    with one.opened_at(one.place()) as store:
        locator = Locator(store, store.manifest(relying))
        entries = [locator.locate(os.fsencode(source / name)).entry for name in ("large", "small")]
        one.clock.advance(10)
        stored = tuple(StoredFile(entry.name, entry) for entry in entries)
        take_from_memory(store, dataclasses.replace(request, stored=stored), clock=one.clock)

    remove()
    three = FolderMachine(tmp_path / "bucket", tmp_path / "three")
    three.restore("/state", tmp_path / "back")
    for name in ("large", "small"):
        assert (tmp_path / "back" / "state" / name).read_bytes() == (source / name).read_bytes()

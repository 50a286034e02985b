"""ciuic repair: exact, deletes nothing, and changes nothing without --apply."""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ciuic.errors import CancelledError, CorruptionError, StoreFullError
from ciuic.maintain.repair.apply import apply_repair
from ciuic.maintain.repair.entrance import repair_entrance
from ciuic.maintain.repair.plan import plan_repair
from ciuic.maintain.repair.report import RepairPlan
from ciuic.source.freeze.places import remove_copies
from ciuic.store.adding import new_writer
from ciuic.store.format.pack import footer_frames
from ciuic.store.parity import rebuild
from ciuic.store.parity.parity_file import inspect_parity
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.system import durable
from ciuic.system.hashing import data_id
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of, packs, place_of
from tests.kit.filesystems import disk, tmpfs
from tests.kit.program import CIUIC, environment
from tests.kit.trees import Photo, photograph

KIB = 1024
SHARE = 0.04


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


class Patient:
    """A store with two snapshots, and its state before the damage."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.store = box.store
        source = box.source
        (source / "sub").mkdir()
        (source / "model").write_bytes(noise(900 * KIB))
        (source / "sub" / "middle").write_bytes(noise(70 * KIB, 1))
        (source / "sub" / "note").write_bytes(b"a note\n" * 40)
        box.take()
        self.model = (source / "model").read_bytes()
        (source / "sub" / "log").write_bytes(b"a line\n")
        box.take()
        self.ids = [one.id for one in box.snapshots()]
        self.photo = photograph(source)
        self.before = files_of(self.store)

    def plan(self, *, parity: float = SHARE) -> RepairPlan:
        with open_store(str(self.store)) as store:
            return plan_repair(store, parity=parity)

    def repair(self, *, parity: float = SHARE) -> RepairPlan:
        """Make a plan and apply it; returns the plan."""
        repair_entrance(str(self.store), apply=True)
        with open_store(str(self.store), write=True) as store:
            plan = plan_repair(store, parity=parity)
            apply_repair(store, plan, parity=parity, clock=self.box.clock)
        return plan

    def chunks(self) -> list[bytes]:
        return [self.model[at : at + 64 * KIB] for at in range(0, len(self.model), 64 * KIB)]

    def data_pack(self) -> Path:
        return pack_of(self.store, self.model[: 64 * KIB])

    def node_pack(self) -> Path:
        """The pack of the newest snapshot's root."""
        with open_store(str(self.store)) as store:
            tree = store.manifest(self.ids[0]).roots[0].tree
            return self.store / "packs" / store.reader.places([tree])[tree].pack_id.hex()

    def without_parity(self) -> None:
        for path in (self.store / "parity").iterdir():
            if layout.parse_pack_name(path.name):
                path.unlink()

    def destroy(self, path: Path, begin: int, length: int) -> None:
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(noise(length, begin))

    def quarantine(self) -> list[str]:
        directory = self.store / "quarantine"
        return sorted(os.listdir(directory)) if directory.exists() else []

    def restored(self) -> dict[bytes, Photo]:
        """Restore the newest snapshot."""
        out = self.box.directory / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.box.restore(to=out)
        return photograph(out / "source")

    def is_well(self) -> bool:
        """Every snapshot is sound, the newest one equals the source, and no repair is needed."""
        same = self.restored() == self.photo
        plan = self.plan()
        return same and self.box.verify().ok and not plan.is_damaged and not plan.has_work


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file of a store that is not a cache or a lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(("lock", "catalog"))
    }


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    """Without reflink copies: these would repair all damage of the tests."""
    it = Patient(Box(tmp_path, chunk_bytes=64 * KIB, parity=SHARE))
    with open_store(str(it.store)) as store:
        remove_copies(store.header.store_id, [os.fsencode(it.box.source)], keep=0)
    return it


def test_a_sound_store_needs_nothing_and_nothing_is_changed(patient):
    plan = patient.repair()

    assert not plan.is_damaged
    assert not plan.has_work
    assert files_of(patient.store) == patient.before


def test_a_repair_without_apply_changes_nothing(patient):
    flip_content(patient.store, patient.model[: 64 * KIB])
    (patient.store / "snapshots" / f"{patient.ids[0]}.json").write_bytes(b"{}")
    harmed = files_of(patient.store)

    plan = patient.plan()

    assert [one.is_repairable for one in plan.packs] == [True]
    assert [one.id for one in plan.manifests] == [patient.ids[0]]
    assert files_of(patient.store) == harmed


@pytest.mark.parametrize(
    "harm", ["flip", "stretch", "cut", "footer", "magic", "zeros", "empty sector"]
)
def test_damage_within_the_reach_of_parity_is_repaired_exactly(patient, harm):
    pack = patient.data_pack()
    size = pack.stat().st_size
    match harm:
        case "flip":
            flip_byte(pack, size // 2)
        case "stretch":
            patient.destroy(pack, 300_001, 30_000)
        case "cut":
            os.truncate(pack, size - 30_000)
        case "footer":
            flip_byte(pack, -40)
        case "magic":
            flip_byte(pack, 0)
        case "zeros":
            with pack.open("r+b") as file:
                file.seek(4096)
                file.write(bytes(20_000))
        case "empty sector":
            patient.destroy(pack, 0, 4096)
            patient.destroy(pack, size - 4096, 4096)
    harmed = pack.read_bytes()

    plan = patient.repair()

    assert [(one.pack_id.hex(), one.is_repairable) for one in plan.packs] == [(pack.name, True)]
    after = files_of(patient.store)
    assert after.pop(f"quarantine/{pack.name}") == harmed
    assert after == patient.before
    assert patient.is_well()


def test_every_pack_at_once(patient):
    for path in packs(patient.store):
        flip_byte(path, path.stat().st_size // 2)

    assert all(one.is_repairable for one in patient.repair().packs)
    assert patient.is_well()


def test_restore_and_cat_need_no_repair(patient):
    for path in packs(patient.store):
        flip_byte(path, path.stat().st_size // 2)
    harmed = files_of(patient.store)

    patient.box.restore(to=patient.box.directory / "out")

    assert photograph(patient.box.directory / "out" / "source") == patient.photo
    assert patient.box.read(patient.box.source / "model") == patient.model
    assert files_of(patient.store) == harmed
    assert not patient.box.verify().ok


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the compiled core."""
    monkeypatch.setattr(rebuild, "core", lambda: None)


@pytest.mark.usefixtures("no_core")
def test_without_the_compiled_core_damage_is_still_repaired(patient):
    flip_content(patient.store, patient.model[: 64 * KIB])

    report = patient.box.restore(to=patient.box.directory / "out")

    assert not report.failed
    assert photograph(patient.box.directory / "out" / "source") == patient.photo


def test_a_truncated_pack_is_restored_without_a_chunk_index(patient):
    pack = patient.data_pack()
    os.truncate(pack, pack.stat().st_size - 30_000)
    (patient.store / "catalog.sqlite").unlink()

    patient.box.restore(to=patient.box.directory / "out")

    assert photograph(patient.box.directory / "out" / "source") == patient.photo


def test_beyond_reach_the_live_file_has_the_bytes(patient):
    patient.destroy(patient.data_pack(), 100_000, 300_000)

    plan = patient.repair()

    (bad,) = plan.packs
    assert not bad.is_repairable
    assert bad.lost
    assert {one.how for one in plan.origins.values()} == {"live file"}
    assert not plan.is_hopeless
    assert patient.is_well()


END_BYTES = 6_000


def had_from_the_end(patient: Patient, pack: Path, whole: bytes) -> set[bytes]:
    """The chunks in the last bytes of a pack that can still be read from anywhere."""
    frames = footer_frames(
        lambda length, offset: whole[offset : offset + length], len(whole), bytes.fromhex(pack.name)
    )
    end = len(whole) - END_BYTES
    found = set()
    with open_store(str(patient.store)) as store:
        for one in frames:
            if one.offset_bytes + one.frame.total_bytes > end:
                for name, _ in one.frame.chunks:
                    with contextlib.suppress(CorruptionError):
                        store.reader.chunk(name, kind=DATA)
                        found.add(name)
    return found


def test_chunks_that_parity_restores_of_a_pack_beyond_repair_outlive_the_repair(patient):
    """The pack's end is cut off, and there is no chunk index: only parity has those chunks."""
    pack = patient.data_pack()
    whole = pack.read_bytes()
    (patient.box.source / "model").unlink()
    (patient.box.source / "sub" / "middle").unlink()
    # The order of the chunks depends on threads, and so does what the damage leaves.
    for begin, length in itertools.product(
        range(100_000, 300_000, 49_999), range(33_000, 65_000, 3_000)
    ):
        pack.write_bytes(whole)
        patient.destroy(pack, begin, length)
        os.truncate(pack, len(whole) - END_BYTES)
        (patient.store / "catalog.sqlite").unlink(missing_ok=True)
        (bad,) = patient.plan().packs
        had = had_from_the_end(patient, pack, whole)
        if had and not bad.is_repairable:
            break
    else:
        pytest.fail("no damage is beyond parity in the middle and within it at the end")
    (patient.store / "catalog.sqlite").unlink(missing_ok=True)

    patient.repair()

    assert had_from_the_end(patient, pack, whole) >= had


def test_a_changed_live_file_is_not_used_for_a_repair(patient):
    patient.destroy(patient.data_pack(), 100_000, 300_000)
    (patient.box.source / "model").write_bytes(noise(900 * KIB, 5))

    plan = patient.repair()

    # The chunks in between may belong to another file, which has not changed.
    assert all(os.path.basename(one.path) != b"model" for one in plan.origins.values())
    assert plan.is_hopeless
    assert [one.id for one in plan.remaining] == patient.ids
    assert [one.path for one in plan.remaining[0].damaged] == [
        os.fsencode(patient.box.source / "model")
    ]
    assert (plan.remaining[0].files_left, plan.remaining[0].files) == (3, 4)


def test_a_later_snapshot_repairs_chunks_without_another_copy(patient):
    patient.destroy(patient.data_pack(), 100_000, 300_000)
    model = patient.box.source / "model"
    os.rename(model, patient.box.directory / "away")
    assert patient.repair().is_hopeless
    assert not patient.box.verify().ok

    os.rename(patient.box.directory / "away", model)
    patient.box.take(base=True)

    assert patient.box.verify().ok


def test_a_pack_that_is_gone_is_stored_again_from_the_live_files(patient):
    patient.data_pack().unlink()

    assert not patient.repair().is_hopeless
    assert patient.is_well()


def test_another_pack_has_the_chunk(patient):
    patient.without_parity()
    chunk = patient.model[: 64 * KIB]
    first = place_of(patient.store, chunk)
    with open_store(str(patient.store), write=True) as store:
        again = [(data_id(one), one) for one in patient.chunks()]
        store.index.drop_chunks([name for name, _ in again])
        writer = new_writer(store, parity=0.0)
        writer.add_data(again)
        writer.finish()
    flip_byte(patient.store / "packs" / first.pack_id.hex(), first.offset_bytes + 200)
    (patient.box.source / "model").unlink()

    plan = patient.repair()

    (bad,) = plan.packs
    assert {saved.source for saved in bad.saved.values()} == {"another pack"}
    assert not plan.is_hopeless
    assert patient.box.verify().ok


@pytest.mark.parametrize("harm", ["footer", "header", "magic"])
def test_a_pack_with_a_damaged_header_or_footer_is_written_anew(patient, harm):
    pack = patient.data_pack()
    sound = pack.read_bytes()
    old = set(packs(patient.box.store))
    patient.without_parity()
    match harm:
        case "footer":
            os.truncate(pack, len(sound) - 500)
        case "header":
            flip_byte(pack, -20)
        case "magic":
            flip_byte(pack, 3)

    patient.repair()

    (new,) = set(packs(patient.box.store)) - old
    label_bytes, trailer_bytes = 16, 32
    footer = int.from_bytes(sound[-trailer_bytes:][:8], "little")
    end = len(sound) - trailer_bytes - label_bytes
    assert new.read_bytes()[:end] == sound[:end]
    assert footer < end
    assert patient.quarantine() == [pack.name]
    assert patient.is_well()


def test_the_sound_frames_of_a_pack_beyond_repair_are_written_to_a_new_pack(patient):
    patient.without_parity()
    pack = patient.data_pack()
    patient.destroy(pack, 100_000, 300_000)
    harmed = pack.read_bytes()
    (patient.box.source / "model").unlink()

    plan = patient.repair()

    assert plan.is_hopeless
    assert not pack.exists()
    assert (patient.store / "quarantine" / pack.name).read_bytes() == harmed
    assert patient.box.read(patient.box.source / "sub" / "middle") == noise(70 * KIB, 1)
    assert not patient.plan().packs
    damaged = {bad.path for one in patient.box.verify().snapshots for bad in one.damaged}
    assert damaged == {os.fsencode(patient.box.source / "model")}


def test_a_pack_without_any_sound_byte_is_repaired_from_elsewhere(patient):
    pack = patient.data_pack()
    pack.write_bytes(noise(pack.stat().st_size, 9))

    assert not patient.repair().is_hopeless
    assert pack.name in patient.quarantine()
    assert f"{pack.name}.parity" in patient.quarantine()
    assert patient.is_well()


@pytest.mark.parametrize("content", [b"", b"x"])
def test_a_pack_that_is_empty_or_nearly_so(patient, content):
    patient.data_pack().write_bytes(content)

    assert not patient.repair().is_hopeless
    assert patient.is_well()


def test_damage_beyond_reach_is_repaired_in_part(patient):
    """No source has the middle; parity still has the single damaged chunk."""
    pack = patient.data_pack()
    patient.destroy(pack, 500_000, 300_000)
    size = pack.stat().st_size
    segment = -(-size // 100 // 4096) * 4096
    alone = 500_000 % segment - 2 * KIB  # where the segments of the stretch are sound
    patient.destroy(pack, alone, 512)
    (patient.box.source / "model").unlink()

    plan = patient.repair()

    healed = [saved.source for one in plan.packs for saved in one.saved.values()]
    assert plan.is_hopeless
    assert set(healed) <= {"parity"}
    assert not patient.plan().packs


def test_trees_that_are_gone_are_shown_with_what_is_left(patient):
    patient.without_parity()
    newest, oldest = patient.ids
    patient.node_pack().unlink()

    plan = patient.repair()

    (shown,) = [one for one in plan.remaining if one.id == newest]
    assert (shown.files_left, shown.files) == (0, 4)
    assert shown.damaged
    assert oldest not in [one.id for one in plan.remaining]
    assert (patient.store / "snapshots" / f"{newest}.json").exists()


def test_a_damaged_manifest_is_listed_restored_and_put_back_from_its_copy(patient):
    name = f"snapshots/{patient.ids[0]}.json"
    flip_byte(patient.store / name, 100)
    (patient.store / "catalog.sqlite").unlink()

    assert [one.id for one in patient.box.snapshots()] == patient.ids
    patient.box.restore(to=patient.box.directory / "out")
    assert not patient.box.verify().ok
    patient.repair()

    assert (patient.store / name).read_bytes() == patient.before[name]
    assert patient.quarantine() == [f"{patient.ids[0]}.json"]
    assert patient.is_well()


def test_a_copy_that_a_killed_run_did_not_make_is_made_by_the_next(patient):
    copy = patient.store / "parity" / f"{patient.ids[0]}.json"
    copy.unlink()

    patient.box.take()

    assert copy.read_bytes() == patient.before[f"snapshots/{copy.name}"]
    assert not patient.plan().has_work


def test_a_manifest_that_is_gone_comes_back(patient):
    for path in (patient.store / "snapshots").iterdir():
        path.unlink()

    patient.repair()

    assert files_of(patient.store) == patient.before


def test_a_lost_directory_of_snapshots_comes_back(patient):
    shutil.rmtree(patient.store / "snapshots")

    assert repair_entrance(str(patient.store), apply=False)
    assert not (patient.store / "snapshots").exists()
    patient.repair()

    assert files_of(patient.store) == patient.before


@pytest.mark.parametrize("content", [None, b"", b"{}", b"x" * 300])
def test_a_damaged_header_is_put_back_from_its_copy(patient, content):
    header = patient.store / layout.HEADER
    header.unlink() if content is None else header.write_bytes(content)

    assert repair_entrance(str(patient.store), apply=False)
    patient.repair()

    assert header.read_bytes() == patient.before[layout.HEADER]
    assert patient.is_well()


def test_a_forgotten_snapshot_does_not_come_back(patient):
    with open_store(str(patient.store), write=True) as store:
        store.trash.forget([patient.ids[1]], patient.box.clock.now_ns())
    patient.repair()
    assert [one.id for one in patient.box.snapshots()] == patient.ids[:1]

    with open_store(str(patient.store), write=True) as store:
        copy = store.manifests.copies.read(patient.ids[1])
        store.trash.empty([patient.ids[1]])
        assert copy is not None
        store.manifests.copies.put(
            f"{patient.ids[1]}.json", copy
        )  # as a run that was killed could leave it
    patient.repair()

    assert [one.id for one in patient.box.snapshots()] == patient.ids[:1]


def test_a_damaged_list_of_retired_snapshots_brings_no_snapshot_back(patient):
    with open_store(str(patient.store), write=True) as store:
        copy = store.manifests.copies.read(patient.ids[1])
        store.trash.forget([patient.ids[1]], patient.box.clock.now_ns())
        store.trash.empty([patient.ids[1]])
        store.manifests.copies.put(f"{patient.ids[1]}.json", copy)
    (record,) = (patient.store / layout.RETIRED).iterdir()
    flip_byte(record, 30)

    plan = patient.repair()

    assert list(plan.retired) == [record.name]
    assert not plan.manifests
    assert patient.quarantine() == [f"retired-{record.name}"]
    assert not patient.plan().retired


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_damaged_manifest_of_a_forgotten_snapshot(patient, has_copy):
    with open_store(str(patient.store), write=True) as store:
        store.trash.forget([patient.ids[1]], patient.box.clock.now_ns())
    name = f"{patient.ids[1]}.json"
    if not has_copy:
        (patient.store / "parity" / name).unlink()
    flip_byte(patient.store / "snapshots" / name, 100)

    (bad,) = patient.repair().manifests

    assert (bad.id, bad.in_trash, bad.has_copy) == (patient.ids[1], True, has_copy)
    assert patient.quarantine() == [name]
    assert [one.id for one in patient.box.snapshots()] == patient.ids[:1]
    with open_store(str(patient.store), write=True) as store:
        assert [one.id for one in store.trash.read()] == patient.ids[1:] * has_copy


def test_a_manifest_without_a_copy_is_set_aside(patient):
    name = f"{patient.ids[0]}.json"
    (patient.store / "parity" / name).unlink()
    flip_byte(patient.store / "snapshots" / name, 100)

    plan = patient.repair()

    assert plan.is_hopeless
    assert patient.quarantine() == [name]
    assert [one.id for one in patient.box.snapshots()] == patient.ids[1:]
    # It counts as lost until a user abandons it; a repair can do nothing more.
    again = patient.plan()
    assert again.is_hopeless
    assert not again.has_work
    with open_store(str(patient.store), write=True) as store:
        store.trash.delete_lost([patient.ids[0]])
    assert not patient.plan().is_damaged


def test_missing_and_damaged_parity_is_rebuilt(patient):
    parity = sorted(one for one in (patient.store / "parity").iterdir() if len(one.name) == 64)
    parity[0].unlink()
    flip_byte(parity[1], parity[1].stat().st_size // 2)
    assert not patient.plan().is_damaged

    plan = patient.repair()

    assert len(plan.bare) == 2
    assert files_of(patient.store) == patient.before


def test_a_store_that_was_without_parity_gets_it(tmp_path):
    patient = Patient(Box(tmp_path, chunk_bytes=64 * KIB))
    assert not (patient.store / "parity").exists()
    assert not patient.plan(parity=0.0).has_work

    patient.repair(parity=0.1)

    with open_store(str(patient.store)) as store:
        assert not any(inspect_parity(store.path, pack) for pack in store.pack_files())
    assert patient.is_well()


def test_a_lost_or_wrong_chunk_index_is_rebuilt(patient):
    with open_store(str(patient.store), write=True) as store:
        store.index.drop_chunks([data_id(patient.model[: 64 * KIB])])
        store.index.commit()
    flip_byte(patient.data_pack(), 300_000)

    patient.repair()

    with open_store(str(patient.store)) as store:
        assert store.index.usable([data_id(patient.model[: 64 * KIB])])
    assert patient.is_well()


def test_strangers_are_left_alone(patient):
    (patient.store / "packs" / "readme").write_text("hello")
    (patient.store / "parity" / "readme").write_text("hello")

    patient.repair()

    assert (patient.store / "packs" / "readme").read_text() == "hello"
    assert (patient.store / "parity" / "readme").read_text() == "hello"


def harmed_everywhere(patient):
    """Damage for every step of a repair."""
    patient.destroy(patient.data_pack(), 100_000, 300_000)
    flip_byte(patient.node_pack(), 200)
    flip_byte(patient.store / "snapshots" / f"{patient.ids[0]}.json", 100)
    (patient.store / "parity" / f"{patient.ids[1]}.json").unlink()


def test_a_repair_that_is_stopped_between_any_two_steps_goes_on(patient):
    harmed_everywhere(patient)
    steps = 0
    while True:
        left = iter(range(steps))
        with open_store(str(patient.store), write=True) as store:
            plan = plan_repair(store, parity=SHARE)
            try:
                apply_repair(
                    store,
                    plan,
                    parity=SHARE,
                    clock=patient.box.clock,
                    cancelled=lambda left=left: next(left, None) is None,
                )
            except CancelledError:
                steps += 1
                continue
        break

    assert steps > 3
    assert patient.is_well()


def test_a_repair_that_is_killed_at_any_moment_goes_on(patient):
    harmed_everywhere(patient)
    # The chunks that are lost until they are stored again: which ones depends on threads.
    lost = patient.photo.keys() - patient.restored().keys()
    chance = random.Random(6)
    command = [*CIUIC, "--config", str(patient.box.config), "repair", "--apply"]
    for _ in range(6):
        running = subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            running.wait(chance.uniform(0.25, 0.9))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
        assert patient.photo.keys() - patient.restored().keys() <= lost

    assert patient.box.ciuic("repair", "--apply").code == 0
    assert patient.is_well()


@pytest.mark.root
def test_a_disk_that_is_full_costs_nothing(tmp_path):
    with tmpfs(tmp_path / "small", size_mib=9) as small:
        patient = Patient(Box(small, chunk_bytes=64 * KIB, parity=SHARE))
        flip_byte(patient.data_pack(), 300_000)
        filler = small / "filler"
        free = os.statvfs(small).f_bavail * 4096
        filler.write_bytes(bytes(free - 200 * KIB))
        harmed = files_of(patient.store)

        with pytest.raises(StoreFullError):
            patient.repair()
        after = files_of(patient.store)
        assert {name: data for name, data in after.items() if "quarantine" not in name} == harmed

        filler.unlink()
        patient.repair()
        assert files_of(patient.store).items() >= patient.before.items()
        assert patient.box.verify().ok


@pytest.mark.root
def test_a_reflink_copy_has_the_bytes(tmp_path):
    with disk("xfs", tmp_path / "disks") as mounted:
        patient = Patient(Box(mounted.path, chunk_bytes=64 * KIB, parity=SHARE))
        patient.destroy(patient.data_pack(), 100_000, 300_000)
        # Which chunks are at the damaged place depends on threads. The note is too small to have a
        # reflink copy.
        for name in ("model", "sub/middle"):
            (patient.box.source / name).write_bytes(b"changed since")

        plan = patient.repair()

        large = [one for one in plan.origins.values() if not one.path.endswith(b"/note")]
        assert {one.how for one in large} == {"hot copy"}
        assert not plan.is_hopeless
        assert patient.box.verify().ok
        assert patient.box.read(patient.box.source / "model") == patient.model


class TestCommand:
    """The output of the command."""

    def test_a_repair_says_what_it_would_do_and_then_does_it(self, patient):
        pack = patient.data_pack()
        flip_byte(pack, 300_000)

        looked = patient.box.ciuic("repair")
        done = patient.box.ciuic("repair", "--apply")
        again = patient.box.ciuic("repair")

        assert looked.code == 4
        assert f"pack {pack.name[:12]}: a stretch of it is damaged: would be repaired" in looked.out
        assert (
            f"nothing was changed; run 'ciuic --config {patient.box.config} repair --apply'"
            in looked.err
        )
        assert done.code == 0
        assert "repaired by its parity" in done.out
        assert f"quarantine/{pack.name}" in done.err
        assert again.code == 0
        assert again.out == "nothing is damaged\n"

    def test_json_names_everything(self, patient):
        harmed_everywhere(patient)

        looked = patient.box.ciuic("repair", "--json")
        done = patient.box.ciuic("repair", "--apply", "--json")

        assert (looked.code, done.code) == (4, 0)
        for outcome, applied in ((looked, False), (done, True)):
            document = outcome.document
            assert document["applied"] is applied
            assert document["ok"] is applied
            assert len(document["packs"]) == 2
            assert sum(one["whole"] for one in document["packs"]) == 1
            assert [one["id"] for one in document["manifests"]] == [patient.ids[0]]
            assert document["copies_missing"] == 1
            assert document["snapshots"] == []
        assert len(done.document["quarantined"]) >= 3

    def test_lasting_damage_is_named_with_exit_code_4(self, patient):
        patient.destroy(patient.data_pack(), 100_000, 300_000)
        (patient.box.source / "model").unlink()

        done = patient.box.ciuic("repair", "--apply")

        assert done.code == 4
        assert f"{patient.ids[0]} stays damaged: 1 path cannot" in done.out
        assert str(patient.box.source / "model") in done.out

    def test_a_lost_header_is_said_and_put_back(self, patient):
        (patient.store / layout.HEADER).unlink()

        looked = patient.box.ciuic("repair", "--json")
        done = patient.box.ciuic("repair", "--apply")

        assert looked.code == 4
        assert "lost its header" in looked.document["entrance"][0]
        assert done.code == 0
        assert patient.is_well()

    def test_there_is_nothing_to_repair_where_no_store_is(self, patient):
        outcome = patient.box.ciuic("--store", patient.box.directory / "nothing", "repair")

        assert outcome.code == 1
        assert "there is no store" in outcome.err

    def test_a_busy_store_is_not_repaired(self, patient):
        with open_store(str(patient.store), write=True):
            assert patient.box.ciuic("repair", "--apply", "--wait", "0").code == 5
            assert patient.box.ciuic("repair").code == 0


def test_no_pack_is_seen_without_its_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer leaves packs that the next snapshot uses: they must have parity."""
    box, seen = Box(tmp_path, parity=SHARE), []

    def killed(fd: int, temporary: str, final: str) -> None:
        publish(fd, temporary, final)
        for path in packs(box.store):
            assert (box.store / "parity" / path.name).exists(), path
            seen.append(path)
        if len(seen) == 1:
            raise KeyboardInterrupt  # no cleanup runs after a SIGKILL either

    publish = durable.publish
    (box.source / "model").write_bytes(noise(900 * KIB))
    monkeypatch.setattr(durable, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        box.take()
    box.take()
    assert len(seen) > 2
    monkeypatch.undo()
    for path in packs(box.store):
        flip_byte(path, 200)
    assert box.ciuic("repair", "--apply").code == 0
    assert box.read(box.source / "model") == noise(900 * KIB)

"""What one machine finds damaged, the others know.

docs/protocol.md, "Damage that all machines know".

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import contextlib
import functools
import os

import pytest

from ciuic.errors import AccessDeniedError
from ciuic.ids import PackId
from ciuic.maintain.repair.bucket import apply_in_bucket, plan_in_bucket
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.snapshot.memory import MemoryRequest, StoredFile, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store import damage_records
from ciuic.store.adding import adding
from ciuic.store.addressed import open_at_address
from ciuic.store.damage_records import note_read
from ciuic.store.place.bucket import open_bucket
from ciuic.store.records import layout
from ciuic.store.records.damage import RECORDS_MAX, ByteSpan, KnownDamage
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_in_bucket
from ciuic.view.locator import Locator
from tests.kit.buckets import FolderMachine, KilledError, PlaceWithFaults, write
from tests.kit.damage import flip_byte

pytestmark = pytest.mark.root


class CountingPlace:
    """A place in front of another one, which notes each call of a method."""

    def __init__(self, place):
        self._place = place
        self.requests = []

    def __getattr__(self, name):
        self.requests.append(name)
        return getattr(self._place, name)


@pytest.fixture
def source(tmp_path):
    write(tmp_path / "source", ["a", "b"], 300_000)
    return tmp_path / "source"


@pytest.fixture
def one(tmp_path, source):
    """A machine with a snapshot of two files, which are in one pack."""
    made = FolderMachine(tmp_path / "bucket", tmp_path / "one")
    made.init()
    made.take_at(made.place(), source)
    return made


@pytest.fixture
def two(one, tmp_path, source):
    """Another machine, which has a chunk index and relies on that pack."""
    made = FolderMachine(tmp_path / "bucket", tmp_path / "two")
    assert made.take_at(made.place(), source).new_bytes == 0
    return made


def place_in(machine, number=0):
    """Return a data chunk and its place."""
    with machine.opened() as store:
        data = sorted(one for part in store.index.chunk_ids() for one, kind in part if kind == DATA)
        return data[number], store.index.places([data[number]])[data[number]]


def damage(machine, number=0):
    """Damage a data chunk; returns its place."""
    _, place = place_in(machine, number)
    flip(machine, place)
    return place


def flip(machine, place):
    """Damage the chunk at a place, or mend it again."""
    path = machine.cache.parent / "bucket" / layout.PACKS / layout.pack_name(place.pack_id)
    flip_byte(path, place.offset_bytes + place.frame_bytes // 2)


def scrubbed(machine, place=None):
    """Scrub; with ``place``, through that place."""

    @contextlib.contextmanager
    def opened(*, write=False, **_):
        bucket = open_bucket(place, machine.environ, write=write)
        with open_in_bucket(bucket, write=write, removes=write) as store:
            yield store

    usual = functools.partial(open_at_address, machine.address, machine.environ, machine.options)
    return scrub(Bucket(opened if place else usual), clock=machine.clock)


def chunk_of(store, place):
    """Return the chunk at a place."""
    listed = {one.offset_bytes: one for one in store.index_keeper.list_pack(place.pack_id)}
    ((chunk_id, _),) = listed[place.offset_bytes].frame.chunks
    return chunk_id


def records(machine):
    return [name for name in machine.names(layout.PACKS) if layout.parse_damage_name(name)]


def packs(machine):
    return [name for name in machine.names(layout.PACKS) if layout.parse_pack_name(name)]


FINDERS = {
    "scrub": scrubbed,
    "verify": FolderMachine.verify,
    "restore": lambda machine: machine.restore(
        machine.cache.parent / "source", machine.cache.parent / "restored"
    ),
}


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("has_index", [True, False])
def test_what_one_machine_finds_damaged_another_one_stores_again(
    one, two, source, tmp_path, finder, has_index
):
    place = damage(one)
    before = len(packs(one))
    FINDERS[finder](one)
    [name] = records(one)
    span = ByteSpan(place.offset_bytes, place.offset_bytes + place.frame_bytes)
    assert KnownDamage([name]).covers(place.pack_id, span)
    other = two if has_index else FolderMachine(tmp_path / "bucket", tmp_path / "three")

    other.take_at(other.place(), source)

    assert len(packs(one)) == before + 1
    for machine in (one, two, other):
        machine.check(listed=one.ids())
    assert len(one.ids()) == 3


def test_without_the_record_a_snapshot_relies_on_the_damaged_chunk(one, two, source):
    damage(one)
    scrubbed(one)
    one.place().delete([f"{layout.PACKS}/{name}" for name in records(one)])

    two.take_at(two.place(), source)

    assert not two.verify().ok


def test_a_chunk_is_stored_again_once(one, two, source, tmp_path):
    damage(one)
    scrubbed(one)
    two.take_at(two.place(), source)
    before = packs(one)

    for machine in (one, two, FolderMachine(tmp_path / "bucket", tmp_path / "three")):
        machine.take_at(machine.place(), source)

    assert packs(one) == before


def test_a_repair_and_a_prune_remove_the_record_with_its_pack(one, two, source):
    damage(one)
    scrubbed(one)
    two.take_at(two.place(), source)
    with two.opened_at(two.place(), removes=True) as store:
        _, [replaced] = apply_in_bucket(store, plan_in_bucket(store))
    assert records(one) != []

    one.prune()

    assert replaced not in packs(one)
    assert records(one) == []
    for machine in (one, two):
        machine.check(listed=one.ids())


def test_a_scrub_that_reads_the_pack_as_sound_removes_the_record(one, two, source):
    place = damage(one)
    scrubbed(one)
    flip(one, place)  # as if only a cable had been at fault
    before = packs(one)

    assert not scrubbed(two).damaged

    assert records(one) == []
    two.take_at(two.place(), source)
    assert packs(one) == before


def test_a_record_that_came_while_a_scrub_read_the_pack_stays(one, two, monkeypatch):
    place = damage(one)
    scrubbed(one)
    [old] = records(one)
    flip(one, place)
    inspect = Bucket.inspect

    def meanwhile(self, pack_id, cancelled):
        check = inspect(self, pack_id, cancelled)
        if pack_id == place.pack_id:
            with monkeypatch.context() as patch, one.opened() as store:
                patch.setattr(Bucket, "inspect", inspect)
                note_read(store, pack_id, [ByteSpan(8, 90)], store.packs.damage())
        return check

    monkeypatch.setattr(Bucket, "inspect", meanwhile)
    assert not scrubbed(two).damaged

    [name] = records(one)
    assert name != old
    assert KnownDamage([name]).covers(place.pack_id, ByteSpan(8, 90))


def test_each_scrub_leaves_one_record_of_the_same_damage(one, two):
    damage(one)
    scrubbed(one)
    [first] = records(one)
    scrubbed(two)
    [second] = records(one)
    assert first != second
    one.verify()
    two.restore(one.cache.parent / "source", one.cache.parent / "restored")
    assert records(one) == [second]


def test_a_scrub_that_is_killed_at_any_change_leaves_damage_on_record(one, two, source):
    damage(one)
    scrubbed(one)
    number = 0
    while True:

        def before(at, _kind, _keys, number=number):
            if at >= number:
                raise KilledError

        place = PlaceWithFaults(two.place(), before)
        with contextlib.suppress(KilledError):
            scrubbed(two, place)
        assert 1 <= len(records(one)) <= 2
        if len(place.changes) <= number:
            break
        number += 1
    assert number >= 2
    two.take_at(two.place(), source)
    two.check(listed=one.ids())


def test_a_record_that_does_not_tell_the_truth_costs_space_alone(one, two, source):
    with one.opened() as store:
        for pack_id, size in store.pack_files().items():
            note_read(store, pack_id, [ByteSpan(0, size)], KnownDamage())
        (one.cache.parent / "bucket/packs/no-damaged-1-2-0123456789abcdef").touch()
    before = packs(one)
    one.check(listed=one.ids())

    assert two.take_at(two.place(), source).new_bytes == 0 or len(packs(one)) > len(before)
    stored = packs(one)
    two.take_at(two.place(), source)
    assert packs(one) == stored
    one.prune()
    two.prune()

    for machine in (one, two):
        machine.check(listed=one.ids())
        stored = packs(one)
        machine.take_at(machine.place(), source)
        assert packs(one) == stored


@pytest.mark.parametrize("is_true", [False, True])
@pytest.mark.parametrize("has_condemned", [False, True])
def test_what_is_kept_without_its_bytes_is_stored_again_if_it_can_be_read(
    one, two, source, is_true, has_condemned
):
    """A state of the library keeps files of an earlier one."""
    place = damage(one)
    if has_condemned:
        with two.opened_at(two.place(), removes=True) as store:
            gone = PackId(bytes(32))
            assert store.bucket.condemned.condemn(store.session_id, [gone])
    scrubbed(two)
    if not is_true:
        flip(one, place)
    with one.opened() as store:
        locator = Locator(store, store.manifest(min(one.ids())))
        entries = [locator.locate(os.fsencode(source / name)).entry for name in "ab"]
    stored = tuple(StoredFile(entry.name, entry) for entry in entries)
    request = MemoryRequest((MemoryFile(b"state.json", (b"{}",)),), stored=stored)

    with one.opened_at(one.place()) as store:
        one.clock.advance(10)
        take_from_memory(store, request, clock=one.clock)

    assert one.verify().ok != is_true
    with one.opened() as store:
        (found,) = store.index.places([chunk_of(store, place)]).values()
    assert (found.pack_id == place.pack_id) == is_true


@pytest.mark.parametrize("is_new", [False, True])
def test_no_prune_removes_the_only_sound_copy_because_of_a_record(one, source, tmp_path, is_new):
    """The record names the sound copy, and no machine knows that the other one is damaged."""
    chunk, first = place_in(one)
    with one.opened_at(one.place()) as store:
        plain = store.reader.chunk(chunk, kind=DATA)
        store.index.drop_chunks([chunk])
        with adding(store, parity=0) as writer:
            writer.add_data([(chunk, plain)])
        (second,) = store.index.places([chunk]).values()
    flip(one, first)
    with one.opened() as store:
        note_read(store, second.pack_id, [ByteSpan(0, 1 << 40)], KnownDamage())
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "three") if is_new else one

    for _ in range(2):
        machine.prune()

    machine.check(listed=one.ids())


def test_records_of_packs_that_never_were_cost_a_prune_no_request_each(one, monkeypatch):
    folder = one.cache.parent / "bucket" / layout.PACKS
    for number in range(20):
        pack_id = PackId(number.to_bytes(32, "big"))
        (folder / layout.damage_name(pack_id, 1, 2, os.urandom(8))).touch()
    monkeypatch.setattr(damage_records, "_REMOVED_AT_ONCE", 8)
    checked = []
    with one.opened_at(one.place(), removes=True) as store:
        monkeypatch.setattr(store.packs, "size_bytes", None)
        damage_records.forget_gone_packs(store, lambda: checked.append(len(records(one))))
    assert checked == [20, 12, 4]
    assert records(one) == []


def test_records_are_few_however_much_is_damaged(one, source, tmp_path):
    with one.opened() as store:
        pack_id = min(store.pack_files())
        spans = [ByteSpan(at, at + 5) for at in range(0, 1000, 10)]
        note_read(store, pack_id, spans, KnownDamage())
        [*names] = records(one)
        assert len(names) == 8
        for span in spans:
            assert KnownDamage(names).covers(pack_id, span)
        folder = tmp_path / "bucket" / layout.PACKS
        for number in range(RECORDS_MAX):
            (folder / layout.damage_name(pack_id, number, 5000, os.urandom(8))).touch()
        store.pack_files()
        there = records(one)
        assert store.packs.damage().count > RECORDS_MAX
        other = max(store.pack_files())
        note_read(store, other, [ByteSpan(1, 2)], store.packs.damage())
        assert records(one) == there


@pytest.mark.parametrize("finder", FINDERS)
def test_however_many_packs_are_damaged_one_command_makes_few_records(
    one, source, monkeypatch, finder
):
    write(source, ["c"], 300_000)
    one.take_at(one.place(), source)
    write(source, ["d"], 300_000)
    one.take_at(one.place(), source)
    with one.opened() as store:
        data = [one for part in store.index.chunk_ids() for one, kind in part if kind == DATA]
        places = {place.pack_id: place for place in store.index.places(data).values()}
    for place in places.values():
        flip(one, place)
    damaged = places.keys()
    assert len(damaged) == 3
    monkeypatch.setattr(damage_records, "RECORDS_MAX", 2)

    FINDERS[finder](one)

    assert len(records(one)) == 2
    assert KnownDamage(records(one)).packs() < damaged


def test_in_a_full_store_records_are_replaced_by_no_more(one, tmp_path):
    folder = tmp_path / "bucket" / layout.PACKS
    with one.opened() as store:
        first, last = PackId(bytes(32)), max(store.pack_files())
        for number in range(RECORDS_MAX):
            (folder / layout.damage_name(first, number, 5000, os.urandom(8))).touch()
        old = layout.damage_name(last, 1, 2, os.urandom(8))
        (folder / old).touch()
        store.pack_files()

        note_read(store, last, [ByteSpan(3, 9), ByteSpan(50, 90)], store.packs.damage())
        store.pack_files()

        [new] = store.packs.damage().names_of(last)
        assert new != old
        assert KnownDamage([new]).covers(last, ByteSpan(3, 90))
        note_read(store, last, [], store.packs.damage())
        assert len(records(one)) == RECORDS_MAX
        assert new not in records(one)


def test_a_store_that_must_not_be_changed_gets_no_record(one):
    damage(one)

    def refuse(_number, kind, keys):
        if kind == "create" and "-damaged-" in str(keys):
            raise AccessDeniedError("read-only")

    report = scrubbed(one, PlaceWithFaults(one.place(), refuse))

    assert len(report.damaged) == 1
    assert records(one) == []


def test_records_cost_a_snapshot_no_request(one, two, source):
    def requests():
        place = CountingPlace(two.place())
        two.take_at(place, source)
        return len(place.requests)

    two.take_at(two.place(), source)
    without = requests()
    damage(one)
    scrubbed(one)
    two.take_at(two.place(), source)  # stores it again
    two.take_at(two.place(), source)

    assert records(one) != []
    assert requests() == without

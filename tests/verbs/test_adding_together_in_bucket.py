"""Processes of one machine add to a store in a bucket at once: they share a chunk index.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import os
from contextlib import contextmanager

import pytest

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.errors import BusyError
from ciuic.model import ExcludeRules
from ciuic.snapshot.memory import MemoryRequest, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.adding import adding as adding_chunks
from ciuic.store.adding import new_writer
from ciuic.store.index import database
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA, chunk_id_of
from tests.kit.buckets import FolderMachine, write

pytestmark = pytest.mark.root


@pytest.fixture
def machine(tmp_path):
    made = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    made.init()
    write(tmp_path / "large", [f"f{number}" for number in range(20)])
    write(tmp_path / "small", ["file"])
    made.take_at(made.place(), tmp_path / "small")
    return made


@pytest.fixture
def adding(machine):
    """The store, which a process has opened to add to it."""
    with machine.opened_at(machine.place(), only_adds=True) as store:
        yield store


@contextmanager
def beside(machine, place=None):
    """Open the store as a second process that adds, which does not wait."""
    with machine.opened_at(place or machine.place(), only_adds=True) as store:
        yield store


def new_chunk(writer):
    plain = os.urandom(100_000)
    writer.add_data([(chunk_id_of(DATA, plain), plain)])
    return chunk_id_of(DATA, plain)


def assert_index_is_current(machine):
    with machine.opened_at(machine.place()) as store:
        assert store.index.packs() == store.pack_files()


def test_a_small_snapshot_is_taken_in_the_middle_of_a_large_one(machine, tmp_path):
    listed = machine.ids()
    write(tmp_path / "small", ["another"])
    small = []

    def meanwhile():
        if not small:
            with beside(machine) as store:
                small.append(machine.take_into(store, tmp_path / "small").id)
            with beside(machine) as store:
                again = machine.take_into(store, tmp_path / "small")
            assert again.stored_bytes == 0, "it finds what the one before has stored"
            small.append(again.id)
            machine.check(listed=listed | set(small))
        return False

    request = TakeRequest(
        (os.fsencode(tmp_path / "large"),), exclude=ExcludeRules(), base_interval_s=0
    )
    with machine.opened_at(machine.place(), only_adds=True) as store:
        large = take_snapshot(store, request, clock=machine.clock, cancelled=meanwhile)

    machine.check(listed=listed | {large.id, *small})
    assert_index_is_current(machine)


def test_a_process_that_removes_is_refused_while_another_adds(machine, adding):
    said = f"^the store {machine.place().name} is in use by process {os.getpid()} of this machine"
    with pytest.raises(BusyError, match=said):
        machine.prune()
    adding.close()
    machine.prune()


def test_a_pack_that_is_recorded_while_the_bucket_lists_its_packs_is_there(machine, adding):
    writer = new_writer(adding)
    chunk = new_chunk(writer)
    listings = []

    class Slow:
        """The server answers a listing late."""

        def __init__(self, place):
            self._place = place

        def __getattr__(self, name):
            return getattr(self._place, name)

        def list(self, folder="", after=""):
            found = list(self._place.list(folder, after))
            if folder == layout.PACKS:
                if not listings:
                    writer.finish()
                listings.append(folder)
            return iter(found)

    with beside(machine, Slow(machine.place())) as store:
        assert len(listings) == 1
        assert store.index.usable([chunk]) == {chunk}
        assert store.index.packs() == store.pack_files()


def test_packs_that_another_machine_has_removed_leave_the_index_of_a_process_that_adds_alone(
    machine, tmp_path
):
    with machine.opened_at(machine.place()) as store, adding_chunks(store, parity=0) as writer:
        orphan = new_chunk(writer)
    with machine.opened_at(machine.place(), only_adds=True) as first:
        (pack,) = {place.pack_id for place in first.index.places([orphan]).values()}
        (tmp_path / "bucket" / layout.PACKS / layout.pack_name(pack)).unlink()
        with beside(machine) as second:
            assert second.index.packs() == second.pack_files()
            assert pack in first.index.packs()
            small = machine.take_into(second, tmp_path / "small").id
        large = machine.take_into(first, tmp_path / "large").id

    assert {small, large} < machine.ids()
    assert machine.verify().ok
    assert_index_is_current(machine)


def test_an_index_beside_others_knows_the_chunks_that_a_scrub_has_found_damaged(machine, tmp_path):
    with machine.opened_at(machine.place()) as store:
        for _ in range(2):
            with adding_chunks(store, parity=0) as writer:
                chunk = new_chunk(writer)
        (damaged,) = {place.pack_id for place in store.index.places([chunk]).values()}
        others = store.pack_files().keys() - {damaged}
        store.index.drop_chunks([chunk])
        store.index.put_check(damaged, machine.clock.now_ns(), 1, "damaged")
        store.index.commit()
    with machine.opened_at(machine.place(), only_adds=True) as first:
        (tmp_path / "bucket" / layout.PACKS / layout.pack_name(min(others))).unlink()
        with beside(machine) as second:
            assert second.index.packs().keys() != first.index.packs().keys()
            assert second.index.lost_chunks() == {chunk}
            assert second.index.usable([chunk]) == set()


def test_a_process_that_records_packs_of_another_machine_lets_others_record_meanwhile(
    machine, tmp_path, monkeypatch
):
    monkeypatch.setattr(database, "_BUSY_MS", 200)
    away = FolderMachine(tmp_path / "bucket", tmp_path / "cache of another")
    reads = []

    class Late:
        """The server answers each read late."""

        def __init__(self, place):
            self._place = place

        def __getattr__(self, name):
            found = getattr(self._place, name)

            def late(key, *rest):
                if key.startswith((layout.PACKS, layout.SEGMENTS)):
                    new_chunk(writer)
                    writer.finish()
                    reads.append(key)
                return found(key, *rest)

            return late if name in {"get", "get_ranges"} else found

    with machine.opened_at(machine.place(), only_adds=True) as first:
        writer = new_writer(first)
        with away.opened_at(away.place()) as store, adding_chunks(store, parity=0) as adds:
            chunk = new_chunk(adds)
        with beside(machine, Late(machine.place())) as second:
            assert reads
            assert second.index.usable([chunk]) == {chunk}
            assert second.index.packs() == second.pack_files()


def add(how, machine, store, directory):
    """Add a snapshot, whose ID is returned."""
    write(directory / "large", ["new"])
    if how == "of files":
        return machine.take_into(store, directory / "large", directory / "small").id
    if how == "of memory":
        request = MemoryRequest((MemoryFile(b"state.json", (os.urandom(50_000),)),))
        return take_from_memory(store, request, clock=machine.clock).id
    (directory / "original").mkdir()
    original = FolderMachine(directory / "original/bucket", directory / "original/cache")
    original.init()
    original.take_at(original.place(), directory / "large")
    report = CopyReport("bucket", dry_run=False)
    with original.opened() as source:
        copy_snapshots(source, store, CopyRequest(), report, clock=machine.clock)
    return report.copied[0].id


@pytest.mark.parametrize("how", ["of files", "of memory", "copied"])
def test_no_server_is_waited_for_while_another_process_wants_to_change_the_index(
    machine, tmp_path, monkeypatch, how
):
    monkeypatch.setattr(database, "_BUSY_MS", 5_000)
    away = FolderMachine(tmp_path / "bucket", tmp_path / "cache of another")
    (old,) = machine.ids()
    asked, waited = [], []

    class Asked:
        """At each request, the first process changes the index."""

        def __init__(self, place):
            self._place = place

        def __getattr__(self, name):
            found = getattr(self._place, name)
            if not callable(found):
                return found

            def asking(*arguments):
                asked.append((name, arguments[:1]))
                try:
                    first.index.begin()
                    first.index.rollback()
                except BusyError:
                    waited.append((name, arguments[:1]))
                return found(*arguments)

            return asking

    with machine.opened_at(machine.place(), only_adds=True) as first:
        machine.take_into(first, tmp_path / "small")
        away.take_at(away.place(), tmp_path / "large")
        away.forget(old)
        away.prune()
        with beside(machine, Asked(machine.place())) as second:
            added = add(how, machine, second, tmp_path)
    assert added in machine.ids()
    assert any(name == "create" for name, _ in asked)
    assert waited == []

"""A damaged copy of a chunk in a bucket does not count: docs/protocol.md."""

import contextlib
import functools
import os
import sqlite3

import pytest

from ciuic.catalog import find_snapshot, list_snapshots
from ciuic.ids import SESSION_BYTES, SessionId
from ciuic.maintain.prune.bucket.prune import finish_condemned
from ciuic.maintain.scrub.bucket import Bucket
from ciuic.maintain.scrub.scrub import scrub
from ciuic.report.versions import versions
from ciuic.store.adding import adding
from ciuic.store.addressed import open_at_address
from ciuic.store.gc.usage import is_sound
from ciuic.store.index_keeper import IndexKeeper
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA
from ciuic.system.hashing import data_id
from ciuic.timeline.timeline import states_of
from tests.kit.buckets import FolderMachine, machine_with
from tests.kit.damage import flip_byte

pytestmark = pytest.mark.root


@pytest.fixture
def machine(tmp_path):
    """A machine whose snapshot needs two files, which are in one pack."""
    return machine_with(tmp_path, ["a", "b"], 300_000)


def path_of(machine, pack_id):
    return machine.cache.parent / "bucket" / layout.PACKS / layout.pack_name(pack_id)


def stored_again(machine, number=0):
    """Store a chunk in a further pack; returns the chunk, and its first and second place."""
    with machine.opened_at(machine.place()) as store:
        data = [one for part in store.index.chunk_ids() for one, kind in part if kind == DATA]
        chunk = data[number]
        plain = store.reader.chunk(chunk, kind=DATA)
        (first,) = store.index.places([chunk]).values()
        store.index.drop_chunks([chunk])
        with adding(store, parity=0) as writer:
            writer.add_data([(chunk, plain)])
        (second,) = store.index.places([chunk]).values()
    return chunk, first, second


def damage(machine, place):
    flip_byte(path_of(machine, place.pack_id), place.offset_bytes + place.frame_bytes // 2)


def scrubbed(machine):
    opened = functools.partial(open_at_address, machine.address, machine.environ, machine.options)
    return scrub(Bucket(opened), clock=machine.clock)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_condemned_pack_stays_if_what_stands_in_for_it_is_damaged(machine, is_damaged):
    _, first, second = stored_again(machine)
    if is_damaged:
        damage(machine, first)
    with machine.opened_at(machine.place()) as store:
        condemns = SessionId(os.urandom(SESSION_BYTES))
        assert store.bucket.condemned.condemn(condemns, [second.pack_id])
    away = FolderMachine(machine.cache.parent / "bucket", machine.cache.parent / "another")

    away.prune()

    assert path_of(machine, second.pack_id).exists() == is_damaged
    for each in (
        away,
        FolderMachine(machine.cache.parent / "bucket", machine.cache.parent / "new"),
    ):
        assert each.verify().ok


def test_a_judgment_that_finds_damage_reads_nothing_twice(machine, monkeypatch):
    _, first, second = stored_again(machine)
    _, other, again = stored_again(machine, 1)
    damage(machine, first)
    with machine.opened_at(machine.place()) as store:
        condemns = SessionId(os.urandom(SESSION_BYTES))
        assert store.bucket.condemned.condemn(condemns, [second.pack_id, again.pack_id])
    read = []

    def counted(packs, reader, pack_id, packed):
        read.append((pack_id, packed.offset_bytes))
        return is_sound(packs, reader, pack_id, packed)

    monkeypatch.setattr("ciuic.store.gc.judging.is_sound", counted)
    away = FolderMachine(machine.cache.parent / "bucket", machine.cache.parent / "another")
    with away.opened_at(away.place(), removes=True) as store:
        finish_condemned(store, clock=away.clock)

    places = [(place.pack_id, place.offset_bytes) for place in (first, other)]
    assert sorted(read) == sorted(places)
    assert path_of(machine, second.pack_id).exists()
    assert not path_of(machine, again.pack_id).exists()


def test_a_chunk_whose_sound_copy_goes_is_stored_again(machine):
    chunk, first, second = stored_again(machine)
    damage(machine, second)
    report = scrubbed(machine)
    assert [(pack.lost, pack.saved) for pack in report.damaged] == [((), 1)]

    with machine.opened_at(machine.place(), only_adds=True) as store:
        assert store.index.places([chunk])[chunk].pack_id == first.pack_id
        assert store.index.usable([chunk]) == {chunk}
    path_of(machine, first.pack_id).unlink()  # as a prune does that needs the chunk no more
    with machine.opened_at(machine.place(), only_adds=True) as store:
        assert second.pack_id in store.index.packs()
        assert store.index.usable([chunk]) == set()


def test_a_scrub_waits_for_no_server_while_others_that_add_wait_for_it(machine, monkeypatch):
    chunk, first, second = stored_again(machine)
    damage(machine, second)
    list_pack = IndexKeeper.list_pack
    listed = []

    def while_others_may_add(keeper, pack_id):
        [path] = machine.cache.rglob(layout.CATALOG)
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as index:
            index.execute("BEGIN IMMEDIATE")
            index.rollback()
        listed.append(pack_id)
        return list_pack(keeper, pack_id)

    monkeypatch.setattr(IndexKeeper, "list_pack", while_others_may_add)
    report = scrubbed(machine)
    assert report.not_remembered == ""
    assert listed[-1] == first.pack_id
    with machine.opened_at(machine.place()) as store:
        assert store.index.places([chunk])[chunk].pack_id == first.pack_id


def test_what_a_verification_finds_every_machine_shows(machine):
    """In ``list --path``, and before any scrub."""
    source = machine.cache.parent / "source"
    content = (source / "a").read_bytes()
    other = FolderMachine(machine.cache.parent / "bucket", machine.cache.parent / "other")
    first = next(iter(machine.ids()))
    (source / "a").unlink()
    second = machine.take_at(machine.place(), source).id

    def states(reader, name):
        with reader.opened() as store:
            found = versions(store, list_snapshots(store), os.fsencode(source / name))
            return [one.state for one in found], find_snapshot(store, "latest-valid").id

    with machine.opened() as store:
        [place] = store.reader.places([data_id(content)]).values()
    damage(machine, place)
    assert states(other, "a") == (["whole"], second)

    assert not machine.verify().ok

    for reader in (machine, other):
        assert states(reader, "a") == (["damaged"], second)
        assert states(reader, "b") == (["whole", "whole"], second)
        with reader.opened() as store:
            assert states_of(store, list_snapshots(store)) == {first: "damaged", second: "whole"}

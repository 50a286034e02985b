"""The chunk index: a cache of the places of chunks, and when ciuic does not trust it."""

import contextlib
import itertools
import os
import signal
import sqlite3
import threading

import pytest

from ciuic.errors import BusyError, StoreError
from ciuic.store.format import frame, pack
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index.places import ChunkPlace, Emptied
from ciuic.store.records import kinds, layout
from ciuic.store.records.damage import KnownDamage
from ciuic.system.hashing import data_id


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "cata log?#%.sqlite")


@pytest.fixture
def index(path):
    with_index = ChunkIndex(path, write=True)
    yield with_index
    with_index.close()


def frames_of(*groups):
    """Return the frames of a pack. Each has the chunks of one group of contents."""
    packed, at = [], len(pack.MAGIC)
    for group in groups:
        one, _ = frame.encode_frame(kinds.DATA, [(data_id(part), part) for part in group])
        packed.append(pack.PackedFrame(at, one, one.encode_header()))
        at += one.total_bytes
    return packed


def name_of(number):
    return bytes([number]) * 32


def test_chunks_are_found_at_their_recorded_places(index):
    packed = frames_of([b"one", b"three"], [b"four"])
    index.add_pack(name_of(1), 1000, packed)
    found = index.places([data_id(b"three"), data_id(b"four"), data_id(b"none")])
    first, second = [one.frame.total_bytes for one in packed]
    assert found == {
        data_id(b"three"): ChunkPlace(name_of(1), 8, first, 3, 5, kinds.DATA),
        data_id(b"four"): ChunkPlace(name_of(1), 8 + first, second, 0, 4, kinds.DATA),
    }
    assert index.usable([data_id(b"one"), data_id(b"none")]) == {data_id(b"one")}
    assert index.packs() == {name_of(1): 1000}
    assert index.totals() == (12, 1000, 3)


def steps_to_add_a_pack(index, number):
    """Return how many steps SQLite's machine takes to record a small pack, in hundreds."""
    steps = []
    index._db.set_progress_handler(lambda: steps.append(1), 100)
    index.add_pack(name_of(number), 1, frames_of([b"new %d" % number]))
    index._db.set_progress_handler(None, 0)
    return len(steps)


def test_the_look_for_a_pack_keeps_other_processes_from_recording_it(index, path):
    index.remove_pack(name_of(1))
    other = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    index.commit()
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_new_pack_costs_the_same_in_a_large_index(index):
    few = steps_to_add_a_pack(index, 1)
    index.add_pack(name_of(2), 1, frames_of([b"%d" % number for number in range(20_000)]))
    assert steps_to_add_a_pack(index, 3) <= few + 1


def delta_frames(*pairs):
    """Frames of deltas, each of a content against another."""
    found = []
    for at, (content, base) in enumerate(pairs, 8):
        one, _ = frame.encode_frame(kinds.DATA, [(data_id(content), content)])
        found.append(pack.PackedFrame(at, one._replace(delta_bases=(data_id(base),)), b""))
    return found


def test_chunks_that_are_deltas_in_several_packs_are_known_until_only_one_is_left(index):
    index.add_pack(name_of(1), 1, frames_of([b"a"], [b"b"]))
    index.add_pack(name_of(2), 1, delta_frames((b"c", b"a"), (b"d", b"a")))
    assert index.stored_again() == set()
    index.add_pack(name_of(3), 1, delta_frames((b"c", b"b"), (b"e", b"b")))
    index.add_pack(name_of(3), 1, delta_frames((b"c", b"b"), (b"e", b"b")))
    assert index.stored_again() == {data_id(b"c")}
    index.remove_packs([name_of(2)])
    assert index.stored_again() == set()
    index.clear()
    index.add_pack(name_of(2), 1, delta_frames((b"d", b"a")))
    assert index.stored_again() == set()


def test_finding_deltas_of_several_packs_does_not_look_at_all_deltas(index):
    pairs = [(b"%d" % number, b"base") for number in range(20_000)]
    index.add_pack(name_of(1), 1, [*frames_of([b"base"], [b"other"]), *delta_frames(*pairs)])
    index.add_pack(name_of(2), 1, delta_frames((b"7", b"other")))
    steps = []
    index._db.set_progress_handler(lambda: steps.append(1), 100)
    assert index.stored_again() == {data_id(b"7")}
    assert len(steps) <= 2


@pytest.mark.parametrize("write", [False, True])
def test_the_index_of_another_store_is_damage_and_one_without_an_owner_is_not(path, write):
    ChunkIndex(path, write=True, store_id="0" * 32).close()
    ChunkIndex(path, write=write, store_id="0" * 32).close()
    with pytest.raises(IndexDamagedError, match="another store"):
        ChunkIndex(path, write=write, store_id="1" * 32)
    os.remove(path)
    ChunkIndex(path, write=True).close()
    ChunkIndex(path, write=write, store_id="1" * 32).close()


def test_more_ids_than_fit_into_one_query(index):
    parts = [b"%d" % number for number in range(1700)]
    index.add_pack(name_of(1), 9, frames_of(parts))
    ids = [data_id(part) for part in parts]
    assert index.usable([*ids, data_id(b"none")]) == set(ids)
    assert len(index.places(ids)) == 1700
    assert index.usable([]) == set()


def test_removing_a_pack_removes_its_chunks(index):
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    index.add_pack(name_of(2), 2, frames_of([b"two"]))
    index.remove_pack(name_of(1))
    index.remove_pack(name_of(3))
    assert index.usable([data_id(b"one"), data_id(b"two")]) == {data_id(b"two")}
    assert index.packs() == {name_of(2): 2}


def test_a_pack_that_is_added_again_replaces_its_old_rows(index):
    index.add_pack(name_of(1), 1, frames_of([b"one"], [b"two"]))
    index.add_pack(name_of(1), 2, frames_of([b"two"]))
    assert index.usable([data_id(b"one"), data_id(b"two")]) == {data_id(b"two")}
    assert index.packs() == {name_of(1): 2}


def test_uncommitted_changes_are_lost_after_closing(path):
    index = ChunkIndex(path, write=True)
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    index.commit()
    index.add_pack(name_of(2), 2, frames_of([b"two"]))
    index.close()
    again = ChunkIndex(path, write=False)
    assert again.packs() == {name_of(1): 1}
    again.close()


def test_rolled_back_changes_are_lost(index):
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    index.rollback()
    assert index.packs() == {}


def test_readers_see_the_committed_state_while_a_writer_works(index, path):
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    index.commit()
    reader = ChunkIndex(path, write=False)
    index.add_pack(name_of(2), 2, frames_of([b"two"]))
    assert reader.packs() == {name_of(1): 1}
    index.commit()
    assert reader.packs() == {name_of(1): 1, name_of(2): 2}
    reader.close()


def test_a_reader_changes_nothing_and_creates_nothing(path):
    with pytest.raises(StoreError):
        ChunkIndex(path, write=False)
    assert not os.path.exists(path)
    ChunkIndex(path, write=True).close()
    reader = ChunkIndex(path, write=False)
    with pytest.raises(StoreError):
        reader.add_pack(name_of(1), 1, frames_of([b"one"]))
    reader.close()


def test_the_last_record_of_a_snapshot_counts(index):
    index.put_snapshot("cs-000001", 10, 20, 30, b"summary")
    index.put_snapshot("cs-000001", 11, 21, 31, b"another")
    assert index.snapshots() == {"cs-000001": (11, 21, b"another")}


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    "data",
    [b"this is no database, but it is quite long" * 100, b"SQLite format 3\x00" + bytes(4080)],
)
def test_a_file_that_is_not_a_database_is_damage(path, write, data):
    with open(path, "wb") as file:
        file.write(data)
    with pytest.raises(IndexDamagedError):
        ChunkIndex(path, write=write)


@pytest.mark.parametrize("write", [False, True])
def test_an_index_with_another_schema_is_rebuilt(path, write):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(IndexDamagedError):
        ChunkIndex(path, write=write)


def made_old(path):
    """Make the file one of version 4, which had no table of repeated deltas."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE again; PRAGMA application_id = 0; PRAGMA user_version = 4")


@pytest.mark.parametrize("way", ["opened", "adopted"])
def test_an_index_of_the_version_before_keeps_its_records_of_damage(path, index, way):
    index.add_pack(
        name_of(1), 1, [*frames_of([b"base"], [b"other"]), *delta_frames((b"7", b"base"))]
    )
    index.add_pack(name_of(2), 1, delta_frames((b"7", b"other"), (b"8", b"base")))
    index.drop_chunks([data_id(b"other")])
    index.commit()
    index.close()
    made_old(path)
    if way == "adopted":
        moved = ChunkIndex("", write=True)
        moved.adopt(path)
    else:
        moved = ChunkIndex(path, write=True, store_id="0" * 32)
        assert moved.stored_again() == {data_id(b"7")}
        assert moved.packs() == {name_of(1): 1, name_of(2): 1}
    assert moved.lost_chunks() == {data_id(b"other")}
    moved.close()
    if way == "opened":
        ChunkIndex(path, write=False, store_id="0" * 32).close()


def test_damage_in_the_middle_is_reported_as_damage(path):
    index = ChunkIndex(path, write=True)
    index.add_pack(name_of(1), 1, frames_of([b"%d" % number for number in range(5000)]))
    index.commit()
    index.close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(os.path.getsize(path) - 4096))
    reader = ChunkIndex(path, write=False)
    with pytest.raises(IndexDamagedError):
        reader.places([data_id(b"77")])
    reader.close()


def test_another_writers_lock_is_busy_and_not_damage(index, path, monkeypatch):
    monkeypatch.setattr("ciuic.store.index.database._BUSY_MS", 1)
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    other = ChunkIndex(path, write=False)
    other.close()
    with pytest.raises(BusyError):
        ChunkIndex(path, write=True).add_pack(name_of(2), 2, frames_of([b"two"]))


def test_an_index_that_was_removed_while_it_is_open_is_said_to_be_gone(index, path):
    os.unlink(path)
    with pytest.raises(StoreError, match="was removed while it was in use") as caught:
        index.add_pack(name_of(1), 1000, frames_of([b"one"]))
    assert caught.value.hint.startswith("Run the command again")


def test_a_private_index_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = ChunkIndex("", write=True)
    index.add_pack(name_of(1), 1, frames_of([b"one"]))
    assert index.usable([data_id(b"one")])
    index.close()
    assert os.listdir(tmp_path) == []


def test_the_last_check_of_a_pack_counts_and_is_kept(index, path):
    index.add_pack(name_of(1), 100, frames_of([b"one"]))
    assert index.checks() == {}
    index.put_check(name_of(1), 5, 100, "the footer is damaged")
    index.put_check(name_of(1), 7, 100, "")
    index.put_check(name_of(2), 8, 50, "2 frames are damaged")
    index.commit()
    reader = ChunkIndex(path, write=False)
    assert reader.checks() == {
        name_of(1): (7, 100, ""),
        name_of(2): (8, 50, "2 frames are damaged"),
    }
    reader.close()


def test_checks_outlive_the_rows_of_packs_that_are_recorded_again(index):
    index.add_pack(name_of(1), 100, frames_of([b"one"]))
    index.put_check(name_of(1), 5, 100, "damaged")
    index.clear()
    index.add_pack(name_of(1), 100, frames_of([b"one"]))
    assert index.checks() == {name_of(1): (5, 100, "damaged")}


@pytest.mark.parametrize("how", ["removed", "written again"])
def test_the_check_of_a_removed_or_replaced_pack_is_forgotten(index, how):
    index.add_pack(name_of(1), 100, frames_of([b"one"]))
    index.put_check(name_of(1), 5, 100, "damaged")
    if how == "removed":
        index.remove_pack(name_of(1))
    else:
        index.add_pack(name_of(1), 100, frames_of([b"one"]))
    assert index.checks() == {}


def test_dropped_chunks_are_stored_again(index):
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    index.drop_chunks([data_id(b"one"), data_id(b"none")])
    assert index.usable([data_id(b"one"), data_id(b"two")]) == {data_id(b"two")}
    index.add_pack(name_of(2), 100, frames_of([b"one"]))
    assert index.places([data_id(b"one")])[data_id(b"one")].pack_id == name_of(2)


@pytest.mark.parametrize("row", ["1, 2, 3, 'x'", "x'00', 'a', 3, 'x'", "x'00', 1, 3, x'00'"])
def test_an_impossible_check_is_damage(index, path, row):
    db = sqlite3.connect(path)
    db.execute(f"INSERT INTO pack_check VALUES ({row})")
    db.commit()
    db.close()
    with pytest.raises(IndexDamagedError, match="an impossible check"):
        index.checks()


def test_dropped_chunks_are_lost_until_they_are_stored_again(index):
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    index.drop_chunks([data_id(b"one"), data_id(b"two")])
    assert index.lost_chunks() == {data_id(b"one"), data_id(b"two")}
    index.add_pack(name_of(2), 100, frames_of([b"one"]))
    assert index.lost_chunks() == {data_id(b"two")}


def test_lost_chunks_stay_lost_when_packs_are_recorded_again(index):
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    index.put_check(name_of(1), 5, 100, "damaged")
    index.drop_chunks([data_id(b"one")])
    index.clear()
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    assert index.usable([data_id(b"one"), data_id(b"two")]) == {data_id(b"two")}
    # A repair has written the pack again under its name.
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    assert index.lost_chunks() == set()


def test_a_chunk_that_was_read_and_is_damaged_stays_lost_when_packs_are_recorded_again(index):
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    index.put_check(name_of(1), 5, 100, "")
    index.drop_damaged([data_id(b"one")])
    index.rollback()
    index.clear()
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    assert index.usable([data_id(b"one"), data_id(b"two")]) == {data_id(b"two")}
    assert index.checks() == {}


def test_a_chunk_in_a_shut_pack_gets_no_place_where_it_is_damaged(index):
    index.add_pack(name_of(1), 100, frames_of([b"one", b"two"]))
    index.put_check(name_of(1), 5, 100, "damaged")
    index.drop_chunks([data_id(b"one")])
    index.clear()
    index.shut_packs = frozenset([name_of(2)])
    for number in (2, 1):  # in the order of a rebuilt index
        index.add_pack(name_of(number), 100, frames_of([b"one", b"two"]))
    found = index.places([data_id(b"one"), data_id(b"two")])
    assert found[data_id(b"one")].pack_id == name_of(2)
    assert found[data_id(b"two")].pack_id == name_of(1)


def test_many_packs_are_removed_with_their_chunks_and_checks(index):
    for number in range(1, 5):
        index.add_pack(name_of(number), number, frames_of([b"%d" % number]))
        index.put_check(name_of(number), 5, 100, "")
    index.remove_packs([name_of(1), name_of(3), name_of(9)])
    assert index.packs() == {name_of(2): 2, name_of(4): 4}
    assert set(index.checks()) == {name_of(2), name_of(4)}
    assert index.usable([data_id(b"%d" % one) for one in range(1, 5)]) == {
        data_id(b"2"),
        data_id(b"4"),
    }
    index.remove_packs([])
    assert len(index.packs()) == 2


def test_chunks_move_to_a_new_pack_and_the_other_chunks_of_the_old_packs_are_removed(index):
    old, other, new = (
        frames_of([b"one", b"two"]),
        frames_of([b"three"]),
        frames_of([b"one", b"three"]),
    )
    index.add_pack(name_of(1), 1, old)
    index.add_pack(name_of(2), 2, other)
    index.put_check(name_of(1), 5, 100, "")
    index.move(name_of(3), 3, new, [Emptied(name_of(1), [data_id(b"one"), data_id(b"two")])])
    assert index.packs() == {name_of(2): 2, name_of(3): 3}
    places = index.places([data_id(b"one"), data_id(b"two"), data_id(b"three")])
    assert {name: place.pack_id for name, place in places.items()} == {
        data_id(b"one"): name_of(3),
        data_id(b"three"): name_of(3),
    }
    assert index.checks() == {}


def test_all_chunks_are_yielded_in_the_order_of_their_ids(index):
    parts = [b"%d" % number for number in range(30)]
    index.add_pack(name_of(1), 9, frames_of(parts))
    rows = [row for some in index.chunk_ids() for row in some]
    assert rows == sorted((data_id(part), kinds.DATA) for part in parts)
    assert index.usable([data_id(b"3")]) == {data_id(b"3")}


def test_the_base_of_a_delta_is_recorded(index):
    packed = frames_of([b"one"], [b"two"])
    base = data_id(b"two")
    delta = packed[0]._replace(frame=packed[0].frame._replace(delta_bases=(base,)))
    index.add_pack(name_of(1), 9, [delta, packed[1]])
    assert index.places([data_id(b"one")])[data_id(b"one")].delta_bases == (base,)
    assert index.places([base])[base].delta_bases == ()


def test_a_delta_against_a_missing_base_is_not_found(index):
    """A writer that has the bytes of the chunk stores them again."""
    one, two, three = [data_id(name) for name in (b"one", b"two", b"three")]
    packed = frames_of([b"one"], [b"two"])
    deltas = [
        old._replace(frame=old.frame._replace(delta_bases=(reference,)))
        for old, reference in zip(packed, (two, three), strict=True)
    ]
    index.add_pack(name_of(1), 9, deltas)
    assert index.usable([one, two]) == set()
    index.add_pack(name_of(2), 9, frames_of([b"three"]))
    assert index.usable([one, two, three]) == {one, two, three}


def test_a_ring_of_deltas_is_not_found(index):
    packed = frames_of([b"one"], [b"two"])
    names = [data_id(b"one"), data_id(b"two")]
    deltas = [
        old._replace(frame=old.frame._replace(delta_bases=(reference,)))
        for old, reference in zip(packed, reversed(names), strict=True)
    ]
    index.add_pack(name_of(1), 9, deltas)
    assert index.usable(names) == set()
    one, two = frames_of([b"three"], [b"four"])
    delta = one._replace(frame=one.frame._replace(delta_bases=(data_id(b"four"),)))
    index.add_pack(name_of(2), 9, [delta, two])
    assert index.usable([*names, data_id(b"three")]) == {data_id(b"three")}


def test_the_later_of_two_deltas_is_returned(index):
    """A writer does not store a readable chunk again."""
    (packed,) = frames_of([b"one"])
    for number, reference in enumerate((b"lost", b"two")):
        delta = packed._replace(frame=packed.frame._replace(delta_bases=(data_id(reference),)))
        index.add_pack(name_of(number), 9, [delta])
    index.add_pack(name_of(2), 9, frames_of([b"two"]))
    assert index.places([data_id(b"one")])[data_id(b"one")].delta_bases == (data_id(b"two"),)
    assert index.usable([data_id(b"one")]) == {data_id(b"one")}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_place_without_a_base_is_preferred(index, order):
    (alone,) = frames_of([b"one"])
    delta = alone._replace(frame=alone.frame._replace(delta_bases=(data_id(b"two"),)))
    packs = {1: alone, 2: delta}
    for number in order:
        index.add_pack(name_of(number), 9, [packs[number]])
    assert index.places([data_id(b"one")])[data_id(b"one")].pack_id == name_of(1)


WAYS = [one for count in (2, 3) for one in itertools.permutations(("", "two", "three"), count)]


@pytest.mark.parametrize("ways", WAYS, ids="-".join)
def test_one_of_several_copies_in_a_pack_is_returned_with_its_own_base(index, ways):
    """It is not the place of one copy with the delta base of another."""
    (alone,) = frames_of([b"one"])
    name = data_id(b"one")
    packed = [
        alone._replace(
            offset_bytes=1000 * (at + 1),
            frame=alone.frame._replace(delta_bases=(data_id(way.encode()),) if way else ()),
        )
        for at, way in enumerate(ways)
    ]

    def given():
        place = index.places([name])[name]
        return place.delta_bases, ways[place.offset_bytes // 1000 - 1]

    expected = () if "" in ways else (data_id(ways[-1].encode()),)
    index.add_pack(name_of(1), 9, packed)
    assert given() == (expected, "" if "" in ways else ways[-1])
    index.replace_places(name_of(1), packed, {name})
    assert given() == (expected, "" if "" in ways else ways[-1])
    index.move(name_of(2), 9, packed, [Emptied(name_of(1), [name])])
    assert given() == (expected, "" if "" in ways else ways[-1])


def test_a_signal_ends_a_long_query_and_the_index_stays_usable(index):
    """A query over all chunks of a large store takes seconds before it returns anything."""
    too_late = []

    def give_up():
        too_late.append(True)
        index._db.interrupt()

    def stop(_number, _frame):
        raise KeyboardInterrupt

    watchdog = threading.Timer(30, give_up)
    before = signal.signal(signal.SIGALRM, stop)
    watchdog.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        with pytest.raises(KeyboardInterrupt), index._lock, index._faults():
            index._db.execute(f"{numbers} SELECT max(x) FROM n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()
    assert not too_late
    packed = frames_of([b"one"])
    index.add_pack(name_of(1), 1000, packed)
    index.commit()
    assert index.places([data_id(b"one")])


def damaged(*places):
    names = [
        layout.damage_name(
            place.pack_id, place.offset_bytes, place.offset_bytes + place.frame_bytes, os.urandom(8)
        )
        for place in places
    ]
    return KnownDamage(names)


def test_a_damaged_copy_counts_for_reads_alone_until_another_pack_has_the_chunk(index):
    one, other = data_id(b"one"), data_id(b"other")
    index.add_pack(name_of(1), 1000, frames_of([b"one"], [b"other"]))
    index.damage = damaged(index.places([one])[one])

    assert index.usable([one, other]) == {other}
    assert index.places([one])[one].pack_id == name_of(1)
    index.add_pack(name_of(2), 500, frames_of([b"one"], [b"other"]))

    assert index.places([one])[one].pack_id == name_of(2)
    assert index.places([other])[other].pack_id == name_of(1)
    assert index.usable([one, other]) == {one, other}


def test_a_damaged_copy_gives_way_to_no_other_damaged_copy(index):
    one = data_id(b"one")
    index.add_pack(name_of(1), 1000, frames_of([b"one"]))
    (place,) = index.places([one]).values()
    index.damage = damaged(place, place._replace(pack_id=name_of(2)))

    index.add_pack(name_of(2), 500, frames_of([b"one"]))

    assert index.places([one])[one] == place
    assert index.usable([one]) == set()


def test_a_delta_is_as_usable_as_what_is_below_it(index):
    base, delta = data_id(b"base"), data_id(b"next")
    index.add_pack(name_of(1), 1000, frames_of([b"base"]))
    index.add_pack(name_of(2), 1000, delta_frames((b"next", b"base")))
    assert not index.is_damaged(delta)
    for chunk_id in (base, delta):
        index.damage = damaged(index.places([chunk_id])[chunk_id])
        assert index.is_damaged(delta)
        assert index.usable([base, delta]) == {base} - {chunk_id}
    index.damage = damaged(index.places([base])[base])
    index.remove_pack(name_of(1))
    assert not index.is_damaged(delta), "its chain is broken, so any other copy replaces it"

"""What a restore or a verification needs of a bucket is fetched once, also the bases of deltas.

The bucket is a directory behind the interface of a place.
"""

import contextlib
from types import SimpleNamespace

import numpy
import pytest

from ciuic.restore.place.far.written_chunks import WrittenChunks
from ciuic.store.gc.usage import read_payload
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs import pack_writer
from ciuic.store.packs.open_packs import OpenPacks
from ciuic.store.packs.reader import StoreReader
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.fetched import pack, parts
from ciuic.store.place.packs import footer_of
from tests.kit.buckets import FolderMachine, write

MIB = 1024 * 1024
VERSIONS = 4


class Fetched:
    """The ranges of packs that were fetched."""

    def __init__(self):
        self.ranges = []

    @property
    def total_bytes(self):
        return sum(length for _, _, length in self.ranges)


@pytest.fixture
def fetched(monkeypatch):
    found = Fetched()
    get_ranges = DirectoryPlace.get_ranges

    def noted(place, key, ranges):
        found.ranges += [(key, one.begin_bytes, one.length_bytes) for one in ranges]
        return get_ranges(place, key, ranges)

    monkeypatch.setattr(DirectoryPlace, "get_ranges", noted)
    # As with checkpoints of many times the memory that is used for them.
    monkeypatch.setattr(parts, "_MEMORY_BYTES_MAX", 2 * MIB)
    monkeypatch.setattr(pack, "PART_BYTES_MAX", MIB)
    return found


@pytest.fixture
def machine(tmp_path):
    """A machine whose store has checkpoints, each a delta against the one before."""
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    (tmp_path / "source").mkdir()
    newest = tmp_path / "source" / "newest.bin"
    chance = numpy.random.default_rng(7)
    weights = chance.standard_normal(2 * MIB, dtype=numpy.float32)
    for number in range(VERSIONS):
        if number:
            newest.rename(newest.with_name(f"kept_{number}.bin"))
        weights += chance.standard_normal(len(weights), dtype=numpy.float32) * numpy.float32(1e-4)
        newest.write_bytes(weights.tobytes())
        machine.take(tmp_path / "source")
    return machine


def stored_bytes(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "bucket" / "packs").iterdir())


def check(tmp_path):
    for path in (tmp_path / "source").iterdir():
        assert (tmp_path / "out" / "source" / path.name).read_bytes() == path.read_bytes()


def test_a_restore_fetches_each_byte_once(tmp_path, machine, fetched):
    stored = stored_bytes(tmp_path)

    machine.restore(tmp_path / "source", tmp_path / "out")

    check(tmp_path)
    assert fetched.total_bytes <= 1.01 * stored


def test_a_verification_fetches_each_byte_once(tmp_path, machine, fetched):
    stored = stored_bytes(tmp_path)

    assert machine.verify().ok

    assert fetched.total_bytes <= 1.02 * stored


@pytest.fixture
def lent(monkeypatch):
    """The chunks that were read from restored files; ``wrong``: with a bit that differs."""
    lend = WrittenChunks.lend
    found = SimpleNamespace(ids=[], wrong=False)

    @contextlib.contextmanager
    def noted(written, chunk_id, length_bytes):
        with lend(written, chunk_id, length_bytes) as data:
            if data is not None:
                found.ids.append(chunk_id)
                data[length_bytes // 2] ^= found.wrong
            yield data

    monkeypatch.setattr(WrittenChunks, "lend", noted)
    return found


def test_a_restore_reads_bases_from_the_files_that_it_has_written(tmp_path, machine, fetched, lent):
    stored = stored_bytes(tmp_path)

    machine.restore(tmp_path / "source", tmp_path / "out")

    check(tmp_path)
    assert fetched.total_bytes <= 1.01 * stored
    assert len(set(lent.ids)) >= (VERSIONS - 1) * 8


def test_files_that_were_stored_in_turn_need_no_room_in_the_cache(tmp_path, fetched, monkeypatch):
    monkeypatch.setattr(parts, "_MEMORY_BYTES_MAX", 16 * MIB)
    kept = []
    take_slot = parts.Spill.take_slot
    monkeypatch.setattr(parts.Spill, "take_slot", lambda one: kept.append(1) or take_slot(one))
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    write(tmp_path / "source", ["a", "b", "c", "d"], 12 * MIB)
    machine.take(tmp_path / "source")
    fetched.ranges.clear()

    machine.restore(tmp_path / "source", tmp_path / "out")

    check(tmp_path)
    assert 48 * MIB <= fetched.total_bytes <= 1.01 * stored_bytes(tmp_path)
    assert len(kept) <= 4, "parts of 1 MiB"


def test_a_file_that_changes_while_it_serves_as_a_base_costs_requests_alone(
    tmp_path, machine, lent
):
    """A program writes to a restored file before the restore has ended."""
    lent.wrong = True

    report = machine.restore(tmp_path / "source", tmp_path / "out")

    check(tmp_path)
    assert lent.ids
    assert not report.damaged
    assert report.repaired_frames == 0


def test_a_damaged_file_is_named_and_those_beside_it_are_restored(tmp_path, machine):
    with machine.opened() as store:
        packs = store.packs.sizes()
        ((pack_id, place),) = [
            (one, place)
            for one in packs
            for place in footer_of(store.packs.open(one), one)[3:4]
            if packs[one] == max(packs.values())
        ]
    (path,) = (tmp_path / "bucket" / "packs").glob(f"{pack_id.hex()}*")
    with path.open("r+b") as file:
        file.seek(place.offset_bytes + place.frame.total_bytes - 100)
        file.write(bytes(50))

    report = machine.restore(tmp_path / "source", tmp_path / "out")

    assert report.damaged
    lost = {warning.path.rpartition(b"/")[2].decode() for warning in report.failed}
    source = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    out = {path.name: path.read_bytes() for path in (tmp_path / "out" / "source").iterdir()}
    assert lost
    assert out == {name: data for name, data in source.items() if name not in lost}


def test_damage_of_what_is_kept_is_not_damage_of_the_store(tmp_path, machine, fetched, monkeypatch):
    """A disk that returns other bytes than were written costs requests alone."""
    monkeypatch.setattr(WrittenChunks, "add", lambda *_: None)
    # What reads it in another way finds other bytes than the first time, and asks no server.
    monkeypatch.setattr(StoreReader, "read_into", lambda *_, **__: False)
    read = parts.FetchedParts.read
    damaged = {}

    def wrong(self, part, begin, end):
        data = read(self, part, begin, end)
        if part.kept is not None and damaged.setdefault(part.pack_id, part) is part and data:
            data = bytearray(data)
            data[len(data) // 2] ^= 1
        return data if data is None else bytes(data)

    monkeypatch.setattr(parts.FetchedParts, "read", wrong)

    report = machine.restore(tmp_path / "source", tmp_path / "out")

    check(tmp_path)
    assert damaged
    assert not report.damaged
    assert report.repaired_frames == 0
    assert machine.verify().ok


def read_header(packs, pack_id, packed):
    place = ChunkPlace(pack_id, packed.offset_bytes, packed.frame.total_bytes, 0, 0, 0)
    return OpenPacks(packs).header(place)


READS = {
    "footer": lambda packs, pack_id, _: footer_of(packs.open(pack_id), pack_id),
    "header": read_header,
    "payload": lambda packs, pack_id, packed: read_payload(packs.open(pack_id), packed),
}


@pytest.mark.parametrize("what", READS)
def test_damage_of_one_kept_part_is_not_damage_of_the_store(machine, what):
    read = READS[what]
    with machine.opened() as store:
        for pack_id in store.packs.sizes():
            opened = store.packs.open(pack_id)
            packed = footer_of(opened, pack_id)[0]
            before = read(store.packs, pack_id, packed)
            kept = opened._parts._of_pack[pack_id]
            for part in kept:
                part.data = bytes(len(part.data))
            assert kept

            assert read(store.packs, pack_id, packed) == before


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_pack_that_is_on_the_disk_is_uploaded_from_there(tmp_path, monkeypatch, is_direct):
    """Some file systems refuse O_DIRECT, and then a pack may not be on the disk yet."""
    put_file = DirectoryPlace.put_file
    sent = []

    def noted(place, key, body):
        sent.append(key.partition("/")[0])
        put_file(place, key, body)

    monkeypatch.setattr(DirectoryPlace, "put_file", noted)
    monkeypatch.setattr(pack_writer, "_set_direct", lambda _fd, **_: is_direct)
    cache = tmp_path / "cache"
    machine = FolderMachine(tmp_path / "bucket", cache)
    machine.init()
    write(tmp_path / "source", ["a"], 3 * MIB)

    machine.check(listed=[machine.take(tmp_path / "source").id])

    assert set(sent) == ({"packs"} if is_direct else set())
    assert not list(cache.rglob("tmp/*"))

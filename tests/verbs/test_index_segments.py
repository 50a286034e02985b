"""Index segments of a bucket: a machine without a chunk index needs few requests, and trusts none.

The bucket is a directory here, behind the same interface; tests/s3 has a real server.
"""

import os
import shutil

import pytest

from ciuic.errors import OfflineError
from ciuic.store.format.segment import PackEnd, Segment, encode_segment
from ciuic.store.place.segments.segments import SMALL_AT_ONCE, Segments
from ciuic.store.records import layout
from tests.format import reader
from tests.kit.buckets import FolderMachine, PlaceWithFaults, write

pytestmark = pytest.mark.root

READS = ("get", "get_versioned", "get_ranges", "size_bytes", "list", "keys")


class CountingPlace:
    """A place in front of another one, which notes the key of each request that reads."""

    def __init__(self, place):
        self._place = place
        self.requests = []

    def __getattr__(self, name):
        method = getattr(self._place, name)
        if name not in READS:
            return method

        def noted(key="", *rest, **more):
            self.requests.append((name, key))
            return method(key, *rest, **more)

        return noted

    def of(self, prefix):
        return [key for _, key in self.requests if key.startswith(prefix)]


@pytest.fixture
def one(tmp_path):
    machine = FolderMachine(tmp_path / "bucket", tmp_path / "cache")
    machine.init()
    machine.clock.advance(3600)
    return machine


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A store with a pack of each of 20 snapshots."""
    top = tmp_path_factory.mktemp("prepared")
    machine = FolderMachine(top / "bucket", top / "cache")
    assert machine.init()[0]
    for number in range(20):
        write(top / "source", [f"{number}"], 2000)
        machine.take_at(machine.place(), top / "source")
    return top


@pytest.fixture
def many(prepared, tmp_path):
    """The files of the newest snapshot in a copy of that store."""
    for name in ("bucket", "source"):
        shutil.copytree(prepared / name, tmp_path / name)
    return tmp_path / "source"


def newcomer(tmp_path, name="new"):
    """Return another machine, which has nothing."""
    return FolderMachine(tmp_path / "bucket", tmp_path / name)


def index_of(machine, place):
    """Build the chunk index through a place; returns the packs and all chunks."""
    with machine.opened_at(place) as store:
        return store.index.packs(), [row for rows in store.index.chunk_ids() for row in rows]


def by_footers(tmp_path, name="footers"):
    """Build the chunk index of a machine that sees no segment."""
    shutil.copytree(tmp_path / "bucket", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare/segments")
    machine = FolderMachine(tmp_path / "bare", tmp_path / name)
    return index_of(machine, machine.place())


def test_a_machine_without_an_index_reads_no_pack(many, one, tmp_path):
    packs = one.names("packs")
    assert len(packs) >= 20
    place = CountingPlace(one.place())

    found = index_of(newcomer(tmp_path), place)

    assert place.of("packs/") == []
    assert len(place.of("segments/")) == 2  # the other 18 were merged
    assert found == by_footers(tmp_path)


def test_a_reader_that_knows_the_page_alone_finds_every_frame(many, tmp_path):
    found = {}
    for path in (tmp_path / "bucket/segments").iterdir():
        found.update(reader.ends_of_segment(path.read_bytes()))
    packs = {path.name: path.read_bytes() for path in (tmp_path / "bucket/packs").iterdir()}

    assert found.keys() == packs.keys()
    for name, (size, end) in found.items():
        assert size == len(packs[name])
        assert reader.frames_of_end(end, size, name) == reader.frames_of_pack(packs[name], name)


def test_segments_stay_few(many, one):
    assert len(one.names("segments")) < SMALL_AT_ONCE


def test_listed_packs_are_in_the_bucket(one, tmp_path):
    """Each segment comes after its packs, and before the commit."""
    source = tmp_path / "source"
    write(source, "abc")
    place = PlaceWithFaults(one.place(), lambda *_: None)
    one.take_at(place, source)

    folders = [key.partition("/")[0] for name, key in place.changes if name in {"put", "create"}]

    assert folders.index("segments") > max(at for at, one in enumerate(folders) if one == "packs")
    assert folders.index("segments") < folders.index("snapshots")


def test_a_segment_that_cannot_be_put_commits_nothing(one, tmp_path):
    source = tmp_path / "source"
    write(source, "abc")

    def refuse(_number, _name, keys):
        if isinstance(keys, str) and keys.startswith("segments/"):
            raise OfflineError("no answer")

    with pytest.raises(OfflineError):
        one.take_at(PlaceWithFaults(one.place(), refuse), source)

    assert one.ids() == set()
    one.take_at(one.place(), source)
    assert one.verify().ok


@pytest.mark.parametrize(
    "damage", ["deleted", "empty", "cut", "flipped", "zeroed", "foreign", "future", "not ours"]
)
def test_damage_to_segments_costs_requests_and_nothing_else(many, one, tmp_path, damage):
    expected = by_footers(tmp_path)
    folder = tmp_path / "bucket/segments"
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        if damage == "deleted":
            path.unlink()
            continue
        if damage == "empty":
            data = b""
        elif damage == "cut":
            data = data[: len(data) // 2]
        elif damage == "flipped":
            for at in range(16, len(data), 97):
                data[at] ^= 0x40
        elif damage == "zeroed":
            data[16:] = bytes(len(data) - 16)
        elif damage == "foreign":
            data = os.urandom(len(data))
        elif damage == "future":
            data[12] = 1
        else:
            path.rename(folder / "README")
            continue
        path.write_bytes(data)
    machine = newcomer(tmp_path)

    assert index_of(machine, machine.place()) == expected
    machine.take_at(machine.place(), many)
    machine.check(listed=one.ids())


def test_a_writer_lists_the_packs_that_no_segment_has(many, one, tmp_path):
    """The sessions of an older version, and those that were killed, list nothing."""
    shutil.rmtree(tmp_path / "bucket/segments")
    first = newcomer(tmp_path, "first")
    write(many, ["more"])
    first.take_at(first.place(), many)
    place = CountingPlace(one.place())

    index_of(newcomer(tmp_path, "second"), place)

    assert place.of("packs/") == []


def test_packs_that_were_pruned_leave_the_segments(many, one, tmp_path):
    for path in many.iterdir():
        path.unlink()
    write(many, "z")
    kept = one.take_at(one.place(), many).id
    one.forget(*(one.ids() - {kept}))
    before = set(one.names("packs"))
    one.prune()
    left = set(one.names("packs"))
    assert len(left) < len(before) / 4

    listed = set()
    for name in one.names("segments"):
        table = Segment((tmp_path / "bucket/segments" / name).read_bytes())
        listed |= {layout.pack_name(pack_id) for pack_id in table.pack_ids()}

    assert left <= listed
    assert len(listed - left) <= len(left)
    newcomer(tmp_path).check(listed={kept})


def test_a_segment_that_names_a_removed_pack_brings_nothing_back(many, one, tmp_path):
    """A session that was paused puts a segment after a prune has removed its packs."""
    old = {path.name: path.read_bytes() for path in (tmp_path / "bucket/segments").iterdir()}
    for path in many.iterdir():
        path.unlink()
    write(many, "z")
    kept = one.take_at(one.place(), many).id
    one.forget(*(one.ids() - {kept}))
    one.prune()
    for name, data in old.items():
        (tmp_path / "bucket/segments" / name).write_bytes(data)
    machine = newcomer(tmp_path)

    machine.check(listed={kept})
    write(many, "y")
    taken = machine.take_at(machine.place(), many).id
    machine.check(listed={kept, taken})


def test_segments_that_are_merged_meanwhile_cost_nothing(many, one, tmp_path):
    """Another machine merges all segments between the listing and the first read."""

    class Merging(CountingPlace):
        def get(self, key, bytes_max):
            if key.startswith("segments/") and not self.of("segments/"):
                self.requests.append(("get", key))
                merge_all(one.place(), tmp_path)
            return self._place.get(key, bytes_max)

    place = Merging(one.place())

    found = index_of(newcomer(tmp_path), place)

    assert place.of("packs/") == []
    assert found == by_footers(tmp_path)


def merge_all(place, tmp_path):
    """Merge all segments of a bucket into one."""
    (tmp_path / "merger/tmp").mkdir(parents=True)
    segments = Segments(place, str(tmp_path / "merger"))
    segments._replace(sorted(segments._listed()), ())
    assert len(segments._listed()) == 1


def test_a_row_of_a_table_is_what_was_encoded():
    ends = [PackEnd(bytes([n]) * 32, 1000 + n, bytes([n]) * (50 + n)) for n in range(5)]
    data = encode_segment(ends)
    table = Segment(data)

    assert table.pack_ids() == [end.pack_id for end in ends]
    for row, end in enumerate(ends):
        pack_id, size_bytes, offset, length = table.entry(row)
        assert PackEnd(pack_id, size_bytes, data[offset : offset + length]) == end


def test_an_end_that_does_not_match_its_pack_is_not_used(many, one, tmp_path):
    (tmp_path / "reader/tmp").mkdir(parents=True)
    packs = [(layout.parse_pack_name(name), name) for name in one.names("packs")]
    sizes = {pack: (tmp_path / "bucket/packs" / name).stat().st_size for pack, name in packs}
    sound = Segments(one.place(), str(tmp_path / "reader"))
    assert all(sound.end(pack, size) for pack, size in sizes.items())
    assert not any(sound.end(pack, size + 1) for pack, size in sizes.items())

    for path in (tmp_path / "reader/segments").iterdir():
        data = bytearray(path.read_bytes())
        for entry in map(Segment(bytes(data)).entry, range(len(Segment(bytes(data))))):
            data[entry.offset_bytes + 20] ^= 1
        path.write_bytes(data)
    assert not any(sound.end(pack, size) for pack, size in sizes.items())


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damage_to_the_copies_of_a_machine_takes_nothing_out_of_the_bucket(
    many, one, tmp_path, damage
):
    index_of(one, one.place())
    copies = list(one.cache.glob("ciuic/*/segments/*"))
    assert len(copies) == len(one.names("segments"))
    for path in copies:
        data = bytearray(path.read_bytes())
        if damage == "cut":
            data = data[:10]
        else:
            data[-3000:] = os.urandom(len(data[-3000:]))
        path.write_bytes(data)

    segments = Segments(one.place(), str(copies[0].parent.parent))
    segments._replace(one.names("segments"), ())

    place = CountingPlace(one.place())
    index_of(newcomer(tmp_path), place)
    assert len(one.names("segments")) == 1
    assert place.of("packs/") == []

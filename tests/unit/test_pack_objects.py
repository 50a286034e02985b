"""ciuic reads a pack in a bucket in few requests."""

import os

import pytest

from ciuic.errors import ChunkMissingError, MissingError, OfflineError
from ciuic.ids import PackId
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.pack_objects import PackObjects
from ciuic.store.place.segments.segments import Segments
from ciuic.store.records import layout

KIB = 1024
MIB = 1024 * KIB
PACK = PackId(bytes(range(32)))


class CountingPlace(DirectoryPlace):
    """A place in a directory that records its reads."""

    asked: tuple = ()
    fails = False
    """Whether the object is gone after its first megabytes."""
    failures = 0
    """How many reads after the first megabytes fail."""

    def get_ranges(self, key, ranges):
        self.asked += tuple(ranges)
        if self.fails and ranges[0].begin_bytes > 8 * MIB:
            raise MissingError(key)
        if self.failures and ranges[0].begin_bytes > 8 * MIB:
            self.failures -= 1
            raise OfflineError("the server cannot be reached")
        return super().get_ranges(key, ranges)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return CountingPlace(str(tmp_path / "place"))


def opened(place, tmp_path, data):
    place.put(f"{layout.PACKS}/{layout.pack_name(PACK)}", data)
    return PackObjects(place, Segments(place, str(tmp_path)), str(tmp_path)).open(PACK)


@pytest.mark.parametrize("size", [128 * KIB, 2048 * KIB])
@pytest.mark.parametrize("offsets", [(8, 100_000), (100_000, 8)], ids=["forward", "backward"])
def test_a_small_pack_takes_one_request_in_any_order_of_reading(place, tmp_path, offsets, size):
    data = os.urandom(size)
    pack = opened(place, tmp_path, data)

    for offset in offsets:
        assert pack.read(700, offset) == data[offset : offset + 700]

    assert len(place.asked) == 1


def test_reading_the_end_of_a_pack_first_reads_only_the_end(place, tmp_path):
    data = os.urandom(2048 * KIB)
    pack = opened(place, tmp_path, data)

    assert pack.read(40, len(data) - 40) == data[-40:]

    assert [part.length_bytes for part in place.asked] == [128 * KIB]


def test_a_large_pack_is_read_in_parts_that_grow(place, tmp_path):
    data = os.urandom(3 * 1024 * KIB)
    pack = opened(place, tmp_path, data)

    for offset in range(0, len(data), 64 * KIB):
        assert pack.read(64 * KIB, offset) == data[offset : offset + 64 * KIB]

    assert sorted(part.length_bytes // KIB for part in place.asked) == [256, 512, 1024, 1280]


def in_turn(pack, data, frame_bytes):
    for offset in range(0, len(data), frame_bytes):
        assert pack.read(frame_bytes, offset) == data[offset : offset + frame_bytes]


@pytest.mark.parametrize("is_expected", [True, False])
def test_frames_that_are_read_in_turn_are_fetched_ahead_and_once(place, tmp_path, is_expected):
    data = os.urandom(40 * MIB)
    pack = opened(place, tmp_path, data)
    if is_expected:
        pack.read_ahead(0, len(data))

    in_turn(pack, data, MIB + 37)

    ranges = sorted((part.begin_bytes, part.end_bytes) for part in place.asked)
    assert len(ranges) <= (10 if is_expected else 15)
    begins, ends = zip(*ranges, strict=True)
    assert begins == (0, *ends[:-1]), "each byte once"


def test_nothing_is_fetched_ahead_of_a_frame_that_is_read_alone(place, tmp_path):
    data = os.urandom(40 * MIB)
    pack = opened(place, tmp_path, data)

    for offset in (20 * MIB, 3 * MIB, 30 * MIB):
        assert pack.read(2 * MIB, offset) == data[offset : offset + 2 * MIB]

    assert [part.length_bytes for part in place.asked] == [2 * MIB] * 3


def test_nothing_is_fetched_ahead_of_the_expected_range(place, tmp_path):
    data = os.urandom(40 * MIB)
    pack = opened(place, tmp_path, data)
    pack.read_ahead(4 * MIB, 20 * MIB)

    for offset in range(4 * MIB, 24 * MIB, MIB):
        assert pack.read(MIB, offset) == data[offset : offset + MIB]

    assert sum(part.length_bytes for part in place.asked) == 20 * MIB


def test_the_pack_that_is_read_next_is_fetched_ahead_of_the_end_of_this_one(place, tmp_path):
    packs = PackObjects(place, Segments(place, str(tmp_path)), str(tmp_path))
    first, second, third = os.urandom(20 * MIB), os.urandom(32 * MIB), os.urandom(5 * MIB)
    opened = []
    for number, data in enumerate((first, second, third)):
        pack_id = PackId(bytes([number]) * 32)
        place.put(f"{layout.PACKS}/{layout.pack_name(pack_id)}", data)
        opened.append(packs.open(pack_id))
        opened[-1].read_ahead(0, len(data), is_in_turn=True)

    in_turn(opened[0], first, MIB)
    for fetch in opened[1]._under_way:
        fetch.data.result()

    ranges = [(part.begin_bytes, part.end_bytes) for part in place.asked]
    begins = [*range(0, 20 * MIB, 4 * MIB), *range(0, 32 * MIB, 4 * MIB)]
    assert sorted(ranges) == sorted((begin, begin + 4 * MIB) for begin in begins), (
        "all of the second pack, and nothing of the third"
    )
    in_turn(opened[1], second, MIB)
    in_turn(opened[2], third, MIB)
    assert sum(part.length_bytes for part in place.asked) == 57 * MIB


def test_a_pack_that_goes_while_it_is_fetched_ahead_is_missing(place, tmp_path):
    data = os.urandom(40 * MIB)
    pack = opened(place, tmp_path, data)
    place.fails = True

    with pytest.raises(ChunkMissingError):
        in_turn(pack, data, MIB)


def test_a_part_that_could_not_be_fetched_ahead_is_fetched_when_it_is_read(place, tmp_path):
    data = os.urandom(40 * MIB)
    pack = opened(place, tmp_path, data)
    place.failures = 1

    in_turn(pack, data, MIB)

    assert place.failures == 0


def test_a_pack_is_read_on_after_its_store_was_closed(place, tmp_path):
    data = os.urandom(40 * MIB)
    place.put(f"{layout.PACKS}/{layout.pack_name(PACK)}", data)
    packs = PackObjects(place, Segments(place, str(tmp_path)), str(tmp_path))
    pack = packs.open(PACK)
    packs.close()

    in_turn(pack, data, MIB)

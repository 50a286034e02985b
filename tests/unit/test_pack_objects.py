"""A pack in a bucket is read in few requests."""

import os

import pytest

from ciuic.ids import PackId
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.pack_objects import PackObjects
from ciuic.store.place.segments.segments import Segments
from ciuic.store.records import layout

KIB = 1024
PACK = PackId(bytes(range(32)))


class CountingPlace(DirectoryPlace):
    """A directory that notes what is read."""

    asked: tuple = ()

    def get_ranges(self, key, ranges):
        self.asked += tuple(ranges)
        return super().get_ranges(key, ranges)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return CountingPlace(str(tmp_path / "place"))


def opened(place, tmp_path, data):
    place.put(f"{layout.PACKS}/{layout.pack_name(PACK)}", data)
    return PackObjects(place, Segments(place, str(tmp_path))).open(PACK)


@pytest.mark.parametrize("size", [128 * KIB, 2048 * KIB])
@pytest.mark.parametrize("offsets", [(8, 100_000), (100_000, 8)], ids=["forward", "backward"])
def test_a_small_pack_is_one_request_in_any_order_of_reading(place, tmp_path, offsets, size):
    data = os.urandom(size)
    pack = opened(place, tmp_path, data)

    for offset in offsets:
        assert pack.read(700, offset) == data[offset : offset + 700]

    assert len(place.asked) == 1


def test_of_a_pack_whose_end_is_read_first_only_the_end_is_read(place, tmp_path):
    data = os.urandom(2048 * KIB)
    pack = opened(place, tmp_path, data)

    assert pack.read(40, len(data) - 40) == data[-40:]

    assert [part.length_bytes for part in place.asked] == [128 * KIB]


def test_a_large_pack_is_read_in_parts_that_grow(place, tmp_path):
    data = os.urandom(3 * 1024 * KIB)
    pack = opened(place, tmp_path, data)

    for offset in range(0, len(data), 64 * KIB):
        assert pack.read(64 * KIB, offset) == data[offset : offset + 64 * KIB]

    assert [part.length_bytes // KIB for part in place.asked] == [256, 512, 1024, 1280]

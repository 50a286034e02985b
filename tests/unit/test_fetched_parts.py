"""What ciuic fetched of the packs of a bucket stays on the machine, and leaves nothing behind."""

import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from ciuic.ids import PackId
from ciuic.store.place.fetched import spill
from ciuic.store.place.pack_objects import PackObjects
from ciuic.store.place.segments.segments import Segments
from ciuic.store.records import layout
from ciuic.system.free_space import FreeSpace
from tests.unit.test_pack_objects import KIB, MIB, CountingPlace

MEMORY_BYTES_MAX = (24 + 5 * 4) * MIB
"""Each thread that fetches may be writing a part to the file."""


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return CountingPlace(str(tmp_path / "place"))


def put_many(place, cache, data, count):
    """Put packs with this content, and open each as its reader does."""
    packs = PackObjects(place, Segments(place, str(cache)), str(cache))
    ids = [PackId(number.to_bytes(32, "big")) for number in range(count)]
    for pack_id in ids:
        place.put(f"{layout.PACKS}/{layout.pack_name(pack_id)}", data)
    return [packs.open(pack_id) for pack_id in ids]


def read_in_turn(packs, data, frame_bytes):
    """Read the same frame of each pack, then the next one, as deltas and their bases are read."""
    for offset in range(0, len(data), frame_bytes):
        for pack in packs:
            assert pack.read(frame_bytes, offset) == data[offset : offset + frame_bytes]


def fetched(place):
    return sum(part.length_bytes for part in place.asked)


def in_memory(pack):
    kept = {id(part): part for found in pack._parts._of_pack.values() for part in found}
    return sum(len(part.data) for part in kept.values() if part.data is not None)


def on_disk(pack):
    fd = pack._parts._spill._fd
    return os.fstat(fd).st_blocks * 512 if fd >= 0 else 0


@pytest.fixture
def no_file(monkeypatch):
    """The kernel refuses each write to a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_packs_that_fit_into_memory_take_one_request_each(place, cache):
    data = os.urandom(300 * KIB)
    packs = put_many(place, cache, data, 50)

    for offset in (200_000, 8):
        for pack in packs:
            assert pack.read(700, offset) == data[offset : offset + 700]

    assert len(place.asked) == 50
    assert packs[0]._parts._spill is None, "no file is made"


def test_more_packs_than_fit_into_memory_are_fetched_once(place, cache):
    data = os.urandom(20 * MIB + 17)
    packs = put_many(place, cache, data, 6)

    for _ in range(3):
        read_in_turn(packs, data, MIB + 37)
        assert in_memory(packs[0]) <= MEMORY_BYTES_MAX

    assert fetched(place) == 6 * len(data)


def test_two_threads_that_read_the_same_pack_fetch_it_once(place, cache):
    data = os.urandom(40 * MIB)
    (pack,) = put_many(place, cache, data, 1)
    wrong = []

    def read(begin):
        offsets = range(begin, len(data), 2 * MIB)
        wrong.extend(at for at in offsets if pack.read(MIB, at) != data[at : at + MIB])

    threads = [threading.Thread(target=read, args=(begin,)) for begin in (0, MIB, 0, MIB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    ranges = sorted((part.begin_bytes, part.end_bytes) for part in place.asked)
    begins, ends = zip(*ranges, strict=True)
    assert begins == (0, *ends[:-1]), "each byte once"
    assert ends[-1] == len(data)


def test_a_full_disk_costs_requests_and_nothing_else(place, cache, no_file):
    data = os.urandom(2 * MIB)
    packs = put_many(place, cache, data, 40)
    no_file()

    turns = []
    for offset in (1_000_000, 8, 1_500_000):
        for pack in packs:
            assert pack.read(700, offset) == data[offset : offset + 700]
        assert in_memory(packs[0]) <= MEMORY_BYTES_MAX
        turns.append(fetched(place))

    # The first turn cannot know that the packs exceed the memory. The last packs stay for the
    # second one. From then on, no pack is fetched whole.
    assert turns[0] == 40 * len(data)
    assert turns[2] - turns[0] <= 2 * 40 * 256 * KIB + 20 * len(data)


def test_a_disk_that_fills_up_meanwhile_costs_requests_and_nothing_else(place, cache, no_file):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 6)
    read_in_turn(packs[:3], data, MIB)
    no_file()

    read_in_turn(packs, data, MIB)

    assert in_memory(packs[0]) <= MEMORY_BYTES_MAX


def test_a_file_system_with_little_free_space_gets_no_file(place, cache, monkeypatch):
    monkeypatch.setattr(spill, "_RESERVE_BYTES", 1 << 60)
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 3)

    read_in_turn(packs, data, MIB)

    assert on_disk(packs[0]) == 0


def test_space_that_other_programs_take_is_given_back(place, cache, monkeypatch):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 10)
    read_in_turn(packs[:6], data, MIB)
    assert on_disk(packs[0]) > 50 * MIB

    monkeypatch.setattr(spill, "_RESERVE_BYTES", 1 << 60)
    read_in_turn(packs, data, MIB)

    assert on_disk(packs[0]) == 0


def test_a_file_in_memory_would_be_no_help_and_is_not_used(place, tmp_path):
    data = os.urandom(20 * MIB)
    packs = put_many(place, tmp_path, data, 3)
    packs[0]._parts._directory = "/dev/shm"

    read_in_turn(packs, data, MIB)

    assert on_disk(packs[0]) == 0


def test_the_file_has_a_bounded_number_of_parts(place, cache, monkeypatch):
    monkeypatch.setattr(spill, "_SLOTS_MAX", 4)
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 6)

    for _ in range(2):
        read_in_turn(packs, data, MIB)

    length_bytes = os.fstat(packs[0]._parts._spill._fd).st_size
    assert 0 < length_bytes <= 4 * spill.PART_BYTES_MAX


def test_a_part_that_is_not_sound_is_fetched_again(place, cache):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 3)
    read_in_turn(packs, data, MIB)
    fd = packs[0]._parts._spill._fd
    os.pwrite(fd, mmap.mmap(-1, os.fstat(fd).st_size), 0)
    assert packs[0].read(MIB, 0) == bytes(MIB)

    assert packs[0].doubt(0, MIB)

    assert packs[0].read(MIB, 0) == data[:MIB]


def test_a_part_whose_slot_is_taken_while_it_is_read_is_fetched_again(place, cache, monkeypatch):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 6)
    read_in_turn(packs, data, MIB)
    read = spill.Spill.read
    taken = []

    def slow(self, slot, offset_bytes, length_bytes):
        if not taken:
            taken.append(slot)
            packs[0].doubt(0, len(data))
            assert self.write(slot, os.urandom(spill.PART_BYTES_MAX))
        return read(self, slot, offset_bytes, length_bytes)

    monkeypatch.setattr(spill.Spill, "read", slow)

    assert packs[0].read(MIB, 0) == data[:MIB]
    assert taken


def test_what_is_read_for_the_last_time_takes_neither_memory_nor_disk(place, cache):
    data = os.urandom(40 * MIB)
    packs = put_many(place, cache, data, 3)

    for pack in packs:
        for offset in range(0, len(data), MIB):
            assert pack.read(MIB, offset) == data[offset : offset + MIB]
            pack.done(offset, MIB)

    assert fetched(place) == 3 * len(data)
    assert in_memory(packs[0]) == 0
    assert packs[0]._parts._spill is None


def test_the_end_of_a_pack_may_be_longer_than_its_place_in_the_file(place, cache):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 6)
    end_bytes = 9 * MIB

    for _ in range(2):
        for pack in packs:
            assert pack.read(end_bytes, len(data) - end_bytes) == data[-end_bytes:]
        read_in_turn(packs, data, MIB)


def test_a_write_that_fails_takes_back_what_other_threads_write_and_wrote(cache, monkeypatch):
    """The disk is full for one write, and has room again."""
    pwrite = os.pwrite
    file = spill.Spill(str(cache))
    assert file.slots_max()
    earlier, full, other = (file.take_slot() for _ in range(3))
    part = os.urandom(spill.PART_BYTES_MAX)
    assert file.write(earlier, part)
    has_begun, has_failed = threading.Event(), threading.Event()
    seen = []

    def write(fd, data, at):
        piece = at / MIB - other * 4
        if piece == 1:
            has_begun.set()
            assert has_failed.wait(60)
        if piece == 3:
            seen.append(file.read(earlier, 0, MIB))
        if at == full * spill.PART_BYTES_MAX + 2 * MIB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", write)
    written = []
    thread = threading.Thread(target=lambda: written.append(file.write(other, part)))
    thread.start()
    assert has_begun.wait(60)

    assert not file.write(full, part)
    has_failed.set()
    thread.join()

    assert seen == [b""], "no zeros"
    assert written == [False]


def test_the_file_takes_16_gib_at_most(cache, monkeypatch):
    monkeypatch.setattr(spill, "free_space", lambda _: FreeSpace(1 << 50, 1 << 50))

    assert spill.Spill(str(cache)).slots_max() * spill.PART_BYTES_MAX == 16 << 30


_READS = """
import os, sys
from tests.unit.test_fetched_parts import *
place, cache = CountingPlace(sys.argv[1]), sys.argv[2]
data = os.urandom(20 * MIB)
packs = put_many(place, cache, data, 6)
read_in_turn(packs, data, MIB)
print(on_disk(packs[0]) > 0, flush=True)
sys.stdin.read()
"""


def test_a_kill_leaves_nothing_in_the_cache_directory(place, cache):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_READS), place.name, cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"True\n"
        process.send_signal(signal.SIGKILL)

    assert os.listdir(cache) == []


def test_a_store_that_is_closed_keeps_nothing(place, cache):
    data = os.urandom(20 * MIB)
    packs = put_many(place, cache, data, 4)
    read_in_turn(packs, data, MIB)

    packs[0]._fetching.close()

    assert in_memory(packs[0]) == 0
    assert packs[0]._parts._spill is None
    read_in_turn(packs, data, MIB)

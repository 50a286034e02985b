"""Parity repairs damage within its reach exactly, and ciuic trusts no parity file."""

import contextlib
import mmap
import os
import random
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.errors import CiuicError, CorruptionError
from ciuic.ids import SessionId
from ciuic.store.format.frame import encode_frame
from ciuic.store.packs import pack_writer
from ciuic.store.packs.pack_writer import PACK_BYTES, PackFile
from ciuic.store.parity.encoding import encode_header
from ciuic.store.parity.parity_file import Parity, inspect_parity, parity_path
from ciuic.store.parity.parity_writer import ParityMaker, make_parity, write_parity
from ciuic.store.parity.rebuild import ParityReader, open_parity_reader
from ciuic.store.parity.shape import Shape, shape_for, shape_while_writing
from ciuic.store.records.kinds import DATA
from ciuic.system.core import core
from tests.kit.reach import reach_bytes

PACK = bytes(range(32))
SIZES = [1, 511, 4096, 20_000, 130_001, 1_100_000, 3_000_003]
ZEROS = 8 * 1024
MIB = 1024 * 1024
BLOCK = 4096


class Kept:
    """A pack, its parity, and the original bytes of the pack."""

    def __init__(self, directory: Path, size: int, share: float = 0.04) -> None:
        self.directory = directory
        for name in ("packs", "parity", "tmp"):
            (directory / name).mkdir(exist_ok=True)
        self.pack = directory / "packs" / PACK.hex()
        self.data = random.Random(size).randbytes(size)
        self.pack.write_bytes(self.data)
        with self.pack.open("rb") as file:
            maker = make_parity(file.fileno(), share)
        self.shape = maker.shape
        write_parity(str(directory), PACK, maker)
        self.parity = Path(parity_path(str(directory), PACK))

    @contextlib.contextmanager
    def reader(self) -> Iterator[ParityReader]:
        with (
            self.pack.open("rb") as file,
            open_parity_reader(str(self.directory), PACK, file.fileno()) as one,
        ):
            yield one

    def repaired(self) -> bytes:
        with self.reader() as reader:
            return reader.read(len(self.data), 0)

    def harm(self, begin: int, length: int) -> None:
        """Change every byte of a range."""
        harm(self.pack, begin, length)

    def restore(self) -> None:
        self.pack.write_bytes(self.data)

    def inspect(self) -> str:
        return inspect_parity(str(self.directory), PACK)


def harm(path: Path, begin: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        old = file.read(length)
        file.seek(begin)
        file.write(bytes([one ^ 0xA5 for one in old]))


@pytest.fixture(params=SIZES)
def kept(request, tmp_path) -> Kept:
    return Kept(tmp_path, request.param)


def test_a_sound_pack_is_read_unchanged(kept):
    assert kept.repaired() == kept.data
    assert kept.inspect() == ""


def test_any_damaged_range_within_reach_is_repaired(kept):
    size, length = len(kept.data), min(len(kept.data), reach_bytes(kept.shape))
    chance = random.Random(1)
    for begin in {0, size - length, *[chance.randrange(size - length + 1) for _ in range(8)]}:
        kept.harm(begin, length)
        assert kept.repaired() == kept.data
        kept.restore()


def test_a_truncated_pack_is_repaired_by_parity(kept):
    for length in {1, min(len(kept.data), reach_bytes(kept.shape))}:
        os.truncate(kept.pack, len(kept.data) - length)
        assert kept.repaired() == kept.data
        kept.restore()


def test_a_range_of_zeros_is_repaired(kept):
    length = min(len(kept.data), reach_bytes(kept.shape))
    with kept.pack.open("r+b") as file:
        file.write(bytes(length))

    assert kept.repaired() == kept.data


def test_bytes_after_the_end_of_a_pack_are_not_part_of_it(kept):
    with kept.pack.open("ab") as file:
        file.write(b"more")

    assert kept.repaired() == kept.data


def test_any_part_of_a_damaged_pack_can_be_read(kept):
    kept.harm(0, min(len(kept.data), reach_bytes(kept.shape)))
    chance = random.Random(2)
    with kept.reader() as reader:
        for _ in range(20):
            begin = chance.randrange(len(kept.data))
            length = chance.randrange(1, 10_000)
            assert reader.read(length, begin) == kept.data[begin : begin + length]
        assert reader.read(10, len(kept.data)) == b""


def test_scattered_sectors_are_repaired_up_to_the_number_of_rows(tmp_path):
    kept = Kept(tmp_path, 3_000_000)
    shape = kept.shape
    per = shape.segment_bytes // shape.sector_bytes
    chance = random.Random(3)
    for place in range(per):
        for segment in chance.sample(range(shape.segments - 1), shape.rows):
            kept.harm((segment * per + place) * shape.sector_bytes + 17, 1)

    assert kept.repaired() == kept.data

    kept.harm((shape.segments - 1) * shape.segment_bytes, 1)
    with pytest.raises(CorruptionError, match="more is damaged"):
        kept.repaired()


def test_undamaged_parts_can_be_read_if_damage_is_beyond_reach(tmp_path):
    kept = Kept(tmp_path, 3_000_000)
    kept.harm(500_000, 2 * kept.shape.parity_bytes)

    with kept.reader() as reader:
        assert reader.read(100_000, 0) == kept.data[:100_000]
        with pytest.raises(CorruptionError, match="more is damaged"):
            reader.read(1_000_000, 500_000)


def test_a_pack_that_lost_more_of_its_end_than_parity_covers_is_not_repaired(tmp_path):
    kept = Kept(tmp_path, 3_000_000)
    os.truncate(kept.pack, len(kept.data) - kept.shape.parity_bytes - 1)

    with pytest.raises(CorruptionError, match="more of the pack is missing"):
        kept.repaired()


@given(data=st.data())
def test_random_damage_within_reach_is_repaired_bit_exactly(data, tmp_path_factory):
    size = data.draw(st.integers(1, 400_000), label="size")
    share = data.draw(st.sampled_from([0.01, 0.04, 0.1, 0.5, 1.0]), label="share")
    kept = Kept(tmp_path_factory.mktemp("kept"), size, share)
    shape = kept.shape
    per = shape.segment_bytes // shape.sector_bytes
    rows = [kept.shape.rows] * per
    # The parity file is damaged too. Each lost sector of it costs one row.
    table = 80 + 8 * (sectors := -(-size // shape.sector_bytes) + shape.rows * per)
    table += 8 * -(-sectors // 511)
    table = -(-table // 4096) * 4096
    for row, place in data.draw(
        st.sets(st.tuples(st.integers(0, shape.rows - 1), st.integers(0, per - 1)), max_size=5),
        label="lost of the parity",
    ):
        harm(kept.parity, table + (row * per + place) * shape.sector_bytes, 3)
        rows[place] -= 1
    for place in range(per):
        lost = data.draw(
            st.sets(st.integers(0, shape.segments - 1), max_size=rows[place]), label="lost"
        )
        for segment in lost:
            begin = (segment * per + place) * shape.sector_bytes
            at = data.draw(st.integers(0, shape.sector_bytes - 1))
            kept.harm(begin + at, data.draw(st.integers(1, shape.sector_bytes - at)))

    assert kept.repaired() == kept.data


def rows_at(kept):
    """Return the offset of the rows in the parity file, by docs/format.md."""
    shape = kept.shape
    sums = -(-len(kept.data) // shape.sector_bytes) + shape.parity_bytes // shape.sector_bytes
    return -(-(80 + 8 * (sums + -(-sums // 511))) // BLOCK) * BLOCK


@given(data=st.data())
def test_any_four_blocks_of_a_pack_can_be_lost_whatever_its_length(data, tmp_path_factory):
    """A pack of up to four blocks can lose all. A lost block of the parity counts too."""
    size = data.draw(st.one_of(st.integers(1, 40_000), st.integers(1, 2_000_000)), label="size")
    kept = Kept(tmp_path_factory.mktemp("kept"), size, data.draw(st.sampled_from([0.001, 0.04])))
    blocks = -(-size // BLOCK)
    lost = data.draw(st.sets(st.integers(0, blocks - 1), max_size=4), label="lost of the pack")
    of_parity = -(-kept.parity.stat().st_size // BLOCK)
    if len(lost) < min(4, blocks):
        harm(kept.parity, BLOCK * data.draw(st.integers(0, of_parity - 1), label="parity"), BLOCK)
    for block in lost:
        kept.harm(block * BLOCK, BLOCK)

    assert kept.repaired() == kept.data


@pytest.mark.parametrize("blocks", range(1, 8))
def test_a_pack_of_four_blocks_can_be_lost_as_a_whole(tmp_path, blocks):
    kept = Kept(tmp_path, blocks * BLOCK - 100)
    os.truncate(kept.pack, 0)

    if blocks <= 4:
        assert kept.repaired() == kept.data
    else:
        with pytest.raises(CorruptionError, match="more of the pack is missing"):
            kept.repaired()


@given(data=st.data())
def test_a_damaged_pack_is_repaired_exactly_or_refused(data, tmp_path_factory):
    kept = Kept(tmp_path_factory.mktemp("kept"), data.draw(st.integers(1, 200_000)))
    for path in (kept.pack, kept.parity):
        for _ in range(data.draw(st.integers(0, 4))):
            length = path.stat().st_size
            begin = data.draw(st.integers(0, length))
            match data.draw(st.sampled_from(["turn", "cut", "zero"])):
                case "turn":
                    harm(path, begin, data.draw(st.integers(1, 5000)))
                case "cut":
                    os.truncate(path, begin)
                case "zero":
                    with path.open("r+b") as file:
                        file.seek(begin)
                        file.write(bytes(data.draw(st.integers(0, ZEROS))))

    with contextlib.suppress(CorruptionError):
        repaired = kept.repaired()
        assert repaired == kept.data or has_lost_sums(kept)
    kept.inspect()


def has_lost_sums(kept):
    """Return whether a page is damaged in both copies, so that its sectors are unknown."""
    with kept.parity.open("rb") as file:
        parity = Parity(file.fileno(), PACK)
        return None in [parity.sum_of(one) for one in range(parity.sectors)]


def test_each_end_of_the_parity_file_is_enough(tmp_path):
    kept = Kept(tmp_path, 3_000_000)
    begin = rows_at(kept)
    end = begin + kept.shape.parity_bytes
    for at, length in ((0, begin), (end, kept.parity.stat().st_size - end)):
        harm(kept.parity, at, length)
        kept.harm(100_000, 50_000)

        assert kept.repaired() == kept.data
        assert kept.inspect()

        harm(kept.parity, at, length)
        kept.restore()
        assert kept.inspect() == ""


def test_a_page_that_is_damaged_in_both_tables_counts_as_lost(tmp_path):
    kept = Kept(tmp_path, 1)
    shape = Shape(2, 2, 512, 511 * 512)  # each page has the checksums of one segment or row
    kept.data = random.Random(7).randbytes(2 * shape.segment_bytes)
    kept.restore()
    maker = ParityMaker(shape, core())
    buffer = mmap.mmap(-1, len(kept.data))
    buffer[:] = kept.data
    maker.add(buffer, len(kept.data))
    write_parity(str(tmp_path), PACK, maker)
    for at in (80, kept.parity.stat().st_size - 80 - 4 * 4096):
        harm(kept.parity, at, 8)
    assert kept.inspect()

    assert kept.repaired() == kept.data
    kept.harm(100_000, 20_000)
    assert kept.repaired() == kept.data
    kept.harm(0, shape.segment_bytes - 20_000)
    assert kept.repaired() == kept.data


def test_the_rest_of_a_truncated_parity_file_is_used(tmp_path):
    kept = Kept(tmp_path, 3_000_000)
    os.truncate(kept.parity, rows_at(kept) + 2 * kept.shape.segment_bytes)
    kept.harm(200_000, 2 * kept.shape.segment_bytes - kept.shape.sector_bytes + 1)

    assert kept.repaired() == kept.data
    assert "long" in kept.inspect()


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(80), bytes(100_000), b"CIUICPR1" + b"\xff" * 500], ids=len
)
def test_files_that_are_not_parity_are_refused(tmp_path, content):
    kept = Kept(tmp_path, 50_000)
    kept.parity.write_bytes(content)

    with pytest.raises(CorruptionError):
        kept.repaired()
    assert kept.inspect()


def test_the_parity_of_another_pack_is_refused(tmp_path):
    kept = Kept(tmp_path, 50_000)
    other = bytes(32)
    os.rename(kept.parity, parity_path(str(tmp_path), other))

    with (
        kept.pack.open("rb") as file,
        pytest.raises(CorruptionError, match="another pack"),
        open_parity_reader(str(tmp_path), other, file.fileno()),
    ):
        pass


def test_a_pack_without_parity_is_reported(tmp_path):
    kept = Kept(tmp_path, 50_000)
    kept.parity.unlink()
    assert kept.inspect() == "it is missing"

    with pytest.raises(CorruptionError, match="no parity"):
        kept.repaired()

    kept.parity.mkdir()
    assert kept.inspect() == "it is not a regular file"
    with pytest.raises(CorruptionError):
        kept.repaired()


LIES = [
    Shape(0, 1, 512, 4096),
    Shape(1, 0, 512, 4096),
    Shape(250, 7, 512, 4096),
    Shape(13, 1, 511, 4096),
    Shape(13, 1, 512, 4000),
    Shape(13, 1, 512, 0),
    Shape(13, 1, 1 << 30, 1 << 30),
    Shape(13, 1, 65_536, 1 << 39),
    Shape(200, 56, 65_536, 1 << 39),
    Shape(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**63),
]


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("size", [1, 50_000, 2**40, 2**64 - 1])
def test_a_hostile_header_costs_neither_memory_nor_time(tmp_path, lie, size):
    kept = Kept(tmp_path, 50_000)
    header = encode_header(PACK, size, lie)
    kept.parity.write_bytes(header + bytes(100_000) + header)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError), kept.reader():
            pass
        assert kept.inspect()
        assert tracemalloc.get_traced_memory()[1] < 100 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_frame_rebuilt_from_hostile_parity_is_not_longer_than_requested(tmp_path):
    kept = Kept(tmp_path, 50_000)
    header = encode_header(PACK, 400_000, Shape(100, 4, 4096, 4096))
    kept.parity.write_bytes(header + bytes(50_000) + header)

    with pytest.raises(CorruptionError):
        kept.repaired()


@pytest.mark.parametrize("share", [0.0001, 0.005, 0.01, 0.03, 0.04, 0.07, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("size", [1, 4096, 100_000, 999_999, 64 << 20, 70 << 20, 1 << 33])
def test_shapes_cover_their_pack_and_take_their_share(share, size):
    shape = shape_for(size, share)

    assert 1 <= shape.segments <= 200
    assert shape.segments + shape.rows <= 256
    assert (shape.segments - 1) * shape.segment_bytes < size <= shape.segments * shape.segment_bytes
    assert shape.segment_bytes % shape.sector_bytes == 0
    assert shape.rows >= min(4, shape.segments)
    assert shape.rows <= 4 or (shape.rows - 1) / shape.segments < share
    assert shape.rows / shape.segments >= share - 1e-9


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.04, 0.3, 1.0])
def test_a_growing_pack_gets_the_same_parity_as_a_finished_one(tmp_path, share):
    full = 5 * 1024 * 1024
    shape = shape_while_writing(full, share)
    data = random.Random(4).randbytes(full + 1234)
    maker = ParityMaker(shape, core())
    buffer = mmap.mmap(-1, 1024 * 1024)
    for at in range(0, len(data), len(buffer)):
        part = data[at : at + len(buffer)]
        buffer[: len(part)] = part
        maker.add(buffer, len(part))
    assert maker.fits
    kept = Kept(tmp_path, 1)
    kept.data = data
    kept.restore()
    write_parity(str(tmp_path), PACK, maker)

    kept.harm(777_777, min(reach_bytes(shape), len(data) - 777_777))
    assert kept.repaired() == data
    assert kept.inspect() == ""


def test_a_pack_that_outgrows_its_shape_is_noticed():
    maker = ParityMaker(Shape(2, 1, 4096, 4096), core())
    buffer = mmap.mmap(-1, 8192)

    maker.add(buffer, 8192)
    assert maker.fits
    maker.add(buffer, 1)
    assert not maker.fits


def test_parity_that_cannot_be_written_leaves_nothing(tmp_path):
    kept = Kept(tmp_path, 50_000)
    kept.parity.unlink()
    kept.parity.parent.rmdir()
    kept.parity.parent.write_bytes(b"")  # a file in the directory's place
    with kept.pack.open("rb") as file:
        maker = make_parity(file.fileno(), 0.04)

    with pytest.raises(CiuicError):
        write_parity(str(tmp_path), PACK, maker)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("size", [100, 5_000_000, PACK_BYTES - 200, PACK_BYTES + 3 * 1024 * 1024])
def test_a_pack_gets_its_parity_while_it_is_written(tmp_path, size):
    kept = Kept(tmp_path, 1)
    frame, payload = encode_frame(DATA, [(bytes(32), os.urandom(1024 * 1024))])
    pack = PackFile(str(tmp_path / "tmp"), SessionId(bytes(8)), parity=0.04)
    while pack.size_bytes + frame.total_bytes <= size:
        pack.add(frame, payload)
    pack.complete()
    made = pack.parity()
    pack.close()
    assert made is not None
    os.rename(pack.path, kept.pack)
    kept.data, kept.shape = kept.pack.read_bytes(), made.shape
    write_parity(str(tmp_path), PACK, made)

    # The parity takes the share and the tables, whatever the length, and covers the entire pack.
    assert made.size_bytes == len(kept.data)
    assert made.shape.parity_bytes <= 0.042 * len(kept.data) + 4096
    length = min(reach_bytes(made.shape), len(kept.data))
    for begin in (0, len(kept.data) - length):
        kept.harm(begin, length)
        assert kept.repaired() == kept.data
        kept.restore()


@pytest.mark.parametrize("count", [1, 4, 9, 20])
def test_a_helper_makes_the_same_pack_and_the_same_parity(tmp_path, monkeypatch, count):
    monkeypatch.setattr(pack_writer, "new_label", lambda session_id: session_id + bytes(8))
    rng = random.Random(count)
    frames = [
        encode_frame(DATA, [(bytes([number]) * 32, rng.randbytes(MIB + number))])
        for number in range(count)
    ]
    made = []
    with ThreadPoolExecutor(1) as thread:
        for helper in (None, thread):
            pack = PackFile(
                str(tmp_path),
                SessionId(bytes(8)),
                parity=0.04,
                expected_bytes=count * MIB,
                helper=helper,
            )
            for frame, payload in frames:
                pack.add(frame, payload)
            name = pack.complete()
            parity = pack.parity()
            pack.close()
            assert parity is not None
            parts = b"".join([bytes(one) for one in parity.pieces(name)])
            made.append((name, Path(pack.path).read_bytes(), parts))
    assert made[0] == made[1]
    assert len(made[0][1]) > count * MIB


@pytest.mark.parametrize(("expected_mib", "is_read_back"), [(20, False), (24, True), (14, True)])
def test_the_parity_of_a_pack_of_the_expected_length_is_not_read_back(
    tmp_path, expected_mib, is_read_back
):
    """The cuts show it: they are exact, or they are for the expected length."""
    frame, payload = encode_frame(DATA, [(bytes(32), os.urandom(MIB))])
    pack = PackFile(
        str(tmp_path), SessionId(bytes(8)), parity=0.04, expected_bytes=expected_mib * MIB
    )
    for _ in range(20):
        pack.add(frame, payload)
    name = pack.complete()
    made = pack.parity()
    pack.close()
    assert made is not None
    own = shape_for(pack.size_bytes, 0.04)
    foreseen = shape_while_writing(expected_mib * MIB, 0.04)
    assert made.shape == (own if is_read_back else foreseen)
    assert own != foreseen
    assert made.shape.parity_bytes <= 0.042 * pack.size_bytes + 4096

    kept = Kept(tmp_path, 1)
    os.rename(pack.path, kept.pack)
    kept.data, kept.shape = kept.pack.read_bytes(), made.shape
    assert name
    (tmp_path / "tmp").mkdir(exist_ok=True)
    write_parity(str(tmp_path), PACK, made)
    for begin in (0, len(kept.data) - reach_bytes(made.shape)):
        kept.harm(begin, reach_bytes(made.shape))
        assert kept.repaired() == kept.data
        kept.restore()


@pytest.mark.parametrize("ends", ["when more comes", "when it is completed", "when it is given up"])
def test_a_helper_that_cannot_write_is_reported_and_leaves_nothing(tmp_path, ends):
    frame, payload = encode_frame(DATA, [(bytes(32), os.urandom(3 * MIB))])
    with ThreadPoolExecutor(1) as helper:
        pack = PackFile(str(tmp_path), SessionId(bytes(8)), parity=0.04, helper=helper)
        other = os.open(pack.path, os.O_RDONLY)
        os.dup2(other, pack.fd)  # works like a disk that refuses every write
        os.close(other)
        pack.add(frame, payload)
        pack.add(frame, payload)
        if ends == "when more comes":
            with pytest.raises(OSError, match="Bad file"):
                pack.add(frame, payload)
        elif ends == "when it is completed":
            with pytest.raises(OSError, match="Bad file"):
                pack.complete()
        pack.discard()
    assert list(tmp_path.iterdir()) == []


def test_no_parity_is_computed_for_a_pack_without_parity(tmp_path):
    pack = PackFile(str(tmp_path), SessionId(bytes(8)), parity=0.0)
    pack.complete()

    assert pack.parity() is None
    pack.discard()

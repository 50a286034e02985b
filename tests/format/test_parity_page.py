"""docs/format.md, "Parity and copies": ciuic writes its examples, and it suffices for a repair."""

import os
import random

import pytest

from ciuic.store.parity.galois import Coder
from ciuic.store.parity.parity_writer import make_parity
from ciuic.store.parity.shape import shape_for, shape_while_writing
from ciuic.system.hashing import checksum
from tests.format import parity
from tests.format.test_examples import PAGE, from_hex, rows
from tests.kit.reach import reach_bytes

PACK_BYTES = 64 * 1024 * 1024


def parity_of(path, data, pack, share=0.04):
    """Return the parity file that ciuic writes for a pack with these bytes."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return b"".join([bytes(part) for part in make_parity(fd, share).pieces(pack)])
    finally:
        os.close(fd)


def example():
    return from_hex("pack"), bytes.fromhex(rows("packname")[0][0])


def test_the_coefficients_are_those_of_the_page():
    listed = [[int(one) for one in row[0].split()] for row in rows("coefficients")]

    assert [[parity.coefficient(5, r, s) for s in range(5)] for r in range(2)] == listed


@pytest.mark.parametrize(("segments", "count"), [(5, 2), (1, 1), (100, 4), (105, 4), (200, 56)])
def test_the_program_computes_with_the_coefficients_of_the_page(segments, count):
    coder = Coder(segments, count, None)

    expected = [parity.coefficient(segments, r, s) for r in range(count) for s in range(segments)]
    assert list(coder.matrix) == expected


def test_the_parity_of_the_example_pack_is_the_one_in_the_page(tmp_path):
    data, pack = example()

    file = parity_of(tmp_path / "pack", data, pack)

    header, table = from_hex("parity-header"), from_hex("parity-table")
    front = (header + table).ljust(4096, b"\0")
    assert file == front + data.ljust(4096, b"\0") + table + header
    assert len(file) == 8368


def test_the_header_of_the_page_means_what_the_page_says():
    _, pack = example()

    assert parity.read_header(from_hex("parity-header"), pack) == (1267, 1, 1, 512, 4096)


def test_the_sums_of_the_page_are_those_of_the_packs_sectors():
    data, _ = example()

    expected = b"".join(
        checksum(data[at : at + 512]).to_bytes(8, "little") for at in (0, 512, 1024)
    )
    assert from_hex("parity-table").startswith(expected)


@pytest.mark.parametrize("size", [1, 1251, 60_000, 300_000, 1_500_000])
def test_the_page_is_enough_to_repair_a_pack(tmp_path, size):
    chance = random.Random(size)
    data, pack = chance.randbytes(size), chance.randbytes(32)
    file = parity_of(tmp_path / "pack", data, pack)
    shape = shape_for(size, 0.04)
    length = min(size, reach_bytes(shape))
    for begin in (0, (size - length) // 2, size - length):
        damaged = bytearray(data)
        damaged[begin : begin + length] = chance.randbytes(length)

        assert parity.repair(bytes(damaged), file, pack) == data

    assert parity.repair(data[: size - length], file, pack) == data


def test_the_page_says_when_nothing_can_be_done(tmp_path):
    data, pack = random.Random(1).randbytes(60_000), bytes(32)
    file = parity_of(tmp_path / "pack", data, pack)

    with pytest.raises(parity.DamagedError):
        parity.repair(bytes(60_000), file, pack)


def test_the_shapes_are_those_of_the_page():
    full = shape_while_writing(PACK_BYTES, 0.04)

    assert (full.rows, full.segment_bytes, full.sector_bytes) == (4, 671_744, 4096)
    assert shape_for(PACK_BYTES, 0.04)[:2] == (100, 4)
    assert shape_for(1_000_000, 0.04).sector_bytes == 512
    assert [shape_for(one, 0.04)[:2] for one in (1, 4097, 8700, 20_000, 400_000)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (5, 4),
        (98, 4),
    ]
    for size in (PACK_BYTES, 10_000_000, 3_000_000):
        tables = 2 * 8 * size / shape_for(size, 0.04).sector_bytes
        taken = (shape_for(size, 0.04).parity_bytes + tables) / size
        assert 0.04 <= taken < 0.05


def test_several_pages_are_those_of_the_page(tmp_path):
    data = bytes(300_000)
    file = parity_of(tmp_path / "pack", data, bytes(32))
    size, segments, parity_rows, sector, segment = parity.read_header(file, bytes(32))
    text = PAGE.read_text().replace("\n", " ")
    shape = f"cut into {segments} segments of {segment:,} bytes with {parity_rows} rows"
    assert shape in text
    in_pack = -(-size // sector)
    sums = [checksum(bytes(sector))] * (in_pack - 1) + [checksum(data[(in_pack - 1) * sector :])]
    sums += [checksum(bytes(sector))] * (parity_rows * segment // sector)
    assert f"`{sums[0]:016x}`" in text
    assert f"`{sums[in_pack - 1]:016x}`" in text
    table = b""
    for row in rows("parity-pages"):
        number, count, own = int(row[0]), int(row[1]), int(row[2], 16)
        page = b"".join([one.to_bytes(8, "little") for one in sums[511 * number :][:511]])
        assert len(page) == 8 * count
        assert own == checksum(bytes(32) + number.to_bytes(8, "little") + page)
        table += page + own.to_bytes(8, "little")
    assert len(table) == 8 * (len(sums) + len(rows("parity-pages")))
    assert file[80 : 80 + len(table)] == file[-80 - len(table) : -80] == table

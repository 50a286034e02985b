"""docs/format.md, section 24: its examples are what ciuic writes, and it is enough to mend."""

import os
import random

import pytest

from ciuic.hashing import checksum
from ciuic.store.galois import Coder
from ciuic.store.parity import make_parity, shape_for, shape_while_writing
from tests.format import parity
from tests.format.test_examples import from_hex, rows

PACK_BYTES = 64 * 1024 * 1024


def parity_of(path, data, pack, share=0.04):
    """The parity file that ciuic writes for a pack with these bytes."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return b"".join([bytes(part) for part in make_parity(fd, share).parts(pack)])
    finally:
        os.close(fd)


def example():
    return from_hex("pack"), bytes.fromhex(rows("packname")[0][0])


def test_the_coefficients_are_those_of_the_page():
    listed = [[int(one) for one in row[0].split()] for row in rows("coefficients")]

    assert [[parity.coefficient(5, r, s) for s in range(5)] for r in range(2)] == listed


@pytest.mark.parametrize(("segments", "count"), [(5, 2), (1, 1), (100, 4), (105, 4), (200, 56)])
def test_the_program_computes_with_the_coefficients_of_the_page(segments, count):
    coder = Coder(segments, count)

    expected = [parity.coefficient(segments, r, s) for r in range(count) for s in range(segments)]
    assert list(coder.matrix) == expected


def test_the_parity_of_the_example_pack_is_the_one_in_the_page(tmp_path):
    data, pack = example()

    file = parity_of(tmp_path / "pack", data, pack)

    header, table = from_hex("parity-header"), from_hex("parity-table")
    assert file == header + table + data.ljust(4096, b"\0") + table + header
    assert len(file) == 4448


def test_the_header_of_the_page_means_what_the_page_says():
    _, pack = example()

    assert parity.read_header(from_hex("parity-header"), pack) == (1251, 1, 1, 512, 4096)


def test_the_sums_of_the_page_are_those_of_the_packs_sectors():
    data, _ = example()

    expected = b"".join(
        checksum(data[at : at + 512]).to_bytes(8, "little") for at in (0, 512, 1024)
    )
    assert from_hex("parity-table").startswith(expected)


@pytest.mark.parametrize("size", [1, 1251, 60_000, 300_000, 1_500_000])
def test_the_page_is_enough_to_mend_a_pack(tmp_path, size):
    chance = random.Random(size)
    data, pack = chance.randbytes(size), chance.randbytes(32)
    file = parity_of(tmp_path / "pack", data, pack)
    shape = shape_for(size, 0.04)
    length = min(size, shape.reach_bytes)
    for begin in (0, (size - length) // 2, size - length):
        damaged = bytearray(data)
        damaged[begin : begin + length] = chance.randbytes(length)

        assert parity.mend(bytes(damaged), file, pack) == data

    assert parity.mend(data[: size - length], file, pack) == data


def test_the_page_says_when_nothing_can_be_done(tmp_path):
    data, pack = random.Random(1).randbytes(60_000), bytes(32)
    file = parity_of(tmp_path / "pack", data, pack)

    with pytest.raises(parity.DamagedError):
        parity.mend(bytes(60_000), file, pack)


def test_the_shapes_are_those_of_the_page():
    full = shape_while_writing(PACK_BYTES, 0.04)

    assert (full.rows, full.segment_bytes, full.sector_bytes) == (4, 671_744, 4096)
    assert shape_for(PACK_BYTES, 0.04)[:2] == (100, 4)
    assert shape_for(1_000_000, 0.04).sector_bytes == 512
    for size in (PACK_BYTES, 10_000_000, 3_000_000):
        tables = 2 * 8 * size / shape_for(size, 0.04).sector_bytes
        taken = (shape_for(size, 0.04).parity_bytes + tables) / size
        assert 0.04 <= taken < 0.05

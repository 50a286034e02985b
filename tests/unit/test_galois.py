"""The Reed-Solomon code: the compiled core and numpy compute the same parity, and both repair."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.store.parity.galois import Coder
from ciuic.store.parity.gf256 import cauchy_matrix, inverse_matrix
from tests.format import parity as page
from tests.kit.cores import VARIANTS

whole = memoryview


def encoded(made: Coder, segments: list[bytearray], size: int) -> list[bytearray]:
    rows = [bytearray(size) for _ in range(made.rows)]
    for number, segment in enumerate(segments):
        made.add(number, whole(segment), [whole(row) for row in rows])
    return rows


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(("segments", "rows"), [(1, 1), (4, 1), (7, 3), (100, 4), (200, 56)])
def test_numpy_and_the_core_compute_the_same_parity(variant, segments, rows):
    chance = random.Random(segments)
    data = [bytearray(chance.randbytes(513)) for _ in range(segments)]

    expected = encoded(Coder(segments, rows, None), data, 513)
    found = encoded(Coder(segments, rows, variant), data, 513)

    assert found == expected
    assert any(expected[0])


@given(st.data())
def test_numpy_restores_any_segments_that_the_rows_can_replace(data):
    segments = data.draw(st.integers(1, 12), label="segments")
    rows = data.draw(st.integers(1, 5), label="rows")
    size = data.draw(st.integers(1, 70), label="size")
    lost = data.draw(st.sets(st.integers(0, segments - 1), min_size=1, max_size=rows), label="lost")
    used = data.draw(st.permutations(range(rows)), label="rows used")[: len(lost)]
    chance = random.Random(data.draw(st.integers(0, 999), label="seed"))
    original = [chance.randbytes(size) for _ in range(segments)]
    made = Coder(segments, rows, None)
    parity = encoded(made, [bytearray(one) for one in original], size)
    damaged = [
        bytearray(chance.randbytes(size) if n in lost else one) for n, one in enumerate(original)
    ]

    made.solve(
        lost=sorted(lost),
        used=used,
        segments=[whole(one) for one in damaged],
        parity=[whole(parity[row]) for row in used],
    )

    assert damaged == [bytearray(one) for one in original]


def test_the_matrix_is_that_of_the_format_page():
    expected = [page.coefficient(9, row, segment) for row in range(4) for segment in range(9)]

    assert list(cauchy_matrix(9, 4)) == expected


def test_a_singular_matrix_has_no_inverse():
    with pytest.raises(ZeroDivisionError):
        inverse_matrix(bytes([1, 2, 1, 2]), 2)


@pytest.mark.parametrize("setting", ["off", "portable", ""])
def test_a_store_is_written_and_repaired_with_and_without_the_core(tmp_path, setting):
    program = "from ciuic.cli import program; program()"
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(random.Random(1).randbytes(300_000))
    config = tmp_path / "ciuic.conf"
    config.write_text(f"snapshot_paths = {source}\nsnapshot_dir = {tmp_path / 'store'}\n")

    environment = {**os.environ, "CIUIC_CORE": setting}

    def ciuic(*words: str) -> str:
        command = [sys.executable, "-c", program, "--config", str(config), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout

    ciuic("init")
    ciuic("snapshot")
    pack = max((tmp_path / "store/packs").iterdir(), key=lambda path: path.stat().st_size)
    whole = pack.read_bytes()
    pack.write_bytes(whole[:100_000] + bytes(5_000) + whole[105_000:])
    ciuic("repair", "--apply")

    assert pack.read_bytes() == whole

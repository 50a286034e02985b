"""The compiled core: how it is loaded, and that it computes the checksums and parity of Python."""

import mmap
import random
import subprocess
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.report.doctor.findings import Subject
from ciuic.report.doctor.machine import examine_machine
from ciuic.store.parity.parity_writer import ParityMaker
from ciuic.store.parity.shape import Shape
from ciuic.system import core
from ciuic.system.hashing import checksum, checksums
from tests.kit.cores import VARIANTS

BUFFER_BYTES = 64 * 1024


def test_the_core_is_built_here():
    """Continuous integration must build the core, so it allows no skip for this reason."""
    if not VARIANTS:
        pytest.skip("the compiled core is not built: .venv/bin/pip install -e .")

    assert core.load("").core is not None


def test_the_portable_core_uses_no_vector_instructions():
    if not VARIANTS:
        pytest.skip("the compiled core is not built")

    found = core.load("portable")

    assert found.core is not None
    assert found.core.targets == 0
    assert found.is_chosen


def test_the_core_can_be_limited_to_the_vectors_of_avx2():
    if not VARIANTS:
        pytest.skip("the compiled core is not built")
    here = core.load("").core

    found = core.load("avx2")

    assert found.core is not None
    assert found.core.targets == here.targets & here.functions.AVX2
    assert found.is_chosen


def test_the_core_can_be_switched_off():
    assert core.load("off") == (None, "switched off by CIUIC_CORE", True)


def test_a_core_that_was_built_from_other_sources_is_not_used():
    if not VARIANTS:
        pytest.skip("the compiled core is not built")

    found = core.load("", interface=VARIANTS[0].functions.interface + 1)

    assert found == (None, "built from the sources of another version", False)


def test_without_the_extension_the_reason_is_given():
    """Python marks a module as missing by None in ``sys.modules``."""
    program = (
        "import sys; sys.modules['ciuic._core'] = None\n"
        "from ciuic.system.core import state; print(state().core, state().what)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "None not built\n"


@pytest.mark.parametrize(
    ("found", "level", "what"),
    [
        (core.State(None, "not built"), "warning", "the compiled core is not built: slower"),
        (core.State(None, "switched off by CIUIC_CORE", True), "note", "is switched off by"),
        (core.State(core.Core(core, 3), "compiled, with AVX2"), "ok", "compiled, with AVX2"),
    ],
)
def test_doctor_says_which_core_runs(monkeypatch, found, level, what):
    monkeypatch.setattr("ciuic.report.doctor.machine.state", lambda: found)

    (said,) = [
        finding for finding in examine_machine(Subject(None, None, None)) if finding.about == "core"
    ]

    assert said.level == level
    assert what in said.what


@given(st.integers(0, 999), st.integers(0, 5000), st.integers(1, 1500), st.integers(0, 8))
def test_checksums_are_those_of_the_package(seed, size, step, skip):
    data = memoryview(random.Random(seed).randbytes(size + skip))[skip:]
    expected = [checksum(data[at : at + step]) for at in range(0, size, step)]

    assert list(checksums(data, step)) == expected
    for variant in VARIANTS:
        whole = size // step if step > 240 else 0
        if whole:
            sums = array("Q", bytes(8 * whole))
            variant.functions.sector_sums(variant.targets, data, step, sums)
            assert list(sums) == expected[:whole]


@st.composite
def packs(draw):
    """Draw a shape, and lengths of parts of a pack: whole sectors, except the last one."""
    sector = draw(st.sampled_from([512, 1024, 4096]), label="sector")
    segments, rows = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    shape = Shape(segments, rows, sector, sector * draw(st.integers(1, 12), label="sectors"))
    left = draw(st.integers(0, segments * shape.segment_bytes), label="length")
    lengths = []
    while left:
        most = BUFFER_BYTES // sector * sector
        lengths.append(min(left, sector * draw(st.integers(1, most // sector))))
        left -= lengths[-1]
    return shape, lengths


@given(packs(), st.integers(0, 999))
def test_the_core_computes_the_parity_and_the_checksums_that_numpy_computes(pack, seed):
    shape, lengths = pack
    chance = random.Random(seed)
    parts = [chance.randbytes(length) for length in lengths]
    found = []
    for compiled in (None, *VARIANTS):
        maker = ParityMaker(shape, compiled)
        buffer = mmap.mmap(-1, BUFFER_BYTES)
        for part in parts:
            buffer[: len(part)] = part
            maker.add(buffer, len(part))
        found.append([bytes(piece) for piece in maker.pieces(bytes(32))])

    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("shape", "matrix", "offset", "data", "parity", "sums"),
    [
        ((0, 1, 512, 512), 0, 0, 512, 512, 8),
        ((1, 0, 512, 512), 0, 0, 512, 0, 8),
        ((-1, 1, 512, 512), 1, 0, 512, 512, 8),
        ((200, 57, 512, 512), 200 * 57, 0, 512, 57 * 512, 8),
        ((1, 1, 240, 240), 1, 0, 240, 240, 8),
        ((1, 1, 0, 0), 1, 0, 0, 0, 0),
        ((1, 1, 512, 500), 1, 0, 512, 500, 8),
        ((1, 1, 512, 768), 1, 0, 512, 768, 8),
        ((2, 1, 512, 512), 1, 0, 512, 512, 8),
        ((1, 1, 512, 512), 1, 0, 512, 511, 8),
        ((1, 1, 512, 512), 1, 0, 512, 512, 0),
        ((1, 1, 512, 512), 1, 0, 512, 512, 16),
        ((1, 1, 512, 512), 1, 0, 513, 512, 8),
        ((1, 1, 512, 512), 1, 512, 512, 512, 8),
        ((2, 1, 512, 512), 2, 100, 512, 512, 8),
        ((1, 1, 512, 512), 1, 2**64 - 512, 512, 512, 8),
        ((128, 128, 4096, 2**62), 128 * 128, 0, 4096, 4096, 8),
    ],
)
def test_a_pack_that_does_not_fit_its_shape_is_refused(
    variant, shape, matrix, offset, data, parity, sums
):
    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.parity_add(
            variant.targets,
            shape,
            bytes(matrix),
            offset,
            bytes(data),
            bytearray(parity),
            bytearray(sums),
        )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_rows_of_wrong_length_number_or_type_are_refused(variant):
    add, targets = variant.functions.gf_add, variant.targets

    with pytest.raises(ValueError, match="differ in length"):
        add(targets, b"\1\2", bytes(100), [bytearray(100), bytearray(99)])
    with pytest.raises(ValueError, match="one coefficient for each row"):
        add(targets, b"\1", bytes(100), [bytearray(100), bytearray(100)])
    with pytest.raises(ValueError, match="more rows"):
        add(targets, bytes(257), b"1", [bytearray(1)] * 257)
    with pytest.raises((BufferError, TypeError)):
        add(targets, b"\1", bytes(100), [bytes(100)])
    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.sector_sums(targets, bytes(1000), 500, bytearray(8))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(("at", "length"), [(0, 0), (0, 10), (3, 4), (10, 0), (9, 1)])
def test_bytes_are_copied_to_their_place_and_nowhere_else(variant, at, length):
    out, data = bytearray(b"." * 10), bytes(range(1, length + 1))
    variant.functions.copy(out, at, data)

    expected = bytearray(b"." * 10)
    expected[at : at + length] = data
    assert out == expected


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("at", "length"), [(0, 11), (10, 1), (11, 0), (-1, 1), (5, 6), (2**63 - 1, 1), (-(2**63), 0)]
)
def test_bytes_that_do_not_fit_are_not_copied(variant, at, length):
    out = bytearray(10)
    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.copy(out, at, b"x" * length)
    assert out == bytes(10)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bytes_are_not_copied_to_a_read_only_buffer(variant):
    with pytest.raises((TypeError, BufferError)):
        variant.functions.copy(bytes(10), 0, b"x")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("lengths", [(), (0, 5), (4095, 4096, 4097), (10_000, 63, 64, 65, 100_000)])
def test_arrays_are_copied_to_their_places_and_nowhere_else(variant, lengths):
    arrays = [array("B", random.Random(length).randbytes(length)) for length in lengths]
    out = bytearray(b"." * (sum(lengths) + 7 * len(lengths) + 3))
    expected, rows = bytearray(out), array("Q")
    at = 3
    for each in arrays:
        rows.extend((at, each.buffer_info()[0], len(each)))
        expected[at : at + len(each)] = each
        at += len(each) + 7

    variant.functions.copy_arrays(out, rows)

    assert out == expected


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    "row", [(0, 11), (10, 1), (11, 0), (2**64 - 1, 1), (1, 2**64 - 1), (2**63, 2**63)]
)
def test_arrays_that_do_not_fit_are_not_copied(variant, row):
    out, data = bytearray(10), array("B", b"x" * 20)
    address = data.buffer_info()[0]
    rows = array("Q", [0, address, 1, row[0], address, row[1]])

    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.copy_arrays(out, rows)
    with pytest.raises(ValueError, match="do not fit"):
        variant.functions.copy_arrays(out, bytes(23))
    with pytest.raises((TypeError, BufferError)):
        variant.functions.copy_arrays(bytes(10), array("Q"))
    assert out == bytes(10)

"""The distance of two arrays, compared with numpy, for every element type of the formats."""

import math

import numpy as np
import pytest

from ciuic.codec.elements import Distance, compare

NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    "C128": "<c16",
}


@pytest.mark.parametrize("element", NUMPY)
@pytest.mark.parametrize("count", [0, 1, 7, 200_001])
def test_distances_are_those_of_the_numbers(element: str, count: int) -> None:
    random = np.random.default_rng(1)
    before = random.integers(0, 100, count).astype(NUMPY[element])
    after = before.copy()
    after[::3] = after[::3] ^ True if element == "BOOL" else after[::3] + 1
    found = compare(before.tobytes(), after.tobytes(), element)

    wide = "complex128" if element.startswith("C") else "float64"
    one, other = before.astype(wide), after.astype(wide)
    assert found.elements == count
    assert found.equal == np.count_nonzero(before == after)
    assert found.before_squared == pytest.approx(np.vdot(one, one).real)
    assert found.apart_squared == pytest.approx(np.vdot(other - one, other - one).real)
    assert found.odd == 0


def bf16(*values: float) -> bytes:
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def test_a_bf16_is_the_upper_half_of_an_f32() -> None:
    assert compare(bf16(3, 1, -2), bf16(3, 1, 2), "BF16") == Distance(3, 2, 14.0, 16.0, 0)


def values(element: str) -> list[float]:
    """Return the value of each of the 256 bytes, by their distance from zero."""
    found = []
    for code in range(256):
        one = compare(bytes([code]), b"\x7f" if element == "F8_E8M0" else b"\0", element)
        found.append(math.nan if one.odd else math.sqrt(one.before_squared))
    return found


def test_an_e5m2_is_the_upper_half_of_an_f16() -> None:
    halves = (np.arange(256, dtype="<u2") << 8).view("<f2").astype(float)
    wanted = [abs(one) if math.isfinite(one) else math.nan for one in halves]
    np.testing.assert_array_equal(values("F8_E5M2"), wanted)


@pytest.mark.parametrize(
    ("element", "known"),
    [
        ("F8_E4M3", {0: 0, 1: 2**-9, 7: 7 * 2**-9, 8: 2**-6, 0x38: 1, 0x7E: 448, 0x7F: math.nan}),
        ("F8_E4M3FNUZ", {0: 0, 1: 2**-10, 0x40: 1, 0x7F: 240, 0x80: math.nan, 0xFF: 240}),
        ("F8_E5M2FNUZ", {0: 0, 1: 2**-17, 0x40: 1, 0x7F: 57344, 0x80: math.nan, 0xFF: 57344}),
        ("F8_E8M0", {0: 2**-127, 127: 1, 128: 2, 254: 2**127, 255: math.nan}),
    ],
)
def test_small_floats_have_the_values_of_their_formats(
    element: str, known: dict[int, float]
) -> None:
    found = values(element)
    np.testing.assert_allclose(
        [found[code] for code in known], [float(one) for one in known.values()], rtol=1e-12
    )
    assert sum(map(math.isnan, found)) == (2 if element == "F8_E4M3" else 1)


def test_signs_of_small_floats_count() -> None:
    assert compare(b"\x38", b"\xb8", "F8_E4M3").apart_squared == 4.0


def test_equal_means_equal_bits() -> None:
    odd = np.array([np.nan, 0.0, np.inf, 1.0], "<f4").tobytes()
    other = np.array([np.nan, -0.0, np.inf, 1.0], "<f4").tobytes()
    assert compare(odd, other, "F32") == Distance(4, 3, 1.0, 0.0, 2)
    assert compare(odd, odd, "F32") == Distance(4, 4, 1.0, 0.0, 2)
    large = np.array([1e200, 3.0]).tobytes()
    assert compare(large, large, "F64").before_squared == math.inf


def test_elements_of_unknown_types_are_compared_as_bytes() -> None:
    assert compare(b"abcd", b"abxd", "Q4_K") == Distance(4, 3)
    assert compare(b"abc", b"abc", "") == Distance(3, 3)


def test_the_distances_of_parts_of_a_tensor_add_up() -> None:
    random = np.random.default_rng(2)
    before, after = random.standard_normal((2, 1000)).astype("<f4")
    whole = compare(before.tobytes(), after.tobytes(), "F32")
    parts = Distance()
    for at in range(0, 1000, 130):
        part, other = before[at : at + 130], after[at : at + 130]
        parts = parts.plus(compare(part.tobytes(), other.tobytes(), "F32"))
    assert parts[:2] == whole[:2]
    assert parts[2:] == pytest.approx(whole[2:])

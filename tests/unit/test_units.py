"""Durations and sizes, as users write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.units import (
    counted,
    format_bytes,
    format_duration,
    format_files,
    inflected,
    parse_duration_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("1h", 3600),
        ("12 h", 43200),
        ("7d", 604800),
        ("2w", 1209600),
        ("90s", 90),
        (" 1.5h ", 5400),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["30", "", "m", "-1h", "1h30m", "1 hour", "1e3s", "\u0661h"])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="30m"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64 MiB", 64 << 20),
        ("2G", 2 << 30),
        ("1.5k", 1536),
        ("3 TiB", 3 << 40),
        ("1 MB", 1 << 20),
        ("5B", 5),
        ("1p", 1 << 50),
    ],
)
def test_sizes(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 EiB", "1 MiB extra", "0x10", "1,5 G"])
def test_an_invalid_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="64 MiB"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (100 << 30, "100 GiB"),
        (1 << 50, "1.00 PiB"),
        (3000 << 50, "3000 PiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_for_people(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.418, "0.42 s"),
        (12.4, "12 s"),
        (185, "3 m 05 s"),
        (7800, "2 h 10 m"),
        (3600, "1 h 00 m"),
        (86400 * 3 + 4 * 3600, "3 d 04 h"),
    ],
)
def test_durations_for_people(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(0, 2**60))
def test_a_printed_size_is_read_as_nearly_that_size(size):
    assert parse_size_bytes(format_bytes(size)) == pytest.approx(size, rel=0.01, abs=1)


@given(st.floats(0, 10**8))
def test_every_duration_has_a_short_text(seconds):
    assert len(format_duration(seconds)) <= 12


def test_one_file_is_not_files():
    assert [format_files(count) for count in (0, 1, 2000)] == [
        "0 files",
        "1 file",
        "2,000 files",
    ]


@pytest.mark.parametrize("text", ["9" * 400, f"{'9' * 300}P"])
def test_an_infinite_size_is_refused(text):
    with pytest.raises(ValueError, match="more than any disk"):
        parse_size_bytes(text)


def test_1_is_singular_and_all_other_numbers_are_plural():
    assert [counted(number, "chunk") for number in (0, 1, 2, 1000)] == [
        "0 chunks",
        "1 chunk",
        "2 chunks",
        "1,000 chunks",
    ]
    assert [counted(number, "hot copy", "hot copies") for number in (1, 2)] == [
        "1 hot copy",
        "2 hot copies",
    ]
    assert [inflected(number, "was", "were") for number in (0, 1, 2)] == ["were", "was", "were"]

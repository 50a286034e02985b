"""Output for a terminal is safe, and output for programs is exact."""

import contextlib
import io
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ciuic.cli.render import as_json_text, mode_text, printable
from ciuic.cli.table import print_table
from ciuic.units import format_bytes, format_duration, parse_duration_s, parse_size_bytes


def table(header, rows):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_table(header, rows, right=frozenset({1}))
    assert out.getvalue().endswith("\n")
    return out.getvalue()[:-1].split("\n")


@given(st.binary())
@example(b"\x1b[31m")
@example(b"a\nb|c\rd\te")
@example("caf\u00e9 \u202e \u2028 \ufeff \x85".encode())
@example(b"\xff\xfe\xc3")
def test_no_control_character_survives_and_all_output_is_text(name):
    shown = printable(name)

    assert shown.isprintable()
    shown.encode("utf-8")


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_harmless_text_is_shown_unchanged(text):
    if text.isprintable():
        assert printable(text) == text
    assert printable(text) == printable(text.encode())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"plain.pt", "plain.pt"),
        ("modèle.pt".encode(), "modèle.pt"),
        (b"a\nb", "a\\nb"),
        (b"a\tb\rc", "a\\tb\\rc"),
        (b"\x1b[31m", "\\x1b[31m"),
        (b"\xff.bin", "\\xff.bin"),
        (b"\x7f", "\\x7f"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u0085".encode(), "\\x85"),
        ("\U000e0001".encode(), "\\U000e0001"),
        ("\ud800", "\\ud800"),
    ],
)
def test_odd_characters_are_shown_as_escapes(name, shown):
    assert printable(name) == shown


@given(st.lists(st.binary(), max_size=5))
def test_json_gives_back_exactly_the_bytes_of_a_name(names):
    document = [name.decode("utf-8", "surrogateescape") for name in names]

    text = as_json_text(document)

    assert text.isascii()
    assert [one.encode("utf-8", "surrogateescape") for one in json.loads(text)] == names


@given(st.lists(st.tuples(st.text(), st.integers(), st.text(max_size=3)), max_size=4))
def test_a_table_has_one_line_for_each_row_whatever_the_cells_hold(rows):
    header = ("NAME", "SIZE", "X")
    lines = table(header, [(name, str(size), extra) for name, size, extra in rows])

    assert len(lines) == len(rows) + 1
    assert all(line == line.rstrip() for line in lines)


def test_numbers_are_right_aligned_and_words_left_aligned():
    assert table(("ID", "SIZE"), [("cs-1", "5 B"), ("cs-22", "1,000 B")]) == [
        "ID        SIZE",
        "cs-1       5 B",
        "cs-22  1,000 B",
    ]


def test_modes_look_as_ls_prints_them():
    assert mode_text(0o100644) == "-rw-r--r--"
    assert mode_text(0o41777) == "drwxrwxrwt"
    assert mode_text(0o120777) == "lrwxrwxrwx"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1536 * 1024, "1.50 MiB"),
        (1024**4 * 3, "3.00 TiB"),
        (1024**6, "1024 PiB"),
    ],
)
def test_sizes_are_three_digits_and_a_unit(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 2**60))
def test_a_size_never_takes_more_than_ten_columns(size):
    assert re.fullmatch(r"\d{1,4}(\.\d{1,2})? (B|[KMGTP]iB)", format_bytes(size))


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0.00 s"),
        (0.426, "0.43 s"),
        (60, "1 m 00 s"),
        (185, "3 m 05 s"),
        (3599.9, "1 h 00 m"),
        (7800, "2 h 10 m"),
        (86_400 * 3 + 4 * 3600, "3 d 04 h"),
    ],
)
def test_durations_are_shown_as_people_say_them(duration_s, text):
    assert format_duration(duration_s) == text


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("30m", 1800), ("1h", 3600), ("12h", 43_200), ("7d", 604_800), ("90s", 90), ("0", 0),
     ("1.5 h", 5400), (" 2w ", 1_209_600), ("0.2s", 0.2)],
)  # fmt: skip
def test_durations_are_parsed(text, duration_s):
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize(
    "text", ["", "30", "-1h", "1 hour", "h", "1h30m", "1e3s", "\u0661s", "nan", "1H"]
)
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="30m"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 MiB", 64 * 1024**2),
        ("2G", 2 * 1024**3),
        ("4096", 4096),
        ("1.5k", 1536),
        ("3 TB", 3 * 1024**4),
    ],
)
def test_sizes_are_parsed(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 XB", "0x10", "1,5 M", "\u0663K"])
def test_an_invalid_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="64 MiB"):
        parse_size_bytes(text)

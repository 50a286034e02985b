"""Exclude patterns, compared with a simple implementation that reads one character at a time."""

import os
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.source.exclusions import Exclusions

PIECES = ["a", "b", "/", "?", "*", "*", "*a", "**", "**/", "[ab]", "[!a]", "[/b]"]


def is_left_out(pattern, path):
    """Return whether a pattern excludes a path, by trying every way to match them."""
    tokens = re.findall(r"(?<![^/])\*\*/|\*\*|\[.*?\]|.", pattern)

    @cache
    def fits(token, at):
        if token == len(tokens):
            return at == len(path)
        one, left = tokens[token], path[at:]
        if one == "**/":
            ends = [0, *[end + 1 for end, character in enumerate(left) if character == "/"]]
        elif one == "**":
            ends = range(len(left) + 1)
        elif one == "*":
            ends = range(len(left.partition("/")[0]) + 1)
        elif one == "?":
            ends = [1] if left[:1] not in {"", "/"} else []
        elif one.startswith("[") and len(one) > 1:
            among = (left[:1] in one[1:-1]) != one.startswith("[!")
            ends = [1] if left[:1] not in {"", "/"} and among else []
        else:
            ends = [1] if left.startswith(one) else []
        return any(fits(token + 1, at + end) for end in ends)

    return fits(0, 0)


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join),
    st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=3),
)
@settings(max_examples=2000)
def test_a_pattern_excludes_what_the_simple_implementation_excludes(pattern, parts):
    bare = "/" + pattern.strip("/")
    path = "/" + "/".join(parts)
    directory, name = os.path.split(os.fsencode(path))
    assert Exclusions([bare]).match_path(directory, name) == is_left_out(bare, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "b", b"/" + b"a" * 255),
        ("/" + "**a" * 60 + "b", b"/a" * 1000),
        ("/" + "**/a/" * 60 + "b", b"/a" * 1000),
        ("/" + "**a*a" * 30 + "b", b"/aaaa" * 500),
        ("/" + "[a/]**" * 60 + "b", b"/a" * 1000),
    ],
)
def test_no_pattern_takes_forever(pattern, path):
    directory, name = os.path.split(path)
    assert not Exclusions([pattern]).match_path(directory, name)


@pytest.mark.filterwarnings("error")
@given(st.text("[]!^-&~|\\\\*?/a5\n\udcff", max_size=12))
@settings(max_examples=2000)
def test_any_pattern_is_accepted_or_refused(pattern):
    try:
        Exclusions([pattern]).match_path(b"/a", b"5]")
    except ValueError as error:
        assert "is reversed" in str(error)


@pytest.mark.parametrize("pattern", ["[[", "[[]", "[a&&b]", "[a||b]", "[a~~b]"])
@pytest.mark.filterwarnings("error")
def test_characters_special_elsewhere_are_literal(pattern):
    exclusions = Exclusions([pattern])
    bracket = pattern in {"[[", "[[]"}
    assert exclusions.match_path(b"/", b"[" if pattern == "[[]" else b"[[") == bracket
    assert exclusions.match_path(b"/", b"a") == (not bracket)

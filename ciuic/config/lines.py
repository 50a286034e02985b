"""The lines of a configuration file: ``key = value`` -> the text of every key."""

import re
from typing import Final, NamedTuple

from ciuic.config.settings import DEFAULTS
from ciuic.config.trusted_file import read_trusted_text
from ciuic.errors import ConfigError

__all__ = ["Value", "read_values", "shortened", "wrong_line"]

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Value(NamedTuple):
    """The text behind ``=``, and its line number from 1; 0 for a default."""

    text: str
    line: int


def read_values(path: str) -> dict[str, Value]:
    """Return every key with its text, defaults included.

    Raises:
        ConfigError: The file can't be read, or a line is not ``key = value`` with a known key.
    """
    found: dict[str, Value] = {}
    for number, raw in enumerate(read_trusted_text(path).split("\n"), start=1):
        if _CONTROL.search(raw.removesuffix("\r")):
            raise wrong_line(path, number, "a control character: this is not a text file")
        line = _COMMENT.sub("", raw).strip()
        if not line:
            continue
        key, equals, text = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise wrong_line(
                path,
                number,
                f"'{shortened(line)}' is not of the form 'key = value'",
                hint=_hint_for_section(line),
            )
        if key not in DEFAULTS:
            raise wrong_line(
                path, number, f"unknown key '{shortened(key)}'", hint=_nearest_key_hint(key)
            )
        if key in found:
            raise wrong_line(
                path,
                number,
                f"{key} is set a second time; line {found[key].line} sets it already",
                hint="Keep one of the two lines.",
            )
        if not text and DEFAULTS[key]:
            raise wrong_line(path, number, f"{key} has no value")
        found[key] = Value(text, number)
    return {key: found.get(key, Value(text, 0)) for key, text in DEFAULTS.items()}


def wrong_line(path: str, line: int, what: str, *, hint: str | None = None) -> ConfigError:
    """Return the error for a mistake in this line; line 0 is a default."""
    place = f"{path}:{line}" if line else path
    return ConfigError(f"{place}: {what}", hint=hint)


def shortened(text: str) -> str:
    """Return at most 60 characters of the text, for a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint_for_section(line: str) -> str | None:
    if line.startswith("["):
        return "Leave section headings out; every key is at the top level."
    return None


def _nearest_key_hint(key: str) -> str | None:
    import difflib

    close = difflib.get_close_matches(key.lower(), DEFAULTS, n=1)
    return f"Did you mean {close[0]}? etc/ciuic.conf shows every key." if close else None

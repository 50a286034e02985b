"""The lines of a configuration file: ``key = value`` -> the text of every key.

Keys that apply to everything come first; ``[rule NAME]`` begins a section with keys of its own. The
keys of a ``[schedule NAME]`` are some of the keys at the top, which give their defaults.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from ciuic.config.settings import DEFAULTS, SECTION_KEYS, Section
from ciuic.config.trusted_file import read_trusted_text
from ciuic.errors import ConfigError

__all__ = ["Lines", "Value", "read_lines", "read_values", "shortened", "wrong_line"]

_COMMENT: Final = r"(?:^|\s)#.*"
_CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f]"
_HEADING: Final = rf"\[\s*({'|'.join(SECTION_KEYS)})\b\s*(.*?)\s*\]"
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Value(NamedTuple):
    """The text behind ``=``, and its line number from 1; 0 for a default."""

    text: str
    line: int


class Lines(NamedTuple):
    """What the lines of a file say.

    Attributes:
        values: Every key at the top, defaults included.
        sections: The sections, in the order of the file.
    """

    values: dict[str, Value]
    sections: tuple[Section, ...]


def read_values(path: str) -> dict[str, Value]:
    """Return every key with its text, defaults included; see ``read_lines``."""
    return read_lines(path).values


def read_lines(path: str) -> Lines:
    """Read the file.

    Raises:
        ConfigError: The file cannot be read, or a line is neither ``key = value`` with a known key
            nor the heading of a known section.
    """
    found: dict[str, Value] = {}
    sections: list[tuple[str, str, int, dict[str, Value]]] = []
    keys, where = found, ""
    for number, raw in enumerate(read_trusted_text(path).split("\n"), start=1):
        if not raw.isprintable() and re.search(_CONTROL, raw.removesuffix("\r")):
            raise wrong_line(path, number, "a control character: this is not a text file")
        line = (re.sub(_COMMENT, "", raw) if "#" in raw else raw).strip()
        if not line:
            continue
        heading = re.fullmatch(_HEADING, line) if line.startswith("[") else None
        if heading is not None:
            kind, name = heading[1], heading[2]
            _check_name(path, number, kind, name)
            earlier = next((section for section in sections if section[:2] == (kind, name)), None)
            if earlier is not None:
                what = f"[{kind} {name}] begins a second time; line {earlier[2]} begins it already"
                raise wrong_line(path, number, what, hint="Keep one of the two sections.")
            keys, where = {}, kind
            sections.append((kind, name, number, keys))
            continue
        key, value = _pair(path, number, line, where)
        if key in keys:
            raise wrong_line(
                path,
                number,
                f"{key} is set a second time; line {keys[key].line} sets it already",
                hint="Keep one of the two lines.",
            )
        keys[key] = Value(value, number)
    return Lines(
        {key: found.get(key, Value(text, 0)) for key, text in DEFAULTS.items()},
        tuple(_section(path, *section) for section in sections),
    )


def _pair(path: str, number: int, line: str, kind: str) -> tuple[str, str]:
    """Return the key and the text of a line; ``kind`` is that of its section, empty for none."""
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals or not key:
        raise wrong_line(
            path,
            number,
            f"'{shortened(line)}' is not of the form 'key = value'",
            hint=_hint_for_section(line),
        )
    known = SECTION_KEYS[kind] if kind else DEFAULTS
    if key not in known:
        if kind and key in DEFAULTS:
            hint = f"{key} applies to everything; move it above the first section."
            raise wrong_line(path, number, f"'{key}' is not a key of a {kind}", hint=hint)
        raise wrong_line(
            path, number, f"unknown key '{shortened(key)}'", hint=_nearest_key_hint(key, known)
        )
    if not text and DEFAULTS.get(key, "needed"):
        raise wrong_line(path, number, f"{key} has no value")
    return key, text


def _check_name(path: str, number: int, kind: str, name: str) -> None:
    if not re.fullmatch(_NAME, name):
        what = f"'{shortened(name)}' is not a name" if name else "the section has no name"
        hint = f"Write it like [{kind} my-{kind}]: letters, digits, '.', '_' and '-'."
        raise wrong_line(path, number, f"{what}", hint=hint)


def _section(path: str, kind: str, name: str, line: int, values: dict[str, Value]) -> Section:
    missing = [key for key, needed in SECTION_KEYS[kind].items() if needed and key not in values]
    if missing:
        raise wrong_line(path, line, f"[{kind} {name}] lacks the key '{missing[0]}'")
    return Section(
        kind,
        name,
        line,
        {key: value.text for key, value in values.items()},
        {key: value.line for key, value in values.items()},
    )


def wrong_line(path: str, line: int, what: str, *, hint: str | None = None) -> ConfigError:
    """Return the error for a mistake in this line; line 0 is a default."""
    place = f"{path}:{line}" if line else path
    return ConfigError(f"{place}: {what}", hint=hint)


def shortened(text: str) -> str:
    """Return at most 60 characters of the text, for a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint_for_section(line: str) -> str | None:
    if line.startswith("["):
        kinds = " or ".join(f"[{kind} NAME]" for kind in SECTION_KEYS)
        return f"A section begins with {kinds}; other keys need no heading."
    return None


def _nearest_key_hint(key: str, known: Collection[str]) -> str | None:
    import difflib

    close = difflib.get_close_matches(key.lower(), known, n=1)
    close = close or [one for one in known if key.lower() in one.split("_")]
    return f"Did you mean {close[0]}? etc/ciuic.conf shows every key." if close else None

"""The configuration file: flat ``key = value`` lines -> checked settings.

etc/ciuic.conf is the reference of all keys. A file is read whole and checked whole before
anything uses it; whatever is wrong is one ``ConfigError`` that starts with ``FILE:LINE:``.

Every command checks all of it, those included that need the store's place alone: a mistake shows
when the next command is run, and not at the hour of the next snapshot. So nothing is imported here
that a list does without: pydantic would take longer than all the rest of it. ``read_store_path`` is
for who goes on where other values are wrong.
"""

import contextlib
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from ciuic.errors import ConfigError
from ciuic.units import parse_duration_s

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULTS",
    "SYSTEM_PATHS",
    "Settings",
    "find_config",
    "load_settings",
    "read_store_path",
]

CONFIG_VARIABLE: Final = "CIUIC_CONFIG"
SYSTEM_PATHS: Final = ("/etc/ciuic.conf", "/etc/ciuric.conf")

DEFAULTS: Final[Mapping[str, str]] = {
    "snapshot_paths": "/",
    "snapshot_interval": "1h",
    "base_interval": "12h",
    "retention_policy": "7d",
    "exclude_patterns": "",
    "snapshot_dir": "/.ciuic_snapshots",
    "io_priority": "idle",
    "hot_snapshots": "1",
    "chain_cost": "3",
    "parity": "4%",
    "trash": "1d",
    "scrub_budget": "10m",
}
"""Every key, with what it is when the file does not say; written as a file would."""

# A real file is 2 KB. The bound keeps a core dump given by mistake out of memory.
_SIZE_BYTES_MAX: Final = 1024 * 1024
_DAY_S: Final = 86_400.0
_DURATION_S_MAX: Final = 3650 * 86_400.0

_PRIORITIES: Final = ("idle", "best-effort", "none")
_HOT_SNAPSHOTS_MAX: Final = 100
_CHAIN_COST_MAX: Final = 100
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# "\," is a comma that belongs to the name: experiment tools make directories "lr=0.1,batch=32".
_COMMA: Final = re.compile(r"(?<!\\),")
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration that has been checked.

    Attributes:
        path: The file it was read from.
        snapshot_paths: Absolute, normalised, each once; bytes that are not UTF-8 as surrogates.
        snapshot_interval_s: At least a second.
        base_interval_s: 0 means that no snapshot is a base for the sake of its age.
        retention_policy: In the grammar of the reference, commas and spaces normalised.
        exclude_patterns: Globs as they were written.
        snapshot_dir: The store; absolute and normalised.
        io_priority: How far snapshots step back behind everything else.
        hot_snapshots: How many snapshots keep a frozen copy.
        chain_cost: How many times what it takes alone may have to be read to have a chunk.
        parity: Fraction of each pack that is spent on parity, 0 to 1.
        trash_s: How long a forgotten snapshot can be brought back.
        scrub_budget_s: How long packs are read again each day; 0: never.
    """

    path: str
    snapshot_paths: tuple[str, ...]
    snapshot_interval_s: float
    base_interval_s: float
    retention_policy: str
    exclude_patterns: tuple[str, ...]
    snapshot_dir: str
    io_priority: Literal["idle", "best-effort", "none"]
    hot_snapshots: int
    chain_cost: float
    parity: float
    trash_s: float
    scrub_budget_s: float


class _Value(NamedTuple):
    """The right side of a line, and the line's number from 1; 0 for a default."""

    text: str
    line: int


def find_config(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The configuration file to use: the one asked for, or the first that is there.

    What was asked for, by argument or by ``CIUIC_CONFIG``, is not looked at: if it is missing,
    reading it says so, where falling back to another file would surprise.
    """
    asked = explicit or environ.get(CONFIG_VARIABLE)
    if asked:
        return asked
    return next((path for path in SYSTEM_PATHS if os.path.lexists(path)), None)


def read_store_path(path: str) -> str:
    """Where the store is, according to the file; other values are not looked at.

    Raises:
        ConfigError: The file can't be read, has a line that is not ``key = value``, a key that
            is unknown or doubled, or names no usable directory for the store.
    """
    return cast("str", _value("snapshot_dir", _read_values(path)["snapshot_dir"], path))


def load_settings(path: str) -> Settings:
    """Read and check the whole file.

    Raises:
        ConfigError: Something in it is wrong; of several things, the first in the file.
    """
    values = _read_values(path)
    # In the order of the lines: of several mistakes the first is told.
    found = {
        key: _value(key, value, path)
        for key, value in sorted(values.items(), key=lambda pair: pair[1].line)
    }
    settings = Settings(
        path=path,
        snapshot_paths=found["snapshot_paths"],
        snapshot_interval_s=found["snapshot_interval"],
        base_interval_s=found["base_interval"],
        retention_policy=found["retention_policy"],
        exclude_patterns=found["exclude_patterns"],
        snapshot_dir=found["snapshot_dir"],
        io_priority=found["io_priority"],
        hot_snapshots=found["hot_snapshots"],
        chain_cost=found["chain_cost"],
        parity=found["parity"],
        trash_s=found["trash"],
        scrub_budget_s=found["scrub_budget"],
    )
    for root in settings.snapshot_paths:
        if f"{root}/".startswith(f"{settings.snapshot_dir}/"):
            line = max(values["snapshot_paths"].line, values["snapshot_dir"].line)
            what = f"snapshot_paths: {root} lies in the store {settings.snapshot_dir}"
            raise _wrong(path, line, what, hint="Put the store elsewhere, or leave that path out.")
    return settings


def _value(key: str, value: _Value, path: str) -> Any:
    """What a key's text means, of the type that ``Settings`` has."""
    try:
        return _CHECKS[key](value.text)
    except ValueError as error:
        # It quotes bytes of paths that need not be UTF-8, and goes where text must be.
        said = os.fsencode(str(error)).decode("utf-8", "backslashreplace")
        raise _wrong(path, value.line, f"{key}: {said}") from error


def _wrong(path: str, line: int, what: str, *, hint: str | None = None) -> ConfigError:
    place = f"{path}:{line}" if line else path
    return ConfigError(f"{place}: {what}", hint=hint)


def _read_values(path: str) -> dict[str, _Value]:
    """Every key with its text, the defaults included."""
    found: dict[str, _Value] = {}
    for number, raw in enumerate(_read_text(path).split("\n"), start=1):
        if _CONTROL.search(raw.removesuffix("\r")):
            raise _wrong(path, number, "a control character: this is not a text file")
        line = _COMMENT.sub("", raw).strip()
        if not line:
            continue
        key, equals, text = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise _wrong(
                path, number, f"'{_short(line)}' is not key = value", hint=_not_a_pair(line)
            )
        if key not in DEFAULTS:
            raise _wrong(path, number, f"unknown key '{_short(key)}'", hint=_nearest(key))
        if key in found:
            raise _wrong(
                path,
                number,
                f"{key} is set a second time; line {found[key].line} sets it already",
                hint="Keep one of the two lines.",
            )
        if not text and DEFAULTS[key]:
            raise _wrong(path, number, f"{key} has no value")
        found[key] = _Value(text, number)
    return {key: found.get(key, _Value(text, 0)) for key, text in DEFAULTS.items()}


def _read_text(path: str) -> str:
    try:
        # Without O_NONBLOCK a named pipe given by mistake would hang the command for good.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise ConfigError(f"{path}: is a directory, not a configuration file")
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{path}: is not a regular file")
            data = os.read(fd, _SIZE_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        hint = "Copy etc/ciuic.conf there and name your directories in it, or use --config FILE."
        raise ConfigError(f"{path}: there is no such file", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        hint = "Make the file readable, or use --config FILE."
        raise ConfigError(f"{path}: cannot be read: {reason}", hint=hint) from error
    if len(data) > _SIZE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than 1 MiB, so it is not a configuration file")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _not_a_pair(line: str) -> str | None:
    if line.startswith("["):
        return "Leave section headings out; every key stands at the top level."
    return None


def _nearest(key: str) -> str | None:
    import difflib

    close = difflib.get_close_matches(key.lower(), DEFAULTS, n=1)
    return f"Did you mean {close[0]}? etc/ciuic.conf shows every key." if close else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _list_items(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    items = tuple(item.strip().replace("\\,", ",") for item in _COMMA.split(text))
    if not all(items):
        raise ValueError("an item between two commas, or at an end, is empty")
    return items


def _patterns(text: str) -> tuple[str, ...]:
    patterns = _list_items(text)
    if "[" in text:
        # Nothing but a set can be wrong, and what the scan imports takes longer than all this.
        from ciuic.scan import Exclusions

        Exclusions(patterns)
    return patterns


def _directories(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_directory(item) for item in _list_items(text)))


def _store_directory(text: str) -> str:
    path = _directory(text.replace("\\,", ","))
    if path == "/":
        raise ValueError("the store needs a directory of its own, not /")
    return path


def _directory(text: str) -> str:
    if not text.startswith("/"):
        quoted = text[0] in "'\"" and text[1:].startswith("/")
        remedy = "write it without quotes" if quoted else "write it from / on"
        raise ValueError(f"'{_short(text)}' is not an absolute path; {remedy}")
    parts = [part for part in text.split("/") if part not in {"", "."}]
    # Dropping "x/.." would be wrong where x is a symlink.
    if ".." in parts:
        raise ValueError(f"'{_short(text)}' has '..' in it; write the directory that it means")
    return "/" + "/".join(parts)


def _duration_s(text: str) -> float:
    duration_s = parse_duration_s(text)
    if duration_s > _DURATION_S_MAX:
        raise ValueError(f"'{_short(text)}' is more than ten years")
    return duration_s


def _interval_s(text: str) -> float:
    interval_s = _duration_s(text)
    if interval_s < 1:
        raise ValueError(f"'{text}' is too short; the least is 1s")
    return interval_s


def _scrub_budget_s(text: str) -> float:
    budget_s = _duration_s(text)
    if budget_s > _DAY_S:
        raise ValueError(f"'{text}' is more than a day has; this is for each day")
    return budget_s


def _fraction(text: str) -> float:
    if text == "0":
        return 0.0
    match = _PERCENT.fullmatch(text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"'{_short(text)}' is not a share of 0% to 100%; write it like 4%")
    return float(match[1]) / 100


def _retention(text: str) -> str:
    with contextlib.suppress(ValueError):
        if 0 < parse_duration_s(_short(text)) <= _DURATION_S_MAX:
            return text
    # Rules with counts: what knows them knows snapshots too, and takes its time to load.
    from ciuic.retention import parse_policy

    return parse_policy(text).text


def _priority(text: str) -> Literal["idle", "best-effort", "none"]:
    for one in _PRIORITIES:
        if text == one:
            return one
    raise ValueError(f"'{_short(text)}' is none of {', '.join(_PRIORITIES)}")


def _number(text: str, least: int, most: int) -> float:
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(text)
    if not least <= number <= most:  # nan is not, either
        raise ValueError(f"'{_short(text)}' is not a number from {least} to {most}")
    return number


def _chain_cost(text: str) -> float:
    return _number(text, 1, _CHAIN_COST_MAX)


def _hot_snapshots(text: str) -> int:
    number = _number(text, 0, _HOT_SNAPSHOTS_MAX)
    if not number.is_integer():
        raise ValueError(f"'{_short(text)}' is not a whole number")
    return int(number)


_CHECKS: Final[Mapping[str, Callable[[str], Any]]] = {
    "snapshot_paths": _directories,
    "snapshot_interval": _interval_s,
    "base_interval": _duration_s,
    "retention_policy": _retention,
    "exclude_patterns": _patterns,
    "snapshot_dir": _store_directory,
    "io_priority": _priority,
    "hot_snapshots": _hot_snapshots,
    "chain_cost": _chain_cost,
    "parity": _fraction,
    "trash": _duration_s,
    "scrub_budget": _scrub_budget_s,
}
"""For each key, what makes of its text the value that it stands for, or a ``ValueError``."""

"""Converters: for each key, text -> a checked value of the type that ``Settings`` has."""

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from ciuic.config.lines import shortened
from ciuic.units import parse_duration_s, parse_size_bytes

__all__ = ["CONVERTERS"]

_DAY_S: Final = 86_400.0
_DURATION_S_MAX: Final = 3650 * 86_400.0

_PRIORITIES: Final = ("idle", "best-effort", "none")
_HOT_SNAPSHOTS_MAX: Final = 100
_CHAIN_COST_MAX: Final = 100
_USERS_MAX: Final = 2**32 - 1
# "\," is a comma that belongs to the name: experiment tools make directories "lr=0.1,batch=32".
_COMMA: Final = re.compile(r"(?<!\\),")
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)


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
        # Only a character set can be wrong, and this import takes longer than all other checks.
        from ciuic.source.exclusions import Exclusions

        Exclusions(patterns)
    return patterns


def _size_bytes(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError:
        raise ValueError(f"'{shortened(text)}' is not a size; write it like 10 GiB") from None


def _yes_or_no(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(f"'{shortened(text)}' is neither yes nor no")
    return text == "yes"


def _markers(text: str) -> tuple[str, ...]:
    markers = _list_items(text)
    for name in markers:
        if "/" in name or name in {".", ".."}:
            raise ValueError(f"'{shortened(name)}' is not the name of a file")
    return markers


def _directories(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_directory(item) for item in _list_items(text)))


def _store_directory(text: str) -> str:
    if not text.startswith("/"):
        # Not imported for a path: every command reads the configuration.
        from ciuic.store.place.keys import is_url

        if is_url(text):
            # Not quoted: a URL may hold a password.
            raise ValueError("it is a URL; write the absolute path of a directory of this machine")
    path = _directory(text.replace("\\,", ","))
    if path == "/":
        raise ValueError("the store needs a directory of its own, not /")
    return path


def _directory(text: str) -> str:
    if not text.startswith("/"):
        quoted = text[0] in "'\"" and text[1:].startswith("/")
        remedy = "write it without quotes" if quoted else "start it with /"
        raise ValueError(f"'{shortened(text)}' is not an absolute path; {remedy}")
    parts = [part for part in text.split("/") if part not in {"", "."}]
    # Dropping "x/.." would be wrong where x is a symlink.
    if ".." in parts:
        raise ValueError(f"'{shortened(text)}' has '..' in it; write the directory without it")
    return "/" + "/".join(parts)


def _duration_s(text: str) -> float:
    duration_s = parse_duration_s(text)
    if duration_s > _DURATION_S_MAX:
        raise ValueError(f"'{shortened(text)}' is more than ten years")
    return duration_s


def _interval_s(text: str) -> float:
    interval_s = _duration_s(text)
    if interval_s < 1:
        raise ValueError(f"'{text}' is too short; the minimum is 1s")
    return interval_s


def _scrub_budget_s(text: str) -> float:
    budget_s = _duration_s(text)
    if budget_s > _DAY_S:
        raise ValueError(f"'{text}' is more than 24 hours; the budget is for each day")
    return budget_s


def _hook_timeout_s(text: str) -> float:
    timeout_s = _interval_s(text)
    if timeout_s > _DAY_S:
        raise ValueError(f"'{shortened(text)}' is more than a day")
    return timeout_s


def _fraction(text: str) -> float:
    if text == "0":
        return 0.0
    match = _PERCENT.fullmatch(text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"'{shortened(text)}' is not a fraction from 0% to 100%; write it like 4%")
    return float(match[1]) / 100


def _retention(text: str) -> str:
    with contextlib.suppress(ValueError):
        if 0 < parse_duration_s(shortened(text)) <= _DURATION_S_MAX:
            return text
    # Rules with counts. This import is slow, as it needs the model of snapshots.
    from ciuic.retention import parse_policy

    return parse_policy(text).text


def _user(text: str) -> int | None:
    if not text:
        return None
    if text.isdecimal() and int(text) < _USERS_MAX:
        return int(text)
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError(f"there is no user '{shortened(text)}' on this machine") from None


def _priority(text: str) -> Literal["idle", "best-effort", "none"]:
    for priority in _PRIORITIES:
        if text == priority:
            return priority
    raise ValueError(f"'{shortened(text)}' is not one of {', '.join(_PRIORITIES)}")


def _number(text: str, minimum: int, maximum: int) -> float:
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(text)
    if not minimum <= number <= maximum:  # False for nan
        raise ValueError(f"'{shortened(text)}' is not a number from {minimum} to {maximum}")
    return number


def _chain_cost(text: str) -> float:
    return _number(text, 1, _CHAIN_COST_MAX)


def _hot_snapshots(text: str) -> int:
    number = _number(text, 0, _HOT_SNAPSHOTS_MAX)
    if not number.is_integer():
        raise ValueError(f"'{shortened(text)}' is not a whole number")
    return int(number)


CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "snapshot_paths": _directories,
    "snapshot_interval": _interval_s,
    "base_interval": _duration_s,
    "retention_policy": _retention,
    "exclude_patterns": _patterns,
    "exclude_larger_than": _size_bytes,
    "exclude_caches": _yes_or_no,
    "exclude_if_present": _markers,
    "snapshot_dir": _store_directory,
    "io_priority": _priority,
    "hot_snapshots": _hot_snapshots,
    "chain_cost": _chain_cost,
    "parity": _fraction,
    "trash": _duration_s,
    "scrub_budget": _scrub_budget_s,
    "before": str,
    "after": str,
    "hook_timeout": _hook_timeout_s,
    "store_owner": _user,
}
"""For each key, the function that converts its text; it raises ``ValueError``."""

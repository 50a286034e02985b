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
_PORTS: Final = 65_536
_THREADS_MAX: Final = 64
_RATE_BYTES_MIN: Final = 1024**2
_MEMORY_BYTES_MIN: Final = 12 * 1024**2
_MEMORY_BYTES_MAX: Final = 64 * 1024**3
_LIMIT_BYTES_MIN: Final = 1024
_USERS_MAX: Final = 2**32 - 1
# "\," is a comma that belongs to the name: experiment tools make directories "lr=0.1,batch=32".
_COMMA: Final = r"(?<!\\),"
_REGION: Final = r"[A-Za-z0-9-]{1,64}"
_AUTO_BOUNDS_S: Final = (300.0, 6 * 3600.0)
_PERCENT: Final = r"(\d{1,3}(?:\.\d{1,6})?)\s*%"


def _list_items(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    parts = re.split(_COMMA, text) if "," in text else [text]
    items = tuple(item.strip().replace("\\,", ",") for item in parts)
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
        from ciuic.errors import UsageError
        from ciuic.store.place.keys import is_url, refuse_cut_url

        if is_url(text):
            return _bucket(text)
        try:
            refuse_cut_url(text)
        except UsageError as error:
            raise ValueError(f"{error.message}. {error.hint}".rstrip(". ")) from None
    path = _directory(text.replace("\\,", ","))
    if path == "/":
        raise ValueError("the store needs a directory of its own, not /")
    return path


def _stores(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_store_directory(item) for item in _list_items(text)))


def _copy_limit_bytes(text: str) -> int:
    limit_bytes = _size_bytes(text)
    if 0 < limit_bytes < _LIMIT_BYTES_MIN:
        what = f"'{shortened(text)}' is less than 1 KiB a second; write a unit, such as 5 MiB"
        raise ValueError(what)
    return limit_bytes


def _bucket(text: str) -> str:
    from ciuic.errors import UsageError
    from ciuic.store.place.location import bucket_url

    try:
        return bucket_url(text)
    except UsageError as error:
        # From nothing: the message quotes only what is not a password.
        raise ValueError(f"{error.message}. {error.hint}".rstrip(". ")) from None


def _endpoint(text: str) -> str:
    if not text:
        return ""
    from ciuic.store.place.location import endpoint_url

    return endpoint_url(text)


def _region(text: str) -> str:
    if text and not re.fullmatch(_REGION, text):
        raise ValueError(f"'{shortened(text)}' is not the name of a region, such as eu-central-1")
    return text


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


def _schedule_interval(text: str) -> tuple[float, tuple[float, float] | None]:
    """Return the interval, the longest if the daemon chooses, and what it may choose from."""
    if not text.startswith("auto"):
        return _interval_s(text), None
    match text.split():
        case ["auto"]:
            low_s, high_s = _AUTO_BOUNDS_S
        case ["auto", "from", low, "to", high]:
            low_s, high_s = _interval_s(low), _interval_s(high)
            if low_s > high_s:
                raise ValueError(f"'{shortened(text)}': {low} is longer than {high}")
        case _:
            what = f"'{shortened(text)}' is neither a duration nor like auto from 10m to 6h"
            raise ValueError(what)
    return high_s, (low_s, high_s)


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
    match = re.fullmatch(_PERCENT, text, re.ASCII)
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


def _group(text: str) -> int | None:
    if not text:
        return None
    if text.isdecimal() and int(text) < _USERS_MAX:
        return int(text)
    import grp

    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise ValueError(f"there is no group '{shortened(text)}' on this machine") from None


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
    return _whole(text, 0, _HOT_SNAPSHOTS_MAX)


def _file(text: str) -> str:
    return _directory(text.replace("\\,", ",")) if text else ""


def _loopback(text: str) -> str:
    host, _, port = text.rpartition(":")
    is_loopback = host in {"localhost", "[::1]"} or host.startswith("127.")
    if text and not (is_loopback and port.isdecimal() and int(port) < _PORTS):
        raise ValueError(
            f"'{shortened(text)}' is not a port of this machine; write it like 127.0.0.1:9741"
        )
    return text


def _threads(text: str) -> int:
    return _whole(text, 0, _THREADS_MAX)


def _whole(text: str, minimum: int, maximum: int) -> int:
    number = _number(text, minimum, maximum)
    if not number.is_integer():
        raise ValueError(f"'{shortened(text)}' is not a whole number")
    return int(number)


def _minimum_rate_bytes(text: str) -> int:
    rate_bytes = _size_bytes(text)
    if rate_bytes < _RATE_BYTES_MIN:
        raise ValueError(f"'{shortened(text)}' is too slow; the minimum is 1 MiB (a second)")
    return rate_bytes


def _buffer_memory_bytes(text: str) -> int:
    memory_bytes = _size_bytes(text)
    if not _MEMORY_BYTES_MIN <= memory_bytes <= _MEMORY_BYTES_MAX:
        raise ValueError(f"'{shortened(text)}' is not a size from 12 MiB to 64 GiB")
    return memory_bytes


CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "snapshot_paths": _directories,
    "snapshot_interval": _schedule_interval,
    "base_interval": _duration_s,
    "retention_policy": _retention,
    "exclude_patterns": _patterns,
    "exclude_larger_than": _size_bytes,
    "exclude_caches": _yes_or_no,
    "exclude_if_present": _markers,
    "snapshot_dir": _store_directory,
    "io_priority": _priority,
    "pressure_limit": _fraction,
    "minimum_rate": _minimum_rate_bytes,
    "threads": _threads,
    "buffer_memory": _buffer_memory_bytes,
    "hot_snapshots": _hot_snapshots,
    "chain_cost": _chain_cost,
    "parity": _fraction,
    "trash": _duration_s,
    "scrub_budget": _scrub_budget_s,
    "drill_interval": _duration_s,
    "before": str,
    "after": str,
    "hook_timeout": _hook_timeout_s,
    "store_owner": _user,
    "contacts": str,
    "metrics_file": _file,
    "metrics_listen": _loopback,
    "store_endpoint": _endpoint,
    "store_region": _region,
    "store_credentials": _file,
    "store_path_style": _yes_or_no,
    "store_allow_http": _yes_or_no,
    "control_group": _group,
    "copies": _stores,
    "copy_retention": lambda text: _retention(text) if text else "",
    "copy_limit": _copy_limit_bytes,
    "to": _store_directory,
}
"""For each key, the function that converts its text; it raises ``ValueError``."""

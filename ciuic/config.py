"""The configuration file: flat ``key = value`` lines -> checked settings.

etc/ciuic.conf is the reference of all keys. A file is read whole and checked whole before
anything uses it; whatever is wrong is one ``ConfigError`` that starts with ``FILE:LINE:``.

pydantic is imported inside ``load_settings`` only: importing it and building a model takes
several times as long as all the rest of ``ciuic list``. ``read_store_path`` and its like are for
commands that need one value and nothing else; they refuse the same files for their syntax, their
unknown keys and their doubled keys, and do without pydantic.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from ciuic.errors import ConfigError
from ciuic.units import parse_duration_s

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULTS",
    "SYSTEM_PATHS",
    "Settings",
    "find_config",
    "load_settings",
    "read_parity",
    "read_store_path",
    "read_trash_s",
]

T = TypeVar("T")

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
    "chain_cost": "2",
    "parity": "4%",
    "trash": "1d",
    "scrub_budget": "10m",
}
"""Every key, with what it is when the file does not say; written as a file would."""

# A real file is 2 KB. The bound keeps a core dump given by mistake out of memory.
_SIZE_BYTES_MAX: Final = 1024 * 1024
_DAY_S: Final = 86_400.0
_DURATION_S_MAX: Final = 3650 * 86_400.0

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
    return _read_one(path, "snapshot_dir", _store_directory)


def read_parity(path: str) -> float:
    """The share of a pack that its parity takes; as ``read_store_path``."""
    return _read_one(path, "parity", _fraction)


def read_trash_s(path: str) -> float:
    """How long a forgotten snapshot can be brought back; as ``read_store_path``."""
    return _read_one(path, "trash", _duration_s)


def _read_one(path: str, key: str, check: Callable[[str], T]) -> T:
    value = _read_values(path)[key]
    try:
        return check(value.text)
    except ValueError as error:
        raise _wrong(path, value.line, f"{key}: {error}") from error


def load_settings(path: str) -> Settings:
    """Read and check the whole file.

    Raises:
        ConfigError: Something in it is wrong; of several things, the first in the file.
    """
    values = _read_values(path)
    settings = Settings(path=path, **_checked(path, values))
    for root in settings.snapshot_paths:
        if f"{root}/".startswith(f"{settings.snapshot_dir}/"):
            line = max(values["snapshot_paths"].line, values["snapshot_dir"].line)
            what = f"snapshot_paths: {root} lies in the store {settings.snapshot_dir}"
            raise _wrong(path, line, what, hint="Put the store elsewhere, or leave that path out.")
    return settings


def _checked(path: str, values: Mapping[str, _Value]) -> dict[str, Any]:
    from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

    # PlainValidator keeps pydantic's own string type out of it, which refuses the surrogates
    # that stand for bytes of a path that are not UTF-8.
    class Model(BaseModel):
        model_config = ConfigDict(extra="forbid")

        snapshot_paths: Annotated[tuple[str, ...], PlainValidator(_printable(_directories))]
        snapshot_interval: Annotated[float, PlainValidator(_printable(_interval_s))]
        base_interval: Annotated[float, PlainValidator(_printable(_duration_s))]
        retention_policy: Annotated[str, PlainValidator(_printable(_retention))]
        exclude_patterns: Annotated[tuple[str, ...], PlainValidator(_printable(_patterns))]
        snapshot_dir: Annotated[str, PlainValidator(_printable(_store_directory))]
        io_priority: Literal["idle", "best-effort", "none"]
        hot_snapshots: Annotated[int, Field(ge=0, le=100)]
        chain_cost: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]
        parity: Annotated[float, PlainValidator(_printable(_fraction))]
        trash: Annotated[float, PlainValidator(_printable(_duration_s))]
        scrub_budget: Annotated[float, PlainValidator(_printable(_scrub_budget_s))]

    try:
        model = Model.model_validate({key: value.text for key, value in values.items()})
    except ValidationError as error:
        found = [(values[str(one["loc"][0])].line, one) for one in error.errors()]
        line, first = min(found, key=lambda pair: pair[0])
        cause = first.get("ctx", {}).get("error")
        what = cause if isinstance(cause, ValueError) else _lower(first["msg"], first["input"])
        raise _wrong(path, line, f"{first['loc'][0]}: {what}") from error
    units = {"snapshot_interval", "base_interval", "trash", "scrub_budget"}
    return {f"{key}_s" if key in units else key: value for key, value in model}


def _printable(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same check, whose errors pydantic can handle: it encodes what they say as UTF-8."""

    def checked(text: str) -> Any:  # whatever the check returns
        try:
            return check(text)
        except ValueError as error:
            text = os.fsencode(str(error)).decode("utf-8", "backslashreplace")
            raise ValueError(text) from error

    return checked


def _lower(message: str, given: str) -> str:
    return f"'{given}' is not right: {message[:1].lower()}{message[1:]}"


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
    # The scan knows entries, as the retention knows snapshots.
    from ciuic.scan import Exclusions

    patterns = _list_items(text)
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
    # It knows snapshots, and what those are made of takes as long to load as all the rest.
    from ciuic.retention import parse_policy

    return parse_policy(text).text

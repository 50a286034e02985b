"""Loading a configuration: find the file, read it, check every value."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final, cast

from ciuic.config.lines import Value, read_values, wrong_line
from ciuic.config.settings import DEFAULTS, Settings
from ciuic.config.values import CONVERTERS

__all__ = [
    "CONFIG_VARIABLE",
    "SYSTEM_PATHS",
    "default_settings",
    "find_config",
    "load_settings",
    "read_store_owner",
    "read_store_path",
]

CONFIG_VARIABLE: Final = "CIUIC_CONFIG"
SYSTEM_PATHS: Final = ("/etc/ciuic.conf", "/etc/ciuric.conf")


def find_config(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the configuration file to use: the named one, or the first system file that exists.

    A file that is named by argument or by ``CIUIC_CONFIG`` is returned even if it does not exist.
    Reading it then fails, while a fallback to another file would surprise.
    """
    asked = explicit or environ.get(CONFIG_VARIABLE)
    if asked:
        return asked
    return next((path for path in SYSTEM_PATHS if os.path.lexists(path)), None)


def read_store_path(path: str) -> str:
    """Read the store's directory from the file, without checking other values.

    Raises:
        ConfigError: The file can't be read, has a line that is not ``key = value``, has a key that
            is unknown or set twice, or names no usable directory for the store.
    """
    return cast("str", _value("snapshot_dir", read_values(path)["snapshot_dir"], path))


def read_store_owner(path: str) -> int | None:
    """Read the ``store_owner`` from the file, without checking other values.

    Raises:
        ConfigError: As for ``read_store_path``, or there is no such user.
    """
    return cast("int | None", _value("store_owner", read_values(path)["store_owner"], path))


def load_settings(path: str) -> Settings:
    """Read and check the whole file.

    Raises:
        ConfigError: The file has a mistake; of several mistakes, the first in the file is reported.
    """
    return _checked(read_values(path), path)


def default_settings(store_path: str) -> Settings:
    """Return the settings for a store that no configuration names."""
    values = {key: Value(text, 0) for key, text in DEFAULTS.items()}
    return dataclasses.replace(_checked(values, ""), snapshot_dir=store_path)


def _checked(values: Mapping[str, Value], path: str) -> Settings:
    # In the order of the lines, so that the first mistake in the file is reported.
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
        exclude_larger_than_bytes=found["exclude_larger_than"],
        exclude_caches=found["exclude_caches"],
        exclude_if_present=found["exclude_if_present"],
        snapshot_dir=found["snapshot_dir"],
        io_priority=found["io_priority"],
        hot_snapshots=found["hot_snapshots"],
        chain_cost=found["chain_cost"],
        parity=found["parity"],
        trash_s=found["trash"],
        scrub_budget_s=found["scrub_budget"],
        before=found["before"],
        after=found["after"],
        hook_timeout_s=found["hook_timeout"],
        store_owner=found["store_owner"],
    )
    for root in settings.snapshot_paths:
        if f"{root}/".startswith(f"{settings.snapshot_dir}/"):
            line = max(values["snapshot_paths"].line, values["snapshot_dir"].line)
            what = f"snapshot_paths: {root} is inside the store {settings.snapshot_dir}"
            raise wrong_line(
                path, line, what, hint="Put the store elsewhere, or leave that path out."
            )
    return settings


def _value(key: str, value: Value, path: str) -> Any:  # of the type of the field in Settings
    """Convert a key's text to the type that ``Settings`` has."""
    try:
        return CONVERTERS[key](value.text)
    except ValueError as error:
        # The message may quote paths that are not UTF-8, and must be text.
        said = os.fsencode(str(error)).decode("utf-8", "backslashreplace")
        raise wrong_line(path, value.line, f"{key}: {said}") from error

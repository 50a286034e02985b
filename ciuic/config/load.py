"""Loading a configuration: find the file, read it, check every value."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from ciuic.config.lines import Lines, Value, read_lines, read_values, wrong_line
from ciuic.config.settings import DEFAULTS, CopyTo, Section, Settings
from ciuic.config.values import CONVERTERS
from ciuic.ids import DEFAULT_SCHEDULE

__all__ = [
    "CONFIG_VARIABLE",
    "SYSTEM_PATHS",
    "config_options",
    "default_settings",
    "find_config",
    "load_settings",
    "read_store_owner",
    "read_store_path",
    "why_fed",
]

CONFIG_VARIABLE: Final = "CIUIC_CONFIG"
SYSTEM_PATHS: Final = ("/etc/ciuic.conf", "/etc/ciuric.conf")
_RESERVED: Final = (DEFAULT_SCHEDULE, "none")


def find_config(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the configuration file to use: the named one, or the first system file that exists.

    A file that is named by argument or by ``CIUIC_CONFIG`` is returned even if it does not exist.
    Reading it then fails, while a fallback to another file would surprise.
    """
    asked = explicit or environ.get(CONFIG_VARIABLE)
    if asked:
        return asked
    return next((path for path in SYSTEM_PATHS if os.path.lexists(path)), None)


def config_options(path: str | None) -> list[str]:
    """Return the option that a command needs to use this file; none if it finds it by itself."""
    return [] if path is None or path in SYSTEM_PATHS else ["--config", os.path.abspath(path)]


def read_store_path(path: str) -> str:
    """Read the store's directory from the file, without checking other values.

    Raises:
        ConfigError: The file cannot be read, has a line that is not ``key = value``, has a key that
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
    lines = read_lines(path)
    settings = _checked(lines.values, path)
    _check_sections(lines.sections, path)
    schedules = _schedules(settings, lines, path)
    hot = {schedule.schedule: schedule.hot_snapshots for schedule in schedules}
    first, *others = (schedule._replace(hot_by_schedule=hot) for schedule in schedules)
    copies = _copies(settings, schedules, lines, path)
    return first._replace(sections=lines.sections, others=tuple(others), copies=copies)


def default_settings(store_path: str) -> Settings:
    """Return the settings for a store that no configuration names."""
    values = {key: Value(text, 0) for key, text in DEFAULTS.items()}
    return _checked(values, "")._replace(snapshot_dir=store_path)


def _checked(values: Mapping[str, Value], path: str) -> Settings:
    """Return the settings that the lines of a file, or of a section and the top, make together."""
    # In the order of the lines, so that the first mistake in the file is reported.
    found = {
        key: _value(key, value, path)
        for key, value in sorted(values.items(), key=lambda pair: pair[1].line)
    }
    settings = _settings(found, path)
    _check_combinations(settings, values, path)
    return settings


def _settings(found: Mapping[str, Any], path: str) -> Settings:
    """Give each value its place; a field has the name of its key, with the unit."""
    return Settings(
        path=path,
        snapshot_paths=found["snapshot_paths"],
        snapshot_interval_s=found["snapshot_interval"][0],
        interval_bounds_s=found["snapshot_interval"][1],
        base_interval_s=found["base_interval"],
        retention_policy=found["retention_policy"],
        exclude_patterns=found["exclude_patterns"],
        exclude_larger_than_bytes=found["exclude_larger_than"],
        exclude_caches=found["exclude_caches"],
        exclude_if_present=found["exclude_if_present"],
        snapshot_dir=found["snapshot_dir"],
        io_priority=found["io_priority"],
        pressure_limit=found["pressure_limit"],
        minimum_rate_bytes=found["minimum_rate"],
        threads=found["threads"],
        buffer_memory_bytes=found["buffer_memory"],
        hot_snapshots=found["hot_snapshots"],
        chain_cost=found["chain_cost"],
        parity=found["parity"],
        trash_s=found["trash"],
        scrub_budget_s=found["scrub_budget"],
        drill_interval_s=found["drill_interval"],
        before=found["before"],
        after=found["after"],
        hook_timeout_s=found["hook_timeout"],
        store_owner=found["store_owner"],
        contacts=found["contacts"],
        metrics_file=found["metrics_file"],
        metrics_listen=found["metrics_listen"],
        store_endpoint=found["store_endpoint"],
        store_region=found["store_region"],
        store_credentials=found["store_credentials"],
        store_path_style=found["store_path_style"],
        store_allow_http=found["store_allow_http"],
        control_group=found["control_group"],
        copy_retention=found["copy_retention"],
        copy_limit_bytes=found["copy_limit"],
        top_retention_policy=found["retention_policy"],
    )


def _check_combinations(settings: Settings, values: Mapping[str, Value], path: str) -> None:
    """Refuse values that are right alone and wrong together.

    Raises:
        ConfigError: There are such values; it names the line of one.
    """
    if settings.store_endpoint.startswith("http://") and not settings.store_allow_http:
        raise wrong_line(
            path,
            values["store_endpoint"].line,
            "store_endpoint: http:// sends everything unencrypted",
            hint="Use https://, or set store_allow_http = yes in a network that you trust.",
        )
    for root in settings.snapshot_paths:
        if f"{root}/".startswith(f"{settings.snapshot_dir}/"):
            line = max(values["snapshot_paths"].line, values["snapshot_dir"].line)
            what = f"snapshot_paths: {root} is inside the store {settings.snapshot_dir}"
            raise wrong_line(
                path, line, what, hint="Put the store elsewhere, or leave that path out."
            )
    if settings.metrics_listen and not settings.metrics_file:
        what = "metrics_listen serves the metrics_file, but none is set"
        hint = "Add a line such as metrics_file = /run/ciuicd/metrics.prom."
        raise wrong_line(path, values["metrics_listen"].line, what, hint=hint)


def _schedules(top: Settings, lines: Lines, path: str) -> list[Settings]:
    """Return the settings of each schedule: what a section does not set is as at the top.

    The keys at the top are a schedule themselves if they name directories, or if there is no other.
    """
    is_named = bool(lines.values["snapshot_paths"].line)
    found = []
    for section in lines.sections:
        if section.kind != "schedule":
            continue
        heading = f"[schedule {section.name}]"
        if section.name in _RESERVED:
            what = f"{heading}: '{section.name}' cannot be the name of a schedule"
            hint = "The keys at the top are the schedule 'default'; 'none' means no schedule."
            raise wrong_line(path, section.line, what, hint=hint)
        if not is_named and "snapshot_paths" not in section.values:
            what = f"{heading} has no snapshot_paths, and there are none at the top"
            raise wrong_line(path, section.line, what, hint="Set snapshot_paths in the section.")
        own = {key: Value(text, section.lines[key]) for key, text in section.values.items()}
        found.append(
            _checked({**lines.values, **own}, path)._replace(
                schedule=section.name, top_retention_policy=top.retention_policy
            )
        )
    return [top, *found] if is_named or not found else found


def _copies(
    top: Settings, schedules: Sequence[Settings], lines: Lines, path: str
) -> tuple[CopyTo, ...]:
    """Return the copies: those of the key ``copies``, then those with sections of their own."""
    listed = lines.values["copies"]
    found = [
        (CopyTo(address, top._replace(snapshot_dir=address)), listed.line)
        for address in cast("tuple[str, ...]", _value("copies", listed, path))
    ]
    for section in lines.sections:
        if section.kind == "copy":
            own = {key: Value(text, section.lines[key]) for key, text in section.values.items()}
            to = own.pop("to")
            address = cast("str", _value("to", to, path))
            settings = _checked({**lines.values, **own}, path)._replace(snapshot_dir=address)
            found.append((CopyTo(section.name, settings), to.line))
    seen: set[str] = set()
    for copy, line in found:
        what = _unfit(copy.address, top.snapshot_dir)
        if what is None and {copy.name, copy.address} & seen:
            what = f"{copy.address} is named twice"
        if what is not None:
            raise wrong_line(path, line, what, hint="Name each copy once, best on another disk.")
        seen |= {copy.name, copy.address}
        if fed := why_fed(copy.address, schedules):
            raise wrong_line(path, line, fed[0], hint=fed[1])
    return tuple(copy for copy, _ in found)


def _unfit(address: str, store: str) -> str | None:
    """Return why a store cannot be a copy of another one."""
    if address == store:
        return f"the copy {address} is the store itself"
    if f"{address}/".startswith(f"{store}/"):
        return f"the copy {address} is inside the store {store}"
    if f"{store}/".startswith(f"{address}/"):
        return f"the store {store} is inside the copy {address}"
    return None


def why_fed(address: str, schedules: Sequence[Settings]) -> tuple[str, str] | None:
    """Return why a copy there would become a part of the snapshots that it gets, and a hint."""
    for one in schedules if address.startswith("/") else ():
        for root in one.snapshot_paths:
            is_inside = f"{address}/".startswith(f"{root.rstrip('/')}/")
            if is_inside and not _leaves_out(one, root, address):
                return (
                    f"the copy {address} is inside {root}, so snapshots would contain it",
                    f"Add {address} to exclude_patterns, or put the copy elsewhere.",
                )
    return None


def _leaves_out(settings: Settings, root: str, address: str) -> bool:
    """Return whether a pattern leaves out a directory below a root, or one above it."""
    from ciuic.source.exclusions import Exclusions

    exclusions = Exclusions(settings.exclude_patterns)
    place = address
    while len(place) > len(root) and place != "/":
        above, name = os.path.split(place)
        if exclusions.match_path(os.fsencode(above), os.fsencode(name)):
            return True
        place = above
    return False


def _check_sections(sections: Sequence[Section], path: str) -> None:
    for section in sections:
        if section.kind in {"copy", "schedule"}:
            continue  # their keys are checked as those at the top
        # Most files have no sections, and every command reads the file.
        from ciuic.guard.alerts.channels import parse_alert
        from ciuic.guard.rules.language import parse_rule

        parse: Callable[[str, Mapping[str, str]], object] = (
            parse_rule if section.kind == "rule" else parse_alert
        )
        try:
            parse(section.name, section.values)
        except ValueError as error:
            said, key = error.args
            line = section.lines.get(key, section.line)
            what = f"{key} of [{section.kind} {section.name}]: {said}"
            raise wrong_line(path, line, what) from error


def _value(key: str, value: Value, path: str) -> Any:  # of the type of the field in Settings
    """Convert a key's text to the type that ``Settings`` has."""
    try:
        return CONVERTERS[key](value.text)
    except ValueError as error:
        # The message may quote paths that are not UTF-8, and must be text.
        said = os.fsencode(str(error)).decode("utf-8", "backslashreplace")
        raise wrong_line(path, value.line, f"{key}: {said}") from error

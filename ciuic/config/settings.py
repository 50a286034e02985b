"""The settings of ciuic: every key with its default, and the values of a checked file."""

import os
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from ciuic.ids import DEFAULT_SCHEDULE

__all__ = ["DEFAULTS", "SECTION_KEYS", "CopyTo", "Section", "Settings"]

DEFAULTS: Final[Mapping[str, str]] = {
    "snapshot_paths": "/",
    "snapshot_interval": "1h",
    "base_interval": "12h",
    "retention_policy": "7d",
    "exclude_patterns": "",
    "exclude_larger_than": "0",
    "exclude_caches": "no",
    "exclude_if_present": "",
    "snapshot_dir": "/.ciuic_snapshots",
    "io_priority": "idle",
    "pressure_limit": "10%",
    "minimum_rate": "16 MiB",
    "threads": "0",
    "buffer_memory": "48 MiB",
    "hot_snapshots": "1",
    "chain_cost": "3",
    "parity": "4%",
    "trash": "1d",
    "scrub_budget": "10m",
    "drill_interval": "7d",
    "before": "",
    "after": "",
    "hook_timeout": "1m",
    "store_owner": "",
    "metrics_file": "",
    "contacts": "",
    "metrics_listen": "",
    "store_endpoint": "",
    "store_region": "",
    "store_credentials": "",
    "store_path_style": "yes",
    "store_allow_http": "no",
    "control_group": "",
    "copies": "",
    "copy_retention": "",
    "copy_limit": "0",
}
"""Every key with its default, written as in a file."""

SECTION_KEYS: Final[Mapping[str, Mapping[str, bool]]] = {
    "schedule": {
        "snapshot_paths": False,
        "snapshot_interval": False,
        "base_interval": False,
        "retention_policy": False,
        "exclude_patterns": False,
        "exclude_larger_than": False,
        "exclude_caches": False,
        "exclude_if_present": False,
        "hot_snapshots": False,
    },
    "copy": {
        "to": True,
        "copy_retention": False,
        "copy_limit": False,
        "store_endpoint": False,
        "store_region": False,
        "store_credentials": False,
        "store_path_style": False,
        "store_allow_http": False,
    },
    "rule": {"when": True, "then": False, "severity": False},
    "alert": {
        "type": True,
        "severity": False,
        "url": False,
        "url_file": False,
        "key_file": False,
        "command": False,
        "server": False,
        "from": False,
        "to": False,
        "user": False,
        "password_file": False,
        "security": False,
    },
}
"""The keys of each kind of section, and whether a section must have them."""


class Section(NamedTuple):
    """``[KIND NAME]`` and the lines below it.

    Attributes:
        kind: A key of ``SECTION_KEYS``.
        name: Its name; no other section of its kind has it.
        line: The line number of its heading.
        values: Key -> text.
        lines: Key -> line number.
    """

    kind: str
    name: str
    line: int
    values: Mapping[str, str]
    lines: Mapping[str, int]


class CopyTo(NamedTuple):
    """Another store that gets every snapshot.

    Attributes:
        name: The name of its section; its address if it has none.
        settings: The settings of the configuration with the copy as ``snapshot_dir``, and with its
            own values for the keys of its section.
    """

    name: str
    settings: "Settings"

    @property
    def address(self) -> str:
        """The directory, or the URL of the bucket."""
        return self.settings.snapshot_dir


class Settings(NamedTuple):
    """The checked values of a configuration.

    Attributes:
        path: The file that they come from; empty if there is none.
        snapshot_paths: Absolute, normalized, each once; bytes that are not UTF-8 are surrogates.
        snapshot_interval_s: At least a second; the longest one if the daemon chooses.
        interval_bounds_s: The shortest and the longest interval that the daemon may choose; None:
            it has no choice.
        base_interval_s: How often a full snapshot is taken; 0: never because of age.
        retention_policy: With commas and spaces normalized.
        exclude_patterns: Globs as they were written.
        exclude_larger_than_bytes: Leave out files longer than this; 0: no limit.
        exclude_caches: Leave out the content of directories that CACHEDIR.TAG marks.
        exclude_if_present: Leave out the content of directories with a file of one of these names.
        snapshot_dir: The store: an absolute path, normalized, or the URL of a bucket.
        io_priority: The I/O priority of snapshots.
        pressure_limit: How much of the time other programs may wait because the daemon takes a
            snapshot, 0 to 1; 0: it does not look.
        minimum_rate_bytes: What the daemon may read in a second, even if others wait.
        threads: Threads that hash and encode; 0: one for each core.
        buffer_memory_bytes: How much of the files and of encoded data a snapshot has in memory.
        hot_snapshots: How many snapshots keep reflink copies.
        chain_cost: Bytes that may be read to rebuild a chunk, as a multiple of its size without a
            delta base.
        parity: Parity's share of each pack, 0 to 1.
        trash_s: How long a forgotten snapshot can be brought back.
        scrub_budget_s: How long the daemon scrubs each day; 0: never.
        drill_interval_s: How often the daemon practices a recovery; 0: never.
        before: A shell command that runs before each snapshot; empty: none.
        after: A shell command that runs after each snapshot; empty: none.
        hook_timeout_s: How long either may take.
        store_owner: User ID of the other user who owns the store; None: this user owns it.
        contacts: Who can help with a recovery, separated by commas; empty: not said.
        metrics_file: The file that the daemon writes its metrics to; empty: none.
        metrics_listen: ``HOST:PORT`` on loopback that ``ciuicd --serve-metrics`` serves it at.
        store_endpoint: URL of the server of a bucket; empty: see ``PlaceOptions``.
        store_region: Region of a bucket; empty: see ``PlaceOptions``.
        store_credentials: A file with credentials for a bucket; empty: see ``PlaceOptions``.
        store_path_style: The bucket is a part of the path, not of the host's name.
        store_allow_http: ``store_endpoint`` may be a server without encryption.
        control_group: ID of the group whose members may ask the daemon for snapshots of the
            configured directories; None: none.
        copy_retention: The retention policy of copies; empty: a copy forgets what is forgotten
            here.
        copy_limit_bytes: What may be sent to a copy in a second, on average; 0: no limit.
        copies: The other stores that get every snapshot.
        sections: In the order of the file.
        schedule: The name of the schedule that ``snapshot_paths``, ``snapshot_interval_s``,
            ``base_interval_s``, ``retention_policy``, ``hot_snapshots`` and the exclude rules are
            of: the first one of the file.
        top_retention_policy: The ``retention_policy`` at the top: for snapshots of no schedule.
        others: The settings of the other schedules, in the order of the file.
        hot_by_schedule: The ``hot_snapshots`` of every schedule.
    """

    path: str
    snapshot_paths: tuple[str, ...]
    snapshot_interval_s: float
    interval_bounds_s: tuple[float, float] | None
    base_interval_s: float
    retention_policy: str
    exclude_patterns: tuple[str, ...]
    exclude_larger_than_bytes: int
    exclude_caches: bool
    exclude_if_present: tuple[str, ...]
    snapshot_dir: str
    io_priority: Literal["idle", "best-effort", "none"]
    pressure_limit: float
    minimum_rate_bytes: int
    threads: int
    buffer_memory_bytes: int
    hot_snapshots: int
    chain_cost: float
    parity: float
    trash_s: float
    scrub_budget_s: float
    drill_interval_s: float
    before: str
    after: str
    hook_timeout_s: float
    store_owner: int | None
    contacts: str
    metrics_file: str
    metrics_listen: str
    store_endpoint: str
    store_region: str
    store_credentials: str
    store_path_style: bool
    store_allow_http: bool
    control_group: int | None
    copy_retention: str
    copy_limit_bytes: int
    copies: tuple[CopyTo, ...] = ()
    sections: tuple[Section, ...] = ()
    schedule: str = DEFAULT_SCHEDULE
    top_retention_policy: str = ""
    others: "tuple[Settings, ...]" = ()
    hot_by_schedule: Mapping[str, int] = MappingProxyType({})

    @property
    def schedules(self) -> "tuple[Settings, ...]":
        """The settings of each schedule, in the order of the file; the first is this one."""
        return (self._replace(others=()), *self.others)

    @property
    def scopes(self) -> list[tuple[bytes, ...]]:
        """The ``snapshot_paths`` of each schedule."""
        return [tuple(map(os.fsencode, one.snapshot_paths)) for one in self.schedules]

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The ``snapshot_paths`` of all schedules, each once."""
        return tuple(
            dict.fromkeys(path for schedule in self.schedules for path in schedule.snapshot_paths)
        )

    @property
    def place_options(self) -> Any:  # PlaceOptions, which only a store in a bucket needs
        """How to reach a bucket."""
        from ciuic.store.place.location import PlaceOptions

        return PlaceOptions(
            endpoint=self.store_endpoint,
            region=self.store_region,
            credentials_file=self.store_credentials,
            path_style=self.store_path_style,
        )

    @property
    def rules(self) -> tuple[Any, ...]:  # of Rule, which few commands need
        """The rules for logs: those of the file, or the default ones if it has none."""
        from ciuic.guard.rules.language import DEFAULT_RULES, parse_rule

        found = {
            section.name: section.values for section in self.sections if section.kind == "rule"
        }
        return tuple(parse_rule(*named) for named in (found or DEFAULT_RULES).items())

    @property
    def channels(self) -> tuple[Any, ...]:  # of Channel, which few commands need
        """Where alerts go."""
        from ciuic.guard.alerts.channels import parse_alert

        found = (section for section in self.sections if section.kind == "alert")
        return tuple(parse_alert(one.name, one.values) for one in found)

    @property
    def terms(self) -> Any:  # Mapping[str, Terms], which few commands need
        """What each schedule keeps and leaves out, by its name."""
        from ciuic.maintain.forget import Terms
        from ciuic.retention import parse_policy

        return {
            schedule.schedule: Terms(
                parse_policy(schedule.retention_policy), schedule.exclude_rules
            )
            for schedule in self.schedules
        }

    @property
    def copy_addresses(self) -> tuple[tuple[str, str], ...]:
        """The name and the address of each copy."""
        return tuple((copy.name, copy.address) for copy in self.copies)

    def find_copy(self, text: str) -> CopyTo | None:
        """Return the copy of this name or address."""
        return next((copy for copy in self.copies if text in {copy.name, copy.address}), None)

    def find_schedule(self, name: str) -> "Settings | None":
        """Return the settings of the schedule of this name."""
        return next((schedule for schedule in self.schedules if schedule.schedule == name), None)

    def schedule_of(self, roots: Collection[bytes], exclude: Any) -> str:  # Any: as below
        """Return the schedule of a snapshot: the first one that has these directories and rules.

        A snapshot of other directories, or one that leaves out more, belongs to none: "".
        """
        wanted = set(roots)
        return next(
            (
                schedule.schedule
                for schedule in self.schedules
                if wanted == set(map(os.fsencode, schedule.snapshot_paths))
                and exclude == schedule.exclude_rules
            ),
            "",
        )

    @property
    def exclude_rules(self) -> Any:  # ExcludeRules, whose import costs more than all of this
        """The rules for what a snapshot leaves out."""
        from ciuic.model import ExcludeRules

        return ExcludeRules(
            self.exclude_patterns,
            self.exclude_larger_than_bytes,
            self.exclude_caches,
            self.exclude_if_present,
        )

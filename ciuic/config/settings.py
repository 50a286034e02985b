"""The settings of ciuic: every key with its default, and the values of a checked file."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["DEFAULTS", "Settings"]

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
    "hot_snapshots": "1",
    "chain_cost": "3",
    "parity": "4%",
    "trash": "1d",
    "scrub_budget": "10m",
    "before": "",
    "after": "",
    "hook_timeout": "1m",
    "store_owner": "",
}
"""Every key with its default, written as in a file."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked values of a configuration.

    Attributes:
        path: The file that they come from; empty if there is none.
        snapshot_paths: Absolute, normalized, each once; bytes that are not UTF-8 are surrogates.
        snapshot_interval_s: At least a second.
        base_interval_s: How often a full snapshot is taken; 0: never because of age.
        retention_policy: With commas and spaces normalized.
        exclude_patterns: Globs as they were written.
        exclude_larger_than_bytes: Leave out files longer than this; 0: no limit.
        exclude_caches: Leave out the content of directories that CACHEDIR.TAG marks.
        exclude_if_present: Leave out the content of directories with a file of one of these names.
        snapshot_dir: The store; absolute and normalized.
        io_priority: The I/O priority of snapshots.
        hot_snapshots: How many snapshots keep reflink copies.
        chain_cost: Bytes that may be read to rebuild a chunk, as a multiple of its size without a
            delta base.
        parity: Parity's share of each pack, 0 to 1.
        trash_s: How long a forgotten snapshot can be brought back.
        scrub_budget_s: How long the daemon scrubs each day; 0: never.
        before: A shell command that runs before each snapshot; empty: none.
        after: A shell command that runs after each snapshot; empty: none.
        hook_timeout_s: How long either may take.
        store_owner: User ID of the other user who owns the store; None: this user owns it.
    """

    path: str
    snapshot_paths: tuple[str, ...]
    snapshot_interval_s: float
    base_interval_s: float
    retention_policy: str
    exclude_patterns: tuple[str, ...]
    exclude_larger_than_bytes: int
    exclude_caches: bool
    exclude_if_present: tuple[str, ...]
    snapshot_dir: str
    io_priority: Literal["idle", "best-effort", "none"]
    hot_snapshots: int
    chain_cost: float
    parity: float
    trash_s: float
    scrub_budget_s: float
    before: str
    after: str
    hook_timeout_s: float
    store_owner: int | None

    def schedule_of(self, roots: Collection[bytes], exclude: Any) -> str:  # Any: as below
        """Return the schedule of a snapshot: the default one if it is what this file describes.

        A snapshot of other directories, or one that leaves out more, belongs to none.
        """
        from ciuic.model import DEFAULT_SCHEDULE

        is_described = set(roots) == set(map(os.fsencode, self.snapshot_paths))
        return DEFAULT_SCHEDULE if is_described and exclude == self.exclude_rules else ""

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

"""The input of the checks, and the findings that they yield."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ciuic.documents import Document
from ciuic.errors import CiuicError
from ciuic.store.place.location import PlaceOptions
from ciuic.units import listed

__all__ = [
    "LEVELS",
    "NOTE",
    "NS",
    "OK",
    "PROBLEM",
    "WARNING",
    "Finding",
    "Plan",
    "Schedule",
    "Subject",
    "join",
]

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
LEVELS: Final = (OK, NOTE, WARNING, PROBLEM)

NS: Final = 1_000_000_000
_NAMED_MAX: Final = 5


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        level: One of ``LEVELS``.
        about: The subject: "store", "daemon", a root's path.
        what: Its state, one clause.
        advice: What to do next; empty if there is nothing to do.
    """

    level: str
    about: str
    what: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """Return one element of ``findings`` of ``ciuic doctor --json``."""
        return self._asdict()


class Schedule(NamedTuple):
    """What one schedule of the configuration asks for."""

    name: str
    roots: tuple[bytes, ...]
    interval_s: float
    base_interval_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the configuration that the checks need.

    Attributes:
        roots: The directories of all schedules, each once.
        schedules: At least one.
        hot_snapshots: The largest of all schedules.
        channels: The names of the alerts.
        copies: The name and the address of each copy.
    """

    roots: tuple[bytes, ...]
    schedules: tuple[Schedule, ...]
    hot_snapshots: int
    io_priority: str
    contacts: str
    channels: tuple[str, ...]
    copies: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """The store, the settings and the daemon to examine.

    Attributes:
        store_path: Its directory or URL; None if nothing names a store.
        plan: None without a valid configuration.
        daemon: The daemon's status, or the error of asking for it; None if no daemon runs.
        options: How to reach a bucket.
        typed: The ``--config`` and ``--store`` that the commands in findings need, as the user
            typed them.
    """

    store_path: str | None
    plan: Plan | None
    daemon: Document | CiuicError | None
    options: PlaceOptions | None = None
    typed: Sequence[str] = ()


def join(names: Sequence[str]) -> str:
    """Join the first few names with commas, and add the number of the others."""
    return listed(names[:_NAMED_MAX], len(names))

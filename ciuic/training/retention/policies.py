"""Which snapshots stay besides the newest ones. This module opens no store.

A snapshot stays if any policy keeps it. The tags of a snapshot have what policies ask for: its
step, and the value of each metric that a policy compares.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ciuic.errors import UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.training.cadence import duration_s

__all__ = [
    "Best",
    "EverySteps",
    "Policy",
    "Younger",
    "as_json",
    "as_policies",
    "kept_by",
    "metric_tags",
]

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the snapshots with the best values of a metric.

    Attributes:
        metric: A key of ``metrics``; its value is a number. NaN is never the best.
        count: How many to keep; if values are equal, the oldest snapshots.
        mode: ``min``: the lowest value is the best; ``max``: the highest.
    """

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        _check_count("count", self.count)
        if self.mode not in {"min", "max"}:
            raise UsageError(f"mode={self.mode!r} is neither 'min' nor 'max'")

    def kept(self, snapshots: Sequence[SnapshotSummary], _: int) -> Iterable[SnapshotSummary]:
        """Return those that stay of the snapshots of a channel, which come oldest first."""
        sign = 1 if self.mode == "min" else -1
        ranked = [
            (sign * value, number)
            for number, snapshot in enumerate(snapshots)
            if (value := _tagged(snapshot, f"{self.metric}=")) is not None
        ]
        return [snapshots[number] for _, number in sorted(ranked)[: self.count]]


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Keep the first snapshot of each range of steps: with 1000, of 0 to 999, of 1000 to 1999, ...

    Attributes:
        steps: The number of steps.
    """

    steps: int

    def __post_init__(self) -> None:
        _check_count("steps", self.steps)

    def kept(self, snapshots: Sequence[SnapshotSummary], _: int) -> Iterable[SnapshotSummary]:
        """Return those that stay of the snapshots of a channel, which come oldest first."""
        first: dict[int, SnapshotSummary] = {}
        for snapshot in snapshots:
            step = _tagged(snapshot, "step-")
            if step is not None:
                first.setdefault(int(step) // self.steps, snapshot)
        return first.values()


@dataclass(frozen=True, slots=True)
class Younger:
    """Keep the snapshots that are younger than an age.

    Attributes:
        age: Seconds, or a duration such as ``1d``.
    """

    age: float | str

    def __post_init__(self) -> None:
        duration_s("age", self.age)

    def kept(self, snapshots: Sequence[SnapshotSummary], now_ns: int) -> Iterable[SnapshotSummary]:
        """Return those that stay of the snapshots of a channel, which come oldest first."""
        limit_ns = now_ns - (duration_s("age", self.age) or 0) * _NS
        return [snapshot for snapshot in snapshots if snapshot.taken_ns > limit_ns]


Policy = Best | EverySteps | Younger


def as_json(policies: Iterable[Policy]) -> list[dict[str, Any]]:
    """Return policies as JSON, for the writer's process."""
    return [{"kind": type(policy).__name__, **asdict(policy)} for policy in policies]


def as_policies(written: Iterable[Mapping[str, Any]]) -> tuple[Policy, ...]:
    """Return the policies of ``as_json``."""
    kinds: dict[str, type[Policy]] = {kind.__name__: kind for kind in (Best, EverySteps, Younger)}
    return tuple(
        [
            kinds[one["kind"]](**{key: value for key, value in one.items() if key != "kind"})
            for one in written
        ]
    )


def kept_by(
    policies: Iterable[Policy], snapshots: Sequence[SnapshotSummary], now_ns: int
) -> frozenset[SnapshotId]:
    """Return the snapshots that at least one policy keeps.

    Args:
        policies: The policies.
        snapshots: The snapshots of one channel of one run, oldest first.
        now_ns: The time, in nanoseconds since 1970.
    """
    return frozenset([found.id for policy in policies for found in policy.kept(snapshots, now_ns)])


def metric_tags(policies: Iterable[Policy], metrics: object) -> tuple[str, ...]:
    """Return a tag for the value of each metric that a policy compares."""
    names = dict.fromkeys([policy.metric for policy in policies if isinstance(policy, Best)])
    values = metrics if isinstance(metrics, Mapping) else {}
    tags = []
    for name in names:
        try:
            value = float(values.get(name, math.nan))
        except (TypeError, ValueError):
            continue
        if not math.isnan(value):
            tags.append(f"{name}={value!r}")
    return tuple(tags)


def _tagged(snapshot: SnapshotSummary, head: str) -> float | None:
    """Return the number in the tag that begins with ``head``."""
    for tag in snapshot.tags:
        if tag.startswith(head):
            try:
                return float(tag.removeprefix(head))
            except ValueError:
                continue
    return None


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name}={value!r} is not a number of 1 or more")

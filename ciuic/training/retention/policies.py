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
from ciuic.training.values.arguments import checked_items, shown

__all__ = [
    "Best",
    "EverySteps",
    "Policy",
    "Younger",
    "as_json",
    "as_policies",
    "check_metrics",
    "checked_policies",
    "kept_by",
    "metric_tags",
]

_NS: Final = 1_000_000_000
_NO_NUMBER: Final = (TypeError, ValueError, RuntimeError, OverflowError)
"""What Python, numpy and torch raise for a value that is not one number."""


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
        if not isinstance(self.metric, str) or not self.metric:
            raise UsageError(
                f"metric={shown(self.metric)} is not the name of a metric",
                hint="Give a key of metrics, such as Best('loss').",
            )
        _check_count("count", self.count)
        if not isinstance(self.mode, str) or self.mode not in {"min", "max"}:
            raise UsageError(
                f"mode={shown(self.mode)} is neither 'min' nor 'max'",
                hint="Give mode='min' if low values are good, or mode='max'.",
            )

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
        age_s = duration_s("age", self.age)
        if age_s is None:
            raise UsageError("age=None is not an age", hint="Give seconds, or text such as '1d'.")
        if not isinstance(self.age, str):
            object.__setattr__(self, "age", age_s)  # a number of numpy becomes one of Python

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
    values = metrics if isinstance(metrics, Mapping) else {}
    tags = []
    for name in _compared(policies):
        try:
            value = _as_number(values.get(name, math.nan))
        except _NO_NUMBER:
            continue
        if not math.isnan(value):
            tags.append(f"{name}={value!r}")
    return tuple(tags)


def checked_policies(keep: object) -> tuple[Policy, ...]:
    """Return the policies that a constructor was given.

    Raises:
        UsageError: It is not a list of policies.
    """
    hint = "Give a list of Best, EverySteps and Younger, such as keep=[Best('loss')]."
    kinds = (Best, EverySteps, Younger)
    return checked_items("keep", keep, kinds, what="policies", hint=hint)


def check_metrics(policies: Iterable[Policy], metrics: object) -> None:
    """Check the values that policies compare.

    A metric may be missing, None, or text such as ``unknown``: then no policy keeps the snapshot
    for it.

    Raises:
        UsageError: One of them is another value than a number, such as an array.
    """
    for name in _compared(policies) if metrics is not None else ():
        if not isinstance(metrics, Mapping):
            raise UsageError(
                f"metrics={shown(metrics)} is not a dict, and Best({name!r}) compares a key of it",
                hint=f"Give a dict, such as metrics={{{name!r}: 0.5}}.",
            )
        value = metrics.get(name)
        if value is None or isinstance(value, str):
            continue
        try:
            _as_number(value)
        except _NO_NUMBER as error:
            raise UsageError(
                f"metrics[{name!r}]={shown(value)} is not a number, and Best({name!r}) compares it",
                hint="Give a number, or None if this state has none.",
            ) from error


def _compared(policies: Iterable[Policy]) -> list[str]:
    """Return the metrics that policies compare, each once."""
    return list(dict.fromkeys([one.metric for one in policies if isinstance(one, Best)]))


def _as_number(value: Any) -> float:
    """Return the number in a metric: a number, or a tensor or an array of one element.

    Raises:
        Exception: One of ``_NO_NUMBER``; it is none.
    """
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if isinstance(plain, str | bytes):
        raise TypeError("a text is not a number")
    return float(plain)


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
        raise UsageError(
            f"{name}={shown(value)} is not a number of 1 or more",
            hint=f"Give a whole number, such as {name}=10.",
        )

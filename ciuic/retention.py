"""Which snapshots a retention policy keeps, and why. Nothing here opens a store.

Rules with counts (``last:3, hourly:24, daily:7, weekly:4, monthly:12``), a duration (``7d``:
whatever is younger), or both. ``hourly:24`` keeps the newest snapshot of each of the newest 24
natural hours that have one; days, weeks (ISO 8601) and months likewise, all in UTC, so that no
change to summer time makes an hour count twice or never. What any rule keeps is kept. Snapshots
of other roots are counted by themselves: one that somebody took of a single directory must not be
the newest of its hour for all that the hour's other one has.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ciuic.clock import natural_period
from ciuic.model import SnapshotSummary
from ciuic.units import parse_duration_s

__all__ = ["Decision", "Policy", "parse_policy", "plan_retention"]

_NS: Final = 1_000_000_000
_RULE: Final = re.compile(r"([^\s:,]+)\s*:\s*([^\s:,]+)")
_COUNT: Final = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_YOUNGER_S_MAX: Final = 3650 * 86_400.0
_SHOWN: Final = 60
_PERIODS: Final = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}
_LAST: Final = "last"
_KNOWN: Final = (_LAST, *_PERIODS)


class Policy(NamedTuple):
    """A retention policy.

    Attributes:
        younger_s: Keep what is younger; None for a policy of counts alone.
        counts: How many each rule keeps: ``last`` and the natural periods.
        text: The policy as one would write it, the duration first.
    """

    younger_s: float | None
    counts: dict[str, int]
    text: str


class Decision(NamedTuple):
    """What becomes of one snapshot.

    Attributes:
        why: For what it is kept; empty if it is not.
    """

    snapshot: SnapshotSummary
    why: tuple[str, ...]

    @property
    def keep(self) -> bool:
        """It stays."""
        return bool(self.why)


def parse_policy(text: str) -> Policy:
    """Read a policy.

    Raises:
        ValueError: It is none; the message says what is wrong with it.
    """
    items = [item.strip() for item in text.split(",")]
    if len(items) > 1 and not all(items):
        raise ValueError("an item between two commas, or at an end, is empty")
    counts: dict[str, int] = {}
    younger: list[str] = []
    for item in items:
        # A word by itself in a list lacks its count, and is not meant to be a duration.
        if ":" in item or (item in _KNOWN and len(items) > 1):
            word, count = _parse_rule(item)
            if word in counts:
                raise ValueError(f"{word} is there twice")
            counts[word] = count
        elif younger:
            raise ValueError(f"there are two durations, {younger[0]} and {_short(item)}")
        else:
            younger.append(item)
    younger_s = _parse_younger_s(younger[0]) if younger else None
    rules = [f"{word}:{count}" for word, count in counts.items()]
    return Policy(younger_s, counts, ", ".join([*younger, *rules]))


def _parse_rule(rule: str) -> tuple[str, int]:
    match = _RULE.fullmatch(rule)
    word = match[1] if match else rule.split(":", maxsplit=1)[0].strip()
    if word not in _KNOWN:
        raise ValueError(f"'{_short(word)}' is none of {', '.join(_KNOWN)}")
    if match is None or not _COUNT.fullmatch(match[2]):
        raise ValueError(f"'{_short(rule)}' needs a count from 1 on, as in {word}:4")
    return word, int(match[2])


def _parse_younger_s(text: str) -> float:
    younger_s = parse_duration_s(_short(text))
    if younger_s == 0:
        raise ValueError(f"'{text}' keeps nothing; write how long to keep snapshots: 7d")
    if younger_s > _YOUNGER_S_MAX:
        raise ValueError(f"'{_short(text)}' is more than ten years")
    return younger_s


def plan_retention(
    snapshots: Sequence[SnapshotSummary],
    policy: Policy,
    now_ns: int,
    *,
    good: Collection[str],
) -> list[Decision]:
    """Decide about every snapshot, newest first.

    Whatever the policy says, these are kept: what is pinned, the newest, and the newest that is
    good. So a policy never takes the last snapshot, nor the last from which all comes back.

    Args:
        snapshots: All that are listed, in any order.
        policy: What to keep.
        now_ns: The time.
        good: IDs of those that are not known to be damaged.
    """
    ordered = sorted(snapshots, key=lambda one: (one.taken_ns, one.id), reverse=True)
    why: dict[str, list[str]] = {one.id: [] for one in ordered}
    series: dict[tuple[bytes, ...], list[SnapshotSummary]] = {}
    for one in ordered:
        series.setdefault(one.roots, []).append(one)
    for members in series.values():
        _keep_by_count(members, policy, why)
    for one in ordered:
        if policy.younger_s is not None and now_ns - one.taken_ns < policy.younger_s * _NS:
            why[one.id].append(f"younger than {policy.text.partition(',')[0]}")
        if one.pinned:
            why[one.id].append("pinned")
    if ordered:
        why[ordered[0].id].append("the newest")
    newest_good = _newest_good(ordered, good)
    if newest_good is not None:
        why[newest_good.id].append("the newest that is whole")
    return [Decision(one, tuple(why[one.id])) for one in ordered]


def _keep_by_count(
    ordered: Sequence[SnapshotSummary], policy: Policy, why: dict[str, list[str]]
) -> None:
    for word, count in policy.counts.items():
        if word == _LAST:
            for number, one in enumerate(ordered[:count], start=1):
                why[one.id].append(f"last {number} of {count}")
        else:
            _keep_newest_of_each(ordered, word, count, why)


def _keep_newest_of_each(
    ordered: Sequence[SnapshotSummary], word: str, count: int, why: dict[str, list[str]]
) -> None:
    seen: set[str] = set()
    for one in ordered:
        period = natural_period(one.taken_ns, _PERIODS[word])
        if period not in seen and len(seen) < count:
            seen.add(period)
            why[one.id].append(f"{word} {len(seen)} of {count}: {period}")


def _newest_good(
    ordered: Sequence[SnapshotSummary], good: Collection[str]
) -> SnapshotSummary | None:
    """Without trouble if there is such a one; else the newest that is not known to be damaged."""
    sound = [one for one in ordered if one.id in good]
    return next((one for one in sound if not one.trouble_count), next(iter(sound), None))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

"""Which snapshots a retention policy keeps, and why. Nothing here opens a store.

Rules with counts (``last:3, hourly:24, daily:7, weekly:4, monthly:12``), a duration (``7d``:
whatever is younger), or both. ``hourly:24`` keeps the newest snapshot of each of the newest 24
natural hours that have one; days, weeks (ISO 8601) and months likewise, all in UTC, so that no
change to summer time makes an hour count twice or never. What any rule keeps is kept. Snapshots
of other roots are counted by themselves: one that somebody took of a single directory must not be
the newest of its hour for all that the hour's other one has. One that is dated in the future is
kept until that time has come, and no rule counts it: a clock that was ahead for an hour must not
cost what is taken after it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ciuic.clock import is_future, natural_period
from ciuic.model import SnapshotSummary, newest_first, path_text
from ciuic.units import parse_duration_s

__all__ = [
    "NEWEST",
    "PINNED",
    "WHOLE",
    "Decision",
    "Policy",
    "parse_policy",
    "plan_retention",
    "protected",
]

PINNED: Final = "pinned"
NEWEST: Final = "the newest"
WHOLE: Final = "the newest that is whole"

_NS: Final = 1_000_000_000
_RULE: Final = re.compile(r"([^\s:,]+)\s*:\s*([^\s:,]+)")
_COUNT: Final = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_YOUNGER_S_MAX: Final = 3650 * 86_400.0
_SHOWN: Final = 60
_PERIODS: Final = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}
_LAST: Final = "last"
_KNOWN: Final = (_LAST, *_PERIODS)
_SETS_MAX: Final = 100
"""Sets of roots of which one is kept for good. Who snapshots another directory each day, by itself,
would never see a snapshot go."""
_ROOTS_SHOWN: Final = 3


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
    is_good: Callable[[str], bool],
) -> list[Decision]:
    """Decide about every snapshot, newest first by the time taken.

    Whatever the policy says, what is ``protected`` is kept, and what is dated in the future. So a
    policy never takes the last snapshot, nor the last from which all comes back.

    Args:
        snapshots: All that are listed, in any order.
        policy: What to keep.
        now_ns: The time.
        is_good: Whether the snapshot of an ID is not known to be damaged.
    """
    ordered = _by_time(snapshots)
    why: dict[str, list[str]] = {one.id: [] for one in ordered}
    series: dict[tuple[bytes, ...], list[SnapshotSummary]] = {}
    for one in ordered:
        if is_future(one.taken_ns, now_ns):
            why[one.id].append("dated in the future")
        else:
            series.setdefault(one.roots, []).append(one)
    for members in series.values():
        _keep_by_count(members, policy, why)
        for one in members:
            if policy.younger_s is not None and now_ns - one.taken_ns < policy.younger_s * _NS:
                why[one.id].append(f"younger than {policy.text.partition(',')[0]}")
    for name, reasons in protected(ordered, now_ns, is_good=is_good).items():
        why[name] += reasons
    return [Decision(one, tuple(why[one.id])) for one in ordered]


def protected(
    snapshots: Iterable[SnapshotSummary],
    now_ns: int,
    *,
    is_good: Callable[[str], bool],
    each_set: bool = True,
) -> dict[str, list[str]]:
    """What no policy takes, and nobody by name: IDs, and why.

    That is what is pinned; the newest; and, of all and of each set of roots by itself, the newest
    that is good. One that holds further roots as well will do for a set, so that no snapshot stays
    for good because a root was added since; one of a directory that they lie in will not, since it
    may have left them out. The only one of a set stays even if it is damaged: what is left of it is
    all there is. Of the sets, the ``_SETS_MAX`` that were taken last count.

    What is dated in the future is the newest only until another one is taken. It is the newest that
    is good only where no other one is without trouble, and then it costs no other one its place.

    Args:
        snapshots: All that are listed, in any order.
        now_ns: The time.
        is_good: As above; asked only where the answer matters.
        each_set: Protect the newest that is good of each set of roots, not only of all.
    """
    ordered = _by_time(snapshots)
    future = {one.id for one in ordered if is_future(one.taken_ns, now_ns)}
    present = [one for one in ordered if one.id not in future]
    ahead = [one for one in ordered if one.id in future]
    why: dict[str, list[str]] = {one.id: [PINNED] for one in ordered if one.pinned}
    committed = newest_first(ordered)
    # Parents may have been forgotten that would tell what came after one of the future.
    newest = [*committed[:1], *[one for one in committed if one.id not in future][:1]]
    for name in {one.id for one in newest}:
        why.setdefault(name, []).append(NEWEST)
    sets = dict.fromkeys([one.roots for one in [*present, *ahead]]) if each_set else ()
    good: dict[str, str] = {}
    for roots in [(), *sets][: _SETS_MAX + 1]:
        for name, reason in _newest_good((present, ahead), roots, is_good).items():
            good.setdefault(name, reason)
    for name, reason in good.items():
        why.setdefault(name, []).append(reason)
    return why


def _by_time(snapshots: Iterable[SnapshotSummary]) -> list[SnapshotSummary]:
    return sorted(snapshots, key=lambda one: (one.taken_ns, one.id), reverse=True)


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
    groups: Iterable[Sequence[SnapshotSummary]],
    roots: tuple[bytes, ...],
    is_good: Callable[[str], bool],
) -> dict[str, str]:
    """Without trouble if there is such a one; else the newest that is not known to be damaged.

    The first group counts; the next one too, as long as there was none without trouble.
    """
    wanted = frozenset(roots)
    held = [[one for one in group if wanted.issubset(one.roots)] for group in groups]
    if roots and sum(map(len, held)) == 1:
        return {one.id: f"the only snapshot of {_listed(roots)}" for group in held for one in group}
    found = {}
    for group in held:
        group.sort(key=lambda one: one.trouble_count > 0)
        best = next((one for one in group if is_good(one.id)), None)
        if best is not None:
            found[best.id] = f"{NEWEST} of {_listed(best.roots)} that is whole" if roots else WHOLE
            if not best.trouble_count:
                break
    return found


def _listed(roots: tuple[bytes, ...]) -> str:
    some = ", ".join([path_text(one) for one in roots[:_ROOTS_SHOWN]])
    more = len(roots) - _ROOTS_SHOWN
    return f"{some} and {more} more" if more > 0 else some


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

"""Which snapshots a retention policy keeps, and why. Nothing here opens a store.

A policy has rules with counts (``last:3, hourly:24, daily:7, weekly:4, monthly:12``), a duration
(``7d``: keep every snapshot that is younger), or both. ``hourly:24`` keeps the newest snapshot of
each of the newest 24 hours that have a snapshot. Days, weeks (ISO 8601) and months work the same.
All periods are in UTC, so that no change to summer time makes an hour count twice or never. A
snapshot stays if any rule keeps it.

Each owner (a machine), each schedule of it, and each set of roots in it is counted separately: a
snapshot of a single directory must not replace the snapshot of all roots of that hour. A snapshot
that is dated in the future is kept until that time, and no rule counts it: if the clock was ahead
for an hour, later snapshots must not be lost for it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ciuic.ids import SnapshotId
from ciuic.model import Owner, SnapshotSummary, complete_ones, newest_first, path_text
from ciuic.system.clock import is_future, natural_period
from ciuic.units import listed, parse_duration_s

__all__ = [
    "NEWEST",
    "PINNED",
    "UNDAMAGED",
    "Bridge",
    "Decision",
    "Policy",
    "bridges",
    "parse_policy",
    "plan_retention",
    "protected",
]

PINNED: Final = "pinned"
NEWEST: Final = "the newest"
UNDAMAGED: Final = "the newest without damage"

_NS: Final = 1_000_000_000
_RULE: Final = re.compile(r"([^\s:,]+)\s*:\s*([^\s:,]+)")
_COUNT: Final = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_YOUNGER_S_MAX: Final = 3650 * 86_400.0
_SHOWN: Final = 60
_PERIODS: Final = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}
_LAST: Final = "last"
_KNOWN: Final = (_LAST, *_PERIODS)
_SETS_MAX: Final = 100
"""Sets of roots that keep their newest undamaged snapshot for good. Without a limit, a user who
takes a snapshot of a different directory each day would never lose any."""
_ROOTS_SHOWN: Final = 3


class Policy(NamedTuple):
    """A retention policy.

    Attributes:
        younger_s: Keep snapshots that are younger; None for a policy with counts only.
        counts: How many snapshots each rule keeps: ``last`` and the periods.
        text: The policy in the syntax of the configuration, the duration first.
    """

    younger_s: float | None
    counts: dict[str, int]
    text: str


class Decision(NamedTuple):
    """Whether a snapshot is kept.

    Attributes:
        why: The reasons to keep it; empty if it is not kept.
    """

    snapshot: SnapshotSummary
    why: tuple[str, ...]

    @property
    def keep(self) -> bool:
        """The snapshot is kept."""
        return bool(self.why)


class Bridge(NamedTuple):
    """A snapshot that alone shows, after a clock was wrong, which of two others is newer.

    Attributes:
        between: The snapshot.
        newest: The newer one.
        other: The older one, whose time is later.
    """

    between: SnapshotSummary
    newest: SnapshotSummary
    other: SnapshotSummary


_NO_POLICIES: Final[Mapping[str, Policy]] = MappingProxyType({})


def parse_policy(text: str) -> Policy:
    """Parse a policy.

    Raises:
        ValueError: The policy is invalid; the message says why.
    """
    items = [item.strip() for item in text.split(",")]
    if len(items) > 1 and not all(items):
        raise ValueError("an item is empty: remove the extra comma")
    counts: dict[str, int] = {}
    younger: list[str] = []
    for item in items:
        # A known word without a count is an incomplete rule, not a duration.
        if ":" in item or (item in _KNOWN and len(items) > 1):
            word, count = _parse_rule(item)
            if word in counts:
                raise ValueError(f"{word} appears twice")
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
        raise ValueError(f"'{_short(word)}' is not one of {', '.join(_KNOWN)}")
    if match is None or not _COUNT.fullmatch(match[2]):
        raise ValueError(f"'{_short(rule)}' needs a count of at least 1, as in {word}:4")
    return word, int(match[2])


def _parse_younger_s(text: str) -> float:
    younger_s = parse_duration_s(_short(text))
    if younger_s == 0:
        raise ValueError(f"'{text}' would keep nothing; write how long to keep snapshots, as in 7d")
    if younger_s > _YOUNGER_S_MAX:
        raise ValueError(f"'{_short(text)}' is more than ten years")
    return younger_s


def plan_retention(
    snapshots: Sequence[SnapshotSummary],
    policy: Policy,
    now_ns: int,
    *,
    is_good: Callable[[SnapshotId], bool],
    is_partial: Callable[[SnapshotId], bool] = lambda _: False,
    policies: Mapping[str, Policy] = _NO_POLICIES,
    keep_tags: Collection[str] = (),
) -> list[Decision]:
    """Decide which snapshots to keep, newest first by the time taken.

    Snapshots that are ``protected`` or dated in the future are kept under every policy. So no
    policy removes the last snapshot, or the last snapshot without damage. ``bridges`` between those
    that are kept stay as well.

    Args:
        snapshots: All listed snapshots of one owner, in any order.
        policy: The policy.
        now_ns: The time.
        is_good: Returns whether no damage is known in the snapshot of an ID.
        is_partial: See ``protected``.
        policies: The policies of schedules that have one of their own, by name.
        keep_tags: Snapshots with one of these tags are kept; the rules count them as others.
    """
    ordered = _by_time(snapshots)
    why: dict[SnapshotId, list[str]] = {snapshot.id: [] for snapshot in ordered}
    series: dict[tuple[str, tuple[bytes, ...]], list[SnapshotSummary]] = {}
    for snapshot in ordered:
        if is_future(snapshot.taken_ns, now_ns):
            why[snapshot.id].append("dated in the future")
        else:
            series.setdefault((snapshot.schedule, snapshot.roots), []).append(snapshot)
    for (schedule, _), members in series.items():
        its = policies.get(schedule, policy)
        _keep_by_count(members, its, why)
        _keep_younger(members, its, now_ns, why)
    for snapshot in ordered:
        why[snapshot.id] += [f"tag {tag}" for tag in snapshot.tags if tag in keep_tags]
    kept = protected(ordered, now_ns, is_good=is_good, is_partial=is_partial)
    for snapshot_id, reasons in kept.items():
        why[snapshot_id] += reasons
    gone = {snapshot_id for snapshot_id, reasons in why.items() if not reasons}
    for between, newest, other in bridges(ordered, gone):
        why[between.id].append(f"shows that {newest.id} is newer than {other.id}")
    return [Decision(snapshot, tuple(why[snapshot.id])) for snapshot in ordered]


def bridges(snapshots: Iterable[SnapshotSummary], gone: Collection[SnapshotId]) -> Iterator[Bridge]:
    """Yield those of the snapshots ``gone`` without which another of the rest would be the newest.

    The times are wrong after a clock was, and the parents tell the order then. Without the
    snapshots between them, ``latest`` would mean the older one, as would a load of the library.
    Snapshots of each owner and set of roots are looked at alone. Incomplete ones count as little as
    for ``latest``.
    """
    series: dict[tuple[Owner, frozenset[bytes]], list[SnapshotSummary]] = {}
    for snapshot in complete_ones(snapshots):
        series.setdefault((snapshot.owner, frozenset(snapshot.roots)), []).append(snapshot)
    for members in series.values():
        left = [found for found in newest_first(members) if found.id not in gone]
        if not left:
            continue
        newest, last = left[0], max(left, key=_time)
        parents = {found.id: found for found in members}
        found: SnapshotSummary | None = newest
        # A parent chain that leads to a time as late as any puts all of it before the rest.
        while found is not None and _time(found) < _time(last):
            # pop: a cycle of false parents ends too.
            found = parents.pop(found.parent, None) if found.parent else None
            if found is not None and found.id in gone:
                yield Bridge(found, newest, last)


def protected(
    snapshots: Iterable[SnapshotSummary],
    now_ns: int,
    *,
    is_good: Callable[[SnapshotId], bool],
    is_partial: Callable[[SnapshotId], bool] = lambda _: False,
    each_set: bool = True,
) -> dict[SnapshotId, list[str]]:
    """Return the IDs of the snapshots that no policy removes, and the reasons.

    These are: pinned snapshots; the newest snapshot; the newest good snapshot of all; and the
    newest good snapshot of each set of roots. For a set of roots, a snapshot with further roots
    counts as well: otherwise a snapshot would stay for good after a root was added. A snapshot of a
    directory above the roots does not count, since it may have left them out. The only snapshot of
    a set stays even if it is damaged. At most ``_SETS_MAX`` sets are protected, the most recent
    ones.

    A snapshot that is dated in the future is the newest only until another one is taken. It is the
    newest good snapshot only if no other snapshot is without warnings; even then the newest good
    one that is not dated in the future is protected as well.

    Args:
        snapshots: All listed snapshots, in any order.
        now_ns: The time.
        is_good: Returns whether no damage is known in the snapshot of an ID; called only where the
            answer matters.
        is_partial: Returns whether a snapshot leaves out more than usual. It counts as the newest
            good snapshot only if all others do so as well.
        each_set: Protect the newest good snapshot of each set of roots, not only of all.
    """
    ordered = _by_time(snapshots)
    future = {found.id for found in ordered if is_future(found.taken_ns, now_ns)}
    present = [found for found in ordered if found.id not in future]
    ahead = [found for found in ordered if found.id in future]
    why: dict[SnapshotId, list[str]] = {found.id: [PINNED] for found in ordered if found.pinned}
    for snapshot_id in _newest(ordered, future):
        why.setdefault(snapshot_id, []).append(NEWEST)
    sets = dict.fromkeys([found.roots for found in [*present, *ahead]]) if each_set else ()
    good: dict[SnapshotId, str] = {}
    for roots in [(), *sets][: _SETS_MAX + 1]:
        newest_good = _newest_good((present, ahead), roots, is_good, is_partial)
        for snapshot_id, reason in newest_good.items():
            good.setdefault(snapshot_id, reason)
    for snapshot_id, reason in good.items():
        why.setdefault(snapshot_id, []).append(reason)
    return why


def _newest(ordered: list[SnapshotSummary], future: set[SnapshotId]) -> set[SnapshotId]:
    """Return the newest snapshot, and the newest that is not dated in the future.

    Both: the parents that would show which of the two came later may have been forgotten.
    """
    committed = [found.id for found in newest_first(ordered)]
    return {*committed[:1], *[found for found in committed if found not in future][:1]}


def _by_time(snapshots: Iterable[SnapshotSummary]) -> list[SnapshotSummary]:
    return sorted(snapshots, key=_time, reverse=True)


def _time(snapshot: SnapshotSummary) -> tuple[int, SnapshotId]:
    return snapshot.taken_ns, snapshot.id


def _keep_by_count(
    ordered: Sequence[SnapshotSummary], policy: Policy, why: dict[SnapshotId, list[str]]
) -> None:
    for word, count in policy.counts.items():
        if word == _LAST:
            for number, snapshot in enumerate(ordered[:count], start=1):
                why[snapshot.id].append(f"last {number} of {count}")
        else:
            _keep_newest_of_each(ordered, word, count, why)


def _keep_newest_of_each(
    ordered: Sequence[SnapshotSummary], word: str, count: int, why: dict[SnapshotId, list[str]]
) -> None:
    seen: set[str] = set()
    for snapshot in ordered:
        period = natural_period(snapshot.taken_ns, _PERIODS[word])
        if period not in seen and len(seen) < count:
            seen.add(period)
            why[snapshot.id].append(f"{word} {len(seen)} of {count}: {period}")


def _keep_younger(
    members: Sequence[SnapshotSummary],
    policy: Policy,
    now_ns: int,
    why: dict[SnapshotId, list[str]],
) -> None:
    if policy.younger_s is None:
        return
    for snapshot in members:
        if now_ns - snapshot.taken_ns < policy.younger_s * _NS:
            why[snapshot.id].append(f"younger than {policy.text.partition(',')[0]}")


def _newest_good(
    groups: Iterable[Sequence[SnapshotSummary]],
    roots: tuple[bytes, ...],
    is_good: Callable[[SnapshotId], bool],
    is_partial: Callable[[SnapshotId], bool],
) -> dict[SnapshotId, str]:
    """Return the newest good snapshots that contain these roots, and the reason to keep each.

    A snapshot without warnings is preferred. If the first group has none, the newest good snapshot
    of the next group is added.
    """
    wanted = frozenset(roots)
    matching = [
        [snapshot for snapshot in group if wanted.issubset(snapshot.roots)] for group in groups
    ]
    members = [snapshot for group in matching for snapshot in group]
    if roots and len(members) == 1:
        return {members[0].id: f"the only snapshot of {_root_names(roots)}"}
    reasons = {}
    for group in matching:
        group.sort(key=lambda snapshot: snapshot.trouble_count > 0)
        # Generators: each call of ``is_good`` may walk a whole snapshot.
        good = (snapshot for snapshot in group if is_good(snapshot.id))
        complete = (found for found in group if is_good(found.id) and not is_partial(found.id))
        best = next(complete, None) or next(good, None)
        if best is not None:
            reasons[best.id] = (
                f"{NEWEST} of {_root_names(best.roots)} without damage" if roots else UNDAMAGED
            )
            if not best.trouble_count:
                break
    return reasons


def _root_names(roots: tuple[bytes, ...]) -> str:
    return listed([path_text(root) for root in roots[:_ROOTS_SHOWN]], len(roots))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

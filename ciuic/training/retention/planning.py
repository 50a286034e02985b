"""Decide which snapshots of a channel stay, and which keep only their weights. No store is opened.

A full state that is reduced gets a new snapshot with the weights alone, and is removed. The new one
stands for it: it counts among the full states, and policies compare it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ciuic.errors import UsageError
from ciuic.ids import SnapshotId
from ciuic.model import Owner, SnapshotSummary, newest_first
from ciuic.snapshot.memory import STATE_ROOT
from ciuic.system.machine import this_machine
from ciuic.training.finding import DCP, FULL, WEIGHTS, run_of
from ciuic.training.reducing import REDUCED
from ciuic.training.retention.policies import Policy, as_json, as_policies, kept_by
from ciuic.training.values.arguments import shown

__all__ = [
    "RetentionPlan",
    "Rules",
    "of_channel",
    "plan_retention",
    "reduced_tags",
]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a manager keeps of each channel of its run.

    Attributes:
        keep_count: The number of newest snapshots.
        policies: Policies that keep further ones.
        keep_optimizer: The number of newest full states that stay complete; None: all that stay.
    """

    keep_count: int
    policies: tuple[Policy, ...] = ()
    keep_optimizer: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("max_snapshots", self.keep_count),
            ("keep_optimizer", self.keep_optimizer),
        ):
            is_optional = name == "keep_optimizer" and value is None
            if not is_optional and (type(value) is not int or value < 1):
                raise UsageError(
                    f"{name}={shown(value)} is not a number of 1 or more",
                    hint=f"Give a whole number, such as {name}=10.",
                )

    def as_json(self) -> dict[str, Any]:
        """Return them as JSON, for the writer's process."""
        return {
            "keep_count": self.keep_count,
            "policies": as_json(self.policies),
            "keep_optimizer": self.keep_optimizer,
        }

    @classmethod
    def of_json(cls, written: Mapping[str, Any]) -> "Rules":
        """Return the rules of ``as_json``."""
        policies = as_policies(written["policies"])
        return cls(written["keep_count"], policies, written["keep_optimizer"])


class RetentionPlan(NamedTuple):
    """Which snapshots of a channel stay, are reduced or are removed; each group is newest first.

    Attributes:
        kept: They stay as they are. Pinned ones are not named.
        reduced: Full states that stay with their weights alone.
        removed: They are removed.
    """

    kept: tuple[SnapshotSummary, ...]
    reduced: tuple[SnapshotSummary, ...]
    removed: tuple[SnapshotSummary, ...]


def of_channel(
    snapshots: Iterable[SnapshotSummary],
    channel: str,
    run: str | None,
    *,
    is_complete: bool = True,
) -> list[SnapshotSummary]:
    """Return this machine's snapshots that count in a channel of a run, in the same order.

    A reduced snapshot counts as the full state that it was. With ``is_complete`` false, return the
    incomplete ones instead, which no rule counts.
    """
    own = Owner(this_machine(), is_library=True)
    return [
        summary
        for summary in snapshots
        if STATE_ROOT in summary.roots
        and summary.is_complete is is_complete
        and channel == _channel_of(summary)
        and run_of(summary.tags) == run
        and summary.owner.is_same(own)
    ]


def plan_retention(
    found: Sequence[SnapshotSummary],
    rules: Rules,
    now_ns: int,
    snapshots: Sequence[SnapshotSummary],
) -> RetentionPlan:
    """Decide what becomes of the snapshots of one channel of a run.

    The newest full state always stays complete, even if newer snapshots have the weights alone. So
    does one whose replacement would change the order of the snapshots, and one whose removal would
    change it stays. That happens after a clock was wrong: the parents then give an order that the
    times do not.

    Args:
        found: The snapshots of the channel, newest first.
        rules: The rules.
        now_ns: The time, in nanoseconds since 1970.
        snapshots: All snapshots of the store, newest first.
    """
    unpinned = [summary for summary in found if not summary.pinned]
    # A crash can leave a full state listed beside the reduced snapshot that replaces it.
    replaced = {full.id for full in unpinned if _has_reduced(full, found)}
    counted = [summary for summary in unpinned if summary.id not in replaced]
    complete = [summary for summary in counted if FULL in summary.tags]
    chosen = {summary.id for summary in [*counted[: rules.keep_count], *complete[:1]]}
    chosen |= kept_by(rules.policies, counted[::-1], now_ns)
    gone = _removable([one for one in unpinned if one.id not in chosen], snapshots)
    chosen |= {one.id for one in unpinned if one.id not in gone}
    limit = len(found) if rules.keep_optimizer is None else rules.keep_optimizer
    wanted = [summary for summary in complete if summary.id in chosen][limit:]
    reduced = _reducible(wanted, [one for one in snapshots if one.id not in gone])
    return RetentionPlan(
        tuple([one for one in counted if one.id in chosen and one not in reduced]),
        tuple(reduced),
        tuple([one for one in unpinned if one.id in gone]),
    )


def reduced_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of the weights of a full state."""
    return (*[WEIGHTS if tag == FULL else tag for tag in tags if tag != REDUCED], REDUCED)


def _removable(
    wanted: Sequence[SnapshotSummary], snapshots: Sequence[SnapshotSummary]
) -> set[SnapshotId]:
    """Return the snapshots whose removal leaves all others in their order."""
    ordered = newest_first(snapshots)

    def keeps_order(gone: set[SnapshotId]) -> bool:
        left = [one for one in ordered if one.id not in gone]
        return newest_first(left) == left

    gone = {one.id for one in wanted}
    if keeps_order(gone):
        return gone
    gone = set()
    for one in reversed(wanted):
        if keeps_order({*gone, one.id}):
            gone.add(one.id)
    return gone


def _reducible(
    wanted: Sequence[SnapshotSummary], snapshots: Sequence[SnapshotSummary]
) -> list[SnapshotSummary]:
    """Return the full states whose replacement leaves all snapshots in their order."""
    found = []
    for full in wanted:
        # Nothing names the new snapshot as its parent.
        new = full.under(SnapshotId(f"new {full.id}"))
        replaced = [new if one.id == full.id else one for one in snapshots]
        if newest_first(replaced) == replaced:
            found.append(full)
            snapshots = replaced
    return found


def _channel_of(summary: SnapshotSummary) -> str:
    if DCP in summary.tags:
        return DCP
    return FULL if FULL in summary.tags or REDUCED in summary.tags else WEIGHTS


def _has_reduced(full: SnapshotSummary, found: Sequence[SnapshotSummary]) -> bool:
    if FULL not in full.tags:
        return False
    wanted = set(reduced_tags(full.tags))
    return any(
        REDUCED in other.tags
        and set(other.tags) == wanted
        and (other.taken_ns, other.parent) == (full.taken_ns, full.parent)
        for other in found
    )

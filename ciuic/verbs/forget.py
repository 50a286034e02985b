"""Forgetting snapshots, by a policy or by name, and bringing them back.

A forgotten snapshot is not listed any more and lies in the trash, whole; ``prune`` takes its data
when its time there is over. Never forgotten are: what is pinned, the newest snapshot, and the
newest that is whole. Nor is the newest whole one of each set of roots, or the only one, unless that
is asked for.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ciuic.catalog import find_snapshot, list_snapshots, lost_snapshots, remember
from ciuic.clock import rfc3339
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.model import SnapshotSummary
from ciuic.retention import NEWEST, PINNED, WHOLE, Policy, plan_retention, protected
from ciuic.store import Store
from ciuic.store.survey import Survey, known_lost

__all__ = ["ForgetPlan", "apply_forget", "bring_back", "plan_forget", "plan_forget_by_id"]

_TOGETHER: Final = 32
"""Snapshots that go to the trash with one sync of its directory; their manifests are in memory."""


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """What is to be forgotten.

    Attributes:
        kept: What stays, newest first, and why.
        forgotten: What goes, newest first, and why.
        given_up: Snapshots that were named, and whose manifests are lost: nothing of them could be
            brought back from the trash, and they go for good.
    """

    kept: tuple[tuple[SnapshotSummary, str], ...]
    forgotten: tuple[tuple[SnapshotSummary, str], ...]
    given_up: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic forget --json``."""
        return {
            "kept": [_line(one, why) for one, why in self.kept],
            "forgotten": [_line(one, why) for one, why in self.forgotten],
            "given_up": list(self.given_up),
        }


def plan_forget(store: Store, policy: Policy, now_ns: int) -> ForgetPlan:
    """Decide by a retention policy.

    Raises:
        StoreError: The store can't be read.
    """
    snapshots = list_snapshots(store)
    decisions = plan_retention(snapshots, policy, now_ns, is_good=lambda _: True)
    if not all(one.keep for one in decisions):
        # Whether a snapshot is whole is worth a walk only if something is going to go.
        decisions = plan_retention(snapshots, policy, now_ns, is_good=_soundness(store))
    older = policy.younger_s is not None and not policy.counts
    gone = f"older than {policy.text}" if older else f"no rule of {policy.text} keeps it"
    return ForgetPlan(
        kept=tuple([(one.snapshot, "; ".join(one.why)) for one in decisions if one.keep]),
        forgotten=tuple([(one.snapshot, gone) for one in decisions if not one.keep]),
    )


def plan_forget_by_id(
    store: Store, names: Sequence[str], now_ns: int, *, last_whole: bool = False
) -> ForgetPlan:
    """Decide by name: IDs, prefixes of them, or times.

    One whose manifest is lost, without a copy, is given up if its whole ID is named. The newest
    that is whole of its set of roots goes only with ``last_whole``; that of all roots never does.

    Raises:
        UsageError: One of them is pinned, the newest, or the newest that is whole.
        SnapshotNotFoundError: There is none by that name, or more than one.
        CorruptionError: Its manifest is damaged.
    """
    lost = [name for name in lost_snapshots(store) if store.manifest_copy(name) is None]
    given_up = {name: None for name in names if name in lost}
    chosen = {
        found.id: found
        for found in (find_snapshot(store, name) for name in names if name not in given_up)
    }
    snapshots = list_snapshots(store)
    if chosen and chosen.keys() >= {one.id for one in snapshots}:
        raise UsageError(
            "that would forget every snapshot", hint="A store without any brings nothing back."
        )
    kept = protected(snapshots, now_ns, is_good=_soundness(store), each_set=not last_whole)
    for one in snapshots:
        if one.id in chosen and one.id in kept:
            raise _refused(one.id, kept[one.id][0])
    return ForgetPlan(
        kept=tuple([(one, "not named") for one in snapshots if one.id not in chosen]),
        forgotten=tuple([(one, "named") for one in snapshots if one.id in chosen]),
        given_up=tuple(given_up),
    )


def apply_forget(store: Store, plan: ForgetPlan, now_ns: int) -> None:
    """Do what the plan says, oldest first; the store has been open for writing since it was made.

    Raises:
        StoreError: The store failed; what was not forgotten by then is still listed.
    """
    names = [one.id for one, _ in reversed(plan.forgotten)]
    for begin in range(0, len(names), _TOGETHER):
        store.forget(names[begin : begin + _TOGETHER], now_ns)
    if plan.given_up:
        store.give_up(plan.given_up)


def bring_back(store: Store, name: str) -> SnapshotSummary:
    """List a forgotten snapshot again.

    Raises:
        SnapshotNotFoundError: It is not in the trash, or ``name`` means several of those there.
        StoreError: The store failed; the snapshot stays in the trash.
    """
    wanted = name if name.startswith("cs-") else f"cs-{name}"
    found = [one for one in store.trashed_ids() if one.startswith(wanted)]
    if len(found) > 1 and wanted not in found:
        raise SnapshotNotFoundError(
            f"{wanted} is ambiguous in the trash: {', '.join(found[:5])}",
            hint="Give more digits of the ID.",
        )
    summary = store.bring_back(wanted if wanted in found or not found else found[0]).summary
    remember(store, summary)
    return summary


def _soundness(store: Store) -> Callable[[str], bool]:
    """Whether a snapshot is whole; it takes a walk, so ask only about those that matter."""
    survey = Survey(store, known_lost(store))
    return functools.cache(survey.is_sound)


def _refused(name: str, why: str) -> UsageError:
    if why == PINNED:
        return UsageError(f"{name} is pinned", hint=f"'ciuic pin --remove {name}' comes first.")
    hint = {
        NEWEST: "Take another one, then forget this one.",
        WHOLE: "Take another one; 'ciuic verify --all' tells what is wrong with those after it.",
    }.get(why, "Take another one of these; or give it up: 'ciuic forget --last-whole'.")
    if why.startswith(NEWEST):
        why = f"{NEWEST} snapshot{why.removeprefix(NEWEST)}"
    return UsageError(f"{name} is {why}", hint=hint)


def _line(one: SnapshotSummary, why: str) -> dict[str, Any]:
    return {
        "id": one.id,
        "taken": rfc3339(one.taken_ns),
        "logical_bytes": one.logical_bytes,
        "tags": list(one.tags),
        "why": why,
    }

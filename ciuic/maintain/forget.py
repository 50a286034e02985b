"""Forgetting snapshots, by a policy or by name, and bringing them back.

A forgotten snapshot is no longer listed. It is in the trash, complete, until ``prune`` removes it
after the trash time. Pinned snapshots, the newest snapshot and the newest undamaged snapshot are
never forgotten. The newest undamaged snapshot of a set of roots, or its only snapshot, is forgotten
only on request.
"""

import functools
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from ciuic.catalog import (
    ambiguous,
    find_snapshot,
    known_lost,
    list_snapshots,
    lost_snapshots,
    remember,
)
from ciuic.documents import Document
from ciuic.errors import CorruptionError, UnreachableError, UsageError
from ciuic.ids import SnapshotId, matching_ids
from ciuic.model import ExcludeRules, Owner, SnapshotSummary, complete_ones
from ciuic.retention import (
    NEWEST,
    PINNED,
    UNDAMAGED,
    Decision,
    Policy,
    bridges,
    plan_retention,
    protected,
)
from ciuic.store.store import Store
from ciuic.system.clock import rfc3339
from ciuic.system.machine import this_machine
from ciuic.view.damage import DamageSurvey

__all__ = ["ForgetPlan", "Terms", "apply_forget", "bring_back", "plan_forget", "plan_forget_by_id"]

_TOGETHER: Final = 32
"""Snapshots whose marks get their names with one sync."""


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Which snapshots to forget.

    Attributes:
        kept: Snapshots that stay, newest first, and why.
        forgotten: Snapshots to forget, newest first, and why.
        given_up: Snapshots that were named, and whose manifests are lost or damaged. They cannot be
            brought back from the trash, so they are removed for good.
        others: Snapshots that the policy was not asked about: of other machines, or of the library.
    """

    kept: tuple[tuple[SnapshotSummary, str], ...]
    forgotten: tuple[tuple[SnapshotSummary, str], ...]
    given_up: tuple[SnapshotId, ...] = ()
    others: tuple[SnapshotSummary, ...] = ()

    def as_json(self) -> Document:
        """Return the document of ``ciuic forget --json``."""
        return {
            "kept": [_line(snapshot, why) for snapshot, why in self.kept],
            "forgotten": [_line(snapshot, why) for snapshot, why in self.forgotten],
            "given_up": list(self.given_up),
            "left_alone": [_line(snapshot, _owner_text(snapshot)) for snapshot in self.others],
        }


class Terms(NamedTuple):
    """What a schedule keeps, and what it usually leaves out."""

    policy: Policy
    rules: ExcludeRules


_NO_TERMS: Final[Mapping[str, Terms]] = MappingProxyType({})


def plan_forget(
    store: Store,
    policy: Policy,
    now_ns: int,
    *,
    host: str | None = None,
    rules: ExcludeRules | None = None,
    schedules: Mapping[str, Terms] = _NO_TERMS,
    keep_tags: Collection[str] = (),
) -> ForgetPlan:
    """Decide which snapshots of a machine to forget by a retention policy.

    Snapshots of other machines, and those of the library, are left alone.

    Args:
        store: The open store.
        policy: The policy.
        now_ns: The time.
        host: Another machine whose snapshots are meant: see ``Machine.is_called``; None: this one.
        rules: The usual exclude rules. A snapshot that excludes more counts as the newest undamaged
            snapshot only if there is no other. None: exclude rules do not matter.
        schedules: The terms of schedules, by name. ``policy`` and ``rules`` are for all others.
        keep_tags: Snapshots with one of these tags are kept as well.

    Raises:
        StoreError: The store cannot be read.
    """
    listed = list_snapshots(store)
    owners = _owners_of(listed, host)
    looked_at = {found.id for members in owners for found in members}
    others = [found for found in listed if found.id not in looked_at]
    decisions: list[Decision] = []
    policies = {name: terms.policy for name, terms in schedules.items()}
    for snapshots in owners:
        plan = functools.partial(
            plan_retention, snapshots, policy, now_ns, policies=policies, keep_tags=keep_tags
        )
        found = plan(is_good=lambda _: True)
        if not all(decision.keep for decision in found):
            # Walk snapshots to find the undamaged ones only if some snapshot would be forgotten.
            is_partial = _partial(store, rules, schedules)
            found = plan(is_good=_soundness(store), is_partial=is_partial)
        decisions += found
    return ForgetPlan(
        kept=tuple([(found.snapshot, "; ".join(found.why)) for found in decisions if found.keep]),
        forgotten=tuple(
            [
                (found.snapshot, _gone(policies.get(found.snapshot.schedule, policy)))
                for found in decisions
                if not found.keep
            ]
        ),
        others=tuple(others),
    )


def _gone(policy: Policy) -> str:
    older = policy.younger_s is not None and not policy.counts
    return f"older than {policy.text}" if older else f"no rule of {policy.text} keeps it"


def _owners_of(
    snapshots: Iterable[SnapshotSummary], host: str | None
) -> list[list[SnapshotSummary]]:
    """Return the snapshots that a policy is about, each owner's in a list of its own.

    Args:
        snapshots: All listed snapshots.
        host: A machine; None: this one.
    """
    if host is None:
        own = Owner(this_machine(), is_library=False)
        return [[found for found in snapshots if found.owner.is_same(own)]]
    owners: dict[Owner, list[SnapshotSummary]] = {}
    for found in snapshots:
        if found.owner.machine.is_called(host) and not found.owner.is_library:
            owners.setdefault(found.owner, []).append(found)
    return list(owners.values())


def _owner_text(snapshot: SnapshotSummary) -> str:
    if snapshot.owner.is_library:
        return f"taken by the library on {snapshot.host}"
    return f"taken on {snapshot.host}"


def plan_forget_by_id(
    store: Store, names: Sequence[str], now_ns: int, *, last_whole: bool = False
) -> ForgetPlan:
    """Decide which snapshots to forget by name: IDs, prefixes of IDs, or times.

    A snapshot whose manifest is lost or damaged, and has no copy, is given up if its full ID is
    named. ``last_whole`` allows forgetting the newest undamaged snapshot of a set of roots, but
    never the newest undamaged snapshot of all.

    Raises:
        UsageError: A snapshot is pinned, the newest, or the newest undamaged one.
        SnapshotNotFoundError: A name matches no snapshot, or several.
        CorruptionError: The manifest of a snapshot is damaged.
    """
    given_up = _without_manifest(store, [SnapshotId(name) for name in names])
    snapshots = list_snapshots(store)
    # A full ID needs no search, which lists the store again for each name.
    listed = {found.id: found for found in snapshots}
    chosen = {
        found.id: found
        for found in (
            listed.get(SnapshotId(name)) or find_snapshot(store, name)
            for name in names
            if name not in given_up
        )
    }
    complete = complete_ones(snapshots)
    if chosen and chosen.keys() >= {snapshot.id for snapshot in complete or snapshots}:
        raise UsageError(
            "that would forget every snapshot",
            hint="Name fewer: no snapshot would be left to restore.",
        )
    kept = _protected(complete, now_ns, _soundness(store), each_set=not last_whole)
    for snapshot in snapshots:
        if snapshot.id in chosen and snapshot.id in kept:
            raise _refused(snapshot.id, kept[snapshot.id][0])
    _refuse_another_newest(snapshots, chosen)
    return ForgetPlan(
        kept=tuple([(found, "not named") for found in snapshots if found.id not in chosen]),
        forgotten=tuple([(found, "named") for found in snapshots if found.id in chosen]),
        given_up=given_up,
    )


def _refuse_another_newest(
    snapshots: Sequence[SnapshotSummary], chosen: Collection[SnapshotId]
) -> None:
    """Refuse to forget what alone shows that a later snapshot is newer than one of another time.

    Raises:
        UsageError: A snapshot is one: see ``bridges``.
    """
    for between, newest, other in bridges(snapshots, chosen):
        raise UsageError(
            f"{between.id} shows that {newest.id} is newer than {other.id}, whose time is later:"
            " a clock was wrong",
            hint=f"Take a new snapshot first, or forget {other.id} first.",
        )


def _protected(
    snapshots: Sequence[SnapshotSummary],
    now_ns: int,
    is_good: Callable[[SnapshotId], bool],
    *,
    each_set: bool,
) -> dict[SnapshotId, list[str]]:
    """Return what may not be forgotten by name: see ``protected``.

    With ``each_set``, the sets of roots of each owner are protected: a snapshot of another machine
    is no substitute.
    """
    kept = protected(snapshots, now_ns, is_good=is_good, each_set=False)
    owners: dict[Owner, list[SnapshotSummary]] = {}
    for found in snapshots if each_set else ():
        owners.setdefault(found.owner, []).append(found)
    for owner, members in owners.items():
        found_here = protected(members, now_ns, is_good=is_good)
        where = f" on {owner.machine.name}" if len(owners) > 1 else ""
        for snapshot_id, reasons in found_here.items():
            kept.setdefault(snapshot_id, [f"{reason}{where}" for reason in reasons])
    return kept


def apply_forget(store: Store, plan: ForgetPlan, now_ns: int) -> None:
    """Forget the snapshots of a plan, oldest first.

    The store must have been open for writing since the plan was made.

    Raises:
        StoreError: The store failed; snapshots that were not forgotten by then are still listed.
    """
    snapshot_ids = [snapshot.id for snapshot, _ in reversed(plan.forgotten)]
    for begin in range(0, len(snapshot_ids), _TOGETHER):
        forgotten = store.trash.forget(snapshot_ids[begin : begin + _TOGETHER], now_ns)
        remember(store, *forgotten)
    if plan.given_up:
        store.trash.delete_lost(plan.given_up)


def bring_back(store: Store, name: str) -> SnapshotSummary:
    """List a forgotten snapshot again.

    Raises:
        SnapshotNotFoundError: The trash has no snapshot of that name, or several.
        StoreError: The store failed; the snapshot stays in the trash.
    """
    found = matching_ids(name, store.trash.ids())
    if len(found) > 1:
        times = {entry.id: entry.manifest.summary.taken_ns for entry in store.trash.survey()[0]}
        raise ambiguous(name, {found: times.get(found) for found in found}, " in the trash")
    wanted = SnapshotId(name if name.startswith("cs-") else f"cs-{name}")
    manifest = store.trash.bring_back(found[0] if found else wanted)
    remember(store, manifest.summary)
    return manifest.summary


def _without_manifest(store: Store, snapshot_ids: Sequence[SnapshotId]) -> tuple[SnapshotId, ...]:
    """Return those whose manifest and copy cannot be read, if a check of the disk won't help."""
    lost, files = frozenset(lost_snapshots(store)), store.manifests.files()

    def has_none(snapshot_id: SnapshotId) -> bool:
        if snapshot_id in lost:
            return store.manifests.copies.read(snapshot_id) is None
        status = files.get(snapshot_id)
        if status is None or not stat.S_ISREG(status.st_mode):
            return False  # a directory or socket has its place: the owner must look at it first
        try:
            store.manifest(snapshot_id)
        except UnreachableError:
            return False
        except CorruptionError:
            return True
        return False

    return tuple(filter(has_none, dict.fromkeys(snapshot_ids)))


def _soundness(store: Store) -> Callable[[SnapshotId], bool]:
    """Return a function that tells whether a snapshot is sound. Each answer takes a walk."""
    survey = DamageSurvey(store, known_lost(store))
    return functools.cache(survey.is_sound)


def _partial(
    store: Store, rules: ExcludeRules | None, schedules: Mapping[str, Terms]
) -> Callable[[SnapshotId], bool]:
    """Return a function that tells if a snapshot leaves out more than its schedule or ``rules``."""
    if rules is None:
        return lambda _: False

    @functools.cache
    def is_partial(snapshot_id: SnapshotId) -> bool:
        try:
            manifest = store.manifest(snapshot_id)
            terms = schedules.get(manifest.summary.schedule)
            return not manifest.exclude.is_within(rules if terms is None else terms.rules)
        except CorruptionError:
            return False  # whether it is sound is asked separately

    return is_partial


def _refused(snapshot_id: SnapshotId, why: str) -> UsageError:
    if why == PINNED:
        return UsageError(
            f"{snapshot_id} is pinned", hint=f"Run 'ciuic pin --remove {snapshot_id}' first."
        )
    hint = {
        NEWEST: "Take a new snapshot first.",
        UNDAMAGED: "Take a new snapshot first; 'ciuic verify --all' shows damage in newer ones.",
    }.get(why, "Take a new snapshot of these roots first, or use 'ciuic forget --last-whole'.")
    if why.startswith(NEWEST):
        why = f"{NEWEST} snapshot{why.removeprefix(NEWEST)}"
    return UsageError(f"{snapshot_id} is {why}", hint=hint)


def _line(snapshot: SnapshotSummary, why: str) -> Document:
    return {
        "id": snapshot.id,
        "taken": rfc3339(snapshot.taken_ns),
        "logical_bytes": snapshot.logical_bytes,
        "tags": list(snapshot.tags),
        "why": why,
    }

"""A model of copies of one snapshot to a bucket, prunes that revoke them, and its purge.

docs/protocol.md, "Leases, condemnation, verdicts", points 5 to 9. Several sessions may commit under
one key, so a tombstone there is replaced. One chunk is at stake: it is in the old pack, and a
copier that cannot rely on that pack adds a pack of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.model.walks import Walk, walk

__all__ = ["MANIFEST", "Cleaner", "Copier", "Pruner", "Purger", "Rules", "Store", "explore"]

MANIFEST: Final = "manifest"
_FREE: Final = ""


@dataclass(frozen=True)
class Rules:
    """The rules. If any one is missing, a walk finds a lost chunk."""

    change_tombstones: bool = True
    """A prune replaces an existing tombstone."""
    read_key_before_packs: bool = True
    compare_tombstones: bool = True
    """A copier replaces only the tombstone that it has read."""
    condemned_before_packs: bool = True
    close_after_deleting: bool = True
    read_key_before_lease: bool = True
    """A copier that is revoked at its first step may replace no tombstone, as it has read none."""
    leave_marker: bool = True
    """A prune that deletes the lease of a copier leaves a note of it."""
    tombstone_at_purge: bool = True
    """A purge leaves a tombstone if there is a copier's lease, or such a note."""
    refuse_retired: bool = True
    """A copier checks, once it has its lease, whether the ID is retired."""
    clean_notes_of_retired: bool = True
    """A note is deleted only if the ID is retired."""
    clean_notes_behind_tombstones: bool = True
    """A note is deleted only if a tombstone has the key."""
    keep_tombstones: bool = True
    """A tombstone is not deleted, even if no lease is left."""


class Store(NamedTuple):
    """The objects that matter.

    ``key`` is free, a tombstone's text, or ``MANIFEST``; ``packs`` are names of packs with the
    chunk; ``condemned`` are the prunes that have condemned the old pack, ``judged`` those with a
    verdict, and ``deleting`` those whose verdict deletes it. ``has_other`` means that another
    snapshot needs the old pack. ``is_purged`` means that the newest mark says so, and
    ``is_retired`` that the ID must not come back. ``was_dismissed`` means that a prune has noted
    that it waits for a copier no longer.
    """

    key: str = _FREE
    leases: frozenset[str] = frozenset()
    packs: frozenset[str] = frozenset({"old"})
    condemned: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()
    deleting: frozenset[str] = frozenset()
    has_other: bool = False
    is_purged: bool = False
    is_retired: bool = False
    was_dismissed: bool = False

    @property
    def is_listed(self) -> bool:
        """Return whether users see the snapshot."""
        return self.key == MANIFEST and not self.is_purged

    @property
    def is_shut(self) -> bool:
        """Return whether no session may rely on the old pack."""
        return any(one not in self.judged or one in self.deleting for one in self.condemned)


class Copier(NamedTuple):
    """A session that copies the snapshot: what it has read, and its next step."""

    name: str
    step: str = ""
    key: str = _FREE
    is_shut: bool = False
    has_old: bool = False


class Pruner(NamedTuple):
    """A prune that condemns the old pack; ``waits_for`` are leases that it has not dealt with."""

    name: str
    step: str = "condemn"
    waits_for: tuple[str, ...] = ()


class Purger(NamedTuple):
    """A process that purges the snapshot; from the step "other" on, a second snapshot."""

    name: str
    step: str = "mark"
    may_return: bool = False


class Cleaner(NamedTuple):
    """A process that deletes the note; from the step "sweep" on, one that deletes a tombstone."""

    name: str
    step: str = "retired"


Process = Copier | Pruner | Purger | Cleaner
State = tuple[Store, tuple[Process, ...]]


def explore(rules: Rules, store: Store, processes: tuple[Process, ...]) -> Walk:
    """Visit every reachable state, until the chunk is lost."""
    return walk((store, processes), lambda state: _steps(rules, *state), _lost)


def _lost(state: State) -> str:
    store, _ = state
    return "the chunk is lost" if store.is_listed and not store.packs else ""


def _steps(
    rules: Rules, store: Store, processes: tuple[Process, ...]
) -> Iterator[tuple[str, State]]:
    for at, process in enumerate(processes):
        if isinstance(process, Copier):
            found = _copy(rules, store, process)
        elif isinstance(process, Pruner):
            found = _prune(rules, store, process)
        elif isinstance(process, Purger):
            found = _purge(rules, store, process)
        else:
            found = _clean(rules, store, process)
        if found is not None:
            after, ahead = found
            told = f"{process.name} {process.step}"
            yield told, (after, (*processes[:at], ahead, *processes[at + 1 :]))


def _copy(rules: Rules, store: Store, me: Copier) -> tuple[Store, Copier] | None:
    order = ["key", "lease", "retired", "condemned", "packs", "store", "commit", "end"]
    if not rules.read_key_before_lease:
        order[:2] = ["lease", "key"]
    if not rules.read_key_before_packs:
        order = ["lease", "retired", "condemned", "packs", "store", "key", "commit", "end"]
    if not rules.condemned_before_packs:
        order[3:5] = ["packs", "condemned"]
    if me.step == "done":
        return None
    step = me.step or order[0]
    ahead = me._replace(step=([*order, "done"][order.index(step) + 1]))
    match step:
        case "lease":
            return store._replace(leases=store.leases | {me.name}), ahead
        case "key":
            return store, ahead._replace(key=store.key)
        case "retired":
            is_refused = rules.refuse_retired and store.is_retired
            return store, ahead._replace(step="end") if is_refused else ahead
        case "condemned":
            return store, ahead._replace(is_shut=store.is_shut)
        case "packs":
            return store, ahead._replace(has_old="old" in store.packs)
        case "store":
            if me.has_old and not me.is_shut:
                return store, ahead
            return store._replace(packs=store.packs | {me.name}), ahead
        case "commit":
            is_same = store.key == me.key or (
                not rules.compare_tombstones and MANIFEST not in {store.key, me.key}
            )
            # A copier that has read a manifest has no tombstone to replace, so it creates the key.
            if (me.key != MANIFEST and is_same) or (store.key == _FREE and me.key == MANIFEST):
                return store._replace(key=MANIFEST), ahead
            return store, ahead
    return store._replace(leases=store.leases - {me.name}), ahead


def _prune(rules: Rules, store: Store, me: Pruner) -> tuple[Store, Pruner] | None:
    match me.step:
        case "condemn":
            if store.key == MANIFEST or store.is_shut or "old" not in store.packs:
                return None
            return store._replace(condemned=store.condemned | {me.name}), me._replace(step="list")
        case "list":
            return store, me._replace(step="revoke", waits_for=tuple(sorted(store.leases)))
        case "revoke":
            if not me.waits_for:
                return store, me._replace(step="judge")
            if me.waits_for[0] not in store.leases:
                return store, me._replace(waits_for=me.waits_for[1:])
            if store.key == MANIFEST:
                return store, me._replace(step="note")
            if store.key and not rules.change_tombstones:
                return store, me._replace(step="note")
            key = f"tombstone of {me.name} for {me.waits_for[0]}"
            return store._replace(key=key), me._replace(step="note")
        case "note":
            after = store._replace(was_dismissed=rules.leave_marker or store.was_dismissed)
            return after, me._replace(step="dismiss")
        case "dismiss":
            after = store._replace(leases=store.leases - {me.waits_for[0]})
            return after, me._replace(step="revoke", waits_for=me.waits_for[1:])
        case "judge":
            return _judge(rules, store, me)
        case "delete":
            return store._replace(packs=store.packs - {"old"}), me._replace(step="close")
        case "close":
            condemned = store.condemned - {me.name}
            return store._replace(condemned=condemned), me._replace(step="done")
    return None


def _judge(rules: Rules, store: Store, me: Pruner) -> tuple[Store, Pruner]:
    is_needed = store.has_other or (store.is_listed and store.packs == {"old"})
    deleting = store.deleting if is_needed else store.deleting | {me.name}
    after = store._replace(judged=store.judged | {me.name}, deleting=deleting)
    if is_needed:
        return after, me._replace(step="close")
    if not rules.close_after_deleting:
        condemned = after.condemned - {me.name}
        return after._replace(condemned=condemned), me._replace(step="delete")
    return after, me._replace(step="delete")


def _purge(rules: Rules, store: Store, me: Purger) -> tuple[Store, Purger] | None:
    match me.step:
        case "mark":
            if not store.is_listed:
                return None
            return store._replace(is_purged=True), me._replace(step="retire")
        case "retire":
            return store._replace(is_retired=True), me._replace(step="look")
        case "look":
            may_return = rules.tombstone_at_purge and bool(store.leases or store.was_dismissed)
            return store, me._replace(step="remove", may_return=may_return)
        case "remove":
            key = f"tombstone of {me.name}" if me.may_return else _FREE
            if store.key != MANIFEST:
                key = store.key
            return store._replace(key=key), me._replace(step="unmark")
        case "unmark":
            return store._replace(is_purged=False), me._replace(step="done")
        case "other":
            return store._replace(has_other=False), me._replace(step="done")
    return None


def _clean(rules: Rules, store: Store, me: Cleaner) -> tuple[Store, Cleaner] | None:
    match me.step:
        case "retired":
            may = store.is_retired or not rules.clean_notes_of_retired
            return store, me._replace(step="key" if may else "done")
        case "key":
            is_tombstone = store.key not in {_FREE, MANIFEST}
            may = is_tombstone or not rules.clean_notes_behind_tombstones
            return store, me._replace(step="note" if may else "done")
        case "note":
            return store._replace(was_dismissed=False), me._replace(step="done")
        case "sweep":
            if rules.keep_tombstones or store.leases or store.key in {_FREE, MANIFEST}:
                return None
            return store._replace(key=_FREE), me._replace(step="done")
    return None

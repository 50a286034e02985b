"""A model of processes of one machine that share the chunk index of a store in a bucket.

docs/protocol.md, "Adding together, in a bucket". One chunk is at stake. Adders of this machine, its
prune and its scrub open the index in turn; a prune of another machine removes packs meanwhile. Some
packs hold the chunk damaged. A scrub of another machine finds that, and leaves records of it. A
process may be killed at any moment: then the kernel releases its locks, and its lease stays.

A segment only says what is in a pack, also in one that is gone.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.model.walks import Walk, walk

__all__ = [
    "Adder",
    "Finder",
    "Index",
    "Merger",
    "Pruner",
    "Rules",
    "Scrubber",
    "Store",
    "explore",
]

Packs = frozenset[str]
_NONE: Final[Packs] = frozenset()


@dataclass(frozen=True)
class Rules:
    """The rules. If any one is missing, a walk finds a broken promise."""

    lease_each: bool = True
    """An adder beside others has a lease of its own."""
    condemned_each: bool = True
    """An adder beside others reads itself which packs are condemned."""
    heed_condemned: bool = True
    """An adder relies on no shut pack that the index has."""
    open_in_turn: bool = True
    """An adder opens the index while no other process does."""
    list_before_lock: bool = True
    """Beside others, an adder lists packs before it takes the lock of the index."""
    read_before_lock: bool = True
    """Beside others, an adder reads what new packs list before it takes that lock."""
    commit_index_first: bool = True
    """An adder gives up that lock before it creates its manifest."""
    count_recorded_meanwhile: bool = True
    """What others have recorded since an adder began to list packs counts as listed."""
    private_beside_others: bool = True
    """Beside others, an adder whose packs are gone does not rebuild the index."""
    private_knows_damage: bool = True
    """A private index has what the one of this machine records of damage."""
    rebuilt_knows_damage: bool = True
    """A rebuilt index has what the old one recorded of damage."""
    list_decides: bool = True
    """The listing says which packs are there, and not the segments."""
    record_after_upload: bool = True
    """An adder records a pack in the index when the bucket has it."""
    drop_with_check: bool = True
    """An adder that finds a damaged chunk also records in which pack it is."""
    shun_damaged_for_shut: bool = True
    """A chunk in a shut pack gets no place in a pack that has it damaged."""
    point_at_sound: bool = True
    """A scrub points the index at a sound copy if the recorded one is damaged."""
    judge_reads: bool = True
    """A prune spares a condemned pack unless another one has the chunk sound."""
    judge_ignores_records: bool = True
    """A prune reads what stands in for a chunk, whatever the records of damage say."""
    list_damage: bool = True
    """An adder takes the records of damage from its listing of the packs."""
    heed_damage: bool = True
    """An adder relies on no copy that such a record names."""


class Index(NamedTuple):
    """A chunk index: the packs, where the chunk is, and what is known of damage.

    ``is_lost`` means that the chunk's place was dropped, ``checked`` are packs known as damaged.
    """

    recorded: Packs = _NONE
    place: str = ""
    is_lost: bool = False
    checked: Packs = _NONE


class Store(NamedTuple):
    """The bucket, and what the processes of one machine share.

    ``segments`` are packs that segments list, ``mixed`` packs that another snapshot needs for other
    chunks. ``condemned`` and ``verdicts`` have the prune and packs. ``committed`` are snapshots
    that need the chunk; the chunk of those in ``sound`` was sound when they were committed.
    ``adding`` share the lock of adders, ``writing`` holds that of processes that open or remove,
    ``locked`` that of the index. ``known`` are damaged packs that the index has recorded.
    """

    packs: Packs = _NONE
    damaged: Packs = _NONE
    mixed: Packs = _NONE
    segments: Packs = _NONE
    leases: Packs = _NONE
    condemned: frozenset[tuple[str, Packs]] = frozenset()
    verdicts: frozenset[tuple[str, Packs]] = frozenset()
    revoked: Packs = _NONE
    committed: Packs = _NONE
    sound: Packs = _NONE
    index: Index = Index()
    known: Packs = _NONE
    records: Packs = _NONE
    """Packs that records of damage name."""
    adding: Packs = _NONE
    writing: str = ""
    locked: str = ""
    last_shut: Packs = _NONE
    """What the last adder that opened the index has read of condemnations."""

    @property
    def shut(self) -> Packs:
        """The packs on which no session may rely."""
        judged = dict(self.verdicts)
        found = [judged.get(who, packs) for who, packs in self.condemned]
        return _NONE.union(*found, *judged.values())


class _Local(NamedTuple):
    """What a process of this machine knows while it brings the index up to date."""

    is_alone: bool = True
    shut: Packs = _NONE
    damage: Packs = _NONE
    """Packs that the records of damage in its last listing name."""
    before: Packs = _NONE
    present: Packs = _NONE
    read: Packs = _NONE
    """Packs whose lists it has read."""
    private: Index | None = None


class Adder(NamedTuple):
    """A snapshot of this machine; ``step`` is what it does next.

    ``reads`` means that it reads the chunk and notices damage, ``renews`` that it is a copy, which
    brings the index up to date once more. ``knew`` are packs that the index
    knew as damaged when it began, ``relies`` is the pack that has the chunk for it.
    """

    name: str
    reads: bool = False
    renews: bool = False
    step: str = "enter"
    local: _Local = _Local()
    knew: Packs = _NONE
    relies: str = ""


class Scrubber(NamedTuple):
    """A scrub of this machine: reads packs without a lock, and then records ``found``."""

    name: str
    step: str = "read"
    local: _Local = _Local()
    found: Packs = _NONE
    has_lost: bool = False


class Pruner(NamedTuple):
    """A prune of this machine; from the step "choose" on, one of another machine.

    That one has an index of its own, which plays no part. No other prune waits for its lease here.
    """

    name: str
    step: str = "enter"
    local: _Local = _Local()
    condemns: Packs = _NONE
    deletes: Packs = _NONE
    waits_for: tuple[str, ...] = ()


class Merger(NamedTuple):
    """A session that merges segments, without packs that are gone."""

    name: str
    step: str = "merge"


class Finder(NamedTuple):
    """A scrub of another machine: reads packs, and records what it has ``found``."""

    name: str
    step: str = "read"
    found: Packs = _NONE


Process = Adder | Scrubber | Pruner | Merger | Finder
State = tuple[Store, tuple[Process, ...]]

_REQUESTS: Final = frozenset({"list", "read lists", "commit"})
"""Steps that wait for a server, among those at which a process may hold the lock of the index."""
_LOCKING: Final = frozenset({"lock", "record mine", "drop", "record damage", "forget packs"})


def explore(rules: Rules, store: Store, processes: tuple[Process, ...]) -> Walk:
    """Visit every reachable state, until a promise is broken."""
    return walk(
        (store, processes),
        lambda state: itertools.chain(_steps(rules, *state), _kills(*state)),
        lambda state: _broken(*state) or _stuck(rules, *state),
    )


def _broken(store: Store, processes: tuple[Process, ...]) -> str:
    """Return which promise is broken; empty: none."""
    if store.committed and not store.packs:
        return "the chunk is lost"
    if store.sound and store.packs <= store.damaged:
        return "the chunk was sound, or known as damaged, and is damaged"
    steps = {one.name: one.step for one in processes}
    if "adopt" in steps.values() and store.index.recorded <= store.packs:
        return "an index became private, and no pack is gone"
    is_served = steps.get(store.locked) in _REQUESTS
    waits = [who for who, step in steps.items() if step in _LOCKING and who != store.locked]
    if is_served and waits:
        return f"{waits[0]} waits for a server, which {store.locked} asks"
    return ""


def _stuck(rules: Rules, store: Store, processes: tuple[Process, ...]) -> str:
    """Return which processes wait for each other; empty: one of them can go on."""
    left = [one.name for one in processes if one.step != "done"]
    if not left or next(_steps(rules, store, processes), None) is not None:
        return ""
    return f"{left} wait for each other ({store.writing}, {store.locked})"


def _kills(store: Store, processes: tuple[Process, ...]) -> Iterator[tuple[str, State]]:
    """Yield each process with locks killed: only then does it differ from a paused one."""
    for at, one in enumerate(processes):
        if one.name in store.adding or one.name == store.writing:
            after = _released(store, one.name)
            others = (*processes[:at], _ended(one), *processes[at + 1 :])
            yield f"{one.name} is killed", (after, others)


def _ended(one: Process) -> Process:
    """Return a process that does nothing more; what it knew makes no state of its own."""
    return type(one)(one.name, step="done")


def _released(store: Store, name: str) -> Store:
    return store._replace(
        adding=store.adding - {name},
        writing="" if store.writing == name else store.writing,
        locked="" if store.locked == name else store.locked,
    )


def _steps(
    rules: Rules, store: Store, processes: tuple[Process, ...]
) -> Iterator[tuple[str, State]]:
    # In the order of their names, since they differ in nothing else before they begin.
    entering = [one for one in processes if isinstance(one, Adder) and one.step == "enter"]
    for at, one in enumerate(processes):
        if one in entering[1:]:
            continue
        if one.step == "done" or (one.step in _LOCKING and store.locked not in {"", one.name}):
            continue
        found: Iterator[tuple[Store, Process]]
        if isinstance(one, Adder):
            found = _add(rules, store, one)
        elif isinstance(one, Scrubber):
            found = _scrub(rules, store, one)
        elif isinstance(one, Pruner):
            found = _prune(rules, store, one)
        elif isinstance(one, Finder):
            found = _find(store, one)
        else:
            gone = _NONE.union(*(packs for _, packs in store.verdicts))
            found = iter([(store._replace(segments=store.segments - gone), _ended(one))])
        for after, ahead in found:
            others = (*processes[:at], ahead, *processes[at + 1 :])
            yield f"{one.name} {one.step}", (after, others)


def _add(rules: Rules, store: Store, me: Adder) -> Iterator[tuple[Store, Process]]:
    local = me.local
    match me.step:
        case "enter":
            if store.writing and (rules.open_in_turn or store.writing not in store.adding):
                return
            is_alone = not store.adding
            after = store._replace(writing=me.name, adding=store.adding | {me.name})
            local = local._replace(is_alone=is_alone)
            is_leased = is_alone or rules.lease_each
            step = "lease" if is_leased else "read condemned"
            knew = store.known | store.records
            yield after, me._replace(step=step, local=local, knew=knew)
        case "look up":
            index = store.index if local.private is None else local.private
            is_usable = index.place and not (
                (rules.heed_condemned and index.place in local.shut)
                or (rules.heed_damage and index.place in local.damage)
            )
            if not is_usable:
                first = "upload" if rules.record_after_upload else "record mine"
                yield store, me._replace(step=first)
            elif me.reads and store.packs <= store.damaged:
                yield store, me._replace(step="drop")
            else:
                yield store, me._replace(step="commit", relies=index.place)
        case "drop":
            yield _dropped(rules, store, me), me._replace(step="upload", local=_drop(rules, me))
        case "upload":
            after = store._replace(
                packs=store.packs | {me.name}, segments=store.segments | {me.name}
            )
            step = "record mine" if rules.record_after_upload else "commit"
            yield after, me._replace(step=step, relies=me.name)
        case "record mine":
            step = "commit" if rules.record_after_upload else "upload"
            if local.private is not None:
                yield store, me._replace(step=step)
                return
            locked = "" if rules.commit_index_first else me.name
            index = _with(rules, store.index, {me.name}, local)
            yield store._replace(index=index, locked=locked), me._replace(step=step)
        case "commit":
            after = store._replace(locked="" if store.locked == me.name else store.locked)
            if me.name not in store.revoked:
                after = after._replace(committed=store.committed | {me.name})
                if me.knew or me.relies not in store.damaged:
                    after = after._replace(sound=store.sound | {me.name})
            yield after, me._replace(step="end", local=_Local())
        case "end":
            after = store._replace(leases=store.leases - {me.name})
            yield _released(after, me.name), _ended(me)
        case _:
            for after, known, step in _open(rules, store, me.name, local, me.step):
                if step:
                    yield after, me._replace(step=step, local=known)
                else:
                    yield _opened(after, me, known)


def _opened(store: Store, me: Adder, local: _Local) -> tuple[Store, Adder]:
    """Let others open the index; a copy then announces snapshots, and looks at the packs again."""
    after = store._replace(writing="" if store.writing == me.name else store.writing)
    if me.renews:
        local = _Local(is_alone=False, private=local.private)
        return after, me._replace(step="lease", renews=False, local=local)
    local = _Local(is_alone=False, shut=local.shut, damage=local.damage, private=local.private)
    return after, me._replace(step="look up", local=local)


def _dropped(rules: Rules, store: Store, me: Adder) -> Store:
    if me.local.private is not None:
        return store
    known = store.known | {store.index.place}
    return store._replace(index=_drop_from(rules, store.index), known=known)


def _drop(rules: Rules, me: Adder) -> _Local:
    private = me.local.private
    return me.local if private is None else me.local._replace(private=_drop_from(rules, private))


def _drop_from(rules: Rules, index: Index) -> Index:
    """Drop the place of a chunk that was read and is damaged."""
    checked = index.checked | {index.place} if rules.drop_with_check else index.checked
    return index._replace(place="", is_lost=True, checked=checked)


def _with(rules: Rules, index: Index, packs: Packs | set[str], me: _Local) -> Index:
    """Record packs, those that are shut first."""
    unusable = me.shut | me.damage
    for pack in sorted(packs, key=lambda one: (one not in me.shut, one)):
        place = index.place
        is_damaged = index.is_lost and pack in index.checked
        if not place and not is_damaged:
            place = pack
        leaves = place in unusable and pack not in unusable
        if leaves and not (is_damaged and rules.shun_damaged_for_shut):
            place = pack
        index = index._replace(recorded=index.recorded | {pack}, place=place)
    return index


def _open(
    rules: Rules, store: Store, name: str, me: _Local, step: str
) -> Iterator[tuple[Store, _Local, str]]:
    """Take the lease, read condemnations, and make the index agree with the packs.

    Yields the next step; empty: it is done.
    """
    if me.is_alone:
        order = ["lock", "list", "read lists", "record"]
    elif not rules.list_before_lock:
        order = ["before", "lock", "list", "read lists", "record"]
    elif not rules.read_before_lock:
        order = ["before", "list", "lock", "read lists", "record"]
    else:
        order = ["before", "list", "read lists", "lock", "record"]
    order = ["lease", "read condemned", *order, ""]
    ahead = order[order.index(step) + 1] if step in order else ""
    if step == "read condemned" and me.private is not None:
        ahead = "fill"
    match step:
        case "lease":
            yield store._replace(leases=store.leases | {name}), me, ahead
        case "read condemned":
            is_own = me.is_alone or rules.condemned_each
            shut = store.shut if is_own else store.last_shut
            after = store if rules.condemned_each else store._replace(last_shut=shut)
            yield after, me._replace(shut=shut), ahead
        case "before":
            yield store, me._replace(before=store.index.recorded), ahead
        case "lock":
            yield store._replace(locked=name), me, ahead
        case "list":
            present = store.packs if rules.list_decides else store.packs | store.segments
            yield store, me._replace(present=present, damage=_listed(rules, store)), ahead
        case "read lists":
            there = store.packs | store.segments
            yield store, me._replace(read=me.read | (me.present & there)), ahead
        case "record":
            yield _recorded(rules, store, me)
        case "read all lists":
            me = me._replace(read=me.present & (store.packs | store.segments))
            yield store, me, "rebuild"
        case "rebuild":
            yield _rebuilt(rules, store, me)
        case "adopt":
            index = store.index if rules.private_knows_damage else Index()
            kept = Index(is_lost=index.is_lost, checked=index.checked)
            yield store, me._replace(private=kept), "fill"
        case "fill":
            known = me.private or Index()
            kept = Index(is_lost=known.is_lost, checked=known.checked)
            me = me._replace(damage=_listed(rules, store))
            yield store, me._replace(private=_with(rules, kept, store.packs, me)), ""


def _listed(rules: Rules, store: Store) -> Packs:
    return store.records if rules.list_damage else _NONE


def _recorded(rules: Rules, store: Store, me: _Local) -> tuple[Store, _Local, str]:
    """Record new packs; if some are gone, go on to rebuild the index, or to a private one."""
    recorded, present = store.index.recorded, me.present
    if not me.is_alone and rules.count_recorded_meanwhile:
        present |= recorded - me.before
    me = me._replace(present=present, read=me.read | (present & recorded))
    if recorded <= present:
        index = _with(rules, store.index, (present & me.read) - recorded, me)
        return store._replace(index=index, locked=""), me, ""
    if me.is_alone:
        return _rebuilt(rules, store, me)
    if not rules.private_beside_others:
        return store, me, "read lists"
    return store._replace(locked=""), me, "adopt"


def _rebuilt(rules: Rules, store: Store, me: _Local) -> tuple[Store, _Local, str]:
    old = store.index if rules.rebuilt_knows_damage else Index()
    index = Index(is_lost=old.is_lost, checked=old.checked)
    index = _with(rules, index, me.present & me.read, me)
    return store._replace(index=index, locked=""), me, ""


def _scrub(rules: Rules, store: Store, me: Scrubber) -> Iterator[tuple[Store, Process]]:
    match me.step:
        case "read":
            found = store.packs & store.damaged
            has_lost = store.packs == found
            yield store, me._replace(step="enter", found=found, has_lost=has_lost)
        case "enter":
            if not store.writing and not store.adding:
                yield store._replace(writing=me.name), me._replace(step="lease")
        case "record damage":
            index = store.index._replace(checked=store.index.checked | me.found)
            if index.place in me.found and me.has_lost:
                index = index._replace(place="", is_lost=True)
            elif index.place in me.found and rules.point_at_sound:
                others = index.recorded - me.found - me.local.shut
                index = index._replace(place=min(others, default=""), is_lost=True)
            after = store._replace(index=index, known=store.known | me.found, locked="")
            yield after, me._replace(step="end")
        case "end":
            after = store._replace(leases=store.leases - {me.name})
            yield _released(after, me.name), _ended(me)
        case _:
            for after, local, step in _open(rules, store, me.name, me.local, me.step):
                yield after, me._replace(step=step or "record damage", local=local)


def _find(store: Store, me: Finder) -> Iterator[tuple[Store, Process]]:
    if me.step == "read":
        yield store, me._replace(step="record", found=store.packs & store.damaged)
    else:
        yield store._replace(records=store.records | me.found), _ended(me)


def _prune(rules: Rules, store: Store, me: Pruner) -> Iterator[tuple[Store, Process]]:
    match me.step:
        case "enter":
            if not store.writing and not store.adding:
                yield store._replace(writing=me.name), me._replace(step="lease")
        case "choose":
            for going in sorted(_chosen(store), key=sorted):
                step = "condemn" if going else "end"
                yield store, me._replace(step=step, condemns=going)
        case "condemn":
            if me.name in store.revoked:
                yield store, me._replace(step="end")
                return
            condemned = store.condemned | {(me.name, me.condemns)}
            after = store._replace(condemned=condemned, leases=store.leases - {me.name})
            yield after, me._replace(step="list leases")
        case "list leases":
            yield store, me._replace(step="wait", waits_for=tuple(sorted(store.leases)))
        case "wait":
            if not me.waits_for:
                yield store, me._replace(step="judge")
                return
            lease, *rest = me.waits_for
            revoked = store.revoked
            if lease in store.leases and lease not in store.committed:
                revoked |= {lease}
            yield store._replace(revoked=revoked), me._replace(waits_for=tuple(rest))
        case "judge":
            deletes = _judged(rules, store, me)
            step = "forget packs" if store.writing == me.name else "delete"
            verdicts = store.verdicts | {(me.name, deletes)}
            yield store._replace(verdicts=verdicts), me._replace(step=step, deletes=deletes)
        case "forget packs":
            index = store.index._replace(recorded=store.index.recorded - me.deletes)
            if index.place in me.deletes:
                others = index.recorded - me.condemns
                others -= store.damaged if rules.judge_reads else _NONE
                place = min(others, default="") if store.committed else ""
                index = index._replace(place=place)
            yield store._replace(index=index), me._replace(step="delete")
        case "delete":
            condemned = store.condemned - {(me.name, me.condemns)}
            after = store._replace(packs=store.packs - me.deletes, condemned=condemned)
            yield after, me._replace(step="end")
        case "end":
            after = store._replace(leases=store.leases - {me.name})
            yield _released(after, me.name), _ended(me)
        case _:
            for after, local, step in _open(rules, store, me.name, me.local, me.step):
                yield after, me._replace(step=step or "choose", local=local)


def _chosen(store: Store) -> set[Packs]:
    """Return what a prune may condemn: it reads the copy that it keeps of several."""
    alive = store.packs - store.shut
    if not store.committed:
        return {alive - store.mixed}
    sound = alive - store.damaged
    return {alive - store.mixed - {kept} for kept in sound} or {_NONE}


def _judged(rules: Rules, store: Store, me: Pruner) -> Packs:
    """Return the condemned packs to delete: all, unless no open pack has the chunk."""
    going = me.condemns & store.packs
    if not store.committed:
        return going
    others = store.condemned - {(me.name, me.condemns)}
    open_packs = store.packs - me.condemns - store._replace(condemned=others).shut
    if rules.judge_reads:
        open_packs -= store.damaged if rules.judge_ignores_records else store.records
    return going if open_packs else _NONE

"""No interleaving of many writers on one store loses a chunk, and every rule is needed.

docs/decisions/0019-many-writers.md. With CIUIC_LONG=1 every walk goes to its end, also those with a
request that is held back.
"""

import contextlib
import dataclasses
import os

import pytest

from tests.model.many_writers import (
    Commit,
    Mark,
    Pack,
    Place,
    Rules,
    Runner,
    Segment,
    explore,
    take_step,
    whole,
)

LONG = bool(os.environ.get("CIUIC_LONG"))
SHORT_STATES = 20_000
"""Maximum number of states of a short walk with a late request."""
LONG_STATES = 1_000_000
"""Maximum number of states of a long walk, which cannot visit all of them."""


def stored(*snapshots: str, forgotten: tuple[str, ...] = ()) -> Place:
    """Return a store with the snapshots S0, S1 and so on. Each one stored its own chunks."""
    place = Place()
    for number, chunks in enumerate(snapshots):
        name = f"S{number}"
        packs = frozenset(Pack(name, chunk) for chunk in chunks)
        place = place._replace(
            packs=place.packs | packs,
            segments=place.segments | {Segment(name, packs)},
            commits=place.commits | {Commit(name, "snapshot", chunks=frozenset(chunks))},
        )
    return place._replace(marks=frozenset(Mark(name, 1, "forget") for name in forgotten))


def writer(name: str) -> Runner:
    return Runner("writer", (name, frozenset("a")))


def pruner(name: str) -> Runner:
    return Runner("pruner", (name, "S0"))


def merger(name: str) -> Runner:
    return Runner("merger", (name,))


def mark(what: str) -> Runner:
    return Runner("marker", ("S0", what))


def reader(snapshot: str, tries: int) -> Runner:
    return Runner("reader", (snapshot, "a", tries))


REWRITER = Runner("rewriter", ("R1", Pack("S0", "a")))
# The name sorts after S0, so a pruner keeps the damaged one of two copies.
REPAIRER = Runner("repairer", ("T1", Pack("S0", "a")))
OLD = stored("a", forgotten=("S0",))
TWO_COPIES = stored("a", "a")
CONDEMNED = OLD._replace(
    commits=OLD.commits | {Commit("P0", "condemned", packs=OLD.packs)}
)  # by a pruner that was then killed
FINISHER = Runner("finish", ("P0", OLD.packs))
PATIENT = Runner("patient", ("P0", OLD.packs))
REDUNDANT = frozenset([Pack("S1", "a")])
DAMAGED = TWO_COPIES._replace(
    commits=TWO_COPIES.commits | {Commit("P0", "condemned", packs=REDUNDANT)}
)  # by a pruner that kept the other pack, and does not know that this one is damaged
SALVAGER = Runner("salvager", ("T1", Pack("S0", "a")))
UNNEEDED = frozenset([Pack("S1", "b")])
EARLIER = stored("a", "b", forgotten=("S0",))._replace(
    marks=frozenset([Mark("S0", 1, "forget"), Mark("S1", 1, "purge")])
)
EARLIER = EARLIER._replace(
    commits=EARLIER.commits | {Commit("P0", "condemned", packs=UNNEEDED)}
)  # which this machine has looked at before or after the other one

SCENARIOS: dict[str, tuple[Place, list[Runner]]] = {
    "two writers, a pruner, undo": (OLD, [writer("W1"), writer("W2"), pruner("P1"), mark("undo")]),
    "a writer, two pruners": (OLD, [writer("W1"), pruner("P1"), pruner("P2")]),
    "two copies, a writer, two pruners": (
        TWO_COPIES,
        [writer("W1"), pruner("P1"), pruner("P2")],
    ),
    "two copies, a rewriter, a pruner, a reader": (
        TWO_COPIES,
        [REWRITER, pruner("P1"), reader("S0", 3)],
    ),
    "a rewriter, a pruner, a writer": (OLD, [REWRITER, pruner("P1"), writer("W1")]),
    "a merger, a pruner, a reader": (TWO_COPIES, [merger("M1"), pruner("P1"), reader("S1", 4)]),
    "a merger, a pruner, a writer": (
        stored("a", "b", forgotten=("S0",)),
        [merger("M1"), pruner("P1"), writer("W1")],
    ),
    "two mergers, a pruner": (TWO_COPIES, [merger("M1"), merger("M2"), pruner("P1")]),
    "pin, forget, undo, a pruner, a writer": (
        stored("a"),
        [mark("pin"), mark("forget"), mark("undo"), pruner("P1"), writer("W1")],
    ),
    "a repairer, a pruner, a writer": (
        stored("a", "b", forgotten=("S1",)),
        [REPAIRER, Runner("pruner", ("P1", "S1")), writer("W1")],
    ),
    "two copies, a repairer, a pruner, undo": (
        stored("a", "a", forgotten=("S0",)),
        [REPAIRER, pruner("P1"), mark("undo")],
    ),
    "a repair that begins while a condemnation waits": (
        DAMAGED,
        [SALVAGER, Runner("finish", ("P0", REDUNDANT))],
    ),
    "a condemnation that two finish": (
        CONDEMNED,
        [FINISHER, FINISHER, mark("purge"), writer("W1")],
    ),
    "a condemnation that two finish, of whom one is patient": (
        CONDEMNED,
        [FINISHER, PATIENT, mark("purge"), writer("W1")],
    ),
    "two condemnations, one after the other": (
        EARLIER,
        [Runner("patient", ("P0", UNNEEDED)), pruner("P1"), writer("W1")],
    ),
    "a condemnation that two finish, and a sweeper": (
        CONDEMNED,
        [FINISHER, FINISHER, mark("purge"), writer("W1"), Runner("sweeper", ("P0",))],
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("late", [0, 1])
def test_no_interleaving_loses_a_chunk(scenario: str, late: int) -> None:
    place, runners = SCENARIOS[scenario]
    states_max = 0 if LONG or not late else SHORT_STATES
    walk = explore(Rules(), place, runners, late=late, states_max=states_max)
    assert walk.broken == ""
    assert walk.states > 500


@pytest.mark.parametrize("late", [0, 1])
def test_many_states_of_all_processes_at_once_lose_no_chunk(late: int) -> None:
    """Two writers, two pruners, a reader, undo and pin. The walk does not visit all states."""
    runners = [writer("W1"), writer("W2"), pruner("P1"), pruner("P2"), reader("S1", 3)]
    place = stored("a", "a", forgotten=("S0",))
    runners += [mark("undo"), mark("pin")]
    walk = explore(Rules(), place, runners, late=late, states_max=LONG_STATES if LONG else 5_000)
    assert walk.broken == ""


LOST_IN = {
    "lease_before_reading": ("two writers, a pruner, undo", 0),
    "heed_condemned": ("a merger, a pruner, a writer", 0),
    "end_leases": ("two writers, a pruner, undo", 0),
    "tombstone_when_revoked": ("two writers, a pruner, undo", 0),
    "create_commits_if_absent": ("two writers, a pruner, undo", 0),
    "mark_again": ("two writers, a pruner, undo", 0),
    "heed_other_condemned": ("a rewriter, a pruner, a writer", 0),
    "unique_pack_names": ("two writers, a pruner, undo", 0),
    "number_marks": ("two writers, a pruner, undo", 0),
    "purge_before_condemning": ("two writers, a pruner, undo", 0),
    "merge_before_removing_segments": ("a merger, a pruner, a reader", 0),
    "merge_what_is_not_judged": ("a merger, a pruner, a writer", 0),
    "decide_before_lease_ends": ("two writers, a pruner, undo", 1),
    "one_verdict": ("a condemnation that two finish", 0),
    "condemn_damaged": ("a repairer, a pruner, a writer", 0),
    "store_before_condemning_damaged": ("a repairer, a pruner, a writer", 0),
    "keep_verdicts": ("a condemnation that two finish, and a sweeper", 0),
    "look_after_condemning": ("two writers, a pruner, undo", 0),
    "look_for_each_condemnation": ("two condemnations, one after the other", 0),
    "lists_whole_leases": ("two writers, a pruner, undo", 0),
    "wait_for_repairs": ("a repair that begins while a condemnation waits", 0),
    "wait_for_repairs_after_the_verdict": ("a repair that begins while a condemnation waits", 0),
}
"""For each rule, a scenario that loses a chunk without it, and how many requests are held back."""


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_a_chunk_is_lost(rule: str) -> None:
    scenario, late = LOST_IN[rule]
    place, runners = SCENARIOS[scenario]
    walk = explore(
        dataclasses.replace(Rules(), **{rule: False}),
        place,
        runners,
        late=late,
        states_max=200_000 if late else 0,
    )
    assert walk.broken, "the walk lost no chunk"


@pytest.mark.parametrize("every", range(1, 12))
def test_condemned_packs_are_deleted_beside_sessions_that_overlap_for_ever(every: int) -> None:
    """Each session begins before the last one ends; now and then a prune runs, and revokes none.

    A machine that forgets what it has looked at would never delete the pack.
    """
    assert _sessions_until_deleted(every, remembers=True) < 3 + every
    assert _sessions_until_deleted(every, remembers=False) == SESSIONS


SESSIONS = 30


def _sessions_until_deleted(every: int, *, remembers: bool) -> int:
    """Return how many sessions began before the condemned pack was deleted.

    Args:
        every: There is a prune after this many steps of sessions.
        remembers: The machine that prunes remembers at which leases it has looked.
    """
    rules, steps = Rules(), 0
    place = CONDEMNED._replace(marks=CONDEMNED.marks | {Mark("S0", 2, "purge")})
    older = whole(rules, writer("W0"))
    place, got = take_step(rules, place, older)
    for number in range(1, SESSIONS + 1):
        newer = whole(rules, writer(f"W{number}"))
        place, next_got = take_step(rules, place, newer)
        with contextlib.suppress(StopIteration):
            while True:
                steps += 1
                if steps % every == 0:
                    place = _pruned(rules, place)
                    place = place if remembers else place._replace(looks=frozenset())
                place, got = take_step(rules, place, older, got)
                assert place.leases, "the sessions overlap"
                if not OLD.packs & place.packs:
                    return number
        older, got = newer, next_got
    return SESSIONS


def _pruned(rules: Rules, place: Place) -> Place:
    prune, got = whole(rules, PATIENT), None
    with contextlib.suppress(StopIteration):
        while True:
            place, got = take_step(rules, place, prune, got)
    return place

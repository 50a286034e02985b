"""No interleaving of processes that share a chunk index breaks a promise; every rule is needed.

With CIUIC_LONG=1, each walk has two adders, and the local prune and the scrub of each also meet a
prune of another machine.
"""

import dataclasses
import os

import pytest

from tests.model.shared_index import (
    Adder,
    Finder,
    Index,
    Merger,
    Process,
    Pruner,
    Rules,
    Scrubber,
    Store,
    explore,
)

A1, A2, READER = Adder("x1"), Adder("x2"), Adder("x1", reads=True)
COPY = Adder("x1", renews=True)
AWAY, PRUNE, SCRUB = Pruner("p", step="choose"), Pruner("l"), Scrubber("c")
MERGER, FINDER = Merger("m"), Finder("f")
OLD, TWO = frozenset(["old"]), frozenset(["old", "two"])


def stored(packs: frozenset[str], **fields: object) -> Store:
    """Return a bucket with packs that a complete index knows; "old" comes first in it."""
    store = Store(packs=packs, segments=packs, index=Index(packs, min(packs)))
    return store._replace(**fields)  # type: ignore[arg-type]


UNNEEDED = stored(OLD)
NEEDED = stored(TWO, committed=frozenset("S"), sound=frozenset("S"))
HALF_DAMAGED = stored(TWO, damaged=OLD, mixed=OLD)
ALL_DAMAGED = stored(TWO, damaged=TWO, mixed=OLD)
# A scrub has found it, and a prune of another machine has removed the pack "three" since.
KNOWN = HALF_DAMAGED._replace(
    index=Index(TWO | {"three"}, "two", is_lost=True, checked=OLD), known=OLD
)
DAMAGED = stored(OLD, damaged=OLD, mixed=OLD)
# The record names the sound copy, and no machine knows the damage.
WRONG = HALF_DAMAGED._replace(
    committed=frozenset("S"), sound=frozenset("S"), records=frozenset(["two"])
)
# The index was filled from segments, and no verdict deletes the pack that they list.
GONE = Store(segments=OLD, index=Index(OLD, "old"))

WALKS: dict[str, tuple[Store, tuple[Process, ...]]] = {
    "a segment of a pack that is gone": (GONE, (A1, A2, MERGER)),
    "a prune of another machine": (UNNEEDED, (A1, A2, AWAY)),
    "a prune of another machine, two copies": (NEEDED, (A1, A2, AWAY)),
    "a copy and a prune of another machine": (UNNEEDED, (COPY, A2, AWAY)),
    "a merger and a prune of another machine": (UNNEEDED, (A1, AWAY, MERGER)),
    "a scrub": (DAMAGED, (A1, A2, SCRUB)),
    "damage that another machine finds": (DAMAGED, (A1, A2, FINDER)),
    "damage that another machine finds, and a copy": (DAMAGED, (COPY, A2, FINDER)),
    "damage that two machines find": (ALL_DAMAGED, (A1, SCRUB, FINDER)),
    "a wrong record of damage": (WRONG, (A1, SCRUB, AWAY)),
    "damage, a scrub and a prune of another machine": (HALF_DAMAGED, (A1, SCRUB, AWAY)),
    "damage that is known": (KNOWN, (A1, A2, AWAY)),
    "damage that an adder finds": (ALL_DAMAGED, (READER, A2, AWAY)),
    "damage, and two prunes": (HALF_DAMAGED, (A1, PRUNE, AWAY)),
    "damage, a scrub and a prune of this machine": (HALF_DAMAGED, (A1, SCRUB, PRUNE)),
}
LONG_WALKS: dict[str, tuple[Store, tuple[Process, ...]]] = {
    "damage, two adders, a scrub and a prune of another machine": (
        HALF_DAMAGED,
        (A1, A2, SCRUB, AWAY),
    ),
    "two adders, a merger and a prune of another machine": (UNNEEDED, (A1, A2, AWAY, MERGER)),
    "damage, two adders and two prunes": (HALF_DAMAGED, (A1, A2, PRUNE, AWAY)),
    "damage, a scrub and two prunes": (HALF_DAMAGED, (A1, SCRUB, PRUNE, AWAY)),
}


@pytest.mark.parametrize("walk", [*WALKS, *(LONG_WALKS if os.environ.get("CIUIC_LONG") else ())])
def test_no_interleaving_of_processes_with_one_index_breaks_a_promise(walk: str) -> None:
    found = explore(Rules(), *(WALKS | LONG_WALKS)[walk])
    assert found.broken == ""
    assert found.states > 500


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_of_a_shared_index_a_promise_is_broken(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    is_about_damage = any(word in rule for word in ("damage", "check", "sound", "judge"))
    about = [one for name, one in WALKS.items() if ("damage" in name) == is_about_damage]
    assert any(explore(rules, *one).broken for one in about)

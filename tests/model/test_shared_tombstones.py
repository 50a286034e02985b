"""No interleaving of copies that are revoked, purged and made again loses a chunk.

With CIUIC_LONG=1, a further walk has six processes at once.
"""

import dataclasses
import os

import pytest

from tests.model.shared_tombstones import (
    Cleaner,
    Copier,
    Process,
    Pruner,
    Purger,
    Rules,
    Store,
    explore,
)

C1, C2 = Copier("C1"), Copier("C2")
P1, P2 = Pruner("P1"), Pruner("P2")
PURGE = Purger("Z")
END_OF_OTHER = Purger("F", "other")
CLEANER, SWEEPER = Cleaner("K"), Cleaner("S", "sweep")
FREE = Store()
REVOKED = Store(key="tombstone of P0 for C0")
SHARED = Store(has_other=True)
# A prune has revoked a copier that is about to commit, and another snapshot needed the pack.
DISMISSED = Store(key="tombstone of P0 for C1", was_dismissed=True)
PAUSED = Copier("C1", "commit", has_old=True)

WALKS: list[tuple[Store, tuple[Process, ...]]] = [
    (FREE, (C1, C2, P1, P2)),
    (REVOKED, (C1, C2, P1, P2)),
    (SHARED, (C1, P1, P2, END_OF_OTHER)),
    (FREE, (C1, C2, P1, PURGE)),
    (REVOKED, (C1, C2, P1, PURGE)),
    (DISMISSED, (PAUSED, C2, P2, PURGE, CLEANER)),
    (FREE, (C1, P1, SWEEPER)),
]
LONG_WALKS: list[tuple[Store, tuple[Process, ...]]] = [
    (SHARED, (C1, C2, P1, P2, PURGE, END_OF_OTHER))
]


@pytest.mark.parametrize(
    ("store", "processes"), WALKS + (LONG_WALKS if os.environ.get("CIUIC_LONG") else [])
)
def test_no_interleaving_of_copies_and_prunes_loses_a_chunk(
    store: Store, processes: tuple[Process, ...]
) -> None:
    found = explore(Rules(), store, processes)
    assert found.broken == ""
    assert found.states > 2_000 or SWEEPER in processes


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_of_copies_a_chunk_is_lost(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    assert any(explore(rules, store, processes).broken for store, processes in WALKS)

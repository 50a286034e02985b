"""Copies that are revoked and made again: no interleaving loses a chunk, and every rule counts."""

import dataclasses

import pytest

from tests.model.shared_tombstones import Copier, Pruner, Rules, Store, explore

COPIERS = (Copier("C1"), Copier("C2"))
PRUNERS = (Pruner("P1"), Pruner("P2"))
STORES = {"free": Store(), "revoked before": Store(key="tombstone of P0 for C0")}


@pytest.mark.parametrize("store", STORES)
def test_no_interleaving_of_copies_and_prunes_loses_a_chunk(store: str) -> None:
    states, loss = explore(Rules(), STORES[store], (*COPIERS, *PRUNERS))
    assert loss == ""
    assert states > 5_000


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_a_rule_of_copies_a_chunk_is_lost(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    assert any(explore(rules, store, (*COPIERS, *PRUNERS))[1] for store in STORES.values())

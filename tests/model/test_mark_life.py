"""No interleaving of forget, undo, pin and prune without a lock breaks a promise."""

import dataclasses

import pytest

from tests.model.mark_life import FORGOTTEN, Rules, Store, explore

SCENARIOS: dict[str, tuple[Store, list[str]]] = {
    "undo, two prunes": (FORGOTTEN, ["undo", "prune 1", "prune 2"]),
    "undo, pin, forget, prune": (FORGOTTEN, ["undo", "pin", "forget", "prune"]),
    "pin, forget, prune": (Store(), ["pin", "forget", "prune"]),
    "two undos, forget, prune": (FORGOTTEN, ["undo 1", "undo 2", "forget", "prune"]),
    "pin, two forgets, two prunes": (Store(), ["pin", "forget", "forget", "prune 1", "prune 2"]),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_interleaving_breaks_a_promise(scenario: str) -> None:
    store, names = SCENARIOS[scenario]
    found = explore(Rules(), store, names)
    assert found.broken == ""
    assert found.states > 50


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_a_promise_is_broken(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    assert any(explore(rules, store, names).broken for store, names in SCENARIOS.values())

"""No interleaving of scrubs hides damage that one of them has found; every rule is needed."""

import dataclasses

import pytest

from tests.model.damage_records import Pack, Rules, Scrub, explore

THREE = (Scrub("a"), Scrub("b"), Scrub("c"))
PACKS = {
    "it is damaged later": Pack(),
    "it is damaged, and a record says so": Pack(is_damaged=True, records=frozenset(["old"])),
    "it seemed damaged, and is damaged later": Pack(records=frozenset(["old"])),
    "it was damaged twice": Pack(is_damaged=True, faults=2, records=frozenset(["old"])),
}


@pytest.mark.parametrize("pack", PACKS)
def test_damage_that_was_found_is_on_record(pack: str) -> None:
    found = explore(Rules(), PACKS[pack], THREE)
    assert found.broken == ""
    assert found.states > 500


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_damage_is_hidden(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    assert any(explore(rules, pack, THREE).broken for pack in PACKS.values())

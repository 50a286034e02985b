"""No interleaving of several writers makes a delta undecodable, and each rule is needed."""

import dataclasses

import pytest

from tests.model.delta_rings import Frame, Rules, State, Writer, built, explore

# Each writer stores as a delta what is the delta base of the other.
ONE = Writer("A", (Frame("z"), Frame("x", "z"), Frame("y", "x")))
OTHER = Writer("B", (Frame("w"), Frame("y", "w"), Frame("x", "y")))
# One writer has a chunk without a base, and the other has it at the end of the longest chain.
BASE = Writer("C", (Frame("e"), Frame("f", "e"), Frame("g", "f")), is_done=True)
SHORT = Writer("A", (Frame("y"), Frame("x", "y")))
LONG = Writer("B", (Frame("g"), Frame("m", "g"), Frame("y", "m")))
DEEPER = Writer("D", (Frame("g"), Frame("m", "g"), Frame("n", "m"), Frame("o", "n")))


def begun(*writers: Writer, is_bucket: bool) -> State:
    packs = frozenset((one.name, frame) for one in writers if one.is_done for frame in one.sends)
    index = built(Rules(), [frame for _, frame in sorted(packs)])
    return State(packs, () if is_bucket else index, writers, is_bucket)


SCENARIOS = {
    "a ring": (ONE, OTHER),
    "a long chain and a short one": (BASE, SHORT, LONG),
    "chains that add up": (BASE, DEEPER, SHORT),
}


@pytest.mark.parametrize("is_bucket", [False, True], ids=["directory", "bucket"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_interleaving_of_writers_makes_a_chunk_undecodable(
    scenario: str, *, is_bucket: bool
) -> None:
    found = explore(Rules(), begun(*SCENARIOS[scenario], is_bucket=is_bucket))
    assert found.broken == ""
    assert found.states > 100


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_without_any_one_rule_of_deltas_a_chunk_cannot_be_decoded(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    assert any(
        explore(rules, begun(*writers, is_bucket=is_bucket)).broken
        for writers in SCENARIOS.values()
        for is_bucket in (False, True)
    )

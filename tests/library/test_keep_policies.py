"""Policies that keep more snapshots than the newest ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic import Best, EverySteps, SnapshotManager, Younger
from ciuic.errors import UsageError
from ciuic.ids import SnapshotId
from ciuic.model import SnapshotSummary
from ciuic.training.retention.policies import as_json, as_policies, kept_by, metric_tags

STATE = {"w": np.arange(1_000.0)}


def summary(number: int, *tags: str) -> SnapshotSummary:
    return SnapshotSummary(
        id=SnapshotId(f"cs-{number:016x}"),
        kind="base",
        parent=None,
        taken_ns=number * 1_000_000_000,
        files=1,
        logical_bytes=1,
        new_bytes=1,
        stored_bytes=1,
        tags=("full", *tags),
        trouble_count=0,
        roots=(b"/state",),
    )


def test_the_best_the_milestones_and_the_newest_stay(tmp_path):
    losses = [0.9, 0.5, float("nan"), 0.7, 0.3, 0.8, 0.6, 0.95, 0.4]
    keep = (Best("loss"), Best("accuracy", mode="max"), EverySteps(4))
    with SnapshotManager(tmp_path / "store", max_snapshots=1, keep=keep) as manager:
        for step, loss in enumerate(losses):
            metrics = {"loss": np.float32(loss), "accuracy": 1 - loss if step < 2 else "unknown"}
            manager.save_snapshot(STATE, step=step, metrics=metrics)
        full = [saved.step for saved in manager.list()]
        # Step 1 has the best accuracy, 4 the best loss; 0, 4 and 8 are the first of four steps.
        assert full == [8, 4, 1, 0]
        manager.save_snapshot(STATE, step=9, metrics={"loss": 0.1}, wait=True)
        # Step 4 is no longer the best, but still the first of its four steps.
        assert [saved.step for saved in manager.list()] == [9, 8, 4, 1, 0]

    with SnapshotManager(tmp_path / "store", max_snapshots=1, keep=[Younger("1h")]) as manager:
        manager.save_snapshot(STATE, step=10, wait=True)
        assert len(manager.list()) == 6
    with SnapshotManager(tmp_path / "store", max_snapshots=1) as manager:
        manager.save_snapshot(STATE, step=11, wait=True)
        assert [saved.step for saved in manager.list()] == [11]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats()), max_size=30), st.data())
def test_what_a_series_of_saves_keeps_is_what_a_choice_at_its_end_would_keep(saves, data):
    """A policy never releases a snapshot that it would want to keep later."""
    policies = data.draw(
        st.lists(
            st.one_of(
                st.builds(Best, st.just("a"), st.integers(1, 3), st.sampled_from(["min", "max"])),
                st.builds(EverySteps, st.integers(1, 20)),
            ),
            min_size=1,
            max_size=3,
        )
    )
    assert as_policies(as_json(policies)) == tuple(policies)
    made = [
        summary(number, f"step-{step}", *metric_tags([Best("a")], {"a": value}))
        for number, (step, value) in enumerate(saves)
    ]
    left: list[SnapshotSummary] = []
    for one in made:
        left.append(one)
        chosen = kept_by(policies, left, 0)
        left = [found for found in left if found.id in chosen]
    assert {found.id for found in left} == kept_by(policies, made, 0)


def test_a_policy_by_age_counts_from_the_time_of_the_state():
    made = [summary(number) for number in range(10)]
    kept = kept_by([Younger(3)], made, 9_000_000_000)
    assert kept == {found.id for found in made[7:]}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Best("loss", 0), "count=0"),
        (lambda: Best("loss", mode="low"), "mode='low'"),
        (lambda: EverySteps(-5), "steps=-5"),
        (lambda: Younger("soon"), "age='soon'"),
        (lambda: Younger(0), "age=0"),
        (lambda: SnapshotManager("nowhere/store", keep=[Best("a,b")]), "cannot be a tag"),
    ],
)
def test_policies_that_make_no_sense_are_refused(make, what):
    with pytest.raises(UsageError) as caught:
        make()
    assert what in caught.value.message


def test_only_a_number_is_compared():
    policies = [Best("a"), Best("b"), EverySteps(2)]
    assert metric_tags(policies, {"a": 0.25, "b": float("nan"), "c": 1}) == ("a=0.25",)
    assert metric_tags(policies, {"a": "low", "b": [1, 2]}) == ()
    assert metric_tags(policies, {"a": float("inf"), "b": np.float64(2)}) == ("a=inf", "b=2.0")
    assert metric_tags(policies, None) == ()

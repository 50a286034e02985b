"""The order of snapshots by their commits, as far as times and parents show it."""

from hypothesis import given
from hypothesis import strategies as st

from ciuic.model import SnapshotSummary, newest_first


def summary(name, taken_ns, parent=None):
    return SnapshotSummary(name, "delta", parent, taken_ns, 1, 1, 1, 1, (), 0, (b"/",))


def order(*snapshots):
    return [one.id for one in newest_first(snapshots)]


def test_snapshots_are_sorted_by_time_and_then_by_id():
    assert order() == []
    assert order(summary("b", 1), summary("c", 3), summary("a", 1), summary("d", 2)) == list("cdba")


def test_a_snapshot_whose_clock_was_ahead_is_older_than_its_successors():
    ahead, before = summary("ahead", 1000, "before"), summary("before", 5)
    after = [summary(f"after-{number}", 6 + number, "ahead") for number in range(3)]
    expected = ["after-2", "after-1", "after-0", "ahead", "before"]
    assert order(before, *after, ahead) == expected
    assert order(after[2], ahead, before) == ["after-2", "ahead", "before"], "whatever is gone"
    assert order(*after, before) == ["after-2", "after-1", "after-0", "before"]


def test_a_snapshot_whose_clock_was_behind_is_newer_than_its_parent():
    real, behind = summary("real", 1000), summary("behind", 5, "real")
    assert order(real, behind) == ["behind", "real"]
    assert order(real, behind, summary("now", 1001, "real")) == ["now", "behind", "real"]


def test_parents_in_a_circle_do_no_harm():
    circle = [summary("a", 1, "c"), summary("b", 2, "a"), summary("c", 3, "b")]
    assert sorted(order(*circle, summary("d", 4, "d"))) == list("abcd")


snapshots = st.lists(
    st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 29))), max_size=30
)


@given(snapshots, st.randoms(use_true_random=False))
def test_each_snapshot_is_listed_once_and_after_its_child(drawn, rng):
    """A parent was committed first, so it has a lower number. Some are removed."""
    found = [
        summary(f"{number:02}", taken_ns, None if parent is None else f"{parent % (number + 1):02}")
        for number, (taken_ns, parent) in enumerate(drawn)
        if parent is None or parent % (number + 1) != number
    ]
    rng.shuffle(found)
    places = {name: place for place, name in enumerate(order(*found))}
    assert len(places) == len(found)
    for one in found:
        if one.parent in places:
            assert places[one.id] < places[one.parent]


@given(st.lists(st.one_of(st.none(), st.integers(0, 29)), max_size=30))
def test_with_a_clock_that_is_right_it_is_the_order_of_time(parents):
    found = [
        summary(f"{number:02}", number, None if parent is None else f"{parent % (number + 1):02}")
        for number, parent in enumerate(parents)
    ]
    assert order(*found) == [one.id for one in reversed(found)]


def test_a_long_chain_whose_times_run_backwards_is_no_deeper_than_a_short_one():
    chain = [summary(f"{number:05}", -number, f"{number - 1:05}") for number in range(20_000)]
    assert order(*chain) == [one.id for one in reversed(chain)]

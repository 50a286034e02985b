"""When a snapshot is due."""

from hypothesis import given
from hypothesis import strategies as st

from ciuic.model import covers
from ciuicd.schedules.due import is_due, next_due_ns

HOUR = 3600 * 10**9
DAY = 24 * HOUR
MIDNIGHT = 20_000 * DAY

moments = st.integers(MIDNIGHT, MIDNIGHT + 400 * DAY)
intervals = st.integers(10**9, 30 * DAY)


def at(hours: float) -> int:
    return MIDNIGHT + round(hours * HOUR)


def test_the_first_snapshot_is_due_at_once():
    assert is_due(at(13.4), HOUR, [])
    assert next_due_ns(at(13.4), HOUR, []) == at(13.4)


def test_a_slot_begins_on_the_hour_and_is_served_once():
    assert not is_due(at(13.99), HOUR, [at(13.01)])
    assert next_due_ns(at(13.4), HOUR, [at(13.01)]) == at(14)
    assert is_due(at(14), HOUR, [at(13.99)])
    assert not is_due(at(14.5), HOUR, [at(14)])


def test_restarts_do_not_shift_the_schedule():
    # A daemon that counted from its start would take snapshots at 13:40, 14:40, ...
    for started in (13.1, 13.6, 13.99):
        assert next_due_ns(at(started), HOUR, [at(13.0)]) == at(14)


def test_after_a_downtime_one_snapshot_serves_all_missed_slots():
    assert is_due(at(30.5), HOUR, [at(13)])
    assert not is_due(at(30.6), HOUR, [at(13), at(30.5)])
    assert next_due_ns(at(30.6), HOUR, [at(13), at(30.5)]) == at(31)


def test_a_snapshot_longer_than_its_slot_waits_for_the_next_one():
    began, ended = at(13), at(15.2)
    assert not is_due(ended, HOUR, [began, ended])
    assert next_due_ns(ended, HOUR, [began, ended]) == at(16)


def test_a_clock_set_back_a_little_causes_no_second_snapshot():
    taken = [at(13), at(14)]
    assert not is_due(at(13.8), HOUR, taken)
    assert next_due_ns(at(13.8), HOUR, taken) == at(14)
    assert not is_due(at(14.1), HOUR, taken)


def test_a_clock_that_was_wrong_by_years_does_not_stop_the_snapshots():
    future = at(24 * 365 * 5)
    assert is_due(at(13.5), HOUR, [future])
    assert not is_due(at(13.6), HOUR, [future, at(13.5)])


def test_a_clock_set_forward_is_like_a_downtime():
    assert is_due(at(13 + 24 * 30), HOUR, [at(13)])


def test_another_interval_needs_no_memory_of_the_old_one():
    assert is_due(at(13.5), HOUR // 2, [at(13)])
    assert not is_due(at(14.5), DAY, [at(13)])


@given(moments, intervals, st.lists(moments, max_size=5))
def test_a_snapshot_is_due_exactly_when_the_next_due_time_has_come(now, interval, past):
    due = next_due_ns(now, interval, past)
    assert is_due(now, interval, past) == (due == now)
    assert now <= due <= now + interval


@given(moments, intervals, st.lists(moments, max_size=5))
def test_a_snapshot_now_serves_the_slot_and_the_next_one_is_on_time(now, interval, past):
    past = [*past, now]
    assert not is_due(now, interval, past)
    due = next_due_ns(now, interval, past)
    known = [moment for moment in past if moment <= due]
    assert is_due(due, interval, known) or any(moment > now for moment in known)


@given(moments, intervals, st.integers(0, 200))
def test_no_slot_gets_two_snapshots(start, interval, looks):
    taken: list[int] = []
    for look in range(looks):
        now = start + look * interval // 7
        if is_due(now, interval, taken):
            taken.append(now)
    slots = [moment // interval for moment in taken]
    assert len(slots) == len(set(slots))


def test_a_snapshot_serves_only_its_own_roots():
    assert covers([b"/a", b"/b"], [b"/a", b"/b"])
    assert covers([b"/"], [b"/a", b"/b/c"])
    assert covers([b"/"], [b"/"])
    assert covers([b"/a"], [b"/a/b", b"/a"])
    assert not covers([b"/a"], [b"/ab"])
    assert not covers([b"/a/b"], [b"/a"])
    assert not covers([b"/a"], [b"/a", b"/c"])
    assert not covers([], [b"/a"])

"""What a retention policy keeps: examples, and a comparison with a slow implementation."""

import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ciuic.model import SnapshotSummary, newest_first
from ciuic.retention import bridges, parse_policy, plan_retention, protected

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
MINUTE = 60 * SECOND
DAY = 24 * HOUR
NOW_NS = 1_781_533_800 * SECOND
LATER_NS = NOW_NS + 1000 * DAY
HOME, OTHER = (b"/home",), (b"/other",)
BOTH = (*HOME, *OTHER)


def taken(when, *, name=None, roots=HOME, pinned=False, trouble=0, parent=None):
    """Return a snapshot of this time: ``2026-06-15 14:30``, or in nanoseconds."""
    if isinstance(when, str):
        when = int(datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()) * SECOND
    name = name or f"cs-{when % (1 << 64):016x}"
    return SnapshotSummary(name, "base", parent, when, 1, 1, 1, 1, (), trouble, roots, 0, pinned)


def decide(snapshots, policy, now_ns=NOW_NS, *, damaged=()):
    return plan_retention(
        snapshots, parse_policy(policy), now_ns, is_good=lambda name: name not in damaged
    )


def kept(snapshots, policy, now_ns=NOW_NS, *, damaged=()):
    """Return the times of the kept snapshots, oldest first."""
    decisions = decide(snapshots, policy, now_ns, damaged=damaged)
    return sorted(one.snapshot.taken_ns for one in decisions if one.keep)


def times(*texts):
    return [taken(one).taken_ns for one in texts]


# What a policy says


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("7d", "7d"),
        (" 36h ", "36h"),
        ("last:3", "last:3"),
        (" hourly : 24 ,daily:7,\tlast:1 ", "hourly:24, daily:7, last:1"),
        ("monthly:999999", "monthly:999999"),
        ("7d, weekly:4", "7d, weekly:4"),
        (" weekly:4,last:2 , 7d ", "7d, weekly:4, last:2"),
    ],
)
def test_a_policy_is_parsed_and_written_back(text, shown):
    policy = parse_policy(text)
    assert policy.text == shown
    assert parse_policy(shown) == policy


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a duration"),
        ("7", "not a duration"),
        ("-7d", "not a duration"),
        ("7 days", "not a duration"),
        ("last=3", "not a duration"),
        ("0", "would keep nothing"),
        ("0d", "would keep nothing"),
        ("521.5w", "more than ten years"),
        ("9" * 500 + "d", "not a duration"),
        ("last:0", "count of at least 1"),
        ("last:-1", "count of at least 1"),
        ("last:1.5", "count of at least 1"),
        ("last:03", "count of at least 1"),
        ("last:1000000", "count of at least 1"),
        ("last:\u0663", "count of at least 1"),
        ("last:", "count of at least 1"),
        ("last:3:4", "count of at least 1"),
        ("last:3 daily:7", "count of at least 1"),
        ("hourly", "not a duration"),
        ("hourly, daily:7", "count of at least 1"),
        ("hourli:24, daily:7", "'hourli' is not one of last, hourly, daily, weekly, monthly"),
        ("Daily:7", "'Daily' is not one of"),
        ("yearly:1", "'yearly' is not one of"),
        ("7d, 30d", "two durations, 7d and 30d"),
        ("7d, last:3, 7d", "two durations"),
        ("7d, 0d, last:3", "two durations"),
        ("0d, last:3", "would keep nothing"),
        ("7, last:3", "not a duration"),
        ("7d last:3", "'7d last' is not one of"),
        ("7d:3", "'7d' is not one of"),
        ("last:3, week", "not a duration"),
        ("hour, daily:7", "not a duration"),
        ("daily:7, daily:8", "daily appears twice"),
        ("last:3,", "is empty"),
        (",last:3", "is empty"),
        ("last:3,,daily:7", "is empty"),
        (":", "not one of"),
        ("x" * 1000 + ":1", "not one of"),
    ],
)
def test_a_policy_with_a_mistake_is_refused(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        parse_policy(text)
    assert len(str(caught.value)) < 250, "a message is a sentence, whatever was typed"


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(["last", "daily", "hourly", ":", ",", "1", "24", "7d", " ", "0", "\n"]),
            max_size=12,
        ).map("".join),
    )
)
@example("1d\n")
@example("last:1\x00")
def test_any_text_is_a_policy_that_keeps_a_snapshot_or_is_refused(text):
    try:
        policy = parse_policy(text)
    except ValueError as error:
        assert str(error)
    else:
        assert policy.younger_s or policy.counts
        assert all(count > 0 for count in policy.counts.values())
        assert parse_policy(policy.text) == policy


# Natural periods


def test_the_newest_snapshot_of_each_hour_stays():
    snapshots = [
        taken("2026-06-15 12:00"),
        taken("2026-06-15 12:59"),
        taken("2026-06-15 13:00"),
        taken("2026-06-15 13:30"),
        taken("2026-06-15 14:00"),
    ]
    assert kept(snapshots, "hourly:2") == times("2026-06-15 13:30", "2026-06-15 14:00")
    assert kept(snapshots, "hourly:3") == times(
        "2026-06-15 12:59", "2026-06-15 13:30", "2026-06-15 14:00"
    )


def test_hours_without_a_snapshot_do_not_count():
    snapshots = [taken("2026-01-01 00:00"), taken("2026-03-01 00:00"), taken("2026-06-01 00:00")]
    for rule in ("hourly", "daily", "weekly", "monthly"):
        assert len(kept(snapshots, f"{rule}:2")) == 2
        assert len(kept(snapshots, f"{rule}:3")) == 3


def test_weeks_are_those_of_iso_8601_and_may_span_two_years():
    # 2026-01-01 is a Thursday: its week has 2025-12-29, and 2027-01-03 is in week 53 of 2026.
    snapshots = [
        taken("2025-12-28 23:59"),
        taken("2025-12-29 00:00"),
        taken("2026-01-04 23:59"),
        taken("2026-12-28 00:00"),
        taken("2027-01-03 23:59"),
        taken("2027-01-04 00:00"),
    ]
    assert kept(snapshots, "weekly:4", LATER_NS) == times(
        "2025-12-28 23:59", "2026-01-04 23:59", "2027-01-03 23:59", "2027-01-04 00:00"
    )


def test_a_leap_day_is_a_day_and_a_year_begins_with_a_month():
    snapshots = [
        taken("2028-02-28 12:00"),
        taken("2028-02-29 11:00"),
        taken("2028-02-29 12:00"),
        taken("2028-12-31 23:59"),
        taken("2029-01-01 00:00"),
    ]
    assert kept(snapshots, "daily:5", LATER_NS) == times(
        "2028-02-28 12:00", "2028-02-29 12:00", "2028-12-31 23:59", "2029-01-01 00:00"
    )
    assert kept(snapshots, "monthly:2", LATER_NS) == times("2028-12-31 23:59", "2029-01-01 00:00")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_daylight_saving_time_changes_nothing(zone, monkeypatch):
    """There is a snapshot every quarter of an hour for two days around each change."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for change in ("2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05"):
            start = taken(f"{change} 00:00").taken_ns - 12 * HOUR
            moments = [start + number * HOUR // 4 for number in range(48 * 4)]
            snapshots = [taken(one) for one in moments]
            expected = [one for number, one in enumerate(moments) if number % 4 == 3]
            assert kept(snapshots, "hourly:48", LATER_NS) == expected
            assert len(kept(snapshots, "daily:9", LATER_NS)) == 3
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("moment", [-(1 << 63), (1 << 63) - 1, 10**30, -(10**30), -1, 0])
def test_times_outside_the_calendar_are_periods_of_their_own(moment):
    snapshots = [taken(moment), taken("2026-06-15 12:00"), taken("2026-06-15 12:30")]
    for rule in ("hourly", "daily", "weekly", "monthly"):
        assert kept(snapshots, f"{rule}:2") == sorted({moment, taken("2026-06-15 12:30").taken_ns})


def test_the_rules_are_combined_and_each_names_its_reason():
    snapshots = [
        taken("2026-05-30 08:00"),
        taken("2026-06-14 08:00"),
        taken("2026-06-15 12:00"),
        taken("2026-06-15 13:00"),
        taken("2026-06-15 14:00"),
    ]
    decisions = decide(snapshots, "last:2, daily:2, monthly:2")
    assert [one.why for one in decisions] == [
        (
            "last 1 of 2",
            "daily 1 of 2: 2026-06-15",
            "monthly 1 of 2: 2026-06",
            "the newest",
            "the newest without damage",
        ),
        ("last 2 of 2",),
        (),
        ("daily 2 of 2: 2026-06-14",),
        ("monthly 2 of 2: 2026-05",),
    ]


def test_a_duration_and_counts_are_combined_too():
    snapshots = [
        taken("2026-04-30 08:00"),
        taken("2026-05-30 07:00"),
        taken("2026-05-30 08:00"),
        taken("2026-06-14 08:00"),
        taken("2026-06-15 11:00"),
        taken("2026-06-15 12:00"),
    ]
    decisions = decide(snapshots, "monthly:2, 2d", now_ns=taken("2026-06-15 13:00").taken_ns)
    assert [one.why for one in decisions] == [
        ("monthly 1 of 2: 2026-06", "younger than 2d", "the newest", "the newest without damage"),
        ("younger than 2d",),
        ("younger than 2d",),
        ("monthly 2 of 2: 2026-05",),
        (),
        (),
    ]


def test_a_duration_keeps_younger_snapshots_to_the_nanosecond():
    snapshots = [taken(NOW_NS - DAY + step) for step in (-1, 0, 1)] + [taken(NOW_NS)]
    assert kept(snapshots, "1d") == [NOW_NS - DAY + 1, NOW_NS]


def test_a_snapshot_from_the_future_counts_as_young():
    """A clock that was wrong once must not make ciuic forget a snapshot."""
    snapshots = [taken(NOW_NS + 400 * DAY), taken(NOW_NS + DAY), taken(NOW_NS)]
    assert kept(snapshots, "1d") == [NOW_NS, NOW_NS + DAY, NOW_NS + 400 * DAY]


def test_a_snapshot_from_the_future_replaces_no_other():
    """A clock that was ahead for a while must not make ciuic forget later snapshots at once."""
    ahead = [taken(NOW_NS + day * DAY) for day in range(365, 370)]
    before = [taken(NOW_NS - day * DAY) for day in range(3)]
    for policy in ("last:2", "daily:2", "2d", "last:1, 2d"):
        decisions = decide([*before, *ahead], policy)
        assert [one.why for one in decisions[:5]] == [
            ("dated in the future", "the newest"),
            *[("dated in the future",)] * 4,
        ]
        assert decisions[5].why[-2:] == ("the newest", "the newest without damage")
        assert [one.keep for one in decisions[5:]] == [True, True, False]


def test_a_snapshot_from_the_future_counts_once_its_time_has_come():
    snapshots = [taken(NOW_NS + DAY), taken(NOW_NS)]
    assert kept(snapshots, "last:1", NOW_NS) == [NOW_NS, NOW_NS + DAY]
    assert kept(snapshots, "last:1", NOW_NS + DAY) == [NOW_NS + DAY]


def test_a_clock_may_be_a_minute_ahead():
    snapshots = [taken(NOW_NS + MINUTE), taken(NOW_NS)]
    assert kept(snapshots, "last:1") == [NOW_NS + MINUTE]
    snapshots = [taken(NOW_NS + MINUTE + 1), taken(NOW_NS)]
    assert kept(snapshots, "last:1") == [NOW_NS, NOW_NS + MINUTE + 1]


def test_a_clock_that_is_behind_costs_nothing():
    """A machine that starts in 1970 keeps its snapshots of that time, and all others."""
    real = [taken(NOW_NS - day * DAY, name=f"cs-00000{day}") for day in range(5)]
    moments = sorted(one.taken_ns for one in real)
    behind = [taken(hour * HOUR, parent="cs-000000") for hour in range(3)]
    for policy in ("last:1", "7d", "daily:1"):
        assert kept([*real, *behind[:1]], policy, HOUR) == [0, *moments]
    late = decide([*real, *behind], "last:1", NOW_NS)
    assert [one.snapshot.taken_ns for one in late if one.keep] == [NOW_NS, 2 * HOUR]
    assert late[5].why == ("the newest",), "it was committed last"


def test_snapshots_of_other_roots_are_counted_separately():
    full = taken("2026-06-15 14:00")
    part = taken("2026-06-15 14:30", roots=OTHER)
    older = taken("2026-06-15 13:00")
    assert kept([full, part, older], "hourly:1") == times("2026-06-15 14:00", "2026-06-15 14:30")
    assert kept([full, part, older], "last:1") == times("2026-06-15 14:00", "2026-06-15 14:30")
    both = taken("2026-06-15 14:45", roots=BOTH)
    assert full.taken_ns in kept([full, part, older, both], "hourly:1", LATER_NS)


# What no policy takes


def test_a_pinned_snapshot_stays():
    snapshots = [taken(NOW_NS - 900 * DAY, pinned=True), taken(NOW_NS - 2), taken(NOW_NS - 1)]
    assert kept(snapshots, "last:1") == [NOW_NS - 900 * DAY, NOW_NS - 1]


def test_the_newest_whole_snapshot_stays():
    old, whole, damaged = taken(1), taken(2), taken(3)
    snapshots = [old, whole, damaged]
    assert kept(snapshots, "1s", damaged=[damaged.id]) == [2, 3]
    assert kept(snapshots, "1s", damaged=[whole.id, damaged.id]) == [1, 3]
    assert kept(snapshots, "1s", damaged=[one.id for one in snapshots]) == [3]


def test_a_snapshot_with_warnings_counts_as_whole_only_without_a_better_one():
    good, flux, damaged = taken(1), taken(2, trouble=1), taken(3)
    assert kept([good, flux, damaged], "1s", damaged=[damaged.id]) == [1, 3]
    assert kept([flux, damaged], "1s", damaged=[damaged.id]) == [2, 3]


def test_the_newest_whole_snapshot_of_each_set_of_roots_stays():
    """A whole snapshot of another directory does not replace the last one of this one."""
    whole = [taken(NOW_NS - days * DAY) for days in (31, 30)]
    troubled = [taken(NOW_NS - hours * HOUR, trouble=3) for hours in range(1, 30)]
    other = taken(NOW_NS, roots=OTHER)
    decisions = decide([*whole, *troubled, other], "last:1")
    assert [(one.snapshot.taken_ns, one.why) for one in decisions if one.keep] == [
        (NOW_NS, ("last 1 of 1", "the newest", "the newest without damage")),
        (NOW_NS - HOUR, ("last 1 of 1",)),
        (NOW_NS - 30 * DAY, ("the newest of /home without damage",)),
    ]
    assert NOW_NS - 30 * DAY in kept([*whole, *troubled, other], "7d")
    all_troubled = [taken(one.taken_ns, trouble=1) for one in (*whole, *troubled)]
    assert NOW_NS - HOUR in kept([*all_troubled, other], "1s"), "if there is no better one"


def test_a_snapshot_with_more_roots_counts_for_a_set_with_fewer():
    alone, other = taken(NOW_NS - 9 * DAY), taken(NOW_NS - 8 * DAY, roots=OTHER)
    both = taken(NOW_NS - 7 * DAY, roots=BOTH)
    assert kept([alone, other, both], "1s") == [both.taken_ns]
    assert kept([alone, other, both], "1s", damaged=[both.id]) == [
        alone.taken_ns,
        other.taken_ns,
        both.taken_ns,
    ]
    spoiled = taken(NOW_NS - 6 * DAY, roots=BOTH, trouble=1)
    assert kept([alone, other, spoiled], "1s") == [
        alone.taken_ns,
        other.taken_ns,
        spoiled.taken_ns,
    ]
    # A snapshot of the parent directory may have excluded this root.
    above = taken(NOW_NS - 5 * DAY, roots=(b"/",))
    assert alone.taken_ns in kept([alone, above], "1s")
    # A set with one root fewer is another set, and no newer snapshot has all of it.
    assert kept([both, taken(NOW_NS)], "1s") == [both.taken_ns, NOW_NS]


def test_a_long_list_of_roots_is_shortened():
    many = tuple(b"/root/%d" % number for number in range(5))
    decisions = decide([taken(NOW_NS - DAY, roots=many), taken(NOW_NS)], "1s")
    assert decisions[1].why == ("the only snapshot of /root/0, /root/1, /root/2 and 2 more",)


def test_the_only_snapshot_of_its_roots_stays_even_if_it_is_damaged():
    only, now = taken(NOW_NS - DAY, roots=OTHER, trouble=1), taken(NOW_NS)
    decisions = decide([only, now], "1s", damaged=[only.id])
    assert decisions[1].why == ("the only snapshot of /other",)
    others = [taken(NOW_NS - DAY - 1, roots=OTHER), taken(NOW_NS - DAY - 2, roots=BOTH)]
    for other in others:
        found = kept([only, now, other], "1s", damaged=[only.id])
        assert found == [other.taken_ns, NOW_NS], "another one has them, and is sound"


def test_another_directory_each_day_does_not_keep_all_of_them_forever():
    """Only the most recent sets count, and a set that is still in use is one of them."""
    whole = taken(NOW_NS - 400 * DAY)
    single = [taken(NOW_NS - day * DAY, roots=(b"/run/%d" % day,)) for day in range(2, 302)]
    now = taken(NOW_NS, trouble=1)
    found = kept([whole, *single, now], "1s")
    assert found[0] == whole.taken_ns
    assert found[-1] == NOW_NS
    assert found[1:-1] == sorted(one.taken_ns for one in single)[-99:]


def test_the_newest_whole_snapshot_is_not_from_the_future_if_there_is_another():
    whole, ahead = taken(NOW_NS - DAY), taken(NOW_NS + DAY)
    later = taken(NOW_NS, trouble=1, parent=ahead.id)

    def guarded(*snapshots):
        return protected(snapshots, NOW_NS, is_good=lambda _: True)

    assert guarded(whole, ahead, later) == {
        later.id: ["the newest"],
        whole.id: ["the newest without damage"],
    }
    # It is the only snapshot without warnings. The newest of the others stays too.
    assert guarded(ahead, later) == {
        later.id: ["the newest", "the newest without damage"],
        ahead.id: ["the newest without damage"],
    }
    # No snapshot was taken after it.
    assert guarded(whole, ahead) == {
        ahead.id: ["the newest"],
        whole.id: ["the newest", "the newest without damage"],
    }


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from([HOME, OTHER]))),
    st.data(),
)
def test_bridges_are_what_keeps_the_newest_of_the_rest_and_no_more(drawn, data):
    snapshots = [
        taken(when, name=f"cs-{number:06x}", parent=f"cs-{parent:06x}", roots=roots)
        for number, (when, parent, roots) in enumerate(drawn)
        if parent < number
    ]
    ids = [one.id for one in snapshots]
    gone = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
    needed = {bridge.between.id for bridge in bridges(snapshots, gone)}
    assert needed <= gone
    for roots in (HOME, OTHER):
        members = newest_first([one for one in snapshots if one.roots == roots])
        left = [one for one in members if one.id not in gone]

        def is_newest_without(removed, members=members, left=left):
            return newest_first([one for one in members if one.id not in removed])[0] == left[0]

        its = needed.intersection(one.id for one in members)
        assert not left or is_newest_without(gone - its)
        for one in its:
            assert not is_newest_without((gone - its) | {one})


def test_an_incomplete_snapshot_is_not_the_newest_that_a_bridge_leads_to():
    ahead = taken(100, name="cs-00000a")
    between = taken(50, name="cs-00000b", parent=ahead.id)
    newest = taken(60, name="cs-00000c", parent=between.id)
    incomplete = taken(200, name="cs-00000d", parent=newest.id)
    incomplete = msgspec.structs.replace(incomplete, is_complete=False)
    found = list(bridges([ahead, between, newest, incomplete], {between.id}))
    assert found == [(between, newest, ahead)]


def test_false_parents_that_lead_in_a_circle_end_the_search_for_bridges():
    first = taken(1, name="cs-00000a", parent="cs-00000b")
    second = taken(2, name="cs-00000b", parent="cs-00000a")
    assert list(bridges([first, second, taken(3)], {second.id})) == []


def test_without_snapshots_there_is_nothing_to_decide():
    assert decide([], "last:1") == []


def test_of_two_snapshots_of_one_time_the_greater_id_is_newer():
    first, second = taken(5, name="cs-00000a"), taken(5, name="cs-00000b")
    for order in ([first, second], [second, first]):
        (decision,) = [one for one in decide(order, "last:1") if one.keep]
        assert decision.snapshot == second


# Everything against a slow rule

MOMENTS = st.one_of(
    st.integers(0, 60 * 24 * 14).map(lambda minutes: NOW_NS - minutes * 60 * SECOND),
    st.integers(0, 800).map(lambda days: NOW_NS - days * DAY),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@st.composite
def stores(draw):
    count = draw(st.integers(0, 25))
    return [
        taken(
            draw(MOMENTS),
            name=f"cs-{number:06x}",
            roots=draw(st.sampled_from([HOME, HOME, HOME, OTHER, BOTH])),
            pinned=draw(st.integers(0, 9)) == 0,
            trouble=draw(st.sampled_from([0, 0, 0, 2])),
        )
        for number in draw(st.permutations(range(count)))
    ]


RULES = st.dictionaries(
    st.sampled_from(["last", "hourly", "daily", "weekly", "monthly"]),
    st.integers(1, 8),
    min_size=1,
)


def period(rule, moment):
    """This computes with days, and the program formats dates."""
    hours = moment // HOUR
    days = hours // 24
    if rule == "hourly":
        return hours
    if rule == "daily":
        return days
    if rule == "weekly":
        return (days + 3) // 7  # 1970-01-01 was a Thursday
    day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)
    return day.year * 12 + day.month


def expected(snapshots, rules, damaged):
    everything = sorted(snapshots, key=lambda one: (one.taken_ns, one.id))
    ordered = [one for one in everything if one.taken_ns <= NOW_NS + MINUTE]
    stays = {one.id for one in everything if one.pinned or one not in ordered}
    stays |= {one.id for one in ordered[-1:]}
    whole = [one for one in ordered if one.id not in damaged]
    sound = [one for one in whole if not one.trouble_count]
    for roots in {one.roots for one in snapshots}:
        series = [one for one in ordered if one.roots == roots]
        holding = [[one for one in some if set(one.roots) >= set(roots)] for some in (sound, whole)]
        stays |= {one.id for one in (holding[0] or holding[1])[-1:]}
        holders = [one.id for one in everything if set(one.roots) >= set(roots)]
        stays |= set(holders if len(holders) == 1 else ())
        for rule, count in rules.items():
            if rule == "last":
                stays |= {one.id for one in series[-count:]}
                continue
            newest = {period(rule, one.taken_ns): one for one in series}
            stays |= {newest[one].id for one in sorted(newest)[-count:]}
    return stays


@given(stores(), RULES, st.sets(st.integers(0, 24)))
def test_exactly_the_snapshots_of_the_slow_implementation_are_kept(snapshots, rules, damaged):
    damaged = {f"cs-{number:06x}" for number in damaged}
    text = ", ".join(f"{rule}:{count}" for rule, count in rules.items())
    decisions = decide(snapshots, text, damaged=damaged)
    assert {one.snapshot.id for one in decisions if one.keep} == expected(snapshots, rules, damaged)
    assert all(one.keep == bool(one.why) for one in decisions)
    assert [one.snapshot for one in decisions] == sorted(
        snapshots, key=lambda one: (one.taken_ns, one.id), reverse=True
    )


@given(stores(), RULES, RULES)
def test_a_longer_policy_keeps_all_that_a_shorter_one_keeps(snapshots, first, second):
    def text(rules):
        return ", ".join(f"{rule}:{count}" for rule, count in rules.items())

    both = first | {rule: max(count, first.get(rule, 0)) for rule, count in second.items()}
    united = {one.snapshot.id for one in decide(snapshots, text(both)) if one.keep}
    for rules in (first, second):
        assert {one.snapshot.id for one in decide(snapshots, text(rules)) if one.keep} <= united


@given(stores(), RULES)
def test_a_second_run_of_a_policy_keeps_the_same_snapshots(snapshots, rules):
    """Applying a policy twice forgets no more than applying it once."""
    text = ", ".join(f"{rule}:{count}" for rule, count in rules.items())
    stays = [one.snapshot for one in decide(snapshots, text) if one.keep]
    assert all(one.keep for one in decide(stays, text))


@given(
    stores(),
    st.integers(1, 1000),
    st.one_of(st.just({}), RULES),
    st.sets(st.integers(0, 24)),
)
def test_a_duration_never_removes_a_protected_snapshot(snapshots, hours, rules, damaged):
    damaged = {f"cs-{number:06x}" for number in damaged}
    limit_ns = NOW_NS - hours * HOUR
    text = ", ".join([f"{hours}h", *(f"{rule}:{count}" for rule, count in rules.items())])
    found = {one.snapshot.id for one in decide(snapshots, text, damaged=damaged) if one.keep}
    young = {one.id for one in snapshots if one.taken_ns > limit_ns}
    assert found == young | expected(snapshots, rules, damaged)

"""``snapshot_interval = auto``: which interval ciuic chooses, and why."""

import contextlib
import math
import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.config.load import load_settings
from ciuic.errors import ConfigError
from ciuic.ids import SnapshotId
from ciuic.snapshot.report import TakeReport
from ciuicd.schedules import state
from ciuicd.schedules.automatic import Facts, at_first, choose
from tests.kit.clock import ManualClock

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0
BOUNDS_S = (5 * MINUTE_S, 6 * HOUR_S)


def facts(
    *,
    cost_s: float = 12.0,
    failures: int = 0,
    observed_s: float = 10 * DAY_S,
    stored_bytes: int = 1000,
    kept_s: float | None = 7 * DAY_S,
    free_bytes: int = 10**12,
) -> Facts:
    costs, stored = [cost_s] * 3, [stored_bytes] * 3
    return Facts(costs, stored, failures, observed_s, kept_s, free_bytes)


def test_a_training_that_fails_more_often_gets_more_snapshots():
    # sqrt(2 * 12 s * 10 d) = 76 min. Nine failures make the time between them a tenth: 24 min.
    assert choose(facts(), BOUNDS_S, DAY_S).interval_s == HOUR_S
    often = choose(facts(failures=9), BOUNDS_S, HOUR_S)
    assert often.interval_s == 20 * MINUTE_S
    assert often.why == "a snapshot takes 12 s, and there were 9 failures in 10 d 00 h"


def test_a_snapshot_that_costs_more_is_taken_less_often():
    assert choose(facts(cost_s=0.1, failures=9), BOUNDS_S, HOUR_S).interval_s == 5 * MINUTE_S
    assert choose(facts(cost_s=300.0), BOUNDS_S, HOUR_S).interval_s == 6 * HOUR_S


def test_fast_changes_do_not_fill_the_disk():
    # 10 GiB each, kept for a week, and 1 TiB free: half of it holds 51 snapshots.
    found = choose(
        facts(cost_s=1, failures=9, stored_bytes=10 * 2**30, free_bytes=2**40), BOUNDS_S, HOUR_S
    )
    assert found.interval_s == 3 * HOUR_S
    assert found.why == "a snapshot adds 10.0 GiB, which stays for 7 d 00 h, and 1.00 TiB are free"
    by_count = facts(cost_s=1, failures=9, stored_bytes=10 * 2**30, free_bytes=2**40, kept_s=None)
    assert choose(by_count, BOUNDS_S, HOUR_S).interval_s == 5 * MINUTE_S


def test_the_bounds_are_reported_and_an_interval_that_is_nearly_right_stays():
    found = choose(facts(cost_s=10_000.0), (10 * MINUTE_S, 2 * HOUR_S), HOUR_S)
    assert found.interval_s == 2 * HOUR_S
    assert found.why.endswith("is beyond the maximum")
    assert choose(facts(), BOUNDS_S, 50 * MINUTE_S).interval_s == 50 * MINUTE_S
    assert at_first(BOUNDS_S).interval_s == HOUR_S
    assert at_first((5.0, 10.0)).interval_s == 10.0


@given(
    st.floats(0, 1e6),
    st.integers(0, 1000),
    st.floats(0, 30 * DAY_S),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.floats(1, 10 * DAY_S),
    st.floats(1, 10 * DAY_S),
    st.floats(1, 10 * DAY_S),
)
def test_it_stays_within_the_bounds_and_settles(
    cost_s, failures, observed_s, stored, free, one_s, other_s, present_s
):
    bounds_s = min(one_s, other_s), max(one_s, other_s)
    known = facts(
        cost_s=cost_s,
        failures=failures,
        observed_s=observed_s,
        stored_bytes=stored,
        free_bytes=free,
    )
    first = choose(known, bounds_s, present_s)
    assert bounds_s[0] <= first.interval_s <= bounds_s[1]
    again = choose(known, bounds_s, first.interval_s)
    assert math.isclose(again.interval_s, first.interval_s)


@pytest.mark.parametrize(
    ("text", "bounds_s"),
    [
        ("auto", (300, 21_600)),
        ("auto from 10m to 1h", (600, 3600)),
        ("auto  from 1s  to 1s", (1, 1)),
        ("30m", None),
    ],
)
def test_the_configuration_has_auto_and_its_bounds(tmp_path, text, bounds_s):
    path = tmp_path / "ciuic.conf"
    path.write_text(f"snapshot_interval = {text}\n")
    settings = load_settings(str(path))
    assert settings.interval_bounds_s == bounds_s
    assert settings.snapshot_interval_s == (1800 if bounds_s is None else bounds_s[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("automatic", "'automatic' is neither a duration"),
        ("auto 10m", "is neither a duration nor like auto from 10m to 6h"),
        ("auto from 2h to 1h", "2h is longer than 1h"),
        ("auto from 0s to 1h", "the minimum is 1s"),
        ("auto from 1h to often", "'often'"),
    ],
)
def test_a_wrong_auto_is_refused(tmp_path, text, said):
    path = tmp_path / "ciuic.conf"
    path.write_text(f"snapshot_interval = {text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(str(path))
    assert said in caught.value.message
    assert ":1: snapshot_interval: " in caught.value.message


def test_a_store_in_a_bucket_gets_an_interval_too_and_has_no_disk_that_fills_up(
    tmp_path, monkeypatch
):
    path = tmp_path / "ciuic.conf"
    path.write_text("snapshot_interval = auto\nsnapshot_dir = s3://bucket/run7\n")
    settings = load_settings(str(path))
    opened = []

    @contextlib.contextmanager
    def open_configured(configured, **_more):
        opened.append(configured.snapshot_dir)
        yield SimpleNamespace(bucket=object(), path=os.fspath(tmp_path))

    monkeypatch.setattr(state, "open_configured", open_configured, raising=False)
    monkeypatch.setattr(state, "list_snapshots", lambda _: [])
    found = state.ScheduleState(settings, ManualClock(), lambda: None)
    report = TakeReport(
        id=SnapshotId("cs-0000000000000000"),
        kind="delta",
        parent=None,
        taken_ns=0,
        files=1,
        logical_bytes=1,
        read_bytes=1,
        new_bytes=2**60,
        stored_bytes=2**60,
        freeze_s=0.0,
        total_s=1.0,
        trouble=(),
        trouble_count=0,
    )
    found.measure(report)
    assert opened == ["s3://bucket/run7"]
    # sqrt(2 * 1 s * 1 d) = 7 min: what was stored does not count.
    assert found.interval_s == 5 * MINUTE_S

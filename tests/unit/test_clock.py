"""Times as text, and times that users write."""

import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.system.clock import SystemClock, from_local_text, is_future, local_time_text, rfc3339

NS = 10**9


@pytest.fixture
def berlin():
    """Local time has daylight saving time."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def utc_ns(*parts):
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * NS


def test_the_system_clock_goes_forward():
    clock = SystemClock()
    first_ns, first_s = clock.now_ns(), clock.monotonic_s()
    clock.sleep(0.001)
    assert clock.monotonic_s() >= first_s + 0.001
    assert abs(clock.now_ns() - time.time_ns()) < 5 * NS
    assert abs(clock.now_ns() - first_ns) < 5 * NS


def test_a_list_shows_local_time(berlin):
    assert local_time_text(utc_ns(2026, 6, 15, 12, 30, 7)) == "2026-06-15 14:30:07"
    assert local_time_text(utc_ns(2026, 1, 15, 12, 30, 7) + 999_999_999) == "2026-01-15 13:30:07"


def test_documents_have_microseconds_and_an_offset(berlin):
    assert rfc3339(utc_ns(2026, 6, 15, 12, 30) + 1_999) == "2026-06-15T12:30:00.000001+00:00"
    assert rfc3339(0) == "1970-01-01T00:00:00.000000+00:00"


@pytest.mark.parametrize(
    ("text", "last_ns"),
    [
        ("2026-06-15 14:30", utc_ns(2026, 6, 15, 12, 31) - 1),
        ("2026-06-15T14:30", utc_ns(2026, 6, 15, 12, 31) - 1),
        ("2026-06-15 14:30:07", utc_ns(2026, 6, 15, 12, 30, 8) - 1),
        ("2026-06-15 14:30:07.5", utc_ns(2026, 6, 15, 12, 30, 7) + 500_000_999),
        ("2026-06-15T14:30:07+00:00", utc_ns(2026, 6, 15, 14, 30, 8) - 1),
        ("2026-06-15T14:30:07Z", utc_ns(2026, 6, 15, 14, 30, 8) - 1),
        ("2026-06-15", utc_ns(2026, 6, 15, 22) - 1),
    ],
)
def test_a_time_means_the_last_instant_that_matches_it(berlin, text, last_ns):
    assert from_local_text(text) == last_ns


@pytest.mark.parametrize(
    "text", ["", "yesterday", "14:30", "2026-13-01", "2026-06-15 25:00", "cs-1"]
)
def test_invalid_times_are_none(text):
    assert from_local_text(text) is None


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31 23:59", "0001-01-01T00:00:00+00:00"])
def test_years_that_no_clock_shows_are_valid_times(text):
    assert isinstance(from_local_text(text), int)


@given(st.integers(0, 4 * 10**18))
def test_the_time_in_a_list_finds_the_snapshot(taken_ns):
    found = from_local_text(local_time_text(taken_ns))
    # In the hour that repeats when daylight saving time ends, a local time means two times.
    assert found is not None
    assert taken_ns <= found < taken_ns + NS or abs(found - taken_ns) <= 7201 * NS


@given(st.integers(0, 4 * 10**18))
def test_documents_show_the_time_to_the_microsecond(taken_ns):
    found = from_local_text(rfc3339(taken_ns))
    assert found is not None
    assert found >= taken_ns
    assert found - taken_ns < NS


def test_a_time_is_in_the_future_if_it_is_more_than_a_minute_ahead():
    now_ns = utc_ns(2026, 6, 15, 14, 30)
    assert is_future(now_ns + 60 * NS + 1, now_ns)
    assert not is_future(now_ns + 60 * NS, now_ns)
    assert not is_future(now_ns - 1, now_ns)

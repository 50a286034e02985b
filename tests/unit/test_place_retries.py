"""How long a place waits for a server, and what it logs meanwhile."""

import logging

import pytest

from ciuic.errors import OfflineError
from ciuic.store.place.retries import Retries, TransientError
from tests.kit.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


def failing(clock, times, cost_s):
    """Return an attempt that takes ``cost_s`` and fails ``times`` times before it succeeds."""
    left = [times]

    def act():
        clock.advance(cost_s)
        if left[0] == 0:
            return "answer"
        left[0] -= 1
        raise TransientError("the server cannot be reached")

    return act


def test_a_wait_of_some_seconds_is_logged_once_and_then_again_after_an_answer(clock, caplog):
    caplog.set_level(logging.WARNING)
    retries = Retries(clock, 90, "s3://bucket/a")

    for _ in range(2):
        assert retries.run("read", "s3://bucket/a/x", failing(clock, 5, 4)) == "answer"

    said = "s3://bucket/a: the server cannot be reached; trying again for up to 90 s"
    assert caplog.messages == [said, said]


def test_a_short_wait_is_not_logged(clock, caplog):
    caplog.set_level(logging.WARNING)

    assert Retries(clock, 90, "s3://b").run("read", "s3://b/x", failing(clock, 1, 0.1)) == "answer"

    assert caplog.messages == []


def test_the_patience_ends(clock):
    with pytest.raises(OfflineError, match=r"the server cannot be reached \(\d+ attempts in \d+ s"):
        Retries(clock, 90, "s3://b").run("read", "s3://b/x", failing(clock, 1000, 1))


def test_a_request_that_took_longer_than_the_patience_is_tried_again(clock):
    retries = Retries(clock, 90, "s3://b")

    assert retries.run("write", "s3://b/x", failing(clock, 1, 300)) == "answer"

"""Requests that wait for the daemon's main thread."""

import threading

import pytest

from ciuic.errors import CancelledError
from ciuic.model import EMERGENCY_TAG
from ciuicd.jobs.inbox import Inbox
from ciuicd.jobs.job import Job


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def test_jobs_are_taken_in_their_order(inbox: Inbox) -> None:
    first, second = Job(), Job()
    inbox.put(first)
    inbox.wake()
    inbox.put(second)

    assert [inbox.waiting(), inbox.waiting(), inbox.waiting()] == [first, second, None]


def test_a_wake_up_is_no_request_that_waits(inbox: Inbox) -> None:
    inbox.wake()
    inbox.put(Job(tags=(EMERGENCY_TAG,)))
    assert not inbox.has_waiting
    inbox.put(Job())
    inbox.put(Job())
    assert inbox.waiting() is not None
    assert inbox.has_waiting
    assert inbox.wait(1.0) is not None
    assert not inbox.has_waiting


def test_an_emergency_job_is_separate_and_wakes_the_main_thread(inbox: Inbox) -> None:
    ordinary, emergency = Job(), Job(tags=(EMERGENCY_TAG,))
    inbox.put(ordinary)
    assert not inbox.has_urgent
    inbox.put(emergency)

    assert inbox.has_urgent
    assert inbox.waiting() is ordinary
    assert inbox.urgent() is emergency
    assert inbox.urgent() is None


def test_a_wake_up_ends_a_wait_without_a_job(inbox: Inbox) -> None:
    waker = threading.Timer(0.0, inbox.wake)
    waker.start()

    assert inbox.wait(60.0) is None

    waker.join()
    assert inbox.is_quiet


def test_an_inbox_with_an_unseen_wake_up_is_not_quiet(inbox: Inbox) -> None:
    assert inbox.is_quiet
    inbox.wake()
    assert not inbox.is_quiet


def test_every_job_is_refused(inbox: Inbox) -> None:
    jobs = [Job(), Job(tags=(EMERGENCY_TAG,)), Job()]
    for job in jobs:
        inbox.put(job)

    inbox.refuse_all(CancelledError("the daemon is stopping"))

    assert [str(job.wait(0)) for job in jobs] == ["the daemon is stopping"] * 3
    assert inbox.is_quiet
    assert not inbox.has_urgent

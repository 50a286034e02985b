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


def any_of(_job: Job) -> bool:
    return True


def test_the_job_that_has_waited_longest_of_those_that_fit_comes_first(inbox: Inbox) -> None:
    first, second, third = Job(), Job(), Job()
    for job in (first, second, third):
        inbox.put(job)

    assert inbox.first(any_of) is first
    assert inbox.first(lambda job: job is not first) is second
    assert inbox.first(lambda _job: False) is None
    inbox.take_out(first)
    assert inbox.first(any_of) is second
    inbox.take_out(third)
    inbox.take_out(second)
    assert inbox.first(any_of) is None


def test_a_wake_up_and_an_emergency_job_are_no_request_that_waits(inbox: Inbox) -> None:
    inbox.wake()
    inbox.put(Job(tags=(EMERGENCY_TAG,)))
    assert not inbox.has_waiting
    job = Job()
    inbox.put(job)
    assert inbox.has_waiting
    inbox.take_out(job)
    assert not inbox.has_waiting


def test_an_emergency_job_is_separate_and_wakes_the_main_thread(inbox: Inbox) -> None:
    ordinary, emergency = Job(), Job(tags=(EMERGENCY_TAG,))
    inbox.put(ordinary)
    inbox.wait(60.0)
    assert not inbox.has_urgent
    inbox.put(emergency)

    assert inbox.has_urgent
    inbox.wait(60.0)
    assert inbox.first(any_of) is ordinary
    assert inbox.first_urgent() is emergency
    inbox.take_out(emergency)
    assert inbox.first_urgent() is None
    assert not inbox.has_urgent


def test_a_wake_up_ends_a_wait_without_a_job(inbox: Inbox) -> None:
    waker = threading.Timer(0.0, inbox.wake)
    waker.start()

    inbox.wait(600.0)

    waker.join()
    assert inbox.is_quiet


def test_an_inbox_with_an_unseen_wake_up_is_not_quiet(inbox: Inbox) -> None:
    assert inbox.is_quiet
    inbox.wake()
    assert not inbox.is_quiet
    inbox.wait(600.0)
    assert inbox.is_quiet


def test_every_job_is_refused(inbox: Inbox) -> None:
    jobs = [Job(), Job(tags=(EMERGENCY_TAG,)), Job()]
    for job in jobs:
        inbox.put(job)

    inbox.refuse_all(CancelledError("the daemon is stopping"))

    assert [str(job.wait(0)) for job in jobs] == ["the daemon is stopping"] * 3
    assert not inbox.has_waiting
    assert not inbox.has_urgent

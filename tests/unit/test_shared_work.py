"""Work that several threads share: all of it is done, and failures stop it."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType

import pytest

from ciuic.system.workers.threads import Workers, share

LIMIT_S = 60
MANY = 1_000_000
"""No thread has done them all before another one has noted its failure."""


@pytest.fixture
def no_threads() -> Iterator[None]:
    """No thread gets a stack of this many bytes, so none starts."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


def test_each_item_is_worked_on_once_and_by_several_threads_at_once() -> None:
    both, done = threading.Barrier(2), []

    def work(item: int) -> None:
        if item < 2:
            both.wait(LIMIT_S)
        done.append(item)

    share(work, range(100), 2, "test")
    assert sorted(done) == list(range(100))


@pytest.mark.usefixtures("no_threads")
def test_one_thread_does_all_the_work_if_no_other_can_be_started() -> None:
    done: list[int] = []
    share(done.append, range(10), 4, "test")
    assert done == list(range(10))


@pytest.mark.parametrize("failure", [ValueError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("count", [1, 4])
def test_the_first_failure_stops_the_work_and_is_raised_when_no_thread_works(
    failure: BaseException, count: int
) -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise failure

    before = set(threading.enumerate())
    with pytest.raises(type(failure)):
        share(work, range(MANY), count, "test")
    assert len(begun) < MANY
    assert set(threading.enumerate()) <= before


def test_an_exception_while_a_thread_starts_is_raised_when_no_thread_works() -> None:
    begun: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> None:
        """Raise when the new thread runs, and its start is not over."""
        if frame.f_code is threading.Event.wait.__code__:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            share(begun.append, range(MANY), 3, "interrupted")
    finally:
        sys.settrace(before)
    count = len(begun)
    for thread in threading.enumerate():
        while thread.name == "interrupted" and thread in threading.enumerate():
            # One that has not quite started cannot be joined.
            if thread.is_alive():
                thread.join(LIMIT_S)
    assert len(begun) == count < MANY


def test_an_exception_of_a_signal_is_raised_when_no_thread_works() -> None:
    both, is_raised, is_left = threading.Barrier(2), threading.Event(), threading.Event()
    done = []

    def fail(*_: object) -> None:
        is_raised.set()
        raise TimeoutError

    def work(item: int) -> None:
        both.wait(LIMIT_S)
        if threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert is_raised.wait(LIMIT_S)
            # Set only if ``share`` returns too early.
            is_left.wait(0.5)
            done.append(item)

    earlier = signal.signal(signal.SIGUSR1, fail)
    try:
        with pytest.raises(TimeoutError):
            share(work, range(2), 2, "test")
        assert len(done) == 1
    finally:
        is_left.set()
        signal.signal(signal.SIGUSR1, earlier)


def test_a_signal_ends_tasks_that_wait_and_waits_for_those_that_run() -> None:
    both, is_raised, is_left = threading.Barrier(2), threading.Event(), threading.Event()
    begun, done = list[int](), list[int]()

    def fail(*_: object) -> None:
        is_raised.set()
        raise TimeoutError

    def task(number: int) -> None:
        begun.append(number)
        if number < 2:
            both.wait(LIMIT_S)
        if number == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert is_raised.wait(LIMIT_S)
        # Set only if ``run_all`` returns too early.
        is_left.wait(0.5)
        done.append(number)

    earlier = signal.signal(signal.SIGUSR1, fail)
    try:
        with Workers(2, "test") as workers:
            with pytest.raises(TimeoutError):
                workers.run_all([partial(task, number) for number in range(100)])
            ended = sorted(done)
    finally:
        is_left.set()
        signal.signal(signal.SIGUSR1, earlier)
    assert ended == sorted(begun)
    assert 2 <= len(begun) < 100


def test_a_signal_while_tasks_are_handed_to_threads_waits_for_those_that_run() -> None:
    has_begun, is_left = threading.Event(), threading.Event()
    begun, done = list[int](), list[int]()

    def trace(frame: FrameType, event: str, _: object) -> None:
        """Raise when a thread has begun a task, and the start of a thread is not over."""
        if frame.f_code is threading.Event.wait.__code__:
            assert has_begun.wait(LIMIT_S)
            raise KeyboardInterrupt

    def task(number: int) -> None:
        begun.append(number)
        has_begun.set()
        # Set only if ``run_all`` returns too early.
        is_left.wait(0.5)
        done.append(number)

    before = sys.gettrace()
    try:
        with Workers(2, "test") as workers:
            sys.settrace(trace)
            with pytest.raises(KeyboardInterrupt):
                workers.run_all([partial(task, number) for number in range(100)])
            sys.settrace(before)
            ended = sorted(done)
    finally:
        sys.settrace(before)
        is_left.set()
    assert ended == sorted(begun)
    assert 1 <= len(begun) < 100


def test_a_task_that_fails_does_not_keep_the_others_from_running() -> None:
    done: list[int] = []

    def task(number: int) -> None:
        done.append(number)
        if number == 1:
            raise ValueError("broken")

    with Workers(2, "test") as workers, pytest.raises(ValueError, match="broken"):
        workers.run_all([partial(task, number) for number in range(100)])

    assert sorted(done) == list(range(100))


def test_nothing_to_do_is_no_failure() -> None:
    share(lambda _: 1 / 0, [], 4, "test")

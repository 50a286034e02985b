"""What ``doctor`` finds on the page: kept, found again beside the requests, and how old it is."""

import threading
from pathlib import Path

import pytest

from ciuic.errors import ConfigError
from ciuic.report.doctor.findings import Subject
from ciuic.web.examinations import Examinations
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.mounted import wait_for

LIMIT_S = 120


class Slow:
    """What is examined; each examination waits until it is let go."""

    def __init__(self, store: Path) -> None:
        self._subject = Subject(str(store), None, None)
        self._go = threading.Semaphore(1)
        self.begun = 0

    def __call__(self) -> Subject:
        self.begun += 1
        assert self._go.acquire(timeout=LIMIT_S)
        return self._subject

    def let_go(self) -> None:
        """Let one examination go on."""
        self._go.release()


@pytest.fixture
def slow(box: Box) -> Slow:
    (box.source / "a").write_text("x")
    box.take()
    return Slow(box.store)


def test_a_request_beside_a_slow_examination_gets_the_one_before_with_its_age(slow: Slow) -> None:
    clock = ManualClock()
    examinations = Examinations(slow, clock)
    first, age_s = examinations.get()
    assert (age_s, slow.begun) == (0, 1)
    clock.advance(9)
    assert examinations.get() == (first, 9)
    clock.advance(31)

    found, age_s = examinations.get()
    assert found is first
    assert age_s == 40
    assert examinations.get() == (first, 40)
    assert slow.begun == 2, "two examinations at once"
    slow.let_go()
    wait_for(lambda: examinations.get()[1] == 0, "the new examination is not used")
    assert slow.begun == 2


def test_a_store_that_went_away_is_examined_anew(slow: Slow) -> None:
    examinations = Examinations(slow, ManualClock())
    first, _ = examinations.get()
    slow.let_go()
    again, _ = examinations.get(anew=True)
    assert again is not first
    assert slow.begun == 2


def test_an_examination_that_fails_is_an_answer_and_the_next_one_is_made() -> None:
    fails = [True, False]

    def subject() -> Subject:
        if fails.pop(0):
            raise ConfigError("the configuration is gone", hint="Put it back.")
        return Subject(None, None, None)

    examinations = Examinations(subject, ManualClock())
    with pytest.raises(ConfigError):
        examinations.get()
    assert examinations.get()[0].findings

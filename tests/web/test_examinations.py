"""The findings of ``doctor`` on the page: kept, renewed in the background, shown with their age."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ciuic.errors import CiuicError, ConfigError, OfflineError
from ciuic.report.doctor.findings import Subject
from ciuic.system.clock import SystemClock
from ciuic.web.examinations import Examinations
from ciuic.web.reading import Reading
from ciuic.web.server import Address, serve
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.mounted import wait_for

LIMIT_S = 120
HANGS = """
import threading
from ciuic.system.clock import SystemClock
from ciuic.web.examinations import Examinations
begun = threading.Event()
Examinations(lambda: [begun.set(), threading.Event().wait()], SystemClock()).begin()
begun.wait()
"""


class Slow:
    """A slow examination: each run waits until a test releases it."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._subject = Subject(str(store), None, None)
        self._go = threading.Semaphore(1)
        self.begun = 0

    def __call__(self) -> Subject:
        self.begun += 1
        assert self._go.acquire(timeout=LIMIT_S)
        return self._subject

    def let_go(self) -> None:
        """Release one examination."""
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


def test_what_was_found_more_than_a_minute_ago_is_no_answer(slow: Slow) -> None:
    clock = ManualClock()
    examinations = Examinations(slow, clock)
    first, _ = examinations.get()
    clock.advance(61)
    threading.Timer(0.5, slow.let_go).start()  # longer than a request waits for a new one
    again, age_s = examinations.get()
    assert again is not first
    assert (age_s, slow.begun) == (0, 2)


def test_what_was_found_before_a_change_is_no_answer_nor_what_was_under_way(slow: Slow) -> None:
    clock = ManualClock()
    examinations = Examinations(slow, clock)
    examinations.get()
    clock.advance(11)
    examinations.get()  # begins the second one, which waits
    examinations.changed()
    for _ in range(2):
        slow.let_go()
    examinations.get()
    assert slow.begun == 3
    slow.let_go()
    examinations.changed()
    wait_for(lambda: slow.begun == 4, "it waits for a request")


def test_a_store_that_went_away_is_examined_once_and_again_when_it_is_back(slow: Slow) -> None:
    path = slow.store
    reading = Reading(str(path), slow, ManualClock())
    assert reading.overview().level == "warning", "no daemon, and no rules of alerts"
    for _ in range(2):
        slow.let_go()
    path.rename(path.with_name("away"))
    for _ in range(2):
        assert reading.overview().level == "problem"
    assert slow.begun == 2
    path.with_name("away").rename(path)
    assert reading.overview().level == "warning"
    assert slow.begun == 3


def test_the_headline_says_how_old_it_is(slow: Slow) -> None:
    clock = ManualClock()
    reading = Reading(str(slow.store), slow, clock)
    assert "checked" not in reading.overview().headline
    clock.advance(12)
    assert "; checked 12 s ago" in reading.overview().headline


def test_an_examination_that_hangs_does_not_keep_the_server_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], timeout=LIMIT_S, check=True)
    assert done.returncode == 0


def test_nothing_is_examined_before_the_server_listens(box: Box) -> None:
    begun: list[bool] = []

    def subject() -> Subject:
        begun.append(True)
        return Subject(None, None, None)

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CiuicError):
        serve(
            str(box.store),
            subject,
            Address("", "127.0.0.1", taken.getsockname()[1]),
            clock=ManualClock(),
            ready=lambda _: None,
            ending=lambda _: None,
        )
    assert begun == []


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


def test_a_bucket_that_is_away_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command waits minutes for its server to come back; a person in front of a page does not."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ALLOW_HTTP"):
            monkeypatch.setenv(name, "true")
        place = "s3://bucket/store"
        reading = Reading(place, lambda: Subject(place, None, None), SystemClock())
        (finding,) = [one for one in reading.overview().findings if one.about == b"store"]
        with pytest.raises(OfflineError) as refused, reading.opened(is_long=True):
            pass

    for said in (os.fsdecode(finding.what), refused.value.message):
        waited = re.search(r"attempts? in (\d+) s", said)
        assert waited is not None, said
        assert int(waited[1]) < 60, said

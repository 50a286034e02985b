"""What the daemon does between its snapshots."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ciuic.config.load import load_settings
from ciuic.config.settings import Settings
from ciuic.errors import CiuicError, ResourceError
from ciuic.model import COMMAND, ExcludeRules
from ciuic.store import addressed
from ciuic.store.directory.create import create_store
from ciuic.system.clock import SystemClock
from ciuicd.attempts import Attempt, Attempts
from ciuicd.jobs.job import Job
from ciuicd.metrics.gauges import Metrics
from ciuicd.schedules.state import ScheduleState
from ciuicd.upkeep.upkeep import Upkeep
from tests.kit.clock import ManualClock

_SLOT_BEGINS_NS = 1_800_000_000 * 1_000_000_000
"""A full hour: no test reaches the next one by chance."""


class Site:
    """Attempts at snapshots that end when a test says so.

    Attributes:
        forgets: How often snapshots were forgotten.
        is_stopping: See ``Daemon``.
        failure: How each further snapshot fails.
    """

    def __init__(self, config: Path) -> None:
        config.write_text(f"snapshot_dir = {config.parent}/store\n")
        self.clock = ManualClock(_SLOT_BEGINS_NS)
        self.settings = load_settings(str(config))
        self.is_stopping = False
        self.is_replaced = False
        self.metrics = SimpleNamespace(
            note_snapshot=lambda _report: None, note_failure=lambda _error, **_more: None
        )
        self.forgets = 0
        self.failure: CiuicError | None = None
        follow_ups = SimpleNamespace(consider=lambda *_report, interval_s: None)
        first = SimpleNamespace(
            settings=self.settings, roots=(b"/home",), interval_s=3600.0, follow_ups=follow_ups
        )
        self.attempts = Attempts(
            self,
            self.clock,
            SimpleNamespace(first=first),
            taker=SimpleNamespace(take=self._take, remember=lambda _error: None),
            hold=SimpleNamespace(take=lambda _settings: None),
            upkeep=SimpleNamespace(after_snapshot=self._forget),
        )
        self._ended: list[Job] = []

    def write_metrics(self) -> None:
        pass

    def show_status(self) -> None:
        pass

    def _forget(self, _settings: object) -> None:
        self.forgets += 1

    def _take(self, _settings: object, job: Job, **_more: object) -> Iterator[None]:
        while job not in self._ended:
            if self.failure is not None:
                raise self.failure
            yield
        return SimpleNamespace()

    def begin(self, root: str) -> Attempt:
        job = Job(origin=COMMAND, scope=((root.encode(),), ExcludeRules()))
        planned = self.attempts.requested(job)
        self.attempts.begin(planned)
        return planned

    def end(self, one: Attempt) -> None:
        self._ended.append(one.job)
        self.attempts.step()
        assert one not in self.attempts.under_way


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ciuic.conf")


def test_snapshots_are_forgotten_when_the_last_of_those_under_way_has_ended(site: Site) -> None:
    first, second = site.begin("/a"), site.begin("/b")
    site.end(first)
    assert site.forgets == 0
    site.end(second)
    assert site.forgets == 1


def test_a_daemon_that_ends_forgets_nothing(site: Site) -> None:
    only = site.begin("/a")
    site.is_stopping = True
    site.end(only)
    assert site.forgets == 0


def test_snapshots_that_overlap_without_a_gap_let_upkeep_have_its_turn_after_an_hour(
    site: Site,
) -> None:
    first, large = site.begin("/a"), site.begin("/large")
    site.end(first)
    small = site.begin("/b")
    site.clock.advance(86_400)
    assert not site.attempts.must_end, "no user waits for a large one that takes a day"
    site.end(large)
    assert site.attempts.must_end
    site.end(small)
    assert not site.attempts.must_end
    assert site.forgets == 1

    next_one, last = site.begin("/a"), site.begin("/b")
    site.end(next_one)
    beside = site.begin("/a")
    site.end(last)
    site.clock.advance(3599)
    assert not site.attempts.must_end
    site.clock.advance(1)
    assert site.attempts.must_end
    site.end(beside)
    assert site.forgets == 2


@pytest.fixture
def unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with a bucket whose server does not answer."""
    monkeypatch.setattr(addressed, "_QUICK_S", 0.2)
    monkeypatch.setattr(addressed, "_PATIENCE_S", 0.2)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        config = tmp_path / "bucket.conf"
        port = silent.getsockname()[1]
        config.write_text(
            "snapshot_dir = s3://bucket\nsnapshot_paths = /home\n"
            f"store_endpoint = http://127.0.0.1:{port}\nstore_allow_http = yes\n"
            f"metrics_file = {tmp_path}/metrics\n"
        )
        yield load_settings(str(config))


def test_a_server_that_does_not_answer_is_left_to_the_process_of_the_snapshot(
    site: Site, unanswered: Settings
) -> None:
    """Else the main thread would wait for it, and with it those under way and a stop."""
    state = ScheduleState(unanswered.schedules[0], site.clock, lambda: None)
    planned = site.attempts.scheduled(state)
    begin_s = SystemClock().monotonic_s()
    site.attempts.begin(planned)
    took_s = SystemClock().monotonic_s() - begin_s
    assert planned in site.attempts.under_way, "its process asks the server again, and waits"
    assert took_s < 30


def test_upkeep_and_metrics_do_not_wait_for_a_server_that_does_not_answer(
    unanswered: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The main thread forgets, looks for work and writes metrics, and a stop would wait."""
    clock = ManualClock(_SLOT_BEGINS_NS)
    upkeep = Upkeep(clock, lambda: None, store_id=None)
    begin_s = SystemClock().monotonic_s()
    upkeep.after_snapshot(unanswered)
    upkeep.run(unanswered, lambda: False)
    Metrics(clock).write(unanswered, next_due_ns=None, is_taking=False)
    took_s = SystemClock().monotonic_s() - begin_s
    assert took_s < 60
    for task in ("forget", "prune", "scrub", "drill"):
        assert f"{task} failed: " in caplog.text
    assert not upkeep.is_due(unanswered)
    clock.advance(3600)
    assert upkeep.is_due(unanswered), "it asks again"


def test_a_slot_whose_process_met_a_limit_is_repeated_once(site: Site, tmp_path: Path) -> None:
    settings = site.settings.schedules[0]
    create_store(settings.snapshot_dir, site.clock)
    state = ScheduleState(settings, site.clock, lambda: None)
    site.failure = ResourceError("too many open files")
    due = []
    for _ in range(4):
        due.append(state.is_due)
        if state.is_due:
            site.attempts.begin(site.attempts.scheduled(state))
        site.clock.advance(61)
    assert due == [True, True, False, False]

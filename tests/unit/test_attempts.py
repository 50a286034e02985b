"""What the daemon does between its snapshots."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ciuic.config.load import load_settings
from ciuic.model import COMMAND, ExcludeRules
from ciuicd.attempts import Attempt, Attempts
from ciuicd.jobs.job import Job
from tests.kit.clock import ManualClock


class Site:
    """Attempts at snapshots that end when a test says so.

    Attributes:
        forgets: How often snapshots were forgotten.
        is_stopping: See ``Daemon``.
    """

    def __init__(self, config: Path) -> None:
        config.write_text(f"snapshot_dir = {config.parent}/store\n")
        self.clock = ManualClock()
        self.settings = load_settings(str(config))
        self.is_stopping = False
        self.is_replaced = False
        self.metrics = SimpleNamespace(note_snapshot=lambda _report: None)
        self.forgets = 0
        follow_ups = SimpleNamespace(consider=lambda *_report, interval_s: None)
        first = SimpleNamespace(
            settings=self.settings, roots=(b"/home",), interval_s=3600.0, follow_ups=follow_ups
        )
        self.attempts = Attempts(
            self,
            self.clock,
            SimpleNamespace(first=first),
            taker=SimpleNamespace(take=self._take),
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

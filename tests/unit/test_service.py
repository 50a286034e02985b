"""What the daemon's main thread does while snapshots are under way, and between them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ciuic.config.load import load_settings
from ciuic.model import COMMAND, EMERGENCY_TAG
from ciuicd.jobs.job import Job
from ciuicd.notify import Notifier
from ciuicd.served_stores import ServedStores
from ciuicd.service import Service
from tests.kit.clock import ManualClock


class Site:
    """A service with one snapshot under way, which never takes a step.

    Attributes:
        attempts: See ``Attempts``.
        asked: What ``must_hurry`` would be, each time that the service could begin a snapshot.
    """

    def __init__(self, config: Path) -> None:
        config.write_text(f"snapshot_dir = {config.parent}/store\n")
        self.service = Service(
            load_settings(str(config)),
            clock=ManualClock(),
            notifier=Notifier({}),
            served_stores=ServedStores({}),
        )
        self.asked: list[bool] = []
        self.begins = False
        self.attempts = SimpleNamespace(
            step=lambda: None, under_way=("one",), must_end=False, have_store=True
        )
        self.service._attempts = self.attempts
        self.service._hold = SimpleNamespace(store_id="")
        self.service._order = SimpleNamespace(begin_next=self._begin_next)

    def _begin_next(self) -> bool:
        self.asked.append(self.service._somebody_waits())
        return self.begins


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ciuic.conf")


def test_no_snapshot_hurries_for_a_request_that_has_begun(site: Site) -> None:
    site.service.submit(Job(origin=COMMAND))
    site.service._go_on()
    assert site.service._somebody_waits()
    # The one under way has ended: nothing waits for it any more.
    site.attempts.under_way = ()
    site.service._go_on()
    site.begins = True
    site.service._turn()
    assert site.asked == [False, False]
    assert not site.service._somebody_waits()


def test_when_all_must_end_only_an_emergency_begins_and_requests_wait(site: Site) -> None:
    site.attempts.must_end = True
    site.service.submit(Job(origin=COMMAND))
    site.service._go_on()
    assert site.asked == []
    assert site.service._somebody_waits()
    site.service.submit(Job(origin=COMMAND, tags=(EMERGENCY_TAG,)))
    site.service._go_on()
    assert len(site.asked) == 1

"""Which of the daemon's snapshots begins next."""

from types import SimpleNamespace

import pytest

from ciuic.model import COMMAND, EMERGENCY_TAG, ExcludeRules
from ciuicd.attempts import Attempt
from ciuicd.jobs.at_once import Scope, may_be_taken_beside
from ciuicd.jobs.inbox import Inbox
from ciuicd.jobs.job import Job
from ciuicd.schedules.order import Order


def schedule(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, roots=(f"/{name}".encode(),))


class Site:
    """The order of snapshots that only begin and end.

    Attributes:
        under_way: See ``Attempts``.
        schedules: Those that are due, the first one first.
        begun: What has begun: a schedule's name, or the directory of a request.
    """

    def __init__(self) -> None:
        self.under_way: tuple[Attempt, ...] = ()
        self.schedules: list[SimpleNamespace] = []
        self.begun: list[str] = []
        self.inbox = Inbox()
        turns = SimpleNamespace(due=lambda: self.schedules, follow_up_due=lambda: None)
        self._order = Order(
            self, turns, self.inbox, is_paused=lambda: False, is_replaced=lambda: False
        )

    @property
    def has_own(self) -> bool:
        return any(one.is_own for one in self.under_way)

    def fits(self, wanted: Attempt, *others: Attempt) -> bool:
        scopes = [one.scope for one in (*self.under_way, *others)]
        return may_be_taken_beside(wanted.scope, scopes)

    def scheduled(self, state: SimpleNamespace) -> Attempt:
        return self._attempt(Job(schedule=state.name), state.roots)

    def requested(self, job: Job) -> Attempt:
        assert job.scope is not None
        return self._attempt(job, job.scope[0])

    def _attempt(self, job: Job, roots: tuple[bytes, ...]) -> Attempt:
        scope = Scope(roots, has_hooks=False, is_urgent=EMERGENCY_TAG in job.tags)
        return Attempt(job, scope, iter(()))

    def begin(self, planned: Attempt) -> None:
        self.under_way = (*self.under_way, planned)
        self.begun.append(self._name(planned))
        if planned.is_own:  # it is due again as soon as it has ended, and goes last then
            (began,) = [one for one in self.schedules if one.name == planned.job.schedule]
            self.schedules = [*(one for one in self.schedules if one is not began), began]

    def end(self, name: str) -> None:
        self.under_way = tuple(one for one in self.under_way if self._name(one) != name)

    def _name(self, one: Attempt) -> str:
        return one.job.schedule or one.scope.roots[0].decode()

    def ask(self, root: str) -> None:
        self.inbox.put(Job(origin=COMMAND, scope=((root.encode(),), ExcludeRules())))

    def go_on(self) -> list[str]:
        """Begin what may begin; return all that has begun so far."""
        while self._order.begin_next():
            pass
        return self.begun


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_schedule_that_may_not_begin_is_passed_over_for_the_next_one(site: Site) -> None:
    site.ask("/huge")
    assert site.go_on() == ["/huge"]
    site.schedules = [schedule("huge"), schedule("code")]
    assert site.go_on() == ["/huge", "code"], "one of the daemon's own at a time"
    site.end("code")
    site.end("/huge")
    assert site.go_on() == ["/huge", "code", "huge"]


def test_a_request_may_not_delay_the_schedule_that_waits_for_another_request(site: Site) -> None:
    site.ask("/huge")
    site.go_on()
    site.schedules = [SimpleNamespace(name="both", roots=(b"/huge", b"/code"))]
    site.ask("/code")
    site.ask("/other")
    assert site.go_on() == ["/huge", "/other"]
    site.end("/huge")
    assert site.go_on() == ["/huge", "/other", "both"]
    site.end("both")
    assert site.go_on() == ["/huge", "/other", "both", "/code"], "its turn, though both is due"


def test_a_request_begins_beside_a_snapshot_of_the_daemons_own(site: Site) -> None:
    site.schedules = [schedule("huge"), schedule("code")]
    site.go_on()
    site.ask("/code")
    site.ask("/other")
    assert site.go_on() == ["huge", "/code", "/other"]
    site.end("huge")
    assert site.go_on() == ["huge", "/code", "/other", "huge"], "code waits for the request"

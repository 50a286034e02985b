"""Snapshots with wrong times: which is the newest, and which are forgotten."""

import pytest

from ciuic.catalog import find_snapshot, latest_snapshot
from ciuic.errors import UsageError
from ciuic.maintain.forget import ForgetPlan, apply_forget, plan_forget, plan_forget_by_id
from ciuic.maintain.scrub.pack_health import health
from ciuic.maintain.scrub.scrub import scrub
from ciuic.retention import parse_policy
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.damage import flip_content
from tests.kit.program import ciuic

HOUR_S = 3600.0
YEAR_S = 365 * 86_400.0


class Life:
    """A box with a wrong clock."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.clock = ManualClock()

    def take(self, data: bytes = b"x") -> str:
        """A snapshot an hour later."""
        self.clock.advance(HOUR_S)
        (self.box.source / "file").write_bytes(data)
        return self.box.take(clock=self.clock).id

    def forget(self, policy: str) -> ForgetPlan:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_forget(store, parse_policy(policy), self.clock.now_ns())
            apply_forget(store, plan, self.clock.now_ns())
        return plan

    def forget_by_id(self, *names: str) -> None:
        with open_store(str(self.box.store), write=True) as store:
            plan = plan_forget_by_id(store, names, self.clock.now_ns())
            apply_forget(store, plan, self.clock.now_ns())

    def find(self, text: str) -> str:
        with open_store(str(self.box.store)) as store:
            return find_snapshot(store, text).id

    def names(self) -> set[str]:
        return {one.id for one in self.box.snapshots()}


@pytest.fixture
def life(box: Box) -> Life:
    return Life(box)


def test_a_list_begins_with_latest_even_with_a_wrong_clock(life: Life) -> None:
    first = life.take(b"first")
    life.clock.advance(YEAR_S)
    ahead = life.take(b"ahead")
    life.clock.set_back(YEAR_S)
    newest = life.take(b"newest")
    assert life.find("latest") == newest

    path = str(life.box.source / "file")
    for more in ((), ("--path", path)):
        listed = ciuic("--store", life.box.store, "list", "--json", *more).document
        assert [one["id"] for one in listed] == [newest, ahead, first], more


def test_latest_is_the_snapshot_that_was_committed_last_even_with_a_wrong_clock(life: Life) -> None:
    before = life.take(b"before")
    life.clock.advance(YEAR_S)
    ahead = [life.take(b"ahead"), life.take(b"still ahead")]
    life.clock.set_back(YEAR_S)
    assert life.find("latest") == ahead[1], "nothing was taken since"
    known = [life.take(bytes(number)) for number in range(3)]
    assert life.find("latest") == known[2]
    assert life.find("latest-valid") == known[2]
    assert life.box.read(life.box.source / "file") == bytes(2)
    with open_store(str(life.box.store)) as store:
        newest = latest_snapshot(store)
    assert newest is not None
    assert newest.id == known[2]
    # This also holds after the snapshots in between, or the one from the future, are forgotten.
    life.forget_by_id(known[0], known[1])
    assert life.find("latest") == known[2]
    life.forget_by_id(*ahead)
    assert life.find("latest") == known[2]
    assert life.names() == {before, known[2]}


def test_latest_is_the_last_one_however_often_the_clock_goes_back(life: Life) -> None:
    for years in (-1, -1, 3, -2, 1, -5, 1):
        assert life.take(str(years).encode()) == life.find("latest")
        if years > 0:
            life.clock.advance(years * YEAR_S)
        else:
            life.clock.set_back(-years * YEAR_S)
    assert life.take() == life.find("latest")


def test_latest_valid_goes_back_by_commits_too(life: Life) -> None:
    life.take(b"before" * 5000)
    life.clock.advance(YEAR_S)
    life.take(b"ahead" * 5000)
    life.clock.set_back(YEAR_S)
    known = [life.take(b"sound" * 6000), life.take(b"spoiled" * 5000)]
    flip_content(life.box.store, b"spoiled" * 5000)
    scrub(str(life.box.store), clock=life.clock)
    assert life.find("latest") == known[1]
    assert life.find("latest-valid") == known[0]


def test_packs_that_were_read_after_a_clock_error_are_not_read_again(life: Life) -> None:
    life.take()
    life.clock.advance(YEAR_S)
    ahead = life.take()
    life.clock.set_back(YEAR_S)
    life.take(b"new" * 50_000)
    for _ in range(2):
        life.clock.advance(HOUR_S)
        report = life.box.take(clock=life.clock)
        assert (report.parent, report.read_bytes) == (ahead, 0)


def test_damage_is_known_though_the_pack_was_read_last_before_the_clock_was_set_back(
    life: Life,
) -> None:
    life.take(b"spoiled" * 5000)
    scrub(str(life.box.store), clock=life.clock)
    life.clock.set_back(30)
    flip_content(life.box.store, b"spoiled" * 5000)

    # The store is busy for a minute before the scrub can record what it has found.
    report = scrub(str(life.box.store), clock=life.clock, found=lambda _: life.clock.advance(60))

    assert len(report.damaged) == 1
    with open_store(str(life.box.store)) as store:
        assert len(health(store).damaged) == 1
    assert "damaged" in life.box.ciuic("list").out


def test_latest_by_a_clock_that_is_behind(life: Life) -> None:
    life.take()
    life.clock.set_back(YEAR_S)
    behind = [life.take(), life.take()]
    assert life.find("latest") == behind[1]
    life.clock.advance(YEAR_S)
    assert life.find("latest") == behind[1]
    assert life.take() == life.find("latest")


@pytest.mark.parametrize("policy", ["last:2", "hourly:2", "2h", "last:1, hourly:2"])
def test_a_snapshot_of_the_future_does_not_cause_later_ones_to_be_forgotten(
    life: Life, policy: str
) -> None:
    life.take()
    life.clock.advance(YEAR_S)
    ahead = [life.take(b"ahead %d" % number) for number in range(3)]
    life.clock.set_back(YEAR_S)
    for number in range(3):
        known = [life.take(b"%d" % number), life.take(b"%d again" % number)]
        plan = life.forget(policy)
        assert life.names() == {*ahead, *known}
        why = {one.id: what for one, what in plan.kept}
        assert {why[name] for name in ahead} == {"dated in the future"}
        assert why[known[1]].endswith("the newest; the newest without damage")
    life.clock.advance(2 * YEAR_S)
    last = life.take(b"last")
    life.forget("last:1")
    assert life.names() == {last}, "its time has come, and gone"


def test_a_snapshot_from_the_future_can_be_forgotten_by_name_once_another_was_taken(
    life: Life,
) -> None:
    before = life.take()
    life.clock.advance(YEAR_S)
    ahead = life.take()
    life.clock.set_back(YEAR_S)
    for name, why in ((ahead, "is the newest snapshot"), (before, "is the newest snapshot")):
        with pytest.raises(UsageError, match=why):
            life.forget_by_id(name)
    now = life.take()
    life.forget_by_id(ahead)
    assert life.names() == {before, now}


def test_a_snapshot_from_the_future_is_not_the_newest_whole_one(life: Life) -> None:
    whole = life.take()
    life.clock.advance(YEAR_S)
    ahead = life.take()
    life.clock.set_back(YEAR_S)
    with (life.box.source / "open").open("wb"):  # in flux for as long as it is open
        troubled = life.take()
        last = life.take()
    plan = life.forget("last:1")
    assert {one.id: why for one, why in plan.kept} == {
        last: "last 1 of 1; the newest",
        whole: "the newest without damage",
        ahead: "dated in the future",
    }
    assert [one.id for one, _ in plan.forgotten] == [troubled]
    with pytest.raises(UsageError, match="is the newest snapshot without damage"):
        life.forget_by_id(whole)


def test_a_clock_that_is_behind_forgets_nothing_but_what_it_took(life: Life) -> None:
    real = {life.take(b"%d" % number) for number in range(3)}
    life.clock.set_back(YEAR_S)
    behind = [life.take(b"behind %d" % number) for number in range(3)]
    life.forget("last:1")
    assert life.names() == {*real, behind[2]}


def test_no_policy_forgets_what_alone_shows_that_another_snapshot_is_the_newest(
    life: Life,
) -> None:
    ahead = life.take(b"ahead")
    life.clock.set_back(12 * HOUR_S)
    between = life.take(b"between")
    life.clock.set_back(12 * HOUR_S)
    newest = life.take(b"newest")
    life.clock.advance(7 * 86_400.0 + 12 * HOUR_S)
    for _ in range(2):
        plan = life.forget("7d")
        why = {one.id: what for one, what in plan.kept}
        assert why[between] == f"shows that {newest} is newer than {ahead}"
        assert life.names() == {ahead, between, newest}
        assert life.find("latest") == newest

    later = life.take(b"later")
    life.forget("7d")
    assert life.names() == {ahead, later}, "nothing needs to be shown any longer"

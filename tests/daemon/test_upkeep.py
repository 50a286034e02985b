"""A real ciuicd between two snapshots runs forget, prune and scrub, and interrupts them."""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from ciuic.config.load import load_settings
from ciuic.control import request_done, request_snapshot, request_status
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.scrub.pack_health import Health, health
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.store import open_store
from ciuicd.upkeep.upkeep import Upkeep
from tests.kit.clock import ManualClock
from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.damage import flip_content, pack_of
from tests.kit.program import ciuic
from tests.kit.strace import strace

DAY_NS = 86_400 * 10**9
MIB = 1024 * 1024

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
CALLS = "preadv,preadv2"


def slow(machine: Machine, seconds: float) -> tuple[str, ...]:
    """Return a wrapper that delays each read of a pack that is there: a scrub reads them all.

    A snapshot reads small files with the same calls.
    """
    packs = [word for one in (machine.store / "packs").iterdir() for word in ("-P", str(one))]
    return strace(CALLS, "-D", *packs, inject=f"delay_enter={round(seconds * 1e6)}")


def take(machine: Machine, *, days_ago: float = 0.0, **files: bytes) -> str:
    """Take a snapshot that is dated some days back."""
    for name, content in files.items():
        (machine.source / name).write_bytes(content)
    clock = ManualClock(time.time_ns() - round(days_ago * DAY_NS))
    create_store(str(machine.store), clock)
    with open_store(str(machine.store), write=True) as store:
        request = TakeRequest(roots=(os.fsencode(machine.source),), base=True, parity=0)
        return take_snapshot(store, request, clock=clock).id


def trashed(machine: Machine) -> list[str]:
    with open_store(str(machine.store)) as store:
        return sorted(one.id for one in store.trash.read())


def upkeep(machine: Machine) -> dict[str, Any]:
    status = request_status(str(machine.store))
    assert status is not None
    found: dict[str, Any] = status["upkeep"]
    return found


def stopped_in_peace(daemon: Daemon) -> None:
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_the_daemon_forgets_by_the_policy_after_each_snapshot_and_says_so(machine: Machine) -> None:
    old = [take(machine, days_ago=days) for days in (40, 30, 20)]
    machine.configure(retention_policy="last:2")
    daemon = machine.start()
    newest = request_snapshot(str(machine.store))
    assert newest is not None
    daemon.wait_for_log("forgot 2 snapshots not kept by retention_policy last:2")
    wait_until("they are in the trash", lambda: trashed(machine) == sorted(old[:2]))
    assert [one.id for one in machine.snapshots()] == [newest["id"], old[2]]
    line = next(one for one in daemon.log().splitlines() if "forgot 2" in one)
    assert old[0] in line
    assert f"ciuic --config {machine.config} forget --undo" in line
    assert sorted(upkeep(machine)["forget"]["forgotten"]) == sorted(old[:2])
    stopped_in_peace(daemon)


def test_one_run_from_a_timer_forgets_as_well(machine: Machine) -> None:
    old = take(machine, days_ago=40)
    machine.configure(retention_policy="last:1")

    done = machine.once()

    assert done.returncode == 0, done.stderr
    assert trashed(machine) == [old]


def test_kept_snapshots_are_not_forgotten_and_not_logged(machine: Machine) -> None:
    take(machine, days_ago=3)
    machine.configure(retention_policy="7d")
    daemon = machine.start()
    request_snapshot(str(machine.store))
    wait_until("it has decided", lambda: upkeep(machine)["forget"] is not None)
    assert len(machine.snapshots()) == 2
    assert "forgot" not in daemon.log()
    stopped_in_peace(daemon)


def test_expired_snapshots_are_pruned_once_a_day(machine: Machine) -> None:
    take(machine, days_ago=40, big=os.urandom(3 * MIB))
    take(machine, days_ago=30, big=os.urandom(MIB))
    machine.configure(retention_policy="last:1", trash="0", snapshot_interval="3s")
    before = size(machine)
    daemon = machine.start()
    daemon.wait_for_log("pruned: ")
    assert "MiB freed" in daemon.log()
    wait_until("the room is given back", lambda: size(machine) < before - 3 * MIB)
    daemon.wait_for_log("forgot", count=daemon.log().count("forgot") + 2)
    assert daemon.log().count("pruned: ") == 1
    stopped_in_peace(daemon)


def test_many_expired_snapshots_are_pruned_again_on_the_same_day(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the daemon would grow with the number of snapshots that it takes in a day."""
    monkeypatch.setattr("ciuicd.upkeep.pruning._EXPIRED_MANY", 3)
    machine.configure(retention_policy="last:1", trash="0")
    settings = load_settings(str(machine.config))
    done = Upkeep(ManualClock(time.time_ns()), lambda: None, store_id=None)
    left = []
    for count in (2, 2, 1):
        for number in range(count):
            take(machine, days_ago=30 - len(left) - number / 10)
        done.after_snapshot(settings)
        done.run(settings, lambda: False)
        left.append(len(trashed(machine)))
    assert left == [0, 2, 0]


def size(machine: Machine) -> int:
    return sum(one.stat().st_size for one in (machine.store / "packs").iterdir())


def test_snapshots_in_the_trash_are_not_pruned(machine: Machine) -> None:
    first = take(machine, days_ago=40, big=os.urandom(MIB))
    machine.configure(retention_policy="last:1", scrub_budget="1m")
    daemon = machine.start()
    request_snapshot(str(machine.store))
    daemon.wait_for_log("forgot 1 snapshot")
    wait_until("the rest is done", lambda: known(machine).unchecked == 0)
    wait_until("it is idle", lambda: upkeep(machine)["doing"] is None)
    assert "pruned" not in daemon.log()
    assert ciuic("--config", machine.config, "forget", "--undo", first).code == 0
    stopped_in_peace(daemon)


@pytest.fixture
def better_to_do(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """The main thread always has other work, and background work learns so before it begins."""
    asked = threading.Event()

    def waits(_: str) -> None:
        for _ in range(2):  # background work asks again only after it has used the first answer
            asked.clear()
            assert asked.wait(30)

    def gives_way() -> bool:
        asked.set()
        return True

    monkeypatch.setattr("ciuicd.jobs.background.lower_priority", waits)
    return gives_way


def fragmented_packs(machine: Machine, count: int) -> None:
    """Make packs in which less than half is needed; only the trash needs the rest."""
    for number in range(count):
        take(
            machine,
            days_ago=40 - number,
            garbage=os.urandom(300_000),
            **{f"keep{number}": os.urandom(100_000)},
        )
    (machine.source / "garbage").unlink()
    newest = take(machine, days_ago=20)
    with open_store(str(machine.store), write=True) as store:
        old = sorted(set(store.manifests.files()) - {newest})
        store.trash.forget(old, time.time_ns() - 10 * DAY_NS)


def test_a_prune_that_is_interrupted_again_and_again_still_ends(
    machine: Machine, better_to_do: Callable[[], bool]
) -> None:
    """Planning a prune of a large store may take longer than the time between two snapshots."""
    fragmented_packs(machine, 3)
    settings = load_settings(str(machine.config))
    begun = Upkeep(ManualClock(), lambda: None, store_id=None)
    sizes = [size(machine)]
    while begun.shown["prune"] is None and len(sizes) < 20:
        begun.run(settings, better_to_do)
        sizes.append(size(machine))
    assert sizes[3] == sizes[0], "it does give way"
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 3, "each run made some progress, and none started from scratch"
    with open_store(str(machine.store), write=True) as store:
        plan = plan_prune(store, trash_s=settings.trash_s, now_ns=time.time_ns())
        assert plan.removed == plan.rewritten == ()
    assert ciuic("--config", machine.config, "verify", "--all", "--checksum").code == 0


def test_a_prune_interrupted_by_the_end_of_the_daemon_is_resumed_by_the_next(
    machine: Machine, better_to_do: Callable[[], bool]
) -> None:
    """By then, the expired snapshots have left the trash, so it does not show the work."""
    fragmented_packs(machine, 3)
    settings = load_settings(str(machine.config))
    cut_short = Upkeep(ManualClock(), lambda: None, store_id=None)
    before = size(machine)
    for _ in range(20):
        cut_short.run(settings, better_to_do)
        if size(machine) < before:
            break
    assert cut_short.shown["prune"] is None
    assert trashed(machine) == []
    daemon = machine.start()
    daemon.wait_for_log("pruned: 0 snapshots removed for good")
    stopped_in_peace(daemon)
    with open_store(str(machine.store), write=True) as store:
        plan = plan_prune(store, trash_s=settings.trash_s, now_ns=time.time_ns())
        assert plan.removed == plan.rewritten == ()
    after = Upkeep(ManualClock(), lambda: None, store_id=None)
    after.run(settings, lambda: False)
    assert after.shown["prune"] is None, "there is nothing left to look for"


def test_a_prune_does_not_delay_the_end_of_the_daemon(
    machine: Machine, better_to_do: Callable[[], bool]
) -> None:
    fragmented_packs(machine, 1)
    begun = Upkeep(ManualClock(), lambda: None, store_id=None)
    before = size(machine)
    for _ in range(6):
        begun.run(load_settings(str(machine.config)), better_to_do, lambda: True)
    assert begun.shown["prune"] is None
    assert size(machine) == before


def test_a_scrub_reads_every_pack_once(machine: Machine) -> None:
    take(machine, days_ago=10, a=os.urandom(MIB))
    machine.configure(scrub_budget="10m")
    daemon = machine.start()
    daemon.wait_for_log("no damage")
    wait_until("all is read", lambda: known(machine).unchecked == 0)
    before = checks(machine)
    (machine.source / "new").write_bytes(os.urandom(1000))
    request_snapshot(str(machine.store))
    wait_until("what is new is read", lambda: len(checks(machine)) > len(before))
    wait_until("all is read", lambda: known(machine).unchecked == 0)
    after = checks(machine)
    assert {name: after[name] for name in before} == before, "and nothing else"
    assert upkeep(machine)["scrub"]["ok"]
    assert upkeep(machine)["scrubbed_today_s"]
    stopped_in_peace(daemon)


def checks(machine: Machine) -> dict[bytes, tuple[int, int, str]]:
    with open_store(str(machine.store)) as store:
        return store.index.checks()


def known(machine: Machine) -> Health:
    with open_store(str(machine.store)) as store:
        return health(store)


def test_without_a_budget_nothing_is_read(machine: Machine) -> None:
    take(machine, days_ago=10)
    machine.configure(scrub_budget="0")
    daemon = machine.start()
    request_snapshot(str(machine.store))
    request_snapshot(str(machine.store))
    stopped_in_peace(daemon)
    assert "scrub: " not in daemon.log()
    assert known(machine).unchecked == known(machine).packs


def test_the_scrub_budget_of_the_day_survives_a_restart(machine: Machine) -> None:
    """A daemon that restarts often must not scrub all day."""
    take(machine, days_ago=10)
    noon_ns = (time.time_ns() // DAY_NS - 3) * DAY_NS + DAY_NS // 2
    day = ManualClock(noon_ns)
    with open_store(str(machine.store), write=True) as store:
        for number in range(120):
            # Two earlier scrubs took as long as they would on a slow disk, and no longer.
            done_ns = noon_ns - (200 - number if number > 20 else 30_000 - 1000 * number) * 10**9
            store.index.put_check(os.urandom(32), done_ns, 10_000_000, "")
        yesterday_ns = noon_ns - DAY_NS
        store.index.put_check(os.urandom(32), yesterday_ns, 500_000_000, "")
        store.index.commit()

    def spent_s(budget: str, clock: ManualClock) -> float:
        machine.configure(scrub_budget=budget)
        begun = Upkeep(clock, lambda: None, store_id=None)
        begun.run(load_settings(str(machine.config)), lambda: False)
        found = begun.shown["scrubbed_today_s"]
        assert isinstance(found, float)
        return found

    assert spent_s("2m", day) == pytest.approx(120)
    assert known(machine).unchecked == known(machine).packs, "the budget of that day was spent"
    assert spent_s("10m", day) >= 120
    assert known(machine).unchecked == 0, "and this one was not"
    assert spent_s("2m", ManualClock(noon_ns + DAY_NS)) < 1


def test_damage_is_logged_once_with_the_affected_files(machine: Machine) -> None:
    content = os.urandom(MIB)
    name = take(machine, days_ago=10, a=content)
    flip_content(machine.store, content)
    (machine.source / "a").write_bytes(b"another content")
    machine.configure(scrub_budget="10m", snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("damage: pack ")
    daemon.wait_for_log(" affected, first ")
    daemon.wait_for_log("no warnings", count=daemon.log().count("no warnings") + 3)
    for text in ("damage: pack ", f"1 file affected, first {machine.source / 'a'} in {name}"):
        [line] = [line for line in daemon.log().splitlines() if text in line]
        assert f"ciuic --config {machine.config} repair" in line
    assert known(machine).damaged
    stopped_in_peace(daemon)
    with open_store(str(machine.store), write=True) as store:
        for pack, (checked_ns, size_bytes, what) in store.index.checks().items():
            store.index.put_check(pack, checked_ns - 8 * DAY_NS, size_bytes, what)
        store.index.commit()
    again = machine.start()
    again.wait_for_log("there is damage")
    stopped_in_peace(again)
    assert "damage: pack" not in again.log(), "the catalog remembers that it was told"


class TickingClock(ManualClock):
    """A clock that advances by a second each time it is read."""

    def monotonic_s(self) -> float:
        self.advance(1)
        return super().monotonic_s()


class Ear(logging.Handler):
    """Collects log lines, and holds the thread that logs damage until other work comes up."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.is_told = threading.Event()
        self.may_go_on = threading.Event()
        self.asked_at_last = False

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())
        if "damage: pack" in self.heard[-1]:
            self.is_told.set()
            assert self.may_go_on.wait(30)

    def gives_way(self) -> bool:
        """Background work calls again only after it has used the first answer."""
        if self.is_told.is_set() and self.asked_at_last:
            self.may_go_on.set()
        self.asked_at_last = self.is_told.is_set()
        return self.asked_at_last


def test_damage_is_logged_when_it_is_found_and_the_affected_files_when_they_are_known(
    machine: Machine,
) -> None:
    """The daemon does so even if the budget of the day is spent by then."""
    content = os.urandom(MIB)
    name = take(machine, days_ago=10, a=content)
    flip_content(machine.store, content)
    begun = Upkeep(
        TickingClock((time.time_ns() // DAY_NS) * DAY_NS + DAY_NS // 2), lambda: None, store_id=None
    )
    ear = Ear()
    logging.getLogger("ciuicd").addHandler(ear)
    try:
        machine.configure(scrub_budget="10m")
        begun.run(load_settings(str(machine.config)), ear.gives_way)
        assert [line for line in ear.heard if "damage: pack" in line] == ear.heard
        assert "1 chunk lost" in ear.heard[0]
        assert known(machine).damaged, "it is no news for a daemon that is started now"
        machine.configure(scrub_budget="1s")
        assert begun.shown["scrubbed_today_s"] > 1
        begun.run(load_settings(str(machine.config)), lambda: False)
        assert len(ear.heard) == 2
        assert f"1 file affected, first {machine.source / 'a'} in {name}" in ear.heard[1]
    finally:
        logging.getLogger("ciuicd").removeHandler(ear)


def test_the_affected_files_are_logged_even_if_the_search_is_always_interrupted(
    machine: Machine, request: pytest.FixtureRequest
) -> None:
    """Searching a large store may take longer than the time between two snapshots."""
    content = os.urandom(MIB)
    names = []
    for number in range(3):
        (machine.source / str(number)).mkdir()
        names.append(take(machine, days_ago=10 - number, a=content, **{f"{number}/b": b"new"}))
    flip_content(machine.store, content)
    machine.configure(scrub_budget="10m")
    settings = load_settings(str(machine.config))
    begun = Upkeep(ManualClock(), lambda: None, store_id=None)
    ear = Ear()
    logging.getLogger("ciuicd").addHandler(ear)
    try:
        begun.run(settings, ear.gives_way)
        better_to_do = request.getfixturevalue("better_to_do")
        runs = 0
        while len(ear.heard) < 2:
            first = iter([False])
            begun.run(settings, lambda first=first: next(first, True) and better_to_do())
            runs += 1
            assert runs < 40
        assert runs > 3, "it does give way"
        newest_first = ", ".join(reversed(names))
        assert f"1 file affected, first {machine.source / 'a'} in {newest_first}" in ear.heard[1]
    finally:
        logging.getLogger("ciuicd").removeHandler(ear)


def test_the_affected_files_are_logged_by_the_next_daemon_if_this_one_ends_before(
    machine: Machine,
) -> None:
    content = os.urandom(MIB)
    name = take(machine, days_ago=10, a=content)
    flip_content(machine.store, content)
    machine.configure(scrub_budget="10m")
    begun = Upkeep(ManualClock(), lambda: None, store_id=None)
    ear = Ear()
    logging.getLogger("ciuicd").addHandler(ear)
    try:
        begun.run(load_settings(str(machine.config)), ear.gives_way)
    finally:
        logging.getLogger("ciuicd").removeHandler(ear)
    assert [line for line in ear.heard if "damage: pack" in line] == ear.heard
    (machine.source / "a").write_bytes(b"another content")
    machine.configure(scrub_budget="10m", snapshot_interval="1s")
    cost = "1 chunk lost, found by an earlier scrub: 1 file affected, first "
    for _ in range(2):  # the daemon cannot know whether a user has read the log
        daemon = machine.start()
        daemon.wait_for_log(
            f"{cost}{machine.source / 'a'} in {name}. 'ciuic --config {machine.config} repair'"
        )
        daemon.wait_for_log("no warnings", count=daemon.log().count("no warnings") + 3)
        assert daemon.log().count(cost) == 1
        stopped_in_peace(daemon)
    (machine.source / "a").write_bytes(content)
    take(machine)
    healed = machine.start()
    healed.wait_for_log("no warnings", count=3)
    stopped_in_peace(healed)
    assert cost not in healed.log()


def test_without_a_budget_the_daemon_does_not_search_for_lost_chunks(machine: Machine) -> None:
    take(machine, days_ago=10)
    with open_store(str(machine.store), write=True) as store:
        store.index.drop_chunks([os.urandom(32)])
        store.index.commit()
    for budget, doing in (("0", []), ("1m", ["scrub"])):
        machine.configure(scrub_budget=budget)
        seen: list[str] = []
        begun = Upkeep(ManualClock(), lambda: None, store_id=None)

        def gives_way(begun: Upkeep = begun, seen: list[str] = seen) -> bool:
            seen.append(begun.shown["doing"])
            return False

        begun.run(load_settings(str(machine.config)), gives_way)
        assert sorted({one for one in seen if one}) == doing


def test_the_time_of_a_failed_scrub_counts_for_the_day(machine: Machine) -> None:
    take(machine, days_ago=10)
    machine.configure(scrub_budget="10m")
    begun = Upkeep(
        TickingClock((time.time_ns() // DAY_NS) * DAY_NS + DAY_NS // 2), lambda: None, store_id=None
    )
    begun.run(load_settings(str(machine.config)), lambda: False)
    before_s = begun.shown["scrubbed_today_s"]
    (machine.store / "ciuic-store.json").unlink()
    begun.run(load_settings(str(machine.config)), lambda: False)
    assert begun.shown["scrub"]["error"]
    assert begun.shown["scrubbed_today_s"] > before_s


def test_a_missing_pack_is_logged_with_the_affected_files(machine: Machine) -> None:
    content = os.urandom(MIB)
    name = take(machine, days_ago=10, a=content)
    pack_of(machine.store, content).unlink()
    (machine.source / "a").write_bytes(b"another content")
    machine.configure(scrub_budget="10m")
    daemon = machine.start()
    daemon.wait_for_log("there is damage")
    daemon.wait_for_log(f"files affected, first {machine.source / 'a'} in {name}")
    stopped_in_peace(daemon)


def test_a_lost_chunk_is_stored_again_if_its_file_still_has_it(machine: Machine) -> None:
    content = os.urandom(MIB)
    take(machine, days_ago=10, a=content)
    flip_content(machine.store, content)
    machine.configure(scrub_budget="10m", snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("damage: pack ")
    daemon.wait_for_log("no warnings", count=daemon.log().count("no warnings") + 2)
    stopped_in_peace(daemon)
    assert known(machine).lost_chunks == 0
    assert ciuic("--config", machine.config, "verify", "--all", "--checksum").code == 0


def many_packs(machine: Machine, count: int) -> None:
    for number in range(count):
        take(machine, days_ago=100 - number, **{f"file {number}": os.urandom(10_000)})


@needs_strace
def test_a_scrub_never_delays_a_snapshot_and_continues_after_it(machine: Machine) -> None:
    many_packs(machine, 30)
    machine.configure(scrub_budget="10m", snapshot_interval="2s")
    daemon = machine.launch(wrapper=slow(machine, 1.0))
    wait_until("it scrubs", lambda: daemon.answers() and upkeep(machine)["doing"] == "scrub")
    before = known(machine).unchecked
    daemon.wait_for_log("no warnings", count=daemon.log().count("no warnings") + 2)
    assert known(machine).unchecked > 0, "it is not through: the snapshots did not wait for it"
    wait_until("packs were read meanwhile", lambda: known(machine).unchecked < before)
    stopped_in_peace(daemon)


def idle_threads(daemon: Daemon) -> list[int]:
    threads = psutil.Process(daemon.process.pid).threads()
    idle = psutil.IOPRIO_CLASS_IDLE
    found = []
    for one in threads:
        with contextlib.suppress(psutil.NoSuchProcess):  # for example of a client that was answered
            if psutil.Process(one.id).ionice().ioclass == idle:
                found.append(one.id)
    return found


@needs_strace
def test_a_client_is_served_during_a_scrub_which_reads_at_idle_priority(
    machine: Machine,
) -> None:
    many_packs(machine, 30)
    machine.configure(scrub_budget="10m", io_priority="none")
    daemon = machine.launch(wrapper=slow(machine, 1.0))
    wait_until("it scrubs", lambda: daemon.answers() and upkeep(machine)["doing"] == "scrub")
    wait_until("a thread of it is idle", lambda: len(idle_threads(daemon)) == 1)
    assert idle_threads(daemon) != [daemon.process.pid], "snapshots keep the priority they have"
    assert "now:     scrub" in ciuic("--config", machine.config, "status").out
    assert request_snapshot(str(machine.store)) is not None
    stopped_in_peace(daemon)


@needs_strace
def test_the_daemon_ends_soon_in_the_middle_of_a_scrub(machine: Machine) -> None:
    many_packs(machine, 30)
    machine.configure(scrub_budget="10m")
    daemon = machine.launch(wrapper=slow(machine, 1.0))
    wait_until("it scrubs", lambda: daemon.answers() and upkeep(machine)["doing"] == "scrub")
    stopped_in_peace(daemon)
    assert known(machine).unchecked > 0


def test_a_prune_that_cannot_read_a_snapshot_removes_nothing_and_the_daemon_continues(
    machine: Machine,
) -> None:
    first = take(machine, days_ago=40, a=os.urandom(1000))
    second = take(machine, days_ago=39)
    take(machine, days_ago=1)
    with open_store(str(machine.store), write=True) as store:
        store.trash.forget([first], time.time_ns() - 10 * DAY_NS)
    (machine.store / "snapshots" / f"{second}.json").write_bytes(b"{}")
    machine.configure(snapshot_interval="1s")
    daemon = machine.start()
    daemon.wait_for_log("prune failed: ")
    daemon.wait_for_log("no warnings", count=3)
    assert daemon.log().count("prune failed: ") == 1
    assert trashed(machine) == [first]
    stopped_in_peace(daemon)


def test_a_paused_daemon_reads_nothing(machine: Machine) -> None:
    machine.configure(scrub_budget="10m")
    daemon = machine.start()
    daemon.wait_for_log("scrub: ")
    assert request_done(str(machine.store), "pause")
    wait_until("it is idle", lambda: upkeep(machine)["doing"] is None)
    (machine.source / "new").write_bytes(os.urandom(1000))
    request_snapshot(str(machine.store))
    request_snapshot(str(machine.store))
    assert known(machine).unchecked > 0
    assert request_done(str(machine.store), "resume")
    wait_until("it goes on", lambda: known(machine).unchecked == 0)
    stopped_in_peace(daemon)


def test_a_prune_that_found_the_store_locked_runs_later(machine: Machine) -> None:
    first = take(machine, days_ago=40, big=os.urandom(MIB))
    take(machine, days_ago=1, big=os.urandom(1000))
    machine.configure(trash="0")
    with open_store(str(machine.store), write=True) as store:
        store.trash.forget([first], time.time_ns())
        daemon = machine.start()
        daemon.wait_for_log("prune was postponed: ")
        assert "pruned: " not in daemon.log()
    request_snapshot(str(machine.store))
    daemon.wait_for_log("pruned: 1 snapshot removed for good")
    assert trashed(machine) == []
    stopped_in_peace(daemon)


def test_many_small_packs_are_merged_even_if_nothing_was_forgotten(machine: Machine) -> None:
    create_store(str(machine.store), ManualClock(time.time_ns() - DAY_NS))
    for number in range(33):
        (machine.source / "log").write_bytes(b"step %d\n" % number)
        take(machine, days_ago=0.5 - number / 100)
        packs = len(list((machine.store / "packs").iterdir()))
        done = Upkeep(ManualClock(), lambda: None, store_id=None)
        if number == 15:
            done.run(load_settings(str(machine.config)), lambda: False)
            assert done.shown["prune"] is None, "they are few yet"
    assert packs >= 64
    done.run(load_settings(str(machine.config)), lambda: False)
    assert done.shown["prune"]["merged"]["packs"] >= 60
    assert len(list((machine.store / "packs").iterdir())) <= 2
    with open_store(str(machine.store)) as store:
        assert len(store.manifests.files()) == 33

"""A real ciuicd takes a small snapshot while a large one is under way.

The process of the large snapshot is stopped (SIGSTOP) while it reads, so it lasts as long as a test
wants.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ciuic.control import request_done, request_snapshot, request_status
from ciuic.documents import Document
from ciuic.errors import CancelledError, CiuicError
from ciuic.store.store import open_store
from tests.kit.daemon import DEADLINE_S, Daemon, Machine, wait_until
from tests.kit.filesystems import disk
from tests.kit.program import ciuic

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
IN_FRONT = ("nice", "-n", "19")
"""The test sees what the daemon does before it is over."""


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("big") / "model.bin"
    with path.open("wb") as file:
        for _ in range(128):
            file.write(os.urandom(MIB))
    yield path
    path.unlink()


class Site:
    """A machine with a large directory and some small ones.

    Attributes:
        large: The process that takes the large snapshot, when ``hold`` has returned.
    """

    def __init__(self, machine: Machine, big_file: Path) -> None:
        self.machine = machine
        self.huge = machine.directory / "huge"
        (self.huge / "run7").mkdir(parents=True)
        (self.huge / "run7" / "notes.txt").write_text("inside")
        os.link(big_file, self.huge / "model.bin")
        self.small = self._directory("small")
        self.other = self._directory("other")
        self.large: psutil.Process

    def _directory(self, name: str) -> Path:
        path = self.machine.directory / name
        path.mkdir()
        (path / "a").write_text(name)
        return path

    def start(self, **settings: str) -> Daemon:
        """Start a daemon that takes the large directory unless the settings say otherwise."""
        self.configure(**settings)
        return self.launch()

    def configure(self, **settings: str) -> None:
        self.machine.configure(**{"snapshot_paths": str(self.huge), "threads": "1"} | settings)

    def launch(self, *wrapper: str) -> Daemon:
        daemon = self.machine.launch(wrapper=(*IN_FRONT, *wrapper))
        wait_until("the daemon answers", daemon.answers)
        return daemon

    def hold(self, daemon: Daemon) -> None:
        """Stop the process that takes a snapshot, once it reads."""

        def reads() -> bool:
            progress = self.status()["progress"]
            found = psutil.Process(daemon.process.pid).children()
            if len(found) != 1 or not progress or progress["state"] != "taking":
                return False
            self.large = found[0]
            return True

        # The process of the snapshot before may just have ended.
        wait_until("the large snapshot reads", reads)
        self.large.suspend()
        wait_until("it is stopped", lambda: self.large.status() == psutil.STATUS_STOPPED)
        assert self.status()["state"] == "taking", "it must not be over"

    def status(self) -> Document:
        found = request_status(str(self.machine.store))
        assert found is not None
        return found

    def begin(self, path: Path, **more: Any) -> "Request":
        """Ask for a snapshot of a directory, and return at once."""
        return Request(str(self.machine.store), roots=(os.fsencode(path),), **more)

    def ask(self, path: Path) -> Document:
        """Ask for a snapshot of a directory, and wait for it."""
        found = self.begin(path).outcome()
        assert isinstance(found, dict), found
        return found

    def taken(self) -> list[str]:
        """Return the names of the directories with a snapshot, oldest first."""
        return [Path(os.fsdecode(one.roots[0])).name for one in self.machine.snapshots()][::-1]


class Request(threading.Thread):
    """A request to the daemon, on a thread."""

    def __init__(self, store_path: str, **asked: Any) -> None:
        super().__init__(daemon=True)
        self._store_path = store_path
        self._asked = asked
        self._told: list[str] = []
        self.found: Document | CiuicError | None = None
        self.start()

    def run(self) -> None:
        def progress(told: Document) -> None:
            self._told.append(told["state"])

        try:
            self.found = request_snapshot(self._store_path, progress=progress, **self._asked)
        except CiuicError as error:
            self.found = error

    def must_wait(self) -> None:
        """Fail unless it waits for some seconds."""
        wait_until("it has waited", lambda: len(self._told) >= 3 or not self.is_alive())
        assert self._told[:3] == ["waiting"] * 3, self.found

    def outcome(self) -> Document | CiuicError:
        """Return the report, or the error."""
        self.join(DEADLINE_S)
        assert self.found is not None, self._told
        return self.found


@pytest.fixture
def site(machine: Machine, big_file: Path) -> Iterator[Site]:
    yield Site(machine, big_file)


def test_a_small_snapshot_does_not_wait_for_the_large_one_that_the_daemon_takes(
    site: Site,
) -> None:
    daemon = site.start()
    site.hold(daemon)

    outcome = ciuic("--config", site.machine.config, "snapshot", site.small, "--json")

    assert outcome.code == 0, outcome.err
    assert site.large.status() == psutil.STATUS_STOPPED
    assert site.taken() == ["small"]
    daemon.wait_for_log(f"snapshot {outcome.document['id']}")
    status = site.status()
    assert (status["state"], status["newest"]) == ("taking", None)
    assert status["last_report"]["id"] == outcome.document["id"]

    site.large.resume()
    daemon.wait_for_log("no warnings", count=2)
    wait_until("it waits", lambda: site.status()["state"] == "idle")
    small, huge = site.machine.snapshots()  # the large one began first
    assert [one.origin for one in (small, huge)] == ["command", "daemon"]
    status = site.status()
    assert status["newest"] is not None
    assert status["last_report"]["id"] == huge.id
    alone = ciuic("--config", site.machine.config, "snapshot", site.small, "--json")
    assert alone.document.keys() == outcome.document.keys()
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_snapshot_of_a_directory_inside_the_large_one_does_not_wait_either(site: Site) -> None:
    daemon = site.start()
    site.hold(daemon)
    assert site.ask(site.huge / "run7")["files"] == 1
    assert site.taken() == ["run7"]


def test_a_snapshot_of_the_same_directory_waits_and_reads_only_what_has_changed_since(
    site: Site,
) -> None:
    daemon = site.start()
    site.hold(daemon)
    waiting = site.begin(site.huge)
    waiting.must_wait()
    assert site.ask(site.small)["kind"] == "base", "one that came later goes first"
    site.large.resume()
    report = waiting.outcome()
    assert isinstance(report, dict)
    assert (report["kind"], report["read_bytes"]) == ("delta", 0)
    assert site.taken() == ["huge", "small", "huge"]


SOON = """
import sys
from ciuicd import notify
notify.STALLED_S = 1.0
from ciuicd.__main__ import main
sys.exit(main(sys.argv[4:]))
"""
"""The daemon that takes work for stalled after a second. Its own command follows."""


def test_a_snapshot_that_hangs_is_known_although_others_go_on(site: Site) -> None:
    site.configure()
    daemon = site.launch(sys.executable, "-c", SOON)
    site.hold(daemon)
    wait_until("the status knows it", lambda: site.status()["stalled_s"] is not None)
    before_s = site.status()["stalled_s"]
    site.ask(site.small)
    assert (site.status()["stalled_s"] or 0.0) > before_s, "the one that hangs has not gone on"
    site.large.resume()
    daemon.wait_for_log("no warnings", count=2)


def test_with_hooks_one_snapshot_waits_for_the_other(site: Site) -> None:
    """What one hook stops for its snapshot, the other would start again in the middle."""
    daemon = site.start(after="true")
    site.hold(daemon)
    waiting = site.begin(site.small)
    waiting.must_wait()
    # The hooks of the one under way count as well.
    site.configure()
    assert request_done(str(site.machine.store), "reload") is not None
    also_waiting = site.begin(site.other)
    also_waiting.must_wait()
    site.large.resume()
    assert isinstance(waiting.outcome(), dict)
    assert isinstance(also_waiting.outcome(), dict)
    assert site.taken() == ["huge", "small", "other"]


def test_a_reload_by_a_signal_does_not_wait_for_the_large_snapshot(site: Site) -> None:
    daemon = site.start()
    site.hold(daemon)
    site.configure(snapshot_interval="1d")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log(f"reloaded {site.machine.config}")
    assert site.status()["snapshot_interval_s"] == 86_400
    site.large.resume()
    daemon.wait_for_log("no warnings")


def test_an_emergency_snapshot_of_another_directory_still_ends_the_daemons_own(site: Site) -> None:
    daemon = site.start()
    site.hold(daemon)
    emergency = site.begin(site.small, tags=("emergency",))
    emergency.must_wait()
    site.large.resume()
    daemon.wait_for_log("a snapshot was cancelled because an emergency snapshot goes first")
    assert isinstance(emergency.outcome(), dict)
    assert site.taken()[0] == "small"


def test_a_scheduled_snapshot_does_not_wait_for_a_large_one_that_a_user_asked_for(
    site: Site,
) -> None:
    daemon = site.start(snapshot_paths=str(site.small), snapshot_interval="1s")
    request_done(str(site.machine.store), "pause")
    wait_until("none is under way", lambda: site.status()["state"] == "paused")
    asked = site.begin(site.huge)
    site.hold(daemon)
    before = len(site.machine.snapshots())
    request_done(str(site.machine.store), "resume")
    wait_until("the schedule goes on", lambda: len(site.machine.snapshots()) >= before + 2)
    assert set(site.taken()) == {"small"}
    site.large.resume()
    assert isinstance(asked.outcome(), dict)
    assert daemon.stop() == 0
    assert "failed" not in daemon.log()


@pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NICE)[0] < 1,
    reason="this user may not leave SCHED_IDLE again",
)
def test_a_scheduled_snapshot_still_gives_way_beside_one_that_a_user_asked_for(
    site: Site,
) -> None:
    (site.huge / "more.bin").write_bytes(os.urandom(128 * MIB))
    daemon = site.start()
    site.hold(daemon)
    site.ask(site.small)
    site.large.resume()

    def goes_on() -> bool:
        progress = site.status()["progress"]
        assert progress is not None, "it must not be over"
        return bool(progress["bytes"])

    wait_until("it goes on", goes_on)
    site.large.suspend()
    assert os.SCHED_IDLE in {os.sched_getscheduler(one.id) for one in site.large.threads()}


def test_of_the_daemons_own_snapshots_one_waits_for_the_other(site: Site) -> None:
    """Together they would take twice as much from the training, and no user waits for them."""
    daemon = site.start()
    site.hold(daemon)
    site.configure(snapshot_paths=str(site.other))
    assert request_done(str(site.machine.store), "reload") is not None
    site.ask(site.small)
    site.ask(site.small)  # a request has every second turn
    assert site.taken() == ["small", "small"], "the other directory was due before that"
    site.large.resume()
    wait_until("both are taken", lambda: set(site.taken()) == {"small", "huge", "other"})


def test_what_the_policy_does_not_keep_is_forgotten_when_the_last_of_them_has_ended(
    site: Site,
) -> None:
    daemon = site.start(retention_policy="last:1")
    site.hold(daemon)
    site.ask(site.small)
    site.ask(site.small)
    assert site.taken() == ["small", "small"]
    site.large.resume()
    daemon.wait_for_log("forgot 1 snapshot")
    assert sorted(site.taken()) == ["huge", "small"]
    assert "postponed" not in daemon.log()


def test_a_daemon_that_ends_takes_no_more_and_ends_what_is_under_way(site: Site) -> None:
    daemon = site.start(snapshot_paths=str(site.small))
    daemon.wait_for_log("no warnings")
    asked = site.begin(site.huge)
    site.hold(daemon)
    waiting = site.begin(site.huge)
    waiting.must_wait()
    site.large.resume()
    assert daemon.stop() == 0
    assert isinstance(asked.outcome(), CancelledError)
    assert isinstance(waiting.outcome(), CancelledError)
    assert site.taken() == ["small"]
    assert not site.large.is_running()


def test_the_processes_of_all_snapshots_end_with_a_daemon_that_is_killed(site: Site) -> None:
    daemon = site.start()
    site.hold(daemon)
    (site.other / "more.bin").write_bytes(os.urandom(64 * MIB))
    site.begin(site.other)
    own = psutil.Process(daemon.process.pid)
    wait_until("both are under way", lambda: len(own.children()) == 2)
    both = own.children()
    daemon.kill()
    wait_until("both have ended", lambda: not any(one.is_running() for one in both))
    site.machine.configure(snapshot_paths=str(site.small))
    next_one = site.machine.start()
    assert site.ask(site.small)["trouble_count"] == 0
    assert next_one.stop() == 0


@pytest.mark.root
@pytest.mark.parametrize(("kind", "how"), [("xfs", "reflink"), ("btrfs", "subvolume")])
def test_snapshots_of_one_file_system_are_taken_at_once_and_each_freezes(
    site: Site, tmp_path: Path, kind: str, how: str
) -> None:
    with disk(kind, tmp_path / "disk", size_mib=500) as found, contextlib.closing(site.machine):
        huge, small = found.path / "huge", found.path / "small"
        huge.mkdir()
        small.mkdir()
        (small / "a").write_bytes(os.urandom(40_000))
        (huge / "model.bin").write_bytes((site.huge / "model.bin").read_bytes())
        daemon = site.start(snapshot_paths=str(huge))
        site.hold(daemon)
        assert site.ask(small)["files"] == 1
        assert site.taken() == ["small"]
        site.large.resume()
        wait_until("both are taken", lambda: len(site.taken()) == 2)
        assert daemon.stop() == 0
        with open_store(str(site.machine.store)) as store:
            manifests = [store.manifest(one.id) for one in site.machine.snapshots()]
        assert [one.roots[0].capture for one in manifests] == [how, how]

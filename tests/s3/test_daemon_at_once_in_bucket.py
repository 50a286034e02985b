"""The daemon of a store in a bucket takes a small snapshot while a large one is under way.

The proxy in front of the server holds the first pack of the large snapshot, so it lasts as long as
a test wants.
"""

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading

import psutil
import pytest

from ciuic.control import request_done, request_snapshot
from ciuic.errors import CancelledError, CiuicError
from tests.kit.daemon import DEADLINE_S, wait_until
from tests.kit.machine import MIB
from tests.kit.place_contract import keys

pytestmark = [pytest.mark.slow, pytest.mark.root]


class Holding:
    """A fault: the first request to write a pack waits until ``release``."""

    def __init__(self):
        self._released = threading.Event()
        self._turn = threading.Lock()
        self.has_begun = threading.Event()

    def __call__(self, request, forward):
        is_pack = request.method in {"PUT", "POST"} and "/packs/" in request.path
        with self._turn:
            is_first = is_pack and not self.has_begun.is_set()
            if is_first:
                self.has_begun.set()
        if is_first:
            self._released.wait(DEADLINE_S)
        return forward(request)

    def release(self):
        self._released.set()


class Request(threading.Thread):
    """A request to the daemon, on a thread."""

    def __init__(self, path, **asked):
        super().__init__(daemon=True)
        self._path, self._asked = path, asked
        self._told = []
        self.found = None
        self.start()

    def run(self):
        def progress(told):
            self._told.append(told["state"])

        try:
            self.found = request_snapshot(str(self._path), progress=progress, **self._asked)
        except CiuicError as error:
            self.found = error

    def must_wait(self):
        """Fail unless it waits for some seconds."""
        wait_until("it has waited", lambda: len(self._told) >= 3 or not self.is_alive())
        assert self._told[:3] == ["waiting"] * 3, self.found

    def outcome(self):
        self.join(DEADLINE_S)
        assert self.found is not None, self._told
        return self.found


class Site:
    """A daemon and a large snapshot that it takes.

    Attributes:
        large: The process that takes the large snapshot, when ``hold`` has returned.
    """

    def __init__(self, run, daemon, server, proxy, source):
        self._run = run
        self._daemons = daemon
        self._server, self._proxy = server, proxy
        self.source = source
        self.small = run.directory / "little"
        self.small.mkdir()
        (self.small / "a").write_text("a")
        self.holding = Holding()
        self.process = None
        self.large = None

    def configure(self, *lines, paths=None, interval="365d", priority="none"):
        self._daemons.configure(*lines, interval=interval)
        text = self._run.config.read_text().replace(self._server.endpoint, self._proxy.endpoint)
        if paths is not None:
            text = text.replace(f"snapshot_paths = {self.source}\n", f"snapshot_paths = {paths}\n")
        text = text.replace("io_priority = none", f"io_priority = {priority}")
        self._run.config.write_text(text.replace("scrub_budget = 1h", "scrub_budget = 0"))

    def start(self, *lines, **how):
        self.configure(*lines, **how)
        self.process = self._daemons.start()

    def hold(self):
        """Return once the large snapshot waits for the server."""
        assert self.holding.has_begun.wait(DEADLINE_S)
        (self.large,) = psutil.Process(self.process.pid).children()

    def stop_while_it_reads(self):
        """Stop the process of the large snapshot, which can then still be cancelled."""
        with (self.source / "model.bin").open("wb") as file:
            for _ in range(192):
                file.write(os.urandom(MIB))
        self.start("threads = 1")

        def reads():
            progress = self.status()["progress"]
            return bool(progress and progress["state"] == "taking")

        wait_until("the large snapshot reads", reads)
        (self.large,) = psutil.Process(self.process.pid).children()
        self.large.suspend()
        wait_until("it is stopped", lambda: self.large.status() == psutil.STATUS_STOPPED)
        self.holding.release()

    def ask(self, path, **more):
        return Request(self._daemons.directory(), roots=(os.fsencode(path),), **more)

    def status(self):
        return self._daemons.status()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0


@pytest.fixture
def site(run, daemon, server, proxy, source):
    made = Site(run, daemon, server, proxy, source)
    proxy.always(made.holding)
    yield made
    made.holding.release()


def taken(machine):
    """Return the names of the directories with a snapshot, oldest first."""
    from ciuic.catalog import list_snapshots

    with machine.opened() as store:
        return [os.fsdecode(os.path.basename(one.roots[0])) for one in list_snapshots(store)][::-1]


def test_a_small_snapshot_does_not_wait_for_the_large_one_that_the_daemon_takes(
    site, daemon, elsewhere
):
    site.start()
    site.hold()

    report = site.ask(site.small).outcome()

    assert report["trouble_count"] == 0
    assert taken(elsewhere) == ["little"]
    status = site.status()
    assert (status["state"], status["newest"]) == ("taking", None)
    assert status["last_report"]["id"] == report["id"]
    assert psutil.Process(site.process.pid).children() == [site.large]
    site.holding.release()
    daemon.wait_for("no warnings", count=2)
    assert sorted(taken(elsewhere)) == ["little", "source"]
    wait_until("it waits", lambda: site.status()["state"] == "idle")
    assert site.status()["newest"] is not None, "the daemon sees what its process has committed"
    again = site.ask(site.source).outcome()
    assert (again["kind"], again["read_bytes"]) == ("delta", 0)
    assert elsewhere.verify().ok
    site.end()
    assert keys(elsewhere.place(), "leases") == []
    assert "failed" not in daemon.said()


def test_a_scheduled_snapshot_does_not_wait_for_a_large_one_that_a_user_asked_for(
    site, daemon, elsewhere
):
    site.holding.has_begun.set()  # not the daemon's first one
    site.start(paths=site.small, interval="1s")
    daemon.wait_for("no warnings")
    request_done(str(daemon.directory()), "pause")
    wait_until("none is under way", lambda: site.status()["state"] == "paused")
    site.holding.has_begun.clear()
    asked = site.ask(site.source)
    site.hold()
    before = daemon.said().count("no warnings")
    request_done(str(daemon.directory()), "resume")
    daemon.wait_for("no warnings", count=before + 2)
    assert set(taken(elsewhere)) == {"little"}
    site.holding.release()
    assert isinstance(asked.outcome(), dict)
    site.end()
    assert "failed" not in daemon.said()


def test_the_process_has_the_daemons_priority_and_no_secret_on_its_command_line(site, key_file):
    site.start(priority="best-effort")
    site.hold()
    own = psutil.Process(site.process.pid)
    assert (site.large.nice(), site.large.ionice()) == (own.nice(), own.ionice()) != (0, (0, 4))
    secrets = [line.rpartition(" ")[2] for line in key_file.read_text().splitlines()[1:]]
    assert len(secrets) == 2
    assert not [secret for secret in secrets if secret in "\0".join(site.large.cmdline())]


def test_a_process_that_is_killed_is_one_line_and_the_next_snapshot_is_taken(
    site, daemon, elsewhere, run
):
    said = run.directory / "said"
    site.start(f"after = echo $CIUIC_HOOK $CIUIC_EXIT_STATUS >> {said}")
    site.hold()
    site.large.kill()
    daemon.wait_for("snapshot failed: the daemon's process that did the work was killed by signal")
    wait_until("the hook runs", lambda: said.exists() and said.read_text() == "after 137\n")
    site.holding.release()
    assert isinstance(site.ask(site.source).outcome(), dict)
    assert elsewhere.verify().ok
    site.end()
    assert daemon.said().count("failed") == 1


def test_the_process_ends_with_a_daemon_that_is_killed_and_the_next_one_goes_on(
    site, daemon, elsewhere
):
    site.start()
    site.hold()
    site.process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        site.large.wait(DEADLINE_S)
    assert not site.large.is_running()
    site.process.wait(DEADLINE_S)
    site.holding.release()
    site.process = daemon.start()
    daemon.wait_for("no warnings")
    assert taken(elsewhere) == ["source"]
    assert elsewhere.verify().ok
    site.end()


def test_a_daemon_that_ends_ends_the_process_and_commits_nothing(site, daemon, elsewhere):
    site.stop_while_it_reads()
    waiting = site.ask(site.source)
    waiting.must_wait()
    site.process.send_signal(signal.SIGTERM)
    site.large.resume()
    assert site.process.wait(DEADLINE_S) == 0
    assert isinstance(waiting.outcome(), CancelledError)
    assert not site.large.is_running()
    assert taken(elsewhere) == []
    assert keys(elsewhere.place(), "leases") == []
    daemon.wait_for("a snapshot was cancelled because the daemon is stopping")


def test_a_reload_by_a_signal_does_not_wait_for_the_large_snapshot(site, daemon):
    site.start()
    site.hold()
    site.configure(interval="1d")
    site.process.send_signal(signal.SIGHUP)
    daemon.wait_for("reloaded ")
    assert site.status()["snapshot_interval_s"] == 86_400
    assert site.status()["state"] == "taking"
    site.holding.release()
    daemon.wait_for("no warnings")
    site.end()


def test_an_emergency_snapshot_ends_the_daemons_own(site, daemon, elsewhere):
    site.stop_while_it_reads()
    emergency = site.ask(site.small, tags=("emergency",))
    emergency.must_wait()
    site.large.resume()
    daemon.wait_for("a snapshot was cancelled because an emergency snapshot goes first")
    assert isinstance(emergency.outcome(), dict)
    assert taken(elsewhere)[0] == "little"
    site.end()


def test_a_process_that_cannot_be_started_is_one_line_and_the_daemon_goes_on(
    site, daemon, elsewhere, run
):
    """As after an upgrade of Python, which leaves the files of ciuic as they were."""
    top = run.directory / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", top]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    (packages,) = (top / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = top / "bin" / "python"
    site.holding.release()
    site.configure()
    site.process = daemon.start(str(python))
    daemon.wait_for("no warnings")
    aside = python.rename(python.with_name("aside"))

    refused = site.ask(site.small).outcome()

    sentence = f"the daemon's process for the work cannot be started: {python}: No such file"
    assert isinstance(refused, CiuicError)
    assert refused.message.startswith(sentence)
    assert daemon.said().count("failed") == daemon.said().count(f"failed: {sentence}") == 1
    aside.rename(python)
    assert isinstance(site.ask(site.small).outcome(), dict)
    site.end()

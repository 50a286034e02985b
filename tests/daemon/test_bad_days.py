"""A real ciuicd on bad days: clocks that jump, a root that goes, many changes, slow clients."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ciuic.catalog import list_snapshots
from ciuic.control import request_done, request_status
from ciuic.errors import CiuicError
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from ciuic.view.locator import locate
from tests.kit.daemon import Daemon, Machine, wait_until

HOUR_NS = 3600 * 10**9
MIB = 1024 * 1024

CLOCK = """
import os, time
real = time.time_ns
def shifted():
    with open({path!r}) as file:
        return real() + int(file.read() or 0)
time.time_ns = shifted
"""
"""Loaded by the interpreter before the daemon: its wall clock is off by what a file says."""


class ShiftedClock:
    """The wall clock of a daemon; ``environ`` makes the daemon use it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "shift"
        self.shift(0)
        hook = directory / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(CLOCK.format(path=str(self._file)))
        self.environ = {"PYTHONPATH": str(hook)}

    def shift(self, by_ns: int) -> None:
        """Set the clock to the real time and this much."""
        next_file = self._file.with_name("next-shift")
        next_file.write_text(str(by_ns))
        next_file.rename(self._file)


def times_taken(machine: Machine) -> list[int]:
    return sorted(one.taken_ns for one in machine.snapshots())


def look(machine: Machine) -> None:
    """Have the daemon look at the clock now, and return when it has taken what is due."""
    for _ in range(2):  # the second request comes after the turn that the first one began
        assert request_done(str(machine.store), "resume") is not None
        wait_until("it is idle", lambda: state_of(machine) == "idle")


def state_of(machine: Machine) -> str:
    status = request_status(str(machine.store))
    return "" if status is None else str(status["state"])


def test_a_clock_that_jumps_costs_no_snapshot_and_causes_no_flood(
    machine: Machine, tmp_path: Path
) -> None:
    clock = ShiftedClock(tmp_path)
    # As far from the next full hour as can be.
    now_ns = time.time_ns()
    base_ns = -(now_ns % HOUR_NS) + HOUR_NS // 4
    clock.shift(base_ns)
    machine.configure(snapshot_interval="1h")
    daemon = machine.start(clock.environ)
    daemon.wait_for_log("no warnings")
    first = times_taken(machine)
    assert len(first) == 1

    # Five hours forward, as after a suspend: one snapshot for all of them.
    clock.shift(base_ns + 5 * HOUR_NS)
    look(machine)
    wait_until("the missed one is taken", lambda: len(times_taken(machine)) == 2)
    look(machine)
    assert len(times_taken(machine)) == 2

    # Ten hours back: the snapshots there are from the future, and each hour still has its own.
    for hours in (-10, -9, -8):
        clock.shift(base_ns + hours * HOUR_NS)
        look(machine)
        wanted = 13 + hours
        wait_until("this hour has one", lambda wanted=wanted: len(times_taken(machine)) == wanted)
        look(machine)
        assert len(times_taken(machine)) == wanted

    # Back to the right time: that hour has its snapshot already.
    clock.shift(base_ns)
    look(machine)
    assert len(times_taken(machine)) == 5
    clock.shift(base_ns + 100 * 365 * 24 * HOUR_NS)
    look(machine)
    wait_until("a hundred years later", lambda: len(times_taken(machine)) == 6)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_root_that_goes_and_comes_back_is_named_and_then_covered_again(
    machine: Machine,
) -> None:
    other = machine.directory / "other"
    other.mkdir()
    (other / "file").write_text("here\n")
    machine.configure(
        snapshot_paths=f"{machine.source}, {other}", snapshot_interval="1s", hot_snapshots="0"
    )
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    away = machine.directory / "away"
    other.rename(away)
    daemon.wait_for_log(f"{other}: ")
    assert not daemon.ended()
    (machine.source / "new").write_text("taken meanwhile\n")
    wait_until(
        "the other root is still taken",
        lambda: _has(machine, os.fsencode(machine.source / "new")),
    )
    (away / "file").write_text("back\n")
    away.rename(other)
    count = daemon.log().count("no warnings")
    daemon.wait_for_log("no warnings", count=count + 1)
    assert _has(machine, os.fsencode(other / "file"))
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def _has(machine: Machine, path: bytes) -> bool:
    """Return whether the newest snapshot has a path."""
    with open_store(str(machine.store)) as store:
        newest = max(list_snapshots(store), key=lambda one: one.taken_ns)
        with contextlib.suppress(CiuicError):
            locate(store, store.manifest(newest.id), path)
            return True
    return False


CHURN = """
import os, sys
os.chdir(sys.argv[1])
number = 0
while True:
    number += 1
    name = f"f{number % 2000}"
    with open("next", "wb") as file:
        file.write(b"%d" % number)
    os.rename("next", name)
    if number % 3 == 0:
        os.unlink(name)
    if number % 1000 == 0:
        print(number, flush=True)
"""
"""Each round is three or four changes of a directory."""


def test_ten_thousand_changes_a_second_are_snapshots_as_always(machine: Machine) -> None:
    machine.configure(snapshot_interval="1s", hot_snapshots="0", pressure_limit="0")
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    command = [sys.executable, "-c", CHURN, str(machine.source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as churn:
        assert churn.stdout is not None
        began_s = time.monotonic()
        before = daemon.log().count("snapshot cs-")
        daemon.wait_for_log("snapshot cs-", count=before + 5)
        took_s = time.monotonic() - began_s
        memory_bytes = psutil.Process(daemon.process.pid).memory_info().rss
        churn.kill()
        changes = 3 * max(map(int, churn.stdout.read().split()))
    print(f"{changes / took_s:,.0f} changes a second, {memory_bytes / MIB:.0f} MiB")
    assert memory_bytes < 250 * MIB
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
    assert "snapshot failed" not in daemon.log()
    with open_store(str(machine.store)) as store:
        assert verify_all(store, checksum=True, clock=SystemClock()).ok


@contextlib.contextmanager
def dripping(machine: Machine, count: int) -> Iterator[list[socket.socket]]:
    """Connect clients, each of which has sent the beginning of a request."""
    with contextlib.ExitStack() as clients:
        found = []
        for _ in range(count):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(60)
            client.connect(str(machine.store / "control.sock"))
            client.sendall(b'{"do"')
            found.append(client)
        yield found


def test_clients_that_never_finish_a_request_are_dropped_and_keep_no_other_out(
    machine: Machine,
) -> None:
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    with dripping(machine, 12) as clients:
        began_s = time.monotonic()
        assert daemon.answers()
        assert time.monotonic() - began_s < 5
        (machine.source / "more").write_text("x")
        for client in clients:  # after its ten seconds
            assert client.recv(1000) == b""
    # All places are taken: others are told so, and served once these have been dropped.
    with dripping(machine, 16) as clients, socket.socket(socket.AF_UNIX) as late:
        late.settimeout(60)
        late.connect(str(machine.store / "control.sock"))
        with contextlib.suppress(BrokenPipeError):
            late.sendall(b'{"do": "status"}\n')
        assert "too many clients" in json.loads(late.recv(10_000))["error"]["message"]
        for client in clients:
            assert client.recv(1000) == b""
    wait_until("it answers", daemon.answers)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_daemon_that_is_stopped_and_continued_goes_on(machine: Machine) -> None:
    machine.configure(snapshot_interval="1s")
    daemon: Daemon = machine.start()
    daemon.wait_for_log("no warnings")
    process = psutil.Process(daemon.process.pid)
    process.suspend()
    wait_until("it stands still", lambda: process.status() == psutil.STATUS_STOPPED)
    count = daemon.log().count("no warnings")
    process.resume()
    daemon.wait_for_log("no warnings", count=count + 2)
    assert daemon.stop() == 0

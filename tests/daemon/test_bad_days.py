"""A real ciuicd on bad days: roots that go, slow clients, thousands of changes a second."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil

from ciuic.catalog import list_snapshots
from ciuic.errors import CiuicError
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.verify.verify import verify_all
from ciuic.view.locator import locate
from tests.kit.daemon import Machine, wait_until

MIB = 1024 * 1024
PLACES = 16


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


def _is_connected(machine: Machine, client: socket.socket) -> bool:
    # The kernel refuses a client while too many wait to be accepted.
    with contextlib.suppress(BlockingIOError):
        client.connect(str(machine.store / "control.sock"))
        return True
    return False


@contextlib.contextmanager
def dripping(machine: Machine, count: int) -> Iterator[list[socket.socket]]:
    """Connect clients that have each sent only the beginning of a request."""
    with contextlib.ExitStack() as clients:
        found = []
        for _ in range(count):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(60)
            wait_until("it is connected", lambda client=client: _is_connected(machine, client))
            with contextlib.suppress(BrokenPipeError):  # it was refused at once
                client.sendall(b'{"do"')
            found.append(client)
        yield found


def test_clients_that_never_finish_a_request_are_dropped_and_block_no_other_client(
    machine: Machine,
) -> None:
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    with dripping(machine, 12) as clients:
        began_s = time.monotonic()
        assert daemon.answers()
        assert time.monotonic() - began_s < 5
        (machine.source / "more").write_text("x")
        for client in clients:  # the deadline of a request is ten seconds
            assert client.recv(1000) == b""
    wait_until("it answers", daemon.answers)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def reply_of(machine: Machine) -> dict[str, object]:
    """Return what a client gets that asks for the status."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        wait_until("it is connected", lambda: _is_connected(machine, client))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b'{"do": "status"}\n')
        received = b""
        while not received.endswith(b"\n") and (piece := client.recv(100_000)):
            received += piece
    found: dict[str, object] = json.loads(received)
    return found


def test_slow_clients_that_take_every_place_are_dropped_and_others_are_told_until_then(
    machine: Machine,
) -> None:
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    # More than there are places: the answers to earlier clients may still hold some of them.
    with dripping(machine, 2 * PLACES) as clients:
        error = reply_of(machine)["error"]
        assert isinstance(error, dict)
        assert (error["kind"], error["message"]) == ("busy", "the daemon has too many clients")
        replies = [client.recv(10_000) for client in clients]
    kept = [reply for reply in replies if not reply]
    assert PLACES - 2 <= len(kept) <= PLACES, "they had a place, and then their ten seconds"
    assert all(b"too many clients" in reply for reply in replies if reply)
    wait_until("it answers", daemon.answers)
    (machine.source / "more").write_text("x")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


CHURN = """
import contextlib, os, sys, time
with contextlib.suppress(PermissionError):
    os.nice(-10)  # on a busy machine, a slow generator would prove nothing
os.chdir(sys.argv[1])
me = sys.argv[2]
names = [f"{me}-{number}" for number in range(25)]
for name in names:
    open(name, "wb").close()
half = open(f"half-{me}", "wb", buffering=0)
print("ready", flush=True)
changes, began_s = 0, time.monotonic()
while not os.path.exists("../stop"):
    half.write(b"x")
    for name in names:
        os.rename(name, f"other-{me}")
        os.rename(f"other-{me}", name)
        os.truncate(name, changes % 5000)
        os.utime(name, (changes, changes))
        changes += 4
    time.sleep(max(0, changes / 3_000 - (time.monotonic() - began_s)))
print(changes, time.monotonic() - began_s, flush=True)
half.close()
sys.stdin.read()
"""
"""About 3,000 changes in a second, each of them a system call, while a file stays open."""
CHURNERS = 4
"""Several processes get more of a busy machine than one."""


@contextlib.contextmanager
def churn(machine: Machine) -> Iterator[Callable[[], float]]:
    """Change files until the function is called that returns how many it were in a second."""
    command = [sys.executable, "-c", CHURN, str(machine.source)]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for number in range(CHURNERS)
        ]

        def line(process: subprocess.Popen[bytes]) -> bytes:
            assert process.stdout is not None
            return process.stdout.readline()

        def stop() -> float:
            (machine.directory / "stop").touch()
            ends = [line(process).split() for process in processes]
            return sum(int(changes) / float(took_s) for changes, took_s in ends)

        try:
            assert all(line(process) == b"ready\n" for process in processes)
            yield stop
        finally:
            (machine.directory / "stop").touch()
            for process in processes:
                process.communicate()


def test_ten_thousand_changes_a_second_are_snapshots_as_always(machine: Machine) -> None:
    machine.configure(snapshot_interval="1s", hot_snapshots="0", pressure_limit="0")
    daemon = machine.start()
    daemon.wait_for_log("snapshot cs-")
    with churn(machine) as stop:
        before = daemon.log().count("snapshot cs-")
        daemon.wait_for_log("snapshot cs-", count=before + 5)
        memory_bytes = psutil.Process(daemon.process.pid).memory_info().rss
        assert daemon.answers()
        rate = stop()
        taken = daemon.log().count("snapshot cs-")
        # One of these two began after the last change.
        daemon.wait_for_log("snapshot cs-", count=taken + 2)
    print(f"{rate:,.0f} changes a second, {memory_bytes / MIB:.0f} MiB")
    assert rate >= 10_000
    assert memory_bytes < 100 * MIB
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
    assert "snapshot failed" not in daemon.log()
    with open_store(str(machine.store)) as store:
        assert verify_all(store, checksum=True, clock=SystemClock()).ok
        newest = max(list_snapshots(store), key=lambda one: one.taken_ns)
        manifest = store.manifest(newest.id)
        for path in machine.source.iterdir():
            found = locate(store, manifest, os.fsencode(path)).entry
            status = path.stat()
            assert (found.size_bytes, found.mtime_ns) == (status.st_size, status.st_mtime_ns)


def test_more_events_than_the_daemon_reads_cost_nothing_and_hide_no_file_that_is_closed(
    machine: Machine,
) -> None:
    """The follow-up waits for a file in a directory whose other files change all the time."""
    machine.configure(snapshot_interval="1h", hot_snapshots="0", pressure_limit="0")
    with churn(machine) as stop:
        daemon = machine.start()
        daemon.wait_for_log("being written in cs-")
        process = psutil.Process(daemon.process.pid)
        wait_until("the watch has ended", lambda: process.num_threads() == 3)
        used_s, began_s = sum(process.cpu_times()[:2]), time.monotonic()
        wait_until("it has waited", lambda: time.monotonic() > began_s + 5)
        used_s = sum(process.cpu_times()[:2]) - used_s
        assert stop() >= 10_000
        daemon.wait_for_log("snapshot cs-", count=2)
    print(f"{used_s:.2f} s of a processor in 5 s")
    assert used_s < 0.5
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()

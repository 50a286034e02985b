"""A real ciuicd on bad days: roots that go, slow clients, thousands of changes a second."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

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
            # The kernel refuses a client while too many wait to be accepted.
            wait_until("it is connected", lambda client=client: _is_connected(machine, client))
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
        client.connect(str(machine.store / "control.sock"))
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
"""Each round is three or four changes: a file is made, written, renamed, and perhaps removed."""


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
    assert memory_bytes < 100 * MIB
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()
    assert "snapshot failed" not in daemon.log()
    with open_store(str(machine.store)) as store:
        assert verify_all(store, checksum=True, clock=SystemClock()).ok

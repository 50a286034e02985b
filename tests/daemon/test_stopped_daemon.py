"""Commands name a stopped daemon (SIGSTOP) at once, and do not wait for it."""

import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ciuic.control import request_done, request_snapshot, request_status, socket_address
from ciuic.errors import BusyError, StoreError
from ciuic.store.directory.locks import Lock
from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.program import Outcome, ciuic

AT_ONCE_S = 30.0
STARTS_S = 30.0
"""Seconds that the interpreter may take to start and to end on a busy machine."""


@pytest.fixture
def stopped(machine: Machine) -> Iterator[Daemon]:
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    stop(daemon)
    yield daemon
    daemon.signal(signal.SIGCONT)
    wait_until("it goes on", daemon.answers)
    assert daemon.stop() == 0


def stop(daemon: Daemon) -> None:
    daemon.signal(signal.SIGSTOP)
    process = psutil.Process(daemon.process.pid)
    wait_until("it is stopped", lambda: process.status() == psutil.STATUS_STOPPED)


def asked(machine: Machine, *what: str) -> tuple[Outcome, float]:
    """Run a command; return its output, and how long it took."""
    began_s = time.monotonic()
    done = ciuic("--config", machine.config, *what)
    return done, time.monotonic() - began_s


@pytest.mark.parametrize("what", [("status",), ("snapshot",), ("status", "--json"), ("doctor",)])
def test_every_command_names_a_stopped_daemon_at_once(
    machine: Machine, stopped: Daemon, what: tuple[str, ...]
) -> None:
    pid = stopped.process.pid
    done, took_s = asked(machine, *what)
    said = done.out + done.err
    assert done.code == 1, said
    assert f"is stopped, process {pid}" in said
    assert f"kill -CONT {pid}" in said
    assert took_s < AT_ONCE_S + STARTS_S
    assert len(machine.snapshots()) == 1


def test_status_shows_what_the_store_says_although_the_daemon_is_stopped(
    machine: Machine, stopped: Daemon
) -> None:
    [taken] = machine.snapshots()
    shown, _ = asked(machine, "status")
    assert shown.code == 1
    assert f"newest:  {taken.id}" in shown.out
    assert "daemon:" not in shown.out
    assert f"is stopped, process {stopped.process.pid}" in shown.err
    document = asked(machine, "status", "--json")[0].document
    assert document["newest"]["id"] == taken.id
    assert document["error"]["kind"] == "unresponsive"


def test_the_command_that_a_refused_snapshot_names_takes_one(
    machine: Machine, stopped: Daemon
) -> None:
    refused, _ = asked(machine, "snapshot")
    command = re.search(r"'ciuicd (.*? --once)'", " ".join(refused.err.split()))
    assert command is not None, refused.err
    words = shlex.split(command[1])
    assert words == ["--config", str(machine.config), "--once"]
    assert machine.once().returncode == 0
    assert len(machine.snapshots()) == 2


def test_requests_to_a_stopped_daemon_end_at_once(machine: Machine, stopped: Daemon) -> None:
    store = str(machine.store)
    for ask in (request_status, request_snapshot, lambda it: request_done(it, "reload")):
        began_s = time.monotonic()
        with pytest.raises(StoreError, match=f"process {stopped.process.pid}"):
            ask(store)
        assert time.monotonic() - began_s < AT_ONCE_S


def test_a_stopped_daemon_is_named_even_if_its_queue_of_connections_is_full(
    machine: Machine, stopped: Daemon
) -> None:
    store = str(machine.store)
    waiting = []
    with pytest.raises(BlockingIOError), socket_address(store) as address:
        for _ in range(200):
            client = socket.socket(socket.AF_UNIX)
            waiting.append(client)
            client.setblocking(False)
            client.connect(address)
    with pytest.raises(StoreError, match=f"is stopped, process {stopped.process.pid}"):
        request_status(store)
    for client in waiting:
        client.close()
    stopped.signal(signal.SIGCONT)

    def takes_clients() -> bool:
        try:
            return stopped.answers()
        except StoreError:
            return False  # the daemon still serves the clients that wait

    wait_until("it takes clients again", takes_clients)


def test_a_daemon_stopped_during_a_snapshot_is_named_too(machine: Machine) -> None:
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    # A writer holds the store, so the daemon reports every second that it waits.
    with_lock = Lock(str(machine.store / "lock.write"))
    with_lock.take_alone()
    began_s = []

    def then_stop(_news: object) -> None:
        if not began_s:
            stop(daemon)
            began_s.append(time.monotonic())

    with pytest.raises(StoreError, match=f"is stopped, process {daemon.process.pid}"):
        request_snapshot(str(machine.store), progress=then_stop)
    assert time.monotonic() - began_s[0] < AT_ONCE_S
    with_lock.release()
    daemon.signal(signal.SIGCONT)
    wait_until("it goes on", daemon.answers)
    assert daemon.stop() == 0


def test_waiting_for_the_lock_of_a_stopped_process_says_how_to_continue_it(
    tmp_path: Path,
) -> None:
    program = (
        "import sys, time; from ciuic.store.directory.locks import Lock\n"
        f"lock = Lock({str(tmp_path / 'lock.write')!r}); lock.take_alone()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with psutil.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        wait_until("it is stopped", lambda: holder.status() == psutil.STATUS_STOPPED)
        lock = Lock(str(tmp_path / "lock.write"))
        with pytest.raises(BusyError, match=f"process {holder.pid}, which is stopped") as caught:
            lock.take_alone()
        assert f"kill -CONT {holder.pid}" in caught.value.hint
        holder.send_signal(signal.SIGCONT)
        wait_until("it goes on", lambda: holder.status() != psutil.STATUS_STOPPED)
        with pytest.raises(BusyError) as caught:
            lock.take_alone()
        assert "stopped" not in caught.value.message
        holder.kill()

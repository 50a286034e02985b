"""A real ciuicd under bad conditions: a root that goes and comes back, and slow clients."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from ciuic.catalog import list_snapshots
from ciuic.errors import CiuicError
from ciuic.store.store import open_store
from ciuic.view.locator import locate
from tests.kit.daemon import Machine, wait_until


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


@contextlib.contextmanager
def dripping(machine: Machine, count: int) -> Iterator[list[socket.socket]]:
    """Connect clients that have each sent only the beginning of a request."""
    with contextlib.ExitStack() as clients:
        found = []
        for _ in range(count):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(60)
            client.connect(str(machine.store / "control.sock"))
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

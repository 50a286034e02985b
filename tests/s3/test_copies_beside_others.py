"""Copies of two stores to one bucket, a snapshot there and a prune, all at the same time.

tests/crash/test_copies_together.py has the same in a directory. Each process has the cache of a
machine of its own. What the prune removes holds the same bytes as what is copied.
"""

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from ciuic.ids import SnapshotId
from tests.crash.test_copies_together import ended, two_orders, versions
from tests.kit import faulty_proxy as faults
from tests.kit.box import Box
from tests.kit.buckets import write
from tests.kit.chance import drawn_seed
from tests.kit.daemon import wait_until
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import CIUIC, ciuic, environment

pytestmark = [pytest.mark.slow, pytest.mark.root]

ROUNDS = 3 if os.environ.get("CIUIC_LONG") else 2
CHANGES = {"copy0": 20, "copy1": 20, "live": 12, "pruner": 8}
"""About as many requests of each process change the bucket."""
CHANGING = {"PUT", "POST", "DELETE"}


class Killer:
    """A fault: a process is killed when it sends a change of this number.

    Args:
        number: The number, from 1.
        is_done: The server still gets that request.
    """

    def __init__(self, number: int, *, is_done: bool) -> None:
        self._left = number
        self._is_done = is_done
        self._lock = threading.Lock()
        self.victim: subprocess.Popen[str] | None = None

    def __call__(self, request: faults.Request, forward: faults.Forward) -> faults.Answer | None:
        with self._lock:
            self._left -= request.method in CHANGING
            is_now = self._left == 0 and request.method in CHANGING
        if not is_now:
            return forward(request)
        answer = forward(request) if self._is_done else None
        if self.victim is not None:
            self.victim.kill()
        return answer


class Shared:
    """A bucket, and machines that use it."""

    def __init__(self, server, address, directory: Path) -> None:
        self.address = address
        self.directory = directory
        self._server = server
        self.detours: dict[str, str] = {}
        self.processes: list[subprocess.Popen[str]] = []

    def machine(self, name: str) -> Machine:
        return Machine(self.address, self._server, self._server.endpoint, self.directory / name)

    def environ(self, name: str) -> dict[str, str]:
        endpoint = self.detours.get(name, self._server.endpoint)
        return {**self.machine(name).environ, "AWS_ENDPOINT_URL": endpoint}

    def begun(self, name: str, store: object, *command: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*CIUIC, "--store", str(store), *command],
            env=environment({**self.environ(name), "PYTHONFAULTHANDLER": "1"}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def wait_for_lease(self, kind: str, count: int, process: "subprocess.Popen[str]") -> None:
        """Wait until there are this many leases; a process that ended, or hangs, says why."""
        try:
            wait_until(
                f"{count} leases of {kind}",
                lambda: self.leases(kind) >= count or process.poll() is not None,
            )
        except AssertionError as error:
            process.send_signal(signal.SIGABRT)
            raise AssertionError(f"{error}\n{process.communicate()[1]}") from None
        assert process.poll() is None, process.communicate()[1]

    def run(self, name: str, *command: object) -> str:
        done = ciuic("--store", self.address, *command, more=self.environ(name))
        assert done.code == 0, done
        return done.out

    def leases(self, kind: str) -> int:
        return sum(key.startswith(f"leases/{kind}-") for key in keys(self.machine("look").place()))


@pytest.fixture
def shared(server, address, tmp_path: Path) -> Iterator[Shared]:
    made = Shared(server, address, tmp_path)
    assert made.machine("first").init()[0]
    yield made
    for process in made.processes:
        with process:
            process.kill()


@pytest.fixture
def sources(tmp_path: Path) -> list[Box]:
    return two_orders(tmp_path)


def forgotten(shared: Shared, live: Path, saves: list[bytes]) -> SnapshotId:
    """Take two snapshots, of files and without them; forget the first, and return the second."""
    live.mkdir(exist_ok=True)
    for number, save in enumerate(saves):
        (live / f"old{number}").write_bytes(save)
    gone = SnapshotId(shared.run("first", "snapshot", live).split()[0])
    for number in range(len(saves)):
        (live / f"old{number}").unlink()
    write(live, ["new"])
    kept = SnapshotId(shared.run("first", "snapshot", live).split()[0])
    shared.run("first", "forget", gone)
    return kept


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_killed", [False, True], ids=["both end", "one is killed"])
def test_copies_a_snapshot_and_a_prune_of_a_bucket_at_once_lose_nothing(
    shared: Shared, sources: list[Box], tmp_path: Path, *, is_killed: bool
) -> None:
    live = tmp_path / "live"
    kept = forgotten(shared, live, list(islice(versions(), 2)))

    to = ("copy", "--to", shared.address, "--limit", "300KiB")
    both = []
    for number, box in enumerate(sources):
        both.append(shared.begun(f"copy{number}", box.store, *to))
        shared.wait_for_lease("copy", 4 * number + 4, both[-1])
        both[-1].send_signal(signal.SIGSTOP)
    first, second = both
    write(live, ["more"])
    beside = shared.run("first", "snapshot", live).split()[0]
    # It waits in vain for the leases of a copy that was killed.
    wait = "15s" if is_killed else "60s"
    prune = shared.begun("pruner", shared.address, "prune", "--trash", "0", "--wait", wait)
    shared.wait_for_lease("prune", 1, prune)
    assert (first.poll(), second.poll()) == (None, None)
    for process in both:
        process.send_signal(signal.SIGCONT)
    if is_killed:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    else:
        ended(first)
    ended(second)
    ended(prune)
    if is_killed:
        ended(shared.begun("copy0", sources[0].store, *to))
        shared.run("pruner", "prune", "--trash", "0", "--wait", "60s", "--revoke-after", "1s")

    wanted = {kept, beside} | {one.id for box in sources for one in box.snapshots()}
    for name in ("first", "copy0", "never seen before"):
        assert {one["id"] for one in json.loads(shared.run(name, "list", "--json"))} == wanted
        shared.run(name, "verify", "--all", "--checksum")
    with shared.machine("another new one").opened(write=True) as store:
        ids = [chunk_id for rows in store.index.chunk_ids() for chunk_id, _ in rows]
        assert store.index.usable(ids) == set(ids), "every chain ends"
    assert not [
        one for one in keys(shared.machine("look").place()) if one.startswith("leases/copy")
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", CHANGES)
def test_wherever_one_of_them_is_killed_every_listed_snapshot_verifies(
    shared: Shared, sources: list[Box], proxy: faults.FaultyProxy, tmp_path: Path, victim: str
) -> None:
    dice = random.Random(drawn_seed())
    saves = list(islice(versions(), 4 + ROUNDS))
    live = tmp_path / "live"
    shared.detours = {victim: proxy.endpoint}
    removed = 0
    for number in range(ROUNDS):
        forgotten(shared, live, dice.sample(saves, 3))
        for box in sources:
            (box.source / "last.bin").write_bytes(saves[4 + number])
            box.take()
        (live / "mine").write_bytes(dice.choice(saves))
        killer = Killer(dice.randint(1, CHANGES[victim]), is_done=dice.random() < 0.5)
        proxy.always(killer)
        commands = {
            "copy0": (sources[0].store, "copy", "--to", shared.address),
            "copy1": (sources[1].store, "copy", "--to", shared.address),
            "live": (shared.address, "snapshot", str(live), "--json"),
            # Where another one is killed, it waits in vain.
            "pruner": (shared.address, "prune", "--trash", "0", "--wait", "10s"),
        }
        running = {}
        for name in dice.sample(sorted(commands), len(commands)):
            running[name] = shared.begun(name, *commands[name])
            killer.victim = running.get(victim)
        for name, process in running.items():
            _, err = process.communicate(timeout=300)
            allowed = {0, -signal.SIGKILL} if name == victim else {0}
            assert process.returncode in allowed, (name, err)
        proxy.always(None)
        shared.run(f"new in round {number}", "verify", "--all", "--checksum")
        # All have ended: a lease that is left is that of a killed process.
        cleanup = ("prune", "--trash", "0", "--wait", "60s", "--revoke-after", "1s", "--json")
        removed += json.loads(shared.run("cleaner", *cleanup))["removed"]["packs"]

    wanted = {one.id for box in sources for one in box.snapshots()}
    for number, box in enumerate(sources):
        ended(shared.begun(f"copy{number}", box.store, "copy", "--to", shared.address))
    assert wanted <= {one["id"] for one in json.loads(shared.run("first", "list", "--json"))}
    shared.run("never seen before", "verify", "--all", "--checksum")
    assert removed, "nothing was removed, so this proves little"

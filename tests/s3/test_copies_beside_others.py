"""Copies of two stores to one bucket, a snapshot there and a prune, all at the same time.

tests/crash/test_copies_together.py has the same in a directory. Each process has the cache of a
machine of its own.
"""

import json
import signal
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from ciuic.store.store import open_store
from tests.crash.test_copies_together import ended, versions
from tests.kit.box import Box
from tests.kit.buckets import write
from tests.kit.daemon import wait_until
from tests.kit.machine import Machine
from tests.kit.place_contract import keys
from tests.kit.program import CIUIC, ciuic, environment

pytestmark = [pytest.mark.slow, pytest.mark.root]


class Shared:
    """A bucket, and machines that use it."""

    def __init__(self, server, address, directory: Path) -> None:
        self.address = address
        self.directory = directory
        self._server = server

    def machine(self, name: str) -> Machine:
        return Machine(self.address, self._server, self._server.endpoint, self.directory / name)

    def environ(self, name: str) -> dict[str, str]:
        return {**self.machine(name).environ, "AWS_ENDPOINT_URL": self._server.endpoint}

    def begun(self, name: str, store: object, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*CIUIC, "--store", str(store), *command],
            env=environment(self.environ(name)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *command: object) -> str:
        done = ciuic("--store", self.address, *command, more=self.environ(name))
        assert done.code == 0, done
        return done.out

    def leases(self, kind: str) -> int:
        return sum(key.startswith(f"leases/{kind}-") for key in keys(self.machine("look").place()))


@pytest.fixture
def shared(server, address, tmp_path: Path) -> Shared:
    made = Shared(server, address, tmp_path)
    assert made.machine("first").init()[0]
    return made


@pytest.fixture
def sources(tmp_path: Path) -> list[Box]:
    """Two stores with the same versions of a file, one forward and the other backward."""
    saves = list(islice(versions(), 4))
    found = []
    for name, order in (("one", saves), ("other", saves[::-1])):
        (tmp_path / name).mkdir()
        box = Box(tmp_path / name, chunk_bytes=256 * 1024)
        box.chain_cost = 50
        for save in order:
            (box.source / "last.bin").write_bytes(save)
            box.take()
        with open_store(str(box.store)) as store:
            assert any(store.index.delta_bases()), "versions are deltas against each other"
        found.append(box)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_killed", [False, True], ids=["both end", "one is killed"])
def test_copies_a_snapshot_and_a_prune_of_a_bucket_at_once_lose_nothing(
    shared: Shared, sources: list[Box], tmp_path: Path, *, is_killed: bool
) -> None:
    live = tmp_path / "live"
    write(live, ["old"])
    gone = shared.run("first", "snapshot", live).split()[0]
    (live / "old").unlink()
    write(live, ["new"])
    kept = shared.run("first", "snapshot", live).split()[0]
    shared.run("first", "forget", gone)

    to = ("copy", "--to", shared.address, "--limit", "300KiB")
    both = []
    for number, box in enumerate(sources):
        both.append(shared.begun(f"copy{number}", box.store, *to))
        wait_until("a copy has its leases", lambda n=number: shared.leases("copy") >= 4 * n + 4)
        both[-1].send_signal(signal.SIGSTOP)
    first, second = both
    write(live, ["more"])
    beside = shared.run("first", "snapshot", live).split()[0]
    prune = shared.begun("pruner", shared.address, "prune", "--trash", "0", "--wait", "60s")
    wait_until("the prune has its lease", lambda: shared.leases("prune"))
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

"""SIGKILL at any moment of all writing commands, on real file systems, over a store's life.

Some kills in each run of the tests, 500 with CIUIC_LONG=1.
"""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.damage import flip_byte, packs
from tests.kit.filesystems import disk
from tests.kit.program import CIUIC, environment
from tests.kit.trees import Photo, differences, photograph

KINDS = ("ext4", "xfs", "btrfs")
KILLS = int(os.environ.get("CIUIC_KILLS", "500" if os.environ.get("CIUIC_LONG") else "12"))
KEPT_MAX = 4

pytestmark = [pytest.mark.slow, pytest.mark.root]


def look(top: Path) -> dict[bytes, Photo]:
    """Return a tree without its holes, which differ between file systems."""
    return photograph(top, holes=False)


class Life:
    """A store on a file system of its own, and every promise about it.

    Attributes:
        known: The listed snapshots.
        trash: Forgotten snapshots, which the next prune may remove.
        died: The number of commands that were killed before their end.
    """

    def __init__(self, directory: Path, mounted: Path, rng: random.Random) -> None:
        self.rng = rng
        self.out = mounted / "out"
        self.box = box = Box(directory, parity=0.04)
        shutil.rmtree(box.store)
        box.store = mounted / "store"
        box.configure()
        began_s = time.monotonic()
        assert box.ciuic("init").code == 0
        first_s = 2 * (time.monotonic() - began_s)
        self.known: dict[str, dict[bytes, Photo]] = {}
        self.trash: dict[str, dict[bytes, Photo]] = {}
        self.usual_s = dict.fromkeys(("snapshot", "restore", "forget", "prune", "repair"), first_s)
        self.died = 0
        for _ in range(3):
            self.churn()
            # By the clock of the later commands; otherwise these snapshots would count as newer.
            self.known[box.take(clock=SystemClock()).id] = look(box.source)

    def churn(self) -> None:
        """Do a step of a training: some files new, some changed, some removed."""
        for number in range(12):
            path = self.box.source / f"d{self.rng.randrange(3)}" / f"f{self.rng.randrange(20)}"
            path.parent.mkdir(exist_ok=True)
            if path.exists() and self.rng.random() < 0.2:
                path.unlink()
            else:
                path.write_bytes(self.rng.randbytes(self.rng.choice((10, 5000, 60_000))))
            del number
        (self.box.source / "model").write_bytes(self.rng.randbytes(1_500_000))

    def killed(self, what: str, *arguments: str | Path) -> bool:
        """Run a command, kill it at a random moment, and return whether it was killed."""
        process = subprocess.Popen(
            [*CIUIC, "--config", self.box.config, what, *arguments],
            env=environment(),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        began_s = time.monotonic()
        try:
            # The first part loads the program, where a kill does no harm.
            process.wait(self.usual_s[what] * self.rng.uniform(0.3, 1.1))
            # The machine's speed varies; adapt the moments.
            self.usual_s[what] = time.monotonic() - began_s
        except subprocess.TimeoutExpired:
            process.kill()
            self.usual_s[what] *= 1.05
        out, err = process.communicate()
        assert b"Traceback" not in err, err
        assert process.returncode in {0, -9}, (what, process.returncode, out, err)
        self.died += process.returncode != 0
        return process.returncode != 0

    def step(self, what: str) -> None:
        """Run one command, and check the store, whether it was killed or not."""
        getattr(self, what)()
        self.check(what)

    def snapshot(self) -> None:
        self.churn()
        self.killed("snapshot")
        for name in {one.id for one in self.box.snapshots()} - self.known.keys():
            self.known[name] = look(self.box.source)

    def restore(self) -> None:
        name = self.rng.choice(sorted(self.known))
        shutil.rmtree(self.out, ignore_errors=True)
        if self.rng.random() < 0.5:
            self.box.restore(to=self.out)
        arguments = ("-s", name, "-p", self.box.source, "-d", self.out, "--overwrite", "--delete")
        was_there = look(self.out / "source") if self.out.exists() else {}
        self.killed("restore", *arguments)
        photo = self.known[name]
        found = look(self.out / "source") if (self.out / "source").exists() else {}
        for path, one in found.items():
            if b".ciuic-restore-" not in path:
                contents = {all_of[path].content for all_of in (photo, was_there) if path in all_of}
                assert one.content in contents, path
        self.box.restore(snapshot=name, to=self.out, overwrite=True, delete=True)
        assert differences(photo, look(self.out / "source")) == []

    def forget(self) -> None:
        oldest = [one.id for one in self.box.snapshots()][-1]
        if len(self.known) < 2:
            return
        self.killed("forget", oldest)
        if oldest not in {one.id for one in self.box.snapshots()}:
            self.trash[oldest] = self.known.pop(oldest)
            if self.rng.random() < 0.5:
                assert self.box.ciuic("forget", "--undo", oldest).code == 0
                self.known[oldest] = self.trash.pop(oldest)

    def prune(self) -> None:
        self.killed("prune", "--trash", "0")
        with open_store(str(self.box.store)) as store:
            left = {one.id for one in store.trash.read()}
        assert left <= self.trash.keys()
        self.trash = {name: self.trash[name] for name in left}

    def repair(self) -> None:
        pack = self.rng.choice(packs(self.box.store))
        flip_byte(pack, self.rng.randrange(pack.stat().st_size))
        manifest = self.rng.choice(sorted((self.box.store / "snapshots").iterdir()))
        flip_byte(manifest, self.rng.randrange(manifest.stat().st_size))
        if self.killed("repair", "--apply"):
            for name in self.known:
                self.comes_back(name)
            again = self.box.ciuic("repair", "--apply", "--json")
            assert again.code == 0, again

    def comes_back(self, name: str) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        assert self.box.restore(snapshot=name, to=self.out).failed == []
        assert differences(self.known[name], look(self.out / "source")) == [], name

    def check(self, what: str) -> None:
        """Check that exactly the promised snapshots are complete, and the next writer works."""
        assert {one.id for one in self.box.snapshots()} == self.known.keys(), what
        report = self.box.verify()
        assert report.ok, (what, report.as_json())
        for name in self.known:
            self.comes_back(name)
        with open_store(str(self.box.store), write=True):
            assert os.listdir(self.box.store / "tmp") == [], what
        while len(self.known) > KEPT_MAX:
            oldest = [one.id for one in self.box.snapshots()][-1]
            assert self.box.ciuic("forget", oldest).code == 0
            self.trash[oldest] = self.known.pop(oldest)

    def crowd(self) -> None:
        """Run a daemon and two commands at once; each may be killed at any moment.

        The source does not change during the run: every snapshot must equal it.
        """
        self.churn()
        photo = look(self.box.source)
        oldest = [one.id for one in self.box.snapshots()][-1]
        commands = {
            "snapshot": ("snapshot",),
            "verify": ("verify", "--all", "--checksum"),
            "restore": ("restore", "-s", oldest, "-p", self.box.source, "-d", self.out),
            "prune": ("prune", "--trash", "0"),
        }
        shutil.rmtree(self.out, ignore_errors=True)
        begun = [self._begun(sys.executable, "-m", "ciuicd", "--config", self.box.config)]
        time.sleep(self.rng.uniform(0, 0.6))
        begun += [
            self._begun(*CIUIC, "--config", self.box.config, *commands[what])
            for what in self.rng.sample(sorted(commands), 2)
        ]
        for process in self.rng.sample(begun, len(begun)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.rng.uniform(0, 0.8))
            process.kill()
        for process in begun:
            _, err = process.communicate()
            assert b"Traceback" not in err, err
            # 1: the daemon that took the snapshot was killed; 5: another process was writing.
            assert process.returncode in {0, 1, 5, -9}, (process.args, process.returncode, err)
            self.died += process.returncode == -9
        for name in {one.id for one in self.box.snapshots()} - self.known.keys():
            self.known[name] = photo
        with open_store(str(self.box.store)) as store:
            left = {one.id for one in store.trash.read()}
        self.trash = {name: self.trash[name] for name in left}

    def _begun(self, *command: str | Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            env=environment(),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


@pytest.fixture(params=KINDS)
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    seed = drawn_seed()
    with disk(request.param, tmp_path, size_mib=512) as mounted:
        yield Life(tmp_path, mounted.path, random.Random(f"{seed} {request.param}"))


def test_killed_commands_lose_nothing_that_was_reported(life: Life) -> None:
    wanted, steps = -(-KILLS // len(KINDS)), 0
    while life.died < wanted:
        life.step(life.rng.choice(sorted(life.usual_s)))
        steps += 1
        assert steps < 20 * wanted, "hardly one was hit; the moments are chosen badly"
    print(f"{life.died} kills in {steps} steps")


def test_a_daemon_and_two_competing_commands_are_killed(
    life: Life,
) -> None:
    with life.box.config.open("a") as settings:
        settings.write("snapshot_interval = 1s\nretention_policy = 3650d\n")
    wanted, steps = -(-KILLS // len(KINDS)), 0
    while life.died < wanted:
        life.step("crowd")
        steps += 1
        assert steps < 20 * wanted, "hardly one was hit; the moments are chosen badly"
    print(f"{life.died} kills in {steps} steps")

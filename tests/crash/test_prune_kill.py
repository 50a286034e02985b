"""A prune that is killed at any moment, or has a failing disk, harms no snapshot.

Every call that changes the store is a moment. Each run of the tests tries some, CIUIC_LONG=1 all.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.maintain.prune.apply import foresee_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.maintain.prune.report import PruneReport
from ciuic.store.gc.usage import read_frames
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.program import CIUIC, Outcome, ciuic, environment
from tests.kit.strace import Call, calls_in, need_strace, strace
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
CALLS = ("fsync", "fdatasync", "renameat", "unlinkat", "pwrite64", "write", "ftruncate")
LONG = bool(os.environ.get("CIUIC_LONG"))
POSITIONS = 10_000 if LONG else 2
KILLS = 100 if LONG else 8
PRUNE = ("prune", "--trash", "0", "--json")

pytestmark = pytest.mark.slow


class Made(NamedTuple):
    """A store that needs every kind of work, and the content of its kept snapshots."""

    box: Box
    known: dict[str, dict[bytes, Photo]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make packs that are unneeded, fragmented by frames and within frames, and fully needed."""
    box = Box(tmp_path_factory.mktemp("made"))
    rng = random.Random(4)
    for number in range(200):
        path = box.source / f"d{number % 5}" / f"small{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(1500))
    for number in range(4):
        (box.source / f"large{number}").write_bytes(rng.randbytes(MIB + number))
    old = [box.take().id]
    (box.source / "passing").write_bytes(rng.randbytes(MIB))
    for number in range(200):
        if number % 6:
            (box.source / f"d{number % 5}" / f"small{number}").unlink()
    old.append(box.take().id)
    (box.source / "passing").unlink()
    known = {box.take().id: photograph(box.source)}
    for number in range(3):
        (box.source / f"large{number}").unlink()
    (box.source / "late").write_bytes(rng.randbytes(100_000))
    known[box.take().id] = photograph(box.source)
    (box.source / "late").unlink()
    with open_store(str(box.store), write=True) as store:
        for name in old:
            store.trash.forget([name], 0)
    return Made(box, known)


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Iterator[Box]:
    """Copy the store to a place where it may be damaged."""
    yield made.box.copied(tmp_path / "copy")


def injected(box: Box, call: Call, what: str) -> Outcome:
    """Prune with a fault at the given call, in every thread that makes it."""
    wrapper = strace(call.name, inject=f"{what}:when={call.number}")
    return ciuic("--config", box.config, *PRUNE, wrapper=wrapper)


def calls_of_a_prune(box: Box, directory: Path) -> list[Call]:
    """Return all calls that change the store's files or sync them."""
    trace = directory / "trace"
    outcome = ciuic("--config", box.config, *PRUNE, wrapper=strace(",".join(CALLS), "-y", to=trace))
    assert outcome.code == 0, outcome.err
    assert outcome.document["removed"]["packs"] >= 1
    assert outcome.document["rewritten"]["packs"] >= 2
    return sorted({call for _, call, line in calls_in(trace) if str(box.store) in line})


def sampled(calls: list[Call]) -> list[Call]:
    """Choose evenly spread positions of each kind, with the last."""
    chosen: list[Call] = []
    for name in sorted({one.name for one in calls}):
        own = [one for one in calls if one.name == name]
        count = min(POSITIONS, len(own))
        chosen += [own[(step + 1) * len(own) // count - 1] for step in range(count)]
    return chosen


def assert_kept(box: Box, known: dict[str, dict[bytes, Photo]], where: object) -> None:
    """Check that exactly the snapshots that were not forgotten exist, and are readable."""
    assert {one.id for one in box.snapshots()} == set(known), where
    report = box.verify()
    assert report.ok, (where, report.as_json())


def assert_goes_on(made: Made, box: Box, out: Path, whole_bytes: int, where: object) -> None:
    """Check that the next prune plans and does the rest, and leaves no garbage."""
    assert_kept(box, made.known, where)
    with open_store(str(box.store)) as store:
        is_due = store.prune_mark.is_set or store.trash.ids()
    again = box.ciuic(*PRUNE)
    assert again.code == 0, (where, again)
    done = sum(again.document[one]["packs"] for one in ("removed", "rewritten", "orphans"))
    assert is_due or not done, where
    assert_kept(box, made.known, where)
    last = foreseen(box)
    assert last.freed_bytes == 0, (where, last)
    assert last.orphans.packs == 0, where
    assert os.listdir(box.store / "tmp") == [], where
    # Only the distribution of frames over packs may differ.
    assert abs(pack_bytes(box) - whole_bytes) < 20_000, where
    assert_catalogued(box, where)
    name = max(made.known)
    box.restore(snapshot=name, to=out)
    assert differences(made.known[name], photograph(out / "source")) == [], where
    shutil.rmtree(out)


def foreseen(box: Box) -> PruneReport:
    """Return what one more prune would do, without a process of its own."""
    clock = SystemClock()
    with open_store(str(box.store)) as store:
        plan = plan_prune(store, trash_s=0.0, now_ns=clock.now_ns())
        return foresee_prune(store, plan, clock=clock)


def assert_catalogued(box: Box, where: object) -> None:
    """Check that the chunk index knows every chunk; full snapshots store unknown chunks again."""
    with open_store(str(box.store)) as store:
        held = [read_frames(store.packs, name) for name in store.pack_files()]
        listed = {name for frames in held for one in frames for name, _ in one.frame.chunks}
        assert store.existing_index is not None, where
        assert store.existing_index.usable(sorted(listed)) == listed, where


def pack_bytes(box: Box) -> int:
    return sum(one.stat().st_size for one in (box.store / "packs").iterdir())


@pytest.mark.parametrize("kind", ["is the last one", "fails"])
def test_every_snapshot_survives_when_any_one_call_of_a_prune(
    made: Made, copy: Box, tmp_path: Path, kind: str
) -> None:
    need_strace()
    calls = calls_of_a_prune(copy, tmp_path)
    assert {"fsync", "renameat", "unlinkat", "pwrite64"} <= {one.name for one in calls}
    whole_bytes = pack_bytes(copy)
    chosen = sampled(calls)
    print(f"{len(chosen)} of {len(calls)} positions")
    hits = 0
    for number, call in enumerate(chosen):
        run = made.box.copied(tmp_path / "run")
        fault = ("error=EIO", "error=ENOSPC")[number % 2] if kind == "fails" else "signal=SIGKILL"
        where = f"{fault} at {call.name} {call.number}"
        outcome = injected(run, call, fault)
        hits += outcome.code != 0
        if outcome.code > 0:
            assert outcome.code == 1, (where, outcome)
            assert outcome.document["error"]["kind"] in {"store", "store_full"}, (where, outcome)
        elif kind == "fails":
            assert outcome.code == 0, (where, outcome)
        assert_goes_on(made, run, tmp_path / "out", whole_bytes, where)
        shutil.rmtree(run.directory)
    assert hits >= len(chosen) // 2, "the calls come in another order each time"


def test_a_prune_that_is_stopped_at_any_moment_can_be_run_again(
    made: Made, copy: Box, tmp_path: Path
) -> None:
    """SIGKILL, and SIGTERM, after which it prints a line."""
    seed = drawn_seed()
    rng = random.Random(seed)
    start = time.monotonic()
    assert copy.ciuic(*PRUNE).code == 0
    usual_s = time.monotonic() - start
    whole_bytes = pack_bytes(copy)
    died = 0
    for number in range(KILLS):
        run = made.box.copied(tmp_path / "run")
        how = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        process = subprocess.Popen(
            [*CIUIC, "--config", run.config, *PRUNE],
            # Python leaves a file open if a signal interrupts an import.
            env=environment({"PYTHONWARNINGS": "error,ignore::ResourceWarning"}),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            _, err = process.communicate(timeout=usual_s * rng.uniform(0.4, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            _, err = process.communicate()
        died += process.returncode != 0
        assert b"Traceback" not in err or process.returncode == 128 + signal.SIGINT
        assert_goes_on(made, run, tmp_path / "out", whole_bytes, (number, how))
        shutil.rmtree(run.directory)
    assert died >= KILLS // 4, "hardly one was hit; the moments are chosen badly"

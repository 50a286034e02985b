"""forget, undo, tag and pin, killed at any call or with a failing disk.

The kernel kills the real process before a system call that changes the store, or lets the call
fail. Each run tries some calls, CIUIC_LONG=1 all.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.program import CIUIC, ciuic, environment
from tests.kit.strace import Call, calls_in, need_strace, strace

CALLS = ("fsync", "renameat", "linkat", "unlinkat", "write", "mkdirat")
LONG = bool(os.environ.get("CIUIC_LONG"))
POSITIONS = 10_000 if LONG else 1
KILLS = 100 if LONG else 6

pytestmark = pytest.mark.slow


class Made(NamedTuple):
    """Make a store with listed and forgotten snapshots, oldest first."""

    box: Box
    listed: list[str]
    trashed: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    box = Box(tmp_path_factory.mktemp("made"), parity=0.04)
    names = []
    for number in range(5):
        (box.source / "file").write_bytes(b"%d" % number * 5000)
        names.append(box.take().id)
    with open_store(str(box.store), write=True) as store:
        store.trash.forget([names[0]], 1)
    return Made(box, names[1:], names[:1])


def commands(made: Made) -> dict[str, list[str]]:
    return {
        "forget": ["forget", *made.listed[:2]],
        "undo": ["forget", "--undo", made.trashed[0]],
        "tag": ["tag", made.listed[0], "--add", "new"],
        "pin": ["pin", made.listed[0]],
    }


def assert_kept(made: Made, box: Box, where: object) -> None:
    """Check that each snapshot is listed or in the trash, with all its chunks."""
    listed = [one.id for one in box.snapshots()]
    with open_store(str(box.store)) as store:
        trashed = [one.id for one in store.trash.read()]
    assert sorted(listed + trashed) == sorted(made.listed + made.trashed), where
    report = box.verify()
    assert report.ok, (where, report.as_json())


def assert_goes_on(made: Made, box: Box, what: str, where: object) -> None:
    """Check that the same command finishes, and leaves nothing of the first one."""
    assert_kept(made, box, where)
    listed = {one.id for one in box.snapshots()}
    if what == "forget":
        left = [one for one in made.listed[:2] if one in listed]
        assert not left or box.ciuic("forget", *left).code == 0, where
        assert [one.id for one in reversed(box.snapshots())] == made.listed[2:], where
    elif what == "undo":
        done = box.ciuic(*commands(made)["undo"])
        again = made.trashed[0] in listed and done.code == 1 and "is not in the trash" in done.err
        assert done.code == 0 or again, (where, done)
        assert made.trashed[0] in {one.id for one in box.snapshots()}, where
    else:
        assert box.ciuic(*commands(made)[what]).code == 0, where
        (one,) = [one for one in box.snapshots() if one.id == made.listed[0]]
        assert one.pinned if what == "pin" else one.tags == ("new",), where
    assert_kept(made, box, where)
    with open_store(str(box.store), write=True):
        assert os.listdir(box.store / "tmp") == [], where


def store_calls(made: Made, directory: Path, what: str) -> list[Call]:
    """Return the calls that change the store."""
    box = made.box.copied(directory / "traced")
    trace = directory / "trace"
    wrapper = strace(",".join(CALLS), "-y", to=trace)
    done = ciuic("--config", box.config, *commands(made)[what], wrapper=wrapper)
    assert done.code == 0, done.err
    return sorted({call for _, call, line in calls_in(trace) if str(box.store) in line})


def sampled(calls: list[Call], rng: random.Random) -> list[Call]:
    chosen = []
    for name in sorted({name for name, _ in calls}):
        own = [one for one in calls if one[0] == name]
        chosen += rng.sample(own, min(POSITIONS, len(own)))
    return chosen


@pytest.mark.parametrize("kind", ["is the last one", "fails"])
@pytest.mark.parametrize("what", ["forget", "undo", "tag", "pin"])
def test_each_snapshot_is_listed_or_in_the_trash_when_any_one_call(
    made: Made, tmp_path: Path, what: str, kind: str
) -> None:
    need_strace()
    seed = drawn_seed()
    calls = store_calls(made, tmp_path, what)
    assert {"fsync", "linkat", "write"} <= {name for name, _ in calls}
    chosen = sampled(calls, random.Random(seed))
    print(f"{len(chosen)} of {len(calls)} calls")
    hits = 0
    for turn, (name, number) in enumerate(chosen):
        box = made.box.copied(tmp_path / "run")
        fault = ("error=EIO", "error=ENOSPC")[turn % 2] if kind == "fails" else "signal=SIGKILL"
        where = f"{fault} at {name} {number}"
        wrapper = strace(name, inject=f"{fault}:when={number}")
        done = ciuic("--config", box.config, *commands(made)[what], wrapper=wrapper)
        hits += done.code != 0
        if kind == "fails":
            assert done.code in {0, 1}, (where, done)
        assert_goes_on(made, box, what, where)
        shutil.rmtree(box.directory)
    # A tag and a pin take effect before most of their calls: copies and the chunk index may fail.
    # Once a snapshot is listed again, later failures do not fail the undo.
    harmless = kind == "fails" and what in {"tag", "pin", "undo"}
    assert hits or harmless, "no call was hit"


def test_a_forget_that_is_killed_at_any_moment_can_be_run_again(made: Made, tmp_path: Path) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    first = made.box.copied(tmp_path / "first")
    start = time.monotonic()
    assert first.ciuic(*commands(made)["forget"]).code == 0
    usual_s = time.monotonic() - start
    died = 0
    for turn in range(KILLS):
        box = made.box.copied(tmp_path / "run")
        process = subprocess.Popen(
            [*CIUIC, "--config", box.config, *commands(made)["forget"]],
            env=environment(),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(usual_s * rng.uniform(0.5, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        died += process.returncode != 0
        assert_goes_on(made, box, "forget", turn)
        shutil.rmtree(box.directory)
    assert died, "none was hit; the moments are chosen badly"

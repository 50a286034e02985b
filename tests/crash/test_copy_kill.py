"""A copy that is killed at any moment, or has a failing disk, resumes where it was.

Every call that changes the copy is a moment. Each run of the tests tries some, CIUIC_LONG=1 all.
"""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.crash.test_prune_kill import CALLS, sampled
from tests.kit.box import Box
from tests.kit.program import CIUIC, Outcome, ciuic, environment
from tests.kit.strace import Call, calls_in, need_strace, strace
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024

pytestmark = pytest.mark.slow


class Made:
    """A store with snapshots, and an empty copy."""

    def __init__(self, directory: Path) -> None:
        rng = random.Random(8)
        self.box = box = Box(directory, parity=0.04)
        self.known: dict[str, dict[bytes, Photo]] = {}
        for step in range(3):
            for number in range(30):
                (box.source / f"f{number}").write_bytes(rng.randbytes(2000 + step))
            (box.source / f"large{step}").write_bytes(rng.randbytes(3 * MIB + step))
            self.known[box.take().id] = photograph(box.source)
        self.empty = directory / "empty"
        assert ciuic("--store", self.empty, "init", "--chunking", "fixed").code == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


def copy_there(made: Made, place: Path, *wrapper: str) -> Outcome:
    options = ("--config", made.box.config, "copy", "--to", place, "--json")
    return ciuic(*options, wrapper=wrapper)


def sent_again(made: Made, there: Box) -> int:
    """Copy once more, without a process of its own; returns the bytes that were sent."""
    report = CopyReport(str(there.store), dry_run=False)
    with (
        open_store(str(made.box.store)) as source,
        open_store(str(there.store), write=True) as copy,
    ):
        copy_snapshots(source, copy, CopyRequest(), report, clock=SystemClock())
    assert len(report.present) == len(made.known)
    return report.sent_bytes


def assert_goes_on(made: Made, place: Path, out: Path, where: object) -> None:
    """Check that the copy has only complete snapshots, and that the next run does the rest."""
    there = Box.__new__(Box)
    there.__dict__.update(made.box.__dict__)
    there.store = place
    assert there.verify().ok, where
    listed = {one.id for one in there.snapshots()}
    assert listed <= set(made.known), where
    again = copy_there(made, place)
    assert again.code == 0, (where, again)
    assert {one["id"] for one in again.document["copied"]} == set(made.known) - listed, where
    assert there.verify().ok, where
    assert os.listdir(place / "tmp") == [], where
    assert sent_again(made, there) == 0, where
    name = max(made.known)
    there.restore(snapshot=name, to=out)
    assert differences(made.known[name], photograph(out / "source")) == [], where
    shutil.rmtree(out)


def calls_of_a_copy(made: Made, directory: Path) -> list[Call]:
    """Return all calls of a clean copy that change the copy's files or sync them."""
    trace, place = directory / "trace", directory / "clean"
    shutil.copytree(made.empty, place)
    outcome = copy_there(made, place, *strace(",".join((*CALLS, "linkat")), "-y", to=trace))
    assert outcome.code == 0, outcome.err
    assert len(outcome.document["copied"]) == 3
    return sorted({call for _, call, line in calls_in(trace) if str(place) in line})


@pytest.mark.parametrize("kind", ["is the last one", "fails"])
def test_the_copy_survives_when_any_one_call_on_it(made: Made, tmp_path: Path, kind: str) -> None:
    need_strace()
    calls = calls_of_a_copy(made, tmp_path)
    assert {"fsync", "renameat", "linkat", "pwrite64"} <= {one.name for one in calls}
    for number, call in enumerate(sampled(calls)):
        place = tmp_path / "run"
        shutil.copytree(made.empty, place)
        fault = ("error=EIO", "error=ENOSPC")[number % 2] if kind == "fails" else "signal=SIGKILL"
        where = f"{fault} at {call.name} {call.number}"
        inject = f"{fault}:when={call.number}"
        outcome = copy_there(made, place, *strace(call.name, inject=inject))
        if kind == "fails":
            assert outcome.code in {0, 1}, (where, outcome)
        if outcome.code == 1 and outcome.out:  # the output may be what could not be written
            kinds = {"store", "store_full", "commit_uncertain"}
            assert outcome.document["error"]["kind"] in kinds, (where, outcome)
        assert_goes_on(made, place, tmp_path / "out", where)
        shutil.rmtree(place)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_copy_that_is_stopped_while_it_sends_goes_on(
    made: Made, tmp_path: Path, how: signal.Signals
) -> None:
    """At this limit the copy takes minutes, and the signal arrives when it has just begun."""
    place = tmp_path / "run"
    shutil.copytree(made.empty, place)
    command = [*CIUIC, "--config", str(made.box.config), "copy", "--to", str(place)]
    process = subprocess.Popen(
        [*command, "--limit", "64KiB"],
        env=environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + 60
        while not os.listdir(place / "tmp"):
            assert clock.monotonic_s() < deadline_s
            clock.sleep(0.01)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how), err
    assert b"Traceback" not in err
    assert_goes_on(made, place, tmp_path / "out", how)

"""Processes killed at any moment, and disks that fail at any single call.

CIUIC_LONG=1 kills more often, and has every file of a store fail to open with every error.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciuic.store.directory.create import create_store
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.clock import ManualClock
from tests.kit.program import CIUIC, Outcome, ciuic, environment
from tests.kit.strace import Call, calls_in, need_strace, strace
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
LONG = bool(os.environ.get("CIUIC_LONG"))
KILLS = 50 if LONG else 12
Known = dict[str, dict[bytes, Photo]]

pytestmark = pytest.mark.slow


def assert_whole(box: Box, known: Known, *, checksum: bool = True) -> None:
    """Check that exactly the reported snapshots exist, and each is sound."""
    assert {one.id for one in box.snapshots()} == set(known)
    report = box.verify(checksum=checksum)
    assert report.ok, report.as_json()


def assert_comes_back(box: Box, known: Known, out: Path) -> None:
    """Check that every snapshot restores the exact source of its time."""
    for name, photo in known.items():
        box.restore(snapshot=name, to=out / name)
        found = photograph(out / name / "source")
        assert differences(photo, found) == [], name
    shutil.rmtree(out)


def churn(box: Box, rng: random.Random) -> None:
    """Do a step of a training: some files new, some changed, some removed."""
    for number in range(30):
        path = box.source / f"d{rng.randrange(5)}" / f"f{rng.randrange(60)}"
        path.parent.mkdir(exist_ok=True)
        if path.exists() and rng.random() < 0.2:
            path.unlink()
        else:
            path.write_bytes(rng.randbytes(rng.choice((10, 5000, 60_000))) + b"%d" % number)
    (box.source / "model").write_bytes(rng.randbytes(3 * MIB))


def test_a_snapshot_that_is_killed_at_any_moment_costs_nothing_but_itself(
    box: Box, tmp_path: Path
) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    churn(box, rng)
    command = [*CIUIC, "--config", box.config, "snapshot"]
    start = time.monotonic()
    first = ciuic("--config", box.config, "snapshot")
    usual_s = time.monotonic() - start
    known = {first.out.strip(): photograph(box.source)}
    died = 0
    for number in range(KILLS):
        churn(box, rng)
        before = {one.id for one in box.snapshots()}
        process = subprocess.Popen(
            command, env=environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        start = time.monotonic()
        try:
            # The first part loads the program, where a kill does no harm.
            out, _ = process.communicate(timeout=usual_s * rng.uniform(0.3, 1.1))
            # The machine's speed varies; adapt the moments.
            usual_s = time.monotonic() - start
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, _ = process.communicate()
            usual_s *= 1.05
        died += process.returncode != 0
        after = {one.id for one in box.snapshots()}
        if out:
            assert out.decode().strip() in after, "a snapshot that was reported is not there"
        for name in after - before:
            # Killed after the commit: a visible snapshot counts.
            known[name] = photograph(box.source)
        # Damage stays, so reading everything now and then finds it too.
        assert_whole(box, known, checksum=number % 8 == 0)
    assert died >= KILLS // 5, "hardly one was hit; the moments are chosen badly"
    last = box.take()
    known[last.id] = photograph(box.source)
    assert os.listdir(box.store / "tmp") == []
    assert_whole(box, known)
    assert_comes_back(box, known, tmp_path / "out")


def test_an_init_that_is_killed_can_be_run_again(tmp_path: Path) -> None:
    need_strace()
    for position in range(1, 9):
        store = tmp_path / f"store{position}"
        killed = injected("fsync", f"signal=SIGKILL:when={position}", "--store", store, "init")
        create_store(str(store), ManualClock())
        with open_store(str(store), write=True) as opened:
            assert opened.manifests.files() == {}
        if killed.code == 0:
            break
    assert killed.code == 0, "there are more steps than were tried"
    assert position > 4


# Single calls that fail


def injected(call: str, what: str, *arguments: str | Path) -> Outcome:
    """Run ciuic with a fault at the given call."""
    return ciuic(*arguments, wrapper=strace(call, inject=what))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """Make a store with one snapshot, and a source that has changed since; tests copy it."""
    box = Box(tmp_path_factory.mktemp("prepared"))
    for number in range(20):
        (box.source / f"f{number}").write_bytes(b"%d" % number * 100)
    box.take()
    (box.source / "sub").mkdir()
    for number in range(10):
        (box.source / "sub" / f"f{number}").write_bytes(os.urandom(2000))
    (box.source / "large").write_bytes(os.urandom(3 * MIB))
    return box


CALLS = ("fsync", "fdatasync", "renameat", "linkat", "unlinkat", "write", "pwrite64", "ftruncate")


def calls_of_a_run(box: Box, directory: Path) -> list[Call]:
    """Return all calls that change the store's files or sync them."""
    need_strace()
    trace = directory / "trace"
    copy = box.copied(directory / "counted")
    wrapper = strace(",".join(CALLS), "-y", to=trace)
    outcome = ciuic("--config", copy.config, "snapshot", wrapper=wrapper)
    assert outcome.code == 0, outcome.err
    shutil.rmtree(copy.directory)
    return sorted({call for _, call, line in calls_in(trace) if str(copy.store) in line})


def sampled(calls: list[Call], count: int) -> list[Call]:
    """Choose evenly spread positions of each kind, with the first and the last."""
    chosen: list[Call] = []
    for name in sorted({one.name for one in calls}):
        own = [one for one in calls if one.name == name]
        steps = [round(step * (len(own) - 1) / max(1, count - 1)) for step in range(count)]
        chosen += [own[step] for step in dict.fromkeys(steps)]
    return chosen


@pytest.mark.parametrize("kind", ["fails", "is the last one"])
@pytest.mark.parametrize("changed", [True, False])
def test_the_store_survives_when_any_one_call_on_it(
    prepared: Box, tmp_path: Path, changed: bool, kind: str
) -> None:
    """With a changed source, packs are written; otherwise the link is the commit."""
    box = prepared.copied(tmp_path / "base")
    if not changed:
        box.take()
    before = {one.id for one in box.snapshots()}
    calls = calls_of_a_run(box, tmp_path)
    names = {"renameat"} if changed else set()
    assert {"fsync", "linkat", "unlinkat", "write"} | names <= {one.name for one in calls}
    chosen = sampled(calls, 2 if changed else 3)
    print(f"{len(chosen)} of {len(calls)} positions: {chosen}")
    hits = 0
    for number, call in enumerate(chosen):
        run = box.copied(tmp_path / "run")
        fault = ("error=EIO", "error=ENOSPC")[number % 2] if kind == "fails" else "signal=SIGKILL"
        where = f"{fault} at {call.name} {call.number}"
        command = ("--config", run.config, "snapshot", "--json")
        outcome = injected(call.name, f"{fault}:when={call.number}", *command)
        hits += outcome.code != 0
        after = {one.id for one in run.snapshots()}
        assert before <= after, where
        # A name may exist or not if the sync of its directory failed.
        assert len(after) <= 1 + len(before), where
        report = run.verify()
        assert report.ok, (where, report.as_json())
        if outcome.code == 0:
            assert outcome.document["id"] in after, where
        elif outcome.code > 0:
            assert outcome.code == 1, (where, outcome)
            kinds = {"store_full"} if "ENOSPC" in fault else {"store"}
            if len(after) > len(before):  # listed: only the sync of its name failed
                kinds = {"commit_uncertain"}
            if call.name == "fdatasync":  # SQLite's own, which reports no details
                kinds.add("store")
            assert outcome.document["error"]["kind"] in kinds, (where, outcome.err)
            if "commit_uncertain" in kinds:
                assert {outcome.document["id"]} == after - before, where
        again = run.take()
        assert again.trouble_count == 0, (where, again.trouble)
        assert os.listdir(run.store / "tmp") == [], where
        assert run.verify().ok, where
        run.restore(snapshot=again.id, to=tmp_path / "out")
        found = photograph(tmp_path / "out" / "source")
        assert differences(photograph(run.source), found) == [], where
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(run.directory)
    # The run may succeed although some calls fail: the chunk index is a cache.
    assert hits >= len(chosen) // 3, "the calls come in another order each time"


@pytest.mark.parametrize("first", [0, 1, 2] if LONG else [0])
def test_an_unreadable_store_is_reported_in_one_sentence(
    prepared: Box, tmp_path: Path, first: int
) -> None:
    """Opening any single file of the store fails: no command prints a traceback or OK."""
    need_strace()
    trace = tmp_path / "trace"
    box = prepared.copied(tmp_path / "run")
    verify = ("--config", box.config, "verify", "--all", "--checksum", "--json")
    assert ciuic(*verify, wrapper=strace("openat", "-y", to=trace)).code == 0
    lines = [one for one in trace.read_text(errors="replace").splitlines() if " openat(" in one]
    opens = [number for number, line in enumerate(lines, 1) if str(box.store) in line]
    assert len(opens) >= 6
    for place, number in enumerate(opens, first):
        fault = ("EIO", "ENOMEM", "EMFILE")[place % 3]
        outcome = injected("openat", f"error={fault}:when={number}", *verify)
        assert outcome.code in {0, 1, 4}, (number, outcome)
        if outcome.code == 1:
            assert '"message"' in outcome.out, (number, lines[number - 1], outcome)
    assert box.verify().ok

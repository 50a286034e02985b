"""Processes that end at any moment, and disks that refuse any one call."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from ciuic.store import create_store, open_store
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.program import CIUIC, Outcome, ciuic, environment
from tests.kit.trees import Photo, differences, photograph

MIB = 1024 * 1024
KILLS = 25
Known = dict[str, dict[bytes, Photo]]
_LINE = re.compile(r"^\d+ +(\w+)\(")

pytestmark = pytest.mark.slow


def assert_whole(box: Box, known: Known, *, checksum: bool = True) -> None:
    """Exactly the snapshots that were reported are there, and each is sound."""
    assert {one.id for one in box.snapshots()} == set(known)
    report = box.verify(checksum=checksum)
    assert report.ok, report.as_json()


def assert_comes_back(box: Box, known: Known, out: Path) -> None:
    """Every snapshot restores exactly what was there when it was taken."""
    for name, photo in known.items():
        box.restore(snapshot=name, to=out / name)
        found = photograph(out / name / "source")
        assert differences(photo, found) == [], name
    shutil.rmtree(out)


def churn(box: Box, rng: random.Random) -> None:
    """Another step of a training: some files new, some changed, some gone."""
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
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
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
        try:
            # Loading the program takes the first part of it, which nothing can break.
            out, _ = process.communicate(timeout=usual_s * rng.uniform(0.3, 1.1))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, _ = process.communicate()
        died += process.returncode != 0
        after = {one.id for one in box.snapshots()}
        if out:
            assert out.decode().strip() in after, "a snapshot that was reported is not there"
        for name in after - before:
            # Killed after the commit: it counts as soon as it can be seen.
            known[name] = photograph(box.source)
        # What is damaged stays damaged: reading all of it now and then finds it as surely.
        assert_whole(box, known, checksum=number % 8 == 0)
    assert died >= KILLS // 5, "hardly one was hit; the moments are chosen badly"
    last = box.take()
    known[last.id] = photograph(box.source)
    assert os.listdir(box.store / "tmp") == []
    assert_whole(box, known)
    assert_comes_back(box, known, tmp_path / "out")


def test_a_store_that_is_killed_while_it_is_made_can_be_finished(tmp_path: Path) -> None:
    need_strace()
    for position in range(1, 9):
        store = tmp_path / f"store{position}"
        killed = injected("fsync", f"signal=SIGKILL:when={position}", "--store", store, "init")
        create_store(str(store), ManualClock())
        with open_store(str(store), write=True) as opened:
            assert opened.snapshot_files() == {}
        if killed.code == 0:
            break
    assert killed.code == 0, "there are more steps than were tried"
    assert position > 4


# Single calls that fail


class Call(NamedTuple):
    """One system call of a run: its name and which of its kind it was."""

    name: str
    number: int


def need_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("this machine does not let strace trace")


def injected(call: str, what: str, *arguments: str | Path) -> Outcome:
    """Run ciuic; the given call meets with something."""
    wrapper = (
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        os.devnull,
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{what}",
    )
    return ciuic(*arguments, wrapper=wrapper)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A store with one snapshot, and a source that has changed since; copied by each test."""
    box = Box(tmp_path_factory.mktemp("prepared"))
    for number in range(20):
        (box.source / f"f{number}").write_bytes(b"%d" % number * 100)
    box.take()
    (box.source / "sub").mkdir()
    for number in range(10):
        (box.source / "sub" / f"f{number}").write_bytes(os.urandom(2000))
    (box.source / "large").write_bytes(os.urandom(3 * MIB))
    return box


CALLS = (
    "fsync",
    "fdatasync",
    "rename",
    "write",
    "pwrite64",
    "ftruncate",
    "unlink",
    "mkdir",
    "openat",
    "fstat,newfstatat",
)


def calls_of_a_run(box: Box, trace: Path) -> list[Call]:
    """All calls that touch the store's files, in their order, numbered within their kind."""
    store = trace.parent / "counted"
    shutil.copytree(box.store, store)
    outcome = ciuic(
        "--config",
        box.config,
        "--store",
        store,
        "snapshot",
        wrapper=("strace", "-f", "-qq", "-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}"),
    )
    assert outcome.code == 0, outcome.err
    shutil.rmtree(store)
    counts: dict[str, int] = {}
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        counts[match[1]] = counts.get(match[1], 0) + 1
        if str(store) in line:
            found.append(Call(match[1], counts[match[1]]))
    return found


def sampled(calls: list[Call], count: int) -> list[Call]:
    """Some positions of each kind, the first and the last among them, evenly spread."""
    chosen = []
    for name in sorted({one.name for one in calls}):
        own = [one for one in calls if one.name == name]
        step = max(1, len(own) // count)
        chosen += [*own[::step][:count], *([own[-1]] if own[-1] not in own[::step][:count] else [])]
    return chosen


WRITING = {"fsync", "fdatasync", "rename", "write", "pwrite64", "ftruncate"}


@pytest.mark.parametrize("fault", ["error=EIO", "error=ENOSPC", "signal=SIGKILL"])
def test_any_call_on_the_store_may_fail_or_be_the_last_one(
    prepared: Box, tmp_path: Path, fault: str
) -> None:
    need_strace()
    calls = [one for one in calls_of_a_run(prepared, tmp_path / "trace") if one.name in WRITING]
    assert {"fsync", "rename", "pwrite64"} <= {one.name for one in calls}
    before = {one.id for one in prepared.snapshots()}
    chosen = sampled(calls, 2)
    print(f"{len(chosen)} of {len(calls)} positions: {chosen}")
    for call in chosen:
        box = copy_of(prepared, tmp_path / "run")
        where = f"{fault} at {call.name} {call.number}"
        outcome = injected(
            call.name, f"{fault}:when={call.number}", "--config", box.config, "snapshot", "--json"
        )
        after = {one.id for one in box.snapshots()}
        assert before <= after, where
        report = box.verify()
        assert report.ok, (where, report.as_json())
        if outcome.code == 0:
            assert outcome.document["id"] in after, where
        elif outcome.code > 0:
            assert outcome.code == 1, (where, outcome)
            assert outcome.document["error"]["message"], where
            kinds = {"store_full"} if "ENOSPC" in fault else {"store"}
            if call.name == "fdatasync":  # SQLite's own, which tells its callers no more
                kinds.add("store")
            assert outcome.document["error"]["kind"] in kinds, (where, outcome.err)
            # A name in snapshots/ whose directory could not be synced may be there or not.
            assert after == before or len(after) == 1 + len(before), where
        again = box.take()
        assert again.trouble_count == 0, (where, again.trouble)
        assert os.listdir(box.store / "tmp") == [], where
        assert box.verify().ok, where
        box.restore(snapshot=again.id, to=tmp_path / "out")
        found = photograph(tmp_path / "out" / "source")
        assert differences(photograph(box.source), found) == [], where
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(tmp_path / "run")


def copy_of(box: Box, directory: Path) -> Box:
    """The same store and source in another place; only the store is written to."""
    directory.mkdir()
    other = Box.__new__(Box)
    other.__dict__.update(box.__dict__)
    other.directory, other.store = directory, directory / "store"
    other.config = directory / "ciuic.conf"
    shutil.copytree(box.store, other.store)
    other.configure()
    return other


@pytest.mark.parametrize("fault", ["error=EIO", "error=ENOMEM", "error=EMFILE"])
def test_a_store_that_can_not_be_read_is_told_in_one_sentence(
    prepared: Box, tmp_path: Path, fault: str
) -> None:
    """Opening any one file of the store fails: no command ends in a traceback or says OK."""
    need_strace()
    trace = tmp_path / "trace"
    box = copy_of(prepared, tmp_path / "run")
    verify = ("--config", box.config, "verify", "--all", "--checksum", "--json")
    assert (
        ciuic(*verify, wrapper=("strace", "-f", "-qq", "-o", str(trace), "-e", "trace=openat")).code
        == 0
    )
    lines = [one for one in trace.read_text(errors="replace").splitlines() if " openat(" in one]
    opens = [number for number, line in enumerate(lines, 1) if str(box.store) in line]
    assert len(opens) >= 6
    for number in opens:
        outcome = injected("openat", f"{fault}:when={number}", *verify)
        assert outcome.code in {0, 1, 4}, (number, outcome)
        if outcome.code == 1:
            assert '"message"' in outcome.out, (number, lines[number - 1], outcome)
    assert box.verify().ok

"""``ciuic watch``: a process that another program started."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.test_pausing import Training
from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.jobs import Run, state
from tests.kit.program import ciuic


@pytest.fixture
def training(tmp_path: Path) -> Training:
    directory = tmp_path / "job"
    directory.mkdir()
    return Training(directory)


@pytest.fixture
def started(training: Training) -> Iterator[subprocess.Popen[bytes]]:
    """The training program, with workers."""
    process = subprocess.Popen(training.command, stdout=subprocess.DEVNULL)
    wait_until("the workers run", lambda: len(training.pids()) == 5)
    yield process
    for pid in training.pids():
        if state(pid) != "gone":
            os.kill(pid, signal.SIGKILL)
    process.wait()


def test_a_rule_pauses_the_process_and_those_below_it(
    box: Box, training: Training, started: subprocess.Popen[bytes]
) -> None:
    (box.source / "a").write_bytes(b"a")
    with Run(
        "--config", box.config, "watch", "--pid", str(started.pid), "--log", training.log
    ) as run:
        wait_until("it watches the log", lambda: has_open(run.pid, training.log))
        for number in range(6):
            (training.directory / f"go.{number}").touch()
        run.waits_for("is paused")
        below = [pid for pid in training.pids() if parent(pid) in {started.pid, os.getpid()}]
        assert len(below) == 4
        assert {state(pid) for pid in below} == {"stopped"}
        run.send(signal.SIGCONT)
        run.waits_for("goes on")
        wait_until("all run", lambda: {state(pid) for pid in below} == {"running"})
        training.stop()
        started.wait()
        assert run.end() == 0
    assert f"critical: job process {started.pid} has ended" in run.err
    assert [one.tags[0] for one in box.snapshots()] == ["emergency"]


def test_ctrl_c_ends_the_watching_and_not_the_process(
    training: Training, started: subprocess.Popen[bytes]
) -> None:
    training.log.touch()
    with Run("watch", "--pid", str(started.pid), "--log", training.log) as run:
        wait_until("it watches the log", lambda: has_open(run.pid, training.log))
        run.send(signal.SIGINT)
        assert run.end() == 0
    assert started.poll() is None


def test_the_status_says_whether_there_is_a_snapshot_of_the_end(box: Box) -> None:
    written = box.source / "a"
    os.mknod(box.source / "socket", stat.S_IFSOCK | 0o600)  # a warning that is harmless
    for arguments, mode, code in (
        (("--config", box.config), "rb", 0),
        (("--config", box.config), "r+b", 3),  # a program has the file open for writing
        ((), "rb", 1),
    ):
        written.write_bytes(b"a")
        with (
            written.open(mode),
            subprocess.Popen(["sleep", "600"]) as watched,
            Run(*arguments, "watch", "--pid", str(watched.pid)) as run,
        ):
            wait_until("it watches", lambda run=run: has_open(run.pid, Path("none")))
            watched.kill()
            assert run.end() == code, run.err
            assert (f"{written}: " in run.err) == (code == 3), "it does not say what is wrong"
    assert len(box.snapshots()) == 2


def test_a_process_that_is_gone_or_above_is_named() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = ciuic("watch", "--pid", str(ended.pid))
    above = ciuic("watch", "--pid", str(os.getpid()))

    assert (gone.code, above.code) == (1, 2)
    assert f"process {ended.pid} cannot be watched: No such process" in gone.err
    assert "ciuic itself or above it" in above.err


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; for a file that does not exist, whether it waits."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        blocked = Path(f"/proc/{pid}/status").read_text().partition("SigBlk:\t")[2].split()[0]
    except OSError:
        return False
    return str(path) in links or (not path.exists() and int(blocked, 16) != 0)


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])

"""A rule that fires pauses every process of the job, and marks the snapshots around the fault."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.daemon import REPOSITORY, wait_until
from tests.kit.jobs import WITHOUT_CGROUP, Run, state

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

TRAINING = """
import json, os, subprocess, sys, time
log, pids, worker = sys.argv[1], sys.argv[2], sys.argv[3:]
def enter(name):
    with open(f"{pids}/{name}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{pids}/{name}.tmp", f"{pids}/{name}.pid")
if worker:
    if worker[0] == "orphan":
        if os.fork():
            os._exit(0)
        os.setsid()
    enter(worker[0])
    while not os.path.exists(f"{pids}/stop"):
        time.sleep(0.01)
    sys.exit(0)
enter("main")
workers = [subprocess.Popen([sys.executable, __file__, log, pids, name],
    start_new_session=name == "session", process_group=0 if name == "group" else None)
    for name in ("child", "group", "session", "orphan")]
print("ready", flush=True)
step = 0
while not os.path.exists(f"{pids}/stop"):
    time.sleep(0.01)
    if os.path.exists(f"{pids}/go.{step}"):
        step += 1
        with open(log, "a") as file:
            loss = 2.0 * 1.3 ** max(0, step - 3)
            file.write(json.dumps({"step": step, "loss": loss, "gpu_util": 20}) + "\\n")
        print("step", step, flush=True)
for one in workers:
    one.wait()
"""


class Training:
    """A training program with workers of all kinds, which takes a step on request."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "train.jsonl"
        self.program = directory / "train.py"
        self.program.write_text(TRAINING)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.program), str(self.log), str(self.directory)]

    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.directory.glob("*.pid"))]

    def step(self, run: Run, *numbers: int) -> None:
        for number in numbers:
            (self.directory / f"go.{number - 1}").touch()
            run.waits_for(f"step {number}\n")

    def stop(self) -> None:
        (self.directory / "stop").touch()


@pytest.fixture
def training(tmp_path: Path) -> Training:
    directory = tmp_path / "job"
    directory.mkdir()
    return Training(directory)


@pytest.mark.parametrize(
    ("wrapper", "still"),
    [((), "frozen"), pytest.param(WITHOUT_CGROUP, "stopped", marks=ROOT)],
    ids=["cgroup", "signals"],
)
def test_every_process_stands_still_until_the_user_lets_it_go_on(
    training: Training, wrapper: tuple[str, ...], still: str
) -> None:
    """The processes: a child, one with its own group, one with its own session, and an orphan."""
    with Run(
        "run", "--job", "j", "--log", training.log, "--", *training.command, wrapper=wrapper
    ) as run:
        run.waits_for("ready")
        wait_until("the workers run", lambda: len(training.pids()) == 5)
        if "no cgroup" in run.err:
            still = "stopped"
        training.step(run, 1, 2, 3, 4, 5, 6)
        run.waits_for("job j is paused")
        assert "divergence at step 6: loss rose 2 → 2.6 → 3.38 → 4.394" in run.err
        assert "go back to step 3" in run.err
        pids = training.pids()
        assert {pid: state(pid) for pid in pids} == dict.fromkeys(pids, still)

        run.send(signal.SIGCONT)
        run.waits_for("job j goes on")
        training.step(run, 7)
        assert {pid: state(pid) for pid in pids} == dict.fromkeys(pids, "running")
        training.stop()
        assert run.end() == 0


LATER = """
import os, time
real = time.monotonic
time.monotonic = lambda: real() + 481.0 * os.path.exists({path!r})
"""
"""The interpreter loads this before ciuic: once a file is there, eight minutes have passed."""


def test_a_long_pause_is_told_before_collectives_run_into_their_limit(
    box: Box, training: Training
) -> None:
    told, passed = training.directory / "told", training.directory / "passed"
    hook = training.directory / "hook"
    hook.mkdir()
    told.touch()
    (hook / "sitecustomize.py").write_text(LATER.format(path=str(passed)))
    with box.config.open("a") as file:
        file.write(
            f"[rule d]\nwhen = loss > 3\nthen = pause\n[alert a]\ntype = command\n"
            f"command = echo $CIUIC_ALERT_EVENT $CIUIC_ALERT_KEY: $CIUIC_ALERT_TEXT >> {told}\n"
        )
    with Run(
        *("--config", box.config, "run", "--job", "j", "--log", training.log, "--"),
        *training.command,
        wrapper=("env", f"PYTHONPATH={hook}:{REPOSITORY}"),
    ) as run:
        run.waits_for("ready")
        training.step(run, 1, 2, 3, 4, 5)
        run.waits_for("job j is paused")
        assert "collectives" not in run.err
        passed.touch()
        run.waits_for("and its collectives may time out when it goes on")
        wait_until("an alert says so", lambda: "collectives may time out" in told.read_text())
        run.send(signal.SIGCONT)
        run.waits_for("job j goes on")
        wait_until("its end is told", lambda: told.read_text().count("long pause") == 2)
        training.stop()
        assert run.end() == 0
    assert "NCCL allows 10 minutes and gloo 30" in " ".join(run.err.split())


def test_a_signal_ends_a_paused_job(training: Training) -> None:
    with Run("run", "--log", training.log, "--", *training.command) as run:
        run.waits_for("ready")
        wait_until("the workers run", lambda: len(training.pids()) == 5)
        training.step(run, 1, 2, 3, 4, 5, 6)
        run.waits_for("is paused")
        training.stop()
        run.send(signal.SIGTERM)
        assert run.end() == -signal.SIGTERM


def test_the_last_snapshot_before_is_pinned_and_those_after_are_tagged(
    box: Box, training: Training
) -> None:
    (box.source / "a").write_bytes(b"a")
    config = box.config
    with Run("--config", config, "run", "--log", training.log, "--", *training.command) as run:
        run.waits_for("ready")
        training.step(run, 1, 2)
        assert box.ciuic("snapshot", "--tag", "before").code == 0
        # Step 3 counts from the last look that did not find it.
        looks_again(run)
        training.step(run, 3)
        looks_again(run)
        (box.source / "a").write_bytes(b"ab")
        assert box.ciuic("snapshot", "--tag", "between").code == 0
        training.step(run, 4, 5, 6)
        run.waits_for("was taken before the fault, and is now pinned")
        (box.source / "a").write_bytes(b"abc")
        assert box.ciuic("snapshot", "--tag", "after").code == 0
        run.send(signal.SIGCONT)
        run.waits_for("goes on")
        training.stop()
        assert run.end() == 0

    marked = {one.tags[0]: (one.pinned, one.tags[1:]) for one in box.snapshots()}
    assert marked["before"] == (True, ())
    assert marked["between"] == (False, ())
    assert marked["after"] == (False, ("suspect",))


def looks_again(run: Run) -> None:
    """Return when the guard has looked at the log several times more."""
    before = reads(run)
    wait_until("the guard looks at the log", lambda: reads(run) >= before + 12)


def reads(run: Run) -> int:
    """How many calls of read(2) the guard has made: two or three each time it looks at a log."""
    text = Path(f"/proc/{run.pid}/io").read_text()
    return int(text.partition("syscr: ")[2].split()[0])


def test_the_command_of_a_rule_gets_the_step(tmp_path: Path, training: Training) -> None:
    config = tmp_path / "ciuic.conf"
    seen = tmp_path / "seen"
    config.write_text(
        "[rule high]\nwhen = loss > 2.5\n"
        f"then = run echo $CIUIC_JOB $CIUIC_RULE $CIUIC_STEP $CIUIC_GO_BACK_STEP > {seen}\n"
    )
    with Run(
        "--config", config, "run", "--job", "j", "--log", training.log, "--", *training.command
    ) as run:
        run.waits_for("ready")
        training.step(run, 1, 2, 3, 4)
        wait_until("the command ran", lambda: seen.exists() and bool(seen.read_text()))
        assert seen.read_text() == "j high 4 3\n"
        training.stop()
        assert run.end() == 0
    assert "critical: job j: high at step 4: loss was 2.6" in run.err


def test_what_a_log_had_before_the_job_does_not_count(training: Training) -> None:
    old = [{"step": at, "loss": 2 * 1.3**at, "gpu_util": 20} for at in range(9)]
    training.log.write_text("".join(json.dumps(one) + "\n" for one in old))
    with Run("run", "--log", training.log, "--", *training.command) as run:
        run.waits_for("ready")
        training.step(run, 1, 2, 3)
        training.stop()
        assert run.end() == 0
    assert "divergence" not in run.err


@pytest.mark.parametrize(
    ("wrapper", "still"),
    [((), "frozen"), pytest.param(WITHOUT_CGROUP, "stopped", marks=ROOT)],
    ids=["cgroup", "signals"],
)
def test_a_job_goes_on_if_ciuic_is_killed_while_it_is_paused(
    training: Training, wrapper: tuple[str, ...], still: str
) -> None:
    with Run(
        "run", "--job", "killed", "--log", training.log, "--", *training.command, wrapper=wrapper
    ) as run:
        run.waits_for("ready")
        wait_until("the workers run", lambda: len(training.pids()) == 5)
        if "no cgroup" in run.err:
            still = "stopped"
        training.step(run, 1, 2, 3, 4, 5, 6)
        run.waits_for("is paused")
        pids = training.pids()
        assert {pid: state(pid) for pid in pids} == dict.fromkeys(pids, still)
        run.send(signal.SIGKILL)
        wait_until("all go on", lambda: {state(pid) for pid in pids} == {"running"} and run.ended)
        training.stop()
        wait_until("all end", lambda: {state(pid) for pid in pids} == {"gone"})


def test_nothing_that_watches_a_pause_is_left_after_it(training: Training) -> None:
    with Run("run", "--log", training.log, "--", *training.command) as run:
        run.waits_for("ready")
        training.step(run, 1, 2, 3, 4, 5, 6)
        run.waits_for("is paused")
        helpers = [pid for pid in children(run.pid) if pid not in training.pids()]
        assert helpers
        run.send(signal.SIGCONT)
        run.waits_for("goes on")
        wait_until("it ends", lambda: {state(pid) for pid in helpers} == {"gone"})
        training.stop()
        assert run.end() == 0


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


def test_the_empty_cgroup_of_a_killed_ciuic_is_removed_at_the_next_start(tmp_path: Path) -> None:
    where = tmp_path / "where"
    program = f"sed -n s/^0:://p /proc/self/cgroup > {where}; exec sleep 300"
    with Run("run", "--job", "swept", "--", "sh", "-c", program) as run:
        wait_until("it runs", lambda: where.exists() and where.read_text().endswith("\n"))
        if "no cgroup" in run.err:
            pytest.skip("this system has no cgroups of version 2")
        (place,) = cgroup_places(where.read_text().strip())
        (left,) = children(run.pid)
        run.send(signal.SIGKILL)
        run.end()
        with Run("run", "--job", "other", "--", "true") as other:
            assert other.end() == 0
        assert place.exists(), "a process is still in it"
        os.kill(left, signal.SIGKILL)
        wait_until("it ended", lambda: not is_populated(place))
    with Run("run", "--job", "other", "--", "true") as other:
        assert other.end() == 0
    assert not place.exists()


def is_populated(place: Path) -> bool:
    try:
        return "populated 1" in (place / "cgroup.events").read_text()
    except OSError:  # another ciuic has removed it
        return False


def cgroup_places(own: str) -> list[Path]:
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [
        Path(fields[4] + own) for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"
    ]

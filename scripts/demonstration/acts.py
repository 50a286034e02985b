"""The story in its parts: install, train under snapshots, kill, look, restore, go on.

Each act proves what it claims or raises ``DemoError``; none of them believes an exit code alone
where the bytes can be looked at.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from demonstration.journal import Checkpoint, Run, differing_steps, read_runs
from demonstration.kill import kill_inside_write
from demonstration.stage import DemoError, Stage, fail

__all__ = ["FULL", "QUICK", "Pace", "play"]

Process = subprocess.Popen[bytes]

_PIP_WITHIN_S = 300.0
_TRIED_MAX = 10
"""How many snapshots are tried, newest first, before the demonstration gives up."""


@dataclass(frozen=True)
class Pace:
    """How long the demonstration takes.

    Attributes:
        interval: ``snapshot_interval`` of the configuration.
        interval_s: The same in seconds.
        snapshots: How many are waited for before the training is killed.
        more_steps: How many steps the training is to do after the one it was killed at.
    """

    interval: str
    interval_s: float
    snapshots: int
    more_steps: int


FULL = Pace("3s", 3.0, 3, 200)
QUICK = Pace("1s", 1.0, 2, 50)


@dataclass(frozen=True)
class Scene:
    """Where things are; all paths are absolute."""

    stage: Stage
    checkout: str
    pace: Pace

    @property
    def run(self) -> str:
        """The training's directory: what ciuic is to protect."""
        return os.path.join(self.stage.directory, "my-run")

    @property
    def checkpoint(self) -> str:
        """The one file that the training writes its checkpoints to."""
        return os.path.join(self.run, "checkpoints", "last.npz")

    @property
    def log(self) -> str:
        """The training's log."""
        return os.path.join(self.run, "log.jsonl")

    def snapshots(self) -> list[dict[str, Any]]:
        """What ``ciuic list --json`` has, newest first, without showing the command."""
        listed: list[dict[str, Any]] = json.loads(
            self.stage.run(["ciuic", "list", "--json"], shown=False).output
        )
        return listed


@dataclass(frozen=True)
class Death:
    """How the training died: when, and how much of its checkpoint was written by then."""

    moment: datetime
    written_bytes: int
    whole_bytes: int
    first: Run


@dataclass(frozen=True)
class Choice:
    """The snapshot to go back to, and the step of the checkpoint that it holds.

    Attributes:
        code: What a restore of it ends with: 3 if it is marked as being written, 0 if not.
    """

    snapshot: str
    taken: datetime
    checkpoint: Checkpoint
    code: int


def play(stage: Stage, checkout: str, pace: Pace, *, install: bool) -> None:
    """Tell the whole story.

    Raises:
        DemoError: One of its claims did not come true.
    """
    scene = Scene(stage, checkout, pace)
    if install:
        _install(scene)
    elif shutil.which("ciuicd", path=stage.environment.get("PATH")) is None:
        fail("--no-install needs ciuic, ciuicd and python on PATH, and there is no ciuicd")
    _set_up(scene)
    daemon, training = _start(scene)
    death = _kill(scene, daemon, training)
    choice = _look(scene, daemon, death)
    restored_s = _restore(scene, choice)
    compared = _resume(scene, death, choice)
    stage.title("The daemon has run all the time; now it may go")
    stage.prove(
        "ciuicd ended by itself with exit code 0",
        holds=stage.stop(daemon) == 0,
        otherwise=f"ciuicd ended with exit code {daemon.returncode} on SIGTERM, not 0",
    )
    _summary(scene, death, choice, restored_s, compared)


def _install(scene: Scene) -> None:
    stage = scene.stage
    stage.title("Install ciuic from this checkout, in a virtual environment of its own")
    stage.show(f"cd {stage.directory}")
    environment = os.path.join(stage.directory, "venv")
    try:
        stage.run([sys.executable, "-m", "venv", "venv"])
    except DemoError as error:
        fail(f"{error}; on Debian and Ubuntu, 'apt install python3-venv' brings what is missing")
    stage.show(". venv/bin/activate")
    stage.environment["VIRTUAL_ENV"] = environment
    stage.environment["PATH"] = f"{environment}/bin{os.pathsep}{stage.environment['PATH']}"
    # Without this, setuptools builds inside the checkout: it would need write access there, and
    # would install what an older build has left in ./build.
    build = os.path.join(stage.directory, "build.cfg")
    with open(build, "w", encoding="utf-8") as file:
        file.write(f"[build]\nbuild_base = {stage.directory}/build\n")
        file.write(f"[egg_info]\negg_base = {stage.directory}\n")
    stage.environment["DIST_EXTRA_CONFIG"] = build
    command = ["pip", "install", "--quiet", scene.checkout]
    stage.show(" ".join(command))
    done = stage.run(command, expect=None, shown=False, timeout_s=_PIP_WITHIN_S)
    del stage.environment["DIST_EXTRA_CONFIG"]
    if done.code:
        stage.say("\n".join(done.errors.strip().splitlines()[-6:]))
        fail(
            "pip could not install ciuic. Most often it can't reach a package index: ciuic needs "
            "its dependencies from one, or from a directory of wheels that PIP_FIND_LINKS names. "
            "Where ciuic is installed already, 'scripts/demo --no-install' does without pip"
        )
    stage.say(f"({done.took_s:.0f} s)")


def _set_up(scene: Scene) -> None:
    stage = scene.stage
    stage.title("Four lines of configuration: what to protect, how often, where to")
    configuration = (
        f"snapshot_paths = {scene.run}\n"
        f"snapshot_interval = {scene.pace.interval}\n"
        f"snapshot_dir = {stage.directory}/snapshots\n"
        "retention_policy = 7d\n"
    )
    stage.run(["mkdir", "my-run"])
    stage.show("cat > ciuic.conf")
    stage.say("\n".join(f"    {line}" for line in configuration.splitlines()))
    path = os.path.join(stage.directory, "ciuic.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(configuration)
    stage.show(f"export CIUIC_CONFIG={path}")
    stage.environment["CIUIC_CONFIG"] = path
    stage.run(["ciuic", "init"])


def _start(scene: Scene) -> tuple[Process, Process]:
    stage = scene.stage
    stage.title("Train a character model on the Python language reference, with ciuicd beside it")
    stage.say(
        "train.py is plain numpy and Adam and knows nothing of ciuic. Twice a second or so it"
    )
    stage.say("writes its one checkpoint over the old one, as many training scripts do.")
    stage.run(["cp", os.path.join(os.path.dirname(__file__), "train.py"), "my-run"])
    daemon = stage.start(["ciuicd", "--config", "ciuic.conf"], "ciuicd.log")
    # One thread adds up in one order: what makes two runs comparable to the last bit.
    stage.show("export OPENBLAS_NUM_THREADS=1")
    stage.environment["OPENBLAS_NUM_THREADS"] = "1"
    training = stage.start(["python", "my-run/train.py"], "train.out")
    return daemon, training


def _kill(scene: Scene, daemon: Process, training: Process) -> Death:
    stage, pace = scene.stage, scene.pace
    both = (daemon, training)

    def first_run() -> Run | None:
        runs = read_runs(scene.log)
        return runs[0] if runs and runs[0].checkpoints else None

    stage.wait_for("a first checkpoint", first_run, alive=both)
    seen = {one["id"] for one in scene.snapshots()}
    for _ in range(pace.snapshots):

        def fresh() -> dict[str, Any] | None:
            return next((one for one in scene.snapshots() if one["id"] not in seen), None)

        taken = stage.wait_for("a new snapshot", fresh, alive=both, pause_s=pace.interval_s / 6)
        seen.add(taken["id"])
        run = read_runs(scene.log)[0]
        stage.say(
            f"    snapshot {taken['id']} taken, {taken['new_bytes']:,} bytes new; the training is "
            f"at step {run.last_step}, loss {run.losses[run.last_step]:.3f}"
        )

    stage.title("kill -9, in the middle of a checkpoint")
    # Some way into the interval, so that there is something to lose.
    stage.pause(pace.interval_s / 2)
    whole_bytes = read_runs(scene.log)[0].checkpoints[-1].size_bytes
    written_bytes = kill_inside_write(training, scene.checkpoint, whole_bytes, timeout_s=60)
    moment = datetime.now(UTC)
    if written_bytes is None:
        fail("the training could not be caught while it wrote a checkpoint; run the demo again")
    stage.show(f"kill -9 {training.pid}")
    first = read_runs(scene.log)[0]
    stage.say(
        f"Killed at step {first.last_step}, when {written_bytes:,} of the checkpoint's "
        f"{whole_bytes:,} bytes were written.\n"
        "They went over the last good one, and there is no other. Is it any use?"
    )
    done = stage.run(["python", "my-run/train.py", "--resume"], expect=None, timeout_s=30)
    stage.prove(
        "it is not: the newest checkpoint is broken, the training can't go on from it",
        holds=done.code == 1 and "does not load" in done.errors,
        otherwise=f"the half-written checkpoint was expected not to load, but: {done.output}",
    )
    stage.run(["cp", scene.checkpoint, "broken.npz"])
    return Death(moment, written_bytes, whole_bytes, first)


def _look(scene: Scene, daemon: Process, death: Death) -> Choice:
    stage = scene.stage
    stage.title("Which snapshot has a good checkpoint?")

    def after_death() -> bool | None:
        return _moment(scene.snapshots()[0]) > death.moment or None

    stage.wait_for("a snapshot taken after the kill", after_death, alive=(daemon,))
    stage.say("The daemon goes on and has taken another snapshot since. It is a true copy of a")
    stage.say("directory with a broken checkpoint in it. The older ones know which files were")
    stage.say("being written at the time. The newest are tried first, restored to a place aside.")
    stage.run(["ciuic", "list"])
    for listed in scene.snapshots()[:_TRIED_MAX]:
        aside = ["-p", scene.checkpoint, "-d", "aside", "--overwrite"]
        restored = stage.run(["ciuic", "restore", "-s", listed["id"], *aside], expect=None)
        if restored.code not in {0, 3}:
            fail(f"the restore ended with exit code {restored.code}: {restored.errors}")
        done = stage.run(["python", "my-run/train.py", "--check", "aside/last.npz"], expect=None)
        if done.code == 0:
            found = json.loads(done.output)
            checkpoint = Checkpoint(found["step"], found["bytes"], found["sha256"])
            if restored.code == 3:
                # Its writer still had it open, or was about to begin: whether it is whole, the
                # log knows.
                stage.say("It is marked, as somebody had it open then, and it loads all the same.")
            break
        marked = restored.code == 3
        note = ", and says so: it was being written when the snapshot was taken" if marked else ""
        stage.say(f"{listed['id']} has it broken{note}. The next older one:")
    else:
        fail(f"none of the newest {_TRIED_MAX} snapshots has a checkpoint that loads")
    choice = Choice(listed["id"], _moment(listed), checkpoint, restored.code)
    stage.prove(
        f"{choice.snapshot} has the checkpoint of step {checkpoint.step}, "
        f"{(death.moment - choice.taken).total_seconds():.1f} s before the kill",
        holds=choice.taken < death.moment and checkpoint in death.first.checkpoints,
        otherwise=f"the checkpoint in {choice.snapshot} is none that the training's log names: "
        f"{checkpoint}",
    )
    return choice


def _restore(scene: Scene, choice: Choice) -> float:
    stage = scene.stage
    stage.title("Prove that it is intact, then put it back")
    stage.say(
        "verify reads every byte that is stored for the snapshot and hashes it. restore takes"
    )
    stage.say("the path as it was and the directory to put it in; nothing else there is touched.")
    stage.run(["ciuic", "verify", choice.snapshot, "--checksum"])
    others = {name: _identity(os.path.join(scene.run, name)) for name in ("log.jsonl", "train.py")}
    place = ["-p", os.path.dirname(scene.checkpoint), "-d", scene.run]
    restore = ["ciuic", "restore", "-s", choice.snapshot, *place, "--overwrite"]
    done = stage.run(restore, expect=choice.code)
    checked = json.loads(
        stage.run(["python", "my-run/train.py", "--check", scene.checkpoint], timeout_s=30).output
    )
    stage.prove(
        "the checkpoint loads, and its SHA-256 is the one that the training logged",
        holds=checked["sha256"] == choice.checkpoint.digest,
        otherwise=f"the restored checkpoint has SHA-256 {checked['sha256']}, but the training "
        f"logged {choice.checkpoint.digest} at step {choice.checkpoint.step}",
    )
    touched = [name for name, was in others.items() if _identity(f"{scene.run}/{name}") != was]
    stage.prove(
        "nothing beside it was touched",
        holds=not touched,
        otherwise=f"restoring checkpoints/ has changed {' and '.join(touched)} too",
    )
    return done.took_s


def _resume(scene: Scene, death: Death, choice: Choice) -> int:
    stage, first = scene.stage, death.first
    stage.title("Go on from there")
    goal = str(first.last_step + scene.pace.more_steps)
    stage.run(["python", "my-run/train.py", "--resume", "--steps", goal])
    second = read_runs(scene.log)[-1]
    compared, differing = differing_steps(first, second)
    stage.say("What both runs logged for the same step:\n\n" + _table(first, second) + "\n")
    stage.prove(
        f"the losses of all {compared} steps that were done twice are equal to the last bit",
        holds=compared == first.last_step - choice.checkpoint.step > 0 and not differing,
        otherwise=f"{compared} steps were done twice; the losses differ at {differing[:5]}",
    )
    stage.prove(
        f"the training is past the step it died at: step {second.last_step}",
        holds=second.last_step == first.last_step + scene.pace.more_steps,
        otherwise=f"the training ended at step {second.last_step}, not at {goal}",
    )
    return compared


def _table(first: Run, second: Run) -> str:
    """A few steps of both runs beside each other: before, at and after where they meet."""
    start, end = second.start, first.last_step
    steps = sorted({start, start + 1, start + 2, (start + end) // 2, end, end + 1})
    steps.append(second.last_step)
    lines = [f"{'step':>8}  {'killed run':>20}  {'resumed run':>20}"]
    lines += [
        f"{step:>8}  {first.losses.get(step, ''):>20}  {second.losses.get(step, ''):>20}"
        for step in steps
    ]
    return "\n".join(lines)


def _summary(scene: Scene, death: Death, choice: Choice, restored_s: float, compared: int) -> None:
    stage, listed = scene.stage, scene.snapshots()
    plain = sum(one["logical_bytes"] for one in listed)
    stored = json.loads(stage.run(["ciuic", "stats", "--json"], shown=False).output)["stored_bytes"]
    stage.title("In short")
    stage.say(
        f"The training died at step {death.first.last_step} with its only checkpoint cut short at "
        f"{death.written_bytes / death.whole_bytes:.0%}.\n"
        f"'ciuic restore' brought back the one of step {choice.checkpoint.step} in "
        f"{restored_s:.1f} s, byte for byte.\n"
        f"{compared} steps were done again, with the same losses; without a snapshot it would have "
        f"been all {death.first.last_step}.\n"
        f"{len(listed)} snapshots of {plain / 1e6:.1f} MB in all take {stored / 1e6:.1f} MB."
    )


def _moment(listed: dict[str, Any]) -> datetime:
    """When a listed snapshot was taken."""
    return datetime.fromisoformat(listed["taken"])


def _identity(path: str) -> tuple[int, int, int, int]:
    """What changes when somebody writes to a file or puts another in its place."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

"""The acts of the story: install, train with snapshots, kill, search, restore, resume.

Each act proves its claims or raises ``DemoError``. Where an act can check the bytes, it does not
rely on an exit code alone.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from demonstration.in_loop import play_in_loop
from demonstration.journal import Checkpoint, Run, differing_steps, read_runs
from demonstration.kill import kill_inside_write
from demonstration.stage import DemoError, Stage, fail

__all__ = ["FULL", "QUICK", "Pace", "play"]

Process = subprocess.Popen[bytes]

_PIP_WITHIN_S = 600.0
"""pip ends by itself without an index; it takes minutes to build on a machine with much to do."""
_TRIED_MAX = 10
"""Maximum number of snapshots to try, newest first."""


@dataclass(frozen=True)
class Pace:
    """How long the demonstration takes.

    Attributes:
        interval: ``snapshot_interval`` of the configuration.
        interval_s: The same in seconds.
        snapshots: How many snapshots to wait for before the kill.
        more_steps: How many steps the resumed training does past the step of the kill.
    """

    interval: str
    interval_s: float
    snapshots: int
    more_steps: int


FULL = Pace("3s", 3.0, 3, 200)
QUICK = Pace("1s", 1.0, 2, 50)


@dataclass(frozen=True)
class Scene:
    """The paths of the demonstration, all absolute."""

    stage: Stage
    checkout: str
    pace: Pace

    @property
    def run(self) -> str:
        """The training's directory, which ciuic protects."""
        return os.path.join(self.stage.directory, "my-run")

    @property
    def checkpoint(self) -> str:
        """The file that the training writes its checkpoints to."""
        return os.path.join(self.run, "checkpoints", "last.npz")

    @property
    def log(self) -> str:
        """The training's log."""
        return os.path.join(self.run, "log.jsonl")

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots of ``ciuic list --json``, newest first; the command is not shown."""
        listed: list[dict[str, Any]] = json.loads(
            self.stage.run(["ciuic", "list", "--json"], shown=False).output
        )
        return listed


@dataclass(frozen=True)
class Death:
    """The kill: when, how much of the checkpoint was written, and the log until then."""

    moment: datetime
    written_bytes: int
    whole_bytes: int
    first: Run


@dataclass(frozen=True)
class Choice:
    """The snapshot to restore, and the checkpoint in it.

    Attributes:
        code: The exit code of its restore: 3 if the file is marked as being written, otherwise 0.
    """

    snapshot: str
    taken: datetime
    checkpoint: Checkpoint
    code: int


def play(stage: Stage, checkout: str, pace: Pace, *, install: bool) -> None:
    """Run all acts.

    Raises:
        DemoError: A claim did not come true.
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
    stage.title("The daemon ran all the time; stop it")
    stage.prove(
        "ciuicd ended with exit code 0",
        holds=stage.stop(daemon) == 0,
        otherwise=f"ciuicd ended with exit code {daemon.returncode} on SIGTERM, not 0",
    )
    play_in_loop(stage, pace.more_steps)
    _summary(scene, death, choice, restored_s, compared)


def _install(scene: Scene) -> None:
    stage = scene.stage
    stage.title("Install ciuic from this checkout, in a new virtual environment")
    stage.show(f"cd {stage.directory}")
    environment = os.path.join(stage.directory, "venv")
    try:
        stage.run([sys.executable, "-m", "venv", "venv"])
    except DemoError as error:
        fail(f"{error}; on Debian and Ubuntu, run 'apt install python3-venv'")
    stage.show(". venv/bin/activate")
    stage.environment["VIRTUAL_ENV"] = environment
    stage.environment["PATH"] = f"{environment}/bin{os.pathsep}{stage.environment['PATH']}"
    # Without this, setuptools builds inside the checkout: it would need write access there, and
    # would install files that an older build left in ./build.
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
            "pip could not install ciuic. Usually it cannot reach a package index: ciuic needs its "
            "dependencies from an index, or from a directory of wheels that PIP_FIND_LINKS names. "
            "If ciuic is installed already, 'scripts/demo --no-install' needs no pip"
        )
    stage.say(f"({done.took_s:.0f} s)")


def _set_up(scene: Scene) -> None:
    stage = scene.stage
    stage.title("Four lines of configuration: what to protect, how often, and where to store it")
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
    doctor = stage.run(["ciuic", "doctor", "--json"], expect=None, shown=False)
    core = next(
        found for found in json.loads(doctor.output)["findings"] if found["about"] == "core"
    )
    stage.say(f"('ciuic doctor' says of the core: {core['what']})")


def _start(scene: Scene) -> tuple[Process, Process]:
    stage = scene.stage
    stage.title("Train a character model on the Python language reference, with ciuicd beside it")
    stage.say(
        "train.py is plain numpy and Adam, without any knowledge of ciuic. About twice a second"
    )
    stage.say("it overwrites its only checkpoint, as many training scripts do.")
    stage.run(["cp", os.path.join(os.path.dirname(__file__), "train.py"), "my-run"])
    daemon = stage.start(["ciuicd", "--config", "ciuic.conf"], "ciuicd.log")
    # One thread adds in one order, so two runs can be equal to the last bit.
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
    seen = {listed["id"] for listed in scene.snapshots()}
    for _ in range(pace.snapshots):

        def fresh() -> dict[str, Any] | None:
            return next((taken for taken in scene.snapshots() if taken["id"] not in seen), None)

        taken = stage.wait_for("a new snapshot", fresh, alive=both, pause_s=pace.interval_s / 6)
        seen.add(taken["id"])
        run = read_runs(scene.log)[0]
        stage.say(
            f"    snapshot {taken['id']} taken, {taken['new_bytes']:,} bytes new; the training is "
            f"at step {run.last_step}, loss {run.losses[run.last_step]:.3f}"
        )

    stage.title("kill -9, in the middle of a checkpoint")
    # Half an interval after the snapshot, so that there are steps to lose.
    stage.pause(pace.interval_s / 2)
    whole_bytes = read_runs(scene.log)[0].checkpoints[-1].size_bytes
    written_bytes = kill_inside_write(training, scene.checkpoint, whole_bytes, timeout_s=60)
    moment = datetime.now(UTC)
    if written_bytes is None:
        fail("the kill missed every write of a checkpoint; run the demo again")
    stage.show(f"kill -9 {training.pid}")
    first = read_runs(scene.log)[0]
    stage.say(
        f"Killed at step {first.last_step}, when {written_bytes:,} of the checkpoint's "
        f"{whole_bytes:,} bytes were written.\n"
        "They replaced the last good checkpoint, and there is no other. Does it still load?"
    )
    done = stage.run(["python", "my-run/train.py", "--resume"], expect=None, timeout_s=30)
    stage.prove(
        "no: the checkpoint is broken, and the training cannot resume from it",
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
    stage.say("The daemon still runs, and has taken another snapshot since: a true copy of a")
    stage.say("directory with a broken checkpoint. Older snapshots record which files were being")
    stage.say("written. Restore the checkpoint from each, newest first, into another directory.")
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
                # The program had it open, before or after its write; the log says whether the
                # checkpoint is whole.
                stage.say("It is marked, as the training had it open then; but it loads.")
            break
        marked = restored.code == 3
        note = ", and is marked: the file was being written at that time" if marked else ""
        stage.say(f"The checkpoint in {listed['id']} is broken{note}. Try the next older snapshot:")
    else:
        fail(f"none of the newest {_TRIED_MAX} snapshots has a checkpoint that loads")
    choice = Choice(listed["id"], _moment(listed), checkpoint, restored.code)
    stage.prove(
        f"{choice.snapshot} has the checkpoint of step {checkpoint.step}, "
        f"{(death.moment - choice.taken).total_seconds():.1f} s before the kill",
        holds=choice.taken < death.moment and checkpoint in death.first.checkpoints,
        otherwise=f"the training's log does not have the checkpoint in {choice.snapshot}: "
        f"{checkpoint}",
    )
    return choice


def _restore(scene: Scene, choice: Choice) -> float:
    stage = scene.stage
    stage.title("Prove that it is intact, then restore it")
    stage.say(
        "verify reads and hashes every byte that is stored for the snapshot. restore takes the"
    )
    stage.say("original path and the target directory, and touches nothing else there.")
    stage.run(["ciuic", "verify", choice.snapshot, "--checksum"])
    others = {name: _identity(os.path.join(scene.run, name)) for name in ("log.jsonl", "train.py")}
    place = ["-p", os.path.dirname(scene.checkpoint), "-d", scene.run]
    restore = ["ciuic", "restore", "-s", choice.snapshot, *place, "--overwrite"]
    done = stage.run(restore, expect=choice.code)
    checked = json.loads(
        stage.run(["python", "my-run/train.py", "--check", scene.checkpoint], timeout_s=30).output
    )
    stage.prove(
        "the checkpoint loads, and has the SHA-256 that the training logged",
        holds=checked["sha256"] == choice.checkpoint.digest,
        otherwise=f"the restored checkpoint has SHA-256 {checked['sha256']}, but the training "
        f"logged {choice.checkpoint.digest} at step {choice.checkpoint.step}",
    )
    touched = [name for name, was in others.items() if _identity(f"{scene.run}/{name}") != was]
    stage.prove(
        "no other file was touched",
        holds=not touched,
        otherwise=f"restoring checkpoints/ has changed {' and '.join(touched)} too",
    )
    return done.took_s


def _resume(scene: Scene, death: Death, choice: Choice) -> int:
    stage, first = scene.stage, death.first
    stage.title("Resume the training")
    goal = str(first.last_step + scene.pace.more_steps)
    stage.run(["python", "my-run/train.py", "--resume", "--steps", goal])
    second = read_runs(scene.log)[-1]
    compared, differing = differing_steps(first, second)
    stage.say("The losses that both runs logged:\n\n" + _table(first, second) + "\n")
    stage.prove(
        f"all {compared} repeated steps have the same losses, to the last bit",
        holds=compared == first.last_step - choice.checkpoint.step > 0 and not differing,
        otherwise=f"{compared} steps were repeated; the losses differ at {differing[:5]}",
    )
    stage.prove(
        f"the training is past the step of the kill: step {second.last_step}",
        holds=second.last_step == first.last_step + scene.pace.more_steps,
        otherwise=f"the training ended at step {second.last_step}, not at {goal}",
    )
    return compared


def _table(first: Run, second: Run) -> str:
    """Return a table of some steps of both runs: the repeated ones, and one before and after."""
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
    plain = sum(snapshot["logical_bytes"] for snapshot in listed)
    stored = json.loads(stage.run(["ciuic", "stats", "--json"], shown=False).output)["stored_bytes"]
    stage.title("In short")
    stage.say(
        f"The training was killed at step {death.first.last_step}, with "
        f"{death.written_bytes / death.whole_bytes:.0%} of its only checkpoint written.\n"
        f"'ciuic restore' restored the checkpoint of step {choice.checkpoint.step} in "
        f"{restored_s:.1f} s, byte for byte.\n"
        f"{compared} steps were repeated, with the same losses; without a snapshot, all "
        f"{death.first.last_step} would have been.\n"
        f"{len(listed)} snapshots of {plain / 1e6:.1f} MB in total take {stored / 1e6:.1f} MB."
    )


def _moment(listed: dict[str, Any]) -> datetime:
    """Return when a listed snapshot was taken."""
    return datetime.fromisoformat(listed["taken"])


def _identity(path: str) -> tuple[int, int, int, int]:
    """Return what changes when a program writes to the file or replaces it."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

"""The second act: the same training saves its own state from memory, and is killed as well."""

import json
import os
import signal
import subprocess
from typing import Any

from demonstration.journal import Run, differing_steps, read_runs
from demonstration.stage import Stage

__all__ = ["play_in_loop"]

_EVERY = 50
"""Steps between two saves of train_in_loop.py."""
_SAVES = 3
_LATER = 10
"""Steps after the third save that are lost. The save may still be under way."""
_STORE = "state-snapshots"
_PROGRAM = ["python", "in-loop/train_in_loop.py", _STORE]


def play_in_loop(stage: Stage, more_steps: int) -> None:
    """Train, kill right after a state was copied, and go on.

    Args:
        stage: Where ciuic is installed.
        more_steps: How many steps the resumed training does past the step of the kill.

    Raises:
        DemoError: A claim did not come true.
    """
    stage.title("Second act: the training saves its own state, with the Python library")
    stage.say("The same model, without a daemon and without a checkpoint file. Every 50 steps,")
    stage.say("SnapshotManager copies the state, and a second process stores the copy.")
    stage.run(["mkdir", "in-loop"])
    here = os.path.dirname(__file__)
    programs = [os.path.join(here, name) for name in ("train.py", "train_in_loop.py")]
    stage.run(["cp", *programs, "in-loop"])
    log = os.path.join(stage.directory, "in-loop", "log.jsonl")
    first = _kill(stage, stage.start(_PROGRAM, "in-loop.out"), log)
    copied = first.last_step // _EVERY * _EVERY
    stage.say(f"Killed at step {first.last_step}. The state of step {copied} was copied by then.")

    def stored() -> dict[str, Any] | None:
        listed = json.loads(
            stage.run(["ciuic", "--store", _STORE, "list", "--json"], shown=False).output
        )
        return next((one for one in listed if f"step-{copied}" in one["tags"]), None)

    newest = stage.wait_for(f"a snapshot of step {copied}", stored, alive=())
    stage.prove(
        f"it is a snapshot, although the training is dead: {newest['id']}",
        holds=newest["complete"],
        otherwise=f"{newest['id']}, the snapshot of step {copied}, is incomplete",
    )
    stage.run(["ciuic", "--store", _STORE, "list"])
    stage.run(["ciuic", "--store", _STORE, "verify", "--all", "--checksum"])
    # The kill may have come between a copy and its line in the log.
    unlogged = first.last_step + 1
    possible = {copied, unlogged} if unlogged % _EVERY == 0 else {copied}
    stage.title("The same command once more: it goes on by itself")
    stage.run([*_PROGRAM, "--steps", str(first.last_step + more_steps)])
    second = read_runs(log)[-1]
    compared, differing = differing_steps(first, second)
    stage.prove(
        f"it went on from step {second.start}, the newest state that was copied",
        holds=second.start in possible,
        otherwise=f"the training went on from step {second.start}, not from {max(possible)}",
    )
    stage.prove(
        f"all {compared} repeated steps have the same losses, to the last bit",
        holds=compared == max(0, first.last_step - second.start) and not differing,
        otherwise=f"{compared} steps were repeated; the losses differ at {differing[:5]}",
    )


def _kill(stage: Stage, training: "subprocess.Popen[bytes]", log: str) -> Run:
    """Kill the training a few steps after a save; returns what it logged."""

    def is_ahead() -> bool | None:
        runs = read_runs(log)
        return (bool(runs) and runs[0].last_step > _SAVES * _EVERY + _LATER) or None

    stage.wait_for("some steps after the third save", is_ahead, alive=(training,), pause_s=0.02)
    # The group: 'python' may be a script that starts the real one.
    os.killpg(training.pid, signal.SIGKILL)
    training.wait()
    stage.show(f"kill -9 {training.pid}")
    return read_runs(log)[0]

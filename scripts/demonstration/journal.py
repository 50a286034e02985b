"""Reading the training's log, and comparing two runs step by step."""

import json
from dataclasses import dataclass, field

__all__ = ["Checkpoint", "Run", "differing_steps", "read_runs"]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its step, its length and its SHA-256."""

    step: int
    size_bytes: int
    digest: str


@dataclass
class Run:
    """The log of one process of the training.

    Attributes:
        start: The step of the checkpoint that it resumed from; otherwise 0.
        losses: The exact loss of each step.
        checkpoints: Its complete checkpoints, oldest first.
    """

    start: int
    losses: dict[int, float] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The newest step in the log."""
        return max(self.losses, default=self.start)


def read_runs(path: str) -> list[Run]:
    """Return the runs in a log, oldest first; none if the log does not exist yet.

    A last line without a newline is still being written, and is ignored.
    """
    runs: list[Run] = []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return runs
    for line in lines:
        entry = json.loads(line)
        match entry.get("event"):
            case "start":
                runs.append(Run(entry["step"]))
            case "checkpoint":
                found = Checkpoint(entry["step"], entry["bytes"], entry["sha256"])
                runs[-1].checkpoints.append(found)
            case _:
                runs[-1].losses[entry["step"]] = entry["loss"]
    return runs


def differing_steps(first: Run, second: Run) -> tuple[int, list[int]]:
    """Return how many steps both runs did, and those with different losses.

    Equal means the same number to the last bit: JSON carries a float exactly.
    """
    common = sorted(first.losses.keys() & second.losses.keys())
    return len(common), [step for step in common if first.losses[step] != second.losses[step]]

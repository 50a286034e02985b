"""Reads the log that the training writes, and compares two runs step by step."""

import json
from dataclasses import dataclass, field

__all__ = ["Checkpoint", "Run", "differing_steps", "read_runs"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was written to its end: its step, its length and its SHA-256."""

    step: int
    size_bytes: int
    digest: str


@dataclass
class Run:
    """What one process of the training logged.

    Attributes:
        start: The step that it started from: 0, or that of the checkpoint it resumed from.
        losses: The loss of each step, exactly as it was computed.
        checkpoints: Those that it wrote to their end, oldest first.
    """

    start: int
    losses: dict[int, float] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The newest step in the log."""
        return max(self.losses, default=self.start)


def read_runs(path: str) -> list[Run]:
    """The runs in a log, oldest first; none if it is not there yet.

    A last line without its newline is still being written and left out.
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
    """How many steps both runs have done, and at which of them the losses are not equal.

    Equal means the same number to the last bit: JSON carries a float exactly.
    """
    common = sorted(first.losses.keys() & second.losses.keys())
    return len(common), [step for step in common if first.losses[step] != second.losses[step]]

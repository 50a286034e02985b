"""``scripts/bench library --scale``: chains against full checkpoints, with a small model.

It repeats a comparison for a 7B model over 16 hours: four full checkpoints, one every 4 hours, of
320 GB together; or a chain with a snapshot every 30 minutes, of 80 GB together. The recovery takes
15 minutes or 3, and at most 4 hours or 30 minutes are lost.

Guarantees: one training makes both, so they have the same states. A load that differs from the
saved state in any bit ends the benchmark with an error.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.library_scale_run import CHANNELS, KINDS, SAVES, SAVES_PER_CHECKPOINT

__all__ = ["PROMISED", "Row", "measure", "table"]

FULL: Final = {"width": 384, "layers": 4, "batch": 1, "every": 10}
QUICK: Final = {"width": 192, "layers": 2, "batch": 1, "every": 4}


class Row(NamedTuple):
    """One kind of training, and one part of its state.

    Attributes:
        training: What trains.
        state: ``full`` or ``weights``.
        checkpoint_bytes: All checkpoints by ``torch.save``.
        chain_bytes: The store with all snapshots.
        checkpoint_load_s: Loading the last checkpoint, without a check.
        chain_load_s: Loading the latest snapshot, every byte checked.
        checkpoint_lost: The most steps that are lost.
        chain_lost: The same.
    """

    training: str
    state: str
    checkpoint_bytes: float
    chain_bytes: float
    checkpoint_load_s: float
    chain_load_s: float
    checkpoint_lost: int
    chain_lost: int


PROMISED: Final = Row("7B, as promised", "full", 320e9, 80e9, 900, 180, 240, 30)
"""The rows that are measured are compared with this one; what is lost is in minutes."""


def measure(text: Path, work: Path, size: dict[str, int]) -> list[Row]:
    """Train each kind, and return its rows."""
    rows = []
    for kind in KINDS:
        target = work / kind
        target.mkdir()
        options = [word for name, value in size.items() for word in (f"--{name}", str(value))]
        command = [
            sys.executable,
            "-m",
            "benchmarks.library_scale_run",
            kind,
            str(text),
            str(target),
        ]
        place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [*command, *options], stdout=subprocess.PIPE, text=True, env=place, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"library_scale_run.py {kind}: exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        lost = size["every"] * SAVES_PER_CHECKPOINT, size["every"]
        for channel in CHANNELS:
            sizes, loads = found[channel]["bytes"], found[channel]["load_s"]
            rows.append(Row(KINDS[kind], channel, sizes[0], sizes[1], loads[0], loads[1], *lost))
        print(f"{kind} is done", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown; each pair has checkpoints first, then the chain."""
    lines = [
        f"{SAVES // SAVES_PER_CHECKPOINT} checkpoints by `torch.save`, and a chain of {SAVES}"
        " snapshots of the same training:",
        "",
        "| training | state | GB | chain: | load, s | chain: | lost at most | chain: |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in [PROMISED, *rows]:
        unit = "min" if row is PROMISED else "steps"
        figures = [
            *pair(row.checkpoint_bytes / 1e9, row.chain_bytes / 1e9),
            *pair(row.checkpoint_load_s, row.chain_load_s),
            *pair(row.checkpoint_lost, row.chain_lost, unit),
        ]
        lines.append(f"| {' | '.join([row.training, row.state, *figures])} |")
    return "\n".join(lines) + "\n"


def pair(checkpoints: float, chain: float, unit: str = "") -> tuple[str, str]:
    """Return two figures; the second one also as a multiple of the first."""
    after = f" {unit}" if unit else ""
    return f"{checkpoints:.3g}{after}", f"{chain:.3g}{after} ({chain / checkpoints:.2f})"

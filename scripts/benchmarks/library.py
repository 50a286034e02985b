"""``scripts/bench library``: saving from the training loop, compared with PyTorch's own ways.

    scripts/bench library [--quick] [--turns N] [--tool TOOL]... [--output FILE]
    scripts/bench library --scale [--quick] [--output FILE]

Guarantees: the tools take turns. Each turn trains the same model with each tool, in a process of
its own (library_run.py). A ratio is the median of the ratios within a turn. A load that differs
from the saved state in any bit ends the benchmark with an error.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import library_scale, report
from benchmarks.corpus import write_training_text
from benchmarks.measure import family_of

PEERS = ("torch.save", "safetensors", "async_save", "orbax")
TOOLS = ("none", "ciuic", *PEERS)
FULL = {"width": 512, "layers": 6, "batch": 1, "saves": 6, "every": 20, "loads": 3}
QUICK = {"width": 256, "layers": 3, "batch": 1, "saves": 8, "every": 5, "loads": 3}
LOOKED_AT = {"saves": 4, "every": 3, "loads": 1}
"""Of the run whose memory is looked at: the training between two saves makes no difference."""
SAMPLE_S = 0.02
Found = dict[str, Any]


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        what: What was measured.
        mark: What it should be.
        unit: Of the values.
        values: The median of each tool, and of the memory copy.
        ratios: What ciuic takes, as a multiple: the median of the turns, and the range.
    """

    what: str
    mark: str
    unit: str
    values: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]


def memory_bytes(tool: str, text: Path, work: Path, size: dict[str, int]) -> int:
    """Train with one tool; returns the peak of the memory it took.

    In a run of its own: to look at the memory takes 15 ms of processor time for each look, so that
    a copy by two threads took twice as long on two cores.
    """
    return watched(tool, text, work, {**size, **LOOKED_AT}, looks=True)[1]


def watched(
    tool: str, text: Path, work: Path, size: dict[str, int], *, looks: bool
) -> tuple[Found, int]:
    """Train with one tool; returns what was measured, and the peak of memory if this ``looks``."""
    options = [word for name, value in size.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory(dir=work) as target:
        command = [sys.executable, "-m", "benchmarks.library_run", tool, str(text), target]
        place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, text=True, env=place
        ) as process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            lines, peak_bytes = watch(process, process.stdout, looks=looks)
    if process.returncode != 0:
        raise SystemExit(f"library_run.py {tool}: exit code {process.returncode}")
    return json.loads(lines[-1]), peak_bytes


def watch(process: "subprocess.Popen[str]", output: Any, *, looks: bool) -> tuple[list[str], int]:
    """Return the lines of a process, and its peak of memory while it trained, above the first."""
    lines: list[str] = []
    begun = most = 0
    while True:
        is_over = process.poll() is not None
        lines += output.read().splitlines() if is_over else (output.readline() or "").splitlines()
        if is_over:
            return lines, most - begun
        if looks and "begins" in lines and "ends" not in lines:
            now = sum(map(share_bytes, family_of(process.pid)))
            begun = begun or now
            most = max(most, now)
        time.sleep(SAMPLE_S)


def share_bytes(pid: int) -> int:
    """Return the memory of a process; a page that two processes share counts half for each."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line[:4] == "Pss:")


def median_of(found: Found, key: str) -> float:
    """Return the median of a list of seconds."""
    return float(statistics.median(found[key]))


def mean_iteration(found: Found) -> float:
    """Return the mean of all iterations: the saves are in it."""
    return float(statistics.mean(found["iterations_s"]))


KINDS: tuple[tuple[str, str, str, Any], ...] = (
    ("stall of a save, median", "<= 1.2x a copy, <= 0.5x async_save", "s", "stalls_s"),
    ("mean iteration, a save every few steps", "<= 1.02x none", "s", mean_iteration),
    ("until a save is durable, nothing trains", "", "s", "durable_s"),
    ("load the latest, warm", "<= torch.save", "s", "warm_s"),
    ("load the latest, cold", "<= torch.save", "s", "cold_s"),
    ("bytes of all saves", "", "MB", lambda found: found["disk_bytes"] / 1e6),
    ("memory above training", "<= 1 state", "MB", lambda found: found["memory_bytes"] / 1e6),
)


def value(found: Found, how: Any) -> float | None:
    """Return one figure of one run; None if it has none."""
    if callable(how):
        return float(how(found))
    return median_of(found, how) if found.get(how) else None


def figures_of(turn: dict[str, Found], unit: str, how: Any) -> dict[str, float]:
    """Return one figure of each tool in one turn, and the figures to compare them with."""
    found = {tool: value(measured, how) for tool, measured in turn.items()}
    figures = {tool: figure for tool, figure in found.items() if figure}
    if how == "stalls_s":
        figures["a copy"] = median_of(turn["ciuic"], "copies_s")
    if unit == "MB":
        figures["one state"] = turn["ciuic"]["state_bytes"] / 1e6
    return figures


def lines_of(turns: Sequence[dict[str, Found]]) -> list[Line]:
    """Return the table: medians over the turns, and ratios within each turn."""
    lines = []
    for what, mark, unit, how in KINDS:
        figures = [figures_of(turn, unit, how) for turn in turns]
        values = {name: statistics.median([of[name] for of in figures]) for name in figures[0]}
        ratios = {}
        for name in figures[0]:
            # Without a save there is no stall: only the iteration can be compared with it.
            if name != "ciuic" and (name != "none" or how is mean_iteration):
                shares = [figure["ciuic"] / figure[name] for figure in figures]
                ratios[name] = (statistics.median(shares), min(shares), max(shares))
        lines.append(Line(what, mark, unit, values, ratios))
    return lines


def table(lines: Sequence[Line]) -> str:
    """Return the lines as Markdown."""
    rows = ["| what | mark | tool | value | ciuic as a multiple of it |", "|---|---|---|---|---|"]
    for line in lines:
        for name, number in line.values.items():
            ratio = ""
            if name in line.ratios:
                median, low, high = line.ratios[name]
                ratio = f"{median:.2f} ({low:.2f}-{high:.2f})"
            rows.append(
                f"| {line.what} | {line.mark} | {name} | {number:.3g} {line.unit} | {ratio} |"
            )
    return "\n".join(rows) + "\n"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the size, the tools and the number of turns."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench library", description="measure SnapshotManager beside PyTorch's savers"
    )
    parser.add_argument("--quick", action="store_true", help="a small model: a look, not a result")
    parser.add_argument("--turns", type=int, default=2, help="turns of each tool (default 2)")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only these; repeatable")
    parser.add_argument(
        "--scale", action="store_true", help="chains against full checkpoints, as a table"
    )
    parser.add_argument("--place", type=Path, help="directory to save in")
    parser.add_argument("--output", type=Path, help="Markdown page to write")
    for name in FULL:
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def tools_of(options: argparse.Namespace) -> list[str]:
    """Return the tools to measure; Orbax only where it is installed, unless it is asked for."""
    wanted = options.tool or TOOLS
    if not options.tool and importlib.util.find_spec("orbax") is None:
        print("Orbax is not installed, and is left out", file=sys.stderr)
        wanted = [tool for tool in TOOLS if tool != "orbax"]
    return [tool for tool in TOOLS if tool in wanted or tool == "ciuic"]


def take_turns(options: argparse.Namespace, text: Path, work: Path, size: dict[str, int]) -> str:
    """Measure the tools in turn; returns the table."""
    tools, turns = tools_of(options), []
    memory = {tool: memory_bytes(tool, text, work, size) for tool in tools}
    print("the memory is measured", file=sys.stderr, flush=True)
    for number in range(options.turns):
        # The order rotates, so that no tool is always the first.
        order = tools[number % len(tools) :] + tools[: number % len(tools)]
        turns.append(
            {
                tool: {
                    **watched(tool, text, work, size, looks=False)[0],
                    "memory_bytes": memory[tool],
                }
                for tool in order
            }
        )
        print(f"turn {number + 1} of {options.turns} is done", file=sys.stderr, flush=True)
    if options.output:
        options.output.with_suffix(".json").write_text(json.dumps(turns))
    return table(lines_of(turns))


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the table."""
    options = parse_arguments(arguments)
    if options.scale:
        size = dict(library_scale.QUICK if options.quick else library_scale.FULL)
    else:
        size = dict(QUICK if options.quick else FULL)
    size |= {name: getattr(options, name) for name in size if getattr(options, name) is not None}
    with tempfile.TemporaryDirectory(prefix="ciuic-library-", dir=options.place) as name:
        work = Path(name)
        facts = report.machine_facts(work)
        text = write_training_text(work)
        if options.scale:
            found = library_scale.table(library_scale.measure(text, work, size))
        else:
            found = take_turns(options, text, work, size)
    about = "".join(f"- {name}: {value}\n" for name, value in [*facts.items(), *size.items()])
    print(found, end="")
    if options.output:
        options.output.write_text(f"# Saving from the training loop\n\n{found}\n{about}")
    return 0

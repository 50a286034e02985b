"""``scripts/bench training``: how much slower a training gets while snapshots are taken of it.

    scripts/bench training [--quick] [--minutes N] [--arm ARM]... [--place DIR] [--output FILE]

One training (training_loop.py) runs all the time. Windows of it take turns: without snapshots, and
with a snapshot by one tool after each save. All windows have the same number of iterations and of
saves. A window in which a tool did not commit a snapshot of each save before the next one does not
count, and neither does one without its round's window without snapshots.

First each tool takes a snapshot beside the training. The slowest of them decides how many
iterations lie between two saves: a program of the lowest priority gets what the training leaves.
A tool that would need more time than the rounds have is left out, and named.

ciuic runs as ``ciuicd --once``: the daemon's snapshot, with its pacer. Every tool runs under
``nice -n 19 ionice -c 3``, so that no priority explains a difference. The training and each tool
have control groups of their own, as services have; see groups.py.
"""

import argparse
import json
import math
import os
import queue
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.corpus import write_training_text
from benchmarks.groups import Prefix, group
from benchmarks.measure import Command
from benchmarks.tools import Borg, Ciuic, Restic, find_ciuic

FULL = {"width": 256, "layers": 4, "batch": 1}
QUICK = {"width": 128, "layers": 2, "batch": 1}
SAVES = 2
"""In a window. A third interval may pass before it, until the training saves."""
ROUNDS_MIN = 3
FIRST_EVERY = {"full": 40, "quick": 200}
"""Iterations between two saves until it is known how long the tools take."""
MARGIN = 1.7
"""How much longer than the slowest tool the time between two saves is."""
MINUTES = {"full": 10.0, "quick": 3.0}
NONE = "none"
LOWEST = ("nice", "-n", "19", "ionice", "-c", "3")
RESAMPLED = 1000
CHANGED = {"ciuic": 3, "restic": 3, "borg": 1}
"""The exit codes that name a file, the log, which changed while it was read."""
MEAN_MARK, P99_MARK = 1.01, 1.05


class Daemon(Ciuic):
    """ciuic as its daemon takes a snapshot."""

    def snapshot(self) -> Command:
        """`ciuicd --once`."""
        daemon = self.executable.with_name("ciuicd")
        return Command((str(daemon), "--config", str(self.configuration), "--once"))


class Tar:
    """`tar | zstd`: a file of its own for each snapshot."""

    name = "tar, zstd"

    def __init__(self, work: Path) -> None:
        self.home = work / "tar"
        self.store = self.home / "store"
        self._sources: Sequence[Path] = ()

    def fresh(self, sources: Sequence[Path]) -> None:
        """Makes an empty directory."""
        self.store.mkdir(parents=True)
        self._sources = sources

    def snapshot(self) -> Command:
        """`tar -cf - SOURCE... | zstd -o FILE`, without an error for a log that grows."""
        number = len(self.snapshots())
        script = 'file=$1; shift; tar --warning=no-file-changed -cf - "$@" | zstd -q -o "$file"'
        file = self.store / f"{number}.tar.zst"
        return Command(("sh", "-c", script, "sh", str(file), *map(str, self._sources)))

    def snapshots(self) -> list[str]:
        """The names of the files."""
        return sorted(file.name for file in self.store.iterdir())


class Window(NamedTuple):
    """The measurements of one window.

    Attributes:
        arm: The tool, or ``none``.
        turn: The number of the round.
        took_s: Of each iteration.
        cpu_s: Processor time of the tool.
        waits: Share of the processors' time that was I/O wait.
        stored_bytes: What the store grew by.
        counts: Each snapshot was committed before the next save.
    """

    arm: str
    turn: int
    took_s: list[float]
    cpu_s: float
    waits: float
    stored_bytes: int
    counts: bool


class Training:
    """The training that runs all the time.

    Args:
        text: What it reads.
        target: Where it saves.
        size: Of the model, and its batches.
        every: How many iterations lie between two saves.
        seed: Another one makes other checkpoints.
        prefix: Starts it in its control group.
    """

    def __init__(
        self,
        text: Path,
        target: Path,
        size: dict[str, int],
        *,
        every: int,
        seed: int,
        prefix: Prefix,
    ) -> None:
        options = size | {"every": every, "seed": seed}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        program = [sys.executable, "-m", "benchmarks.training_loop"]
        command = [*prefix, *program, str(text), str(target), *words]
        place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=place)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # Always read: a training whose pipe is full stands still.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._lines.put(text)
        self._lines.put(b"")

    def until_saved(self, since_s: float = 0.0) -> list[float]:
        """Return how long each iteration took until the next save that ended after ``since_s``."""
        took_s: list[float] = []
        while text := self._lines.get():
            line = json.loads(text)
            took_s.append(line["took_s"])
            if line["saved"] and line["at"] > since_s:
                return took_s
        raise SystemExit("the training ended")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def measure(training: Training, tool: Any, turn: int, saves: int, prefix: Prefix) -> Window:
    """Return the window that begins with the next save; the prefix starts the tool."""
    before = 0 if tool is None else _size_bytes(tool.store)
    due = 0 if tool is None else len(tool.snapshots()) + saves
    training.until_saved(time.monotonic())  # no window includes these iterations
    cpu_s, waited = _children_s(), _io_wait()
    took_s: list[float] = []
    counts = True
    for _ in range(saves):
        process = None if tool is None else _start(tool, prefix)
        took_s += training.until_saved()
        if process is not None:
            counts = counts and process.poll() is not None
            finish(tool, process)
    now = _io_wait()
    return Window(
        NONE if tool is None else tool.name,
        turn,
        took_s,
        _children_s() - cpu_s,
        (now[0] - waited[0]) / max(1, now[1] - waited[1]),
        0 if tool is None else _size_bytes(tool.store) - before,
        counts and (tool is None or len(tool.snapshots()) == due),
    )


def needed_s(training: Training, tool: Any, prefix: Prefix) -> float:
    """Return how long a tool takes for the snapshot of a save, beside the training."""
    finish(tool, _start(tool, prefix))  # the first snapshot has all files
    training.until_saved(time.monotonic())
    began_s = time.monotonic()
    finish(tool, _start(tool, prefix))
    return time.monotonic() - began_s


def finish(tool: Any, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a snapshot; a file that changed in the meantime is not a failure."""
    code = process.wait()
    if code and code != CHANGED.get(tool.name):
        said = _log_of(tool).read_text(errors="replace")
        raise SystemExit(f"{tool.name}: exit code {code}\n{said[-2000:]}")


def _log_of(tool: Any) -> Path:
    home: Path = tool.home
    return home / "log"


def _start(tool: Any, prefix: Prefix) -> "subprocess.Popen[bytes]":
    command: Command = tool.snapshot()
    with _log_of(tool).open("wb") as log:
        return subprocess.Popen(
            (*prefix, *LOWEST, *command.arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.environment},
        )


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _io_wait() -> tuple[int, int]:
    """Return the ticks of I/O wait and all ticks of the machine; see proc_stat(5)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[4], sum(ticks)


def _size_bytes(store: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in store.rglob("*") if file.is_file())


def mean_of(took_s: Sequence[float]) -> float:
    """Return the mean of iterations."""
    return statistics.fmean(took_s)


def p99_of(took_s: Sequence[float]) -> float:
    """Return the time that 99 of 100 iterations take at most."""
    return sorted(took_s)[max(0, -(-len(took_s) * 99 // 100) - 1)]


class Ratio(NamedTuple):
    """A figure of an arm as a multiple of that without snapshots, and its 95 % interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(
    windows: Sequence[Window], arm: str, figure: Callable[[Sequence[float]], float]
) -> Ratio | None:
    """Compare the iterations of an arm with those without snapshots in the same rounds.

    The interval comes from resampling the rounds (bootstrap). None: no window counts.
    """
    without = {one.turn: one.took_s for one in windows if one.arm == NONE}
    pairs = [
        (one.took_s, without[one.turn])
        for one in windows
        if one.arm == arm and one.counts and one.turn in without
    ]
    if not pairs:
        return None

    def of(drawn: Sequence[tuple[list[float], list[float]]]) -> float:
        own, plain = ([took_s for pair in drawn for took_s in pair[side]] for side in (0, 1))
        return figure(own) / figure(plain)

    draw = random.Random(1)
    found = sorted(of(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
    return Ratio(of(pairs), found[int(0.025 * RESAMPLED)], found[int(0.975 * RESAMPLED)])


def table(windows: Sequence[Window], arms: Sequence[str], saves: int) -> str:
    """Return the table, and its verdicts on the marks."""
    lines = [
        "| arm | windows | iterations | mean, x none (95 %) | p99, x none (95 %)"
        " | processor s a snapshot | I/O wait | MB a snapshot |",
        "|---|---|---|---|---|---|---|---|",
    ]
    means: dict[str, Ratio] = {}
    p99s: dict[str, Ratio] = {}
    for arm in arms:
        own = [one for one in windows if one.arm == arm]
        counted = [one for one in own if one.counts]
        cells = [arm, f"{len(counted)} of {len(own)}", str(sum(len(one.took_s) for one in counted))]
        mean, p99 = (ratio(windows, arm, figure) for figure in (mean_of, p99_of))
        if mean is None or p99 is None:
            lines.append(f"| {' | '.join(cells)} | | | | | |")
            continue
        means[arm], p99s[arm] = mean, p99
        snapshots = len(counted) * saves
        cells += [str(mean), str(p99)]
        cells.append(f"{sum(one.cpu_s for one in counted) / snapshots:.2f}")
        cells.append(f"{statistics.fmean(one.waits for one in counted):.1%}")
        cells.append(f"{sum(one.stored_bytes for one in counted) / snapshots / 1e6:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_marks(means, p99s)]) + "\n"


def _marks(means: dict[str, Ratio], p99s: dict[str, Ratio]) -> list[str]:
    own = means.get("ciuic")
    if own is None:
        return ["ciuic has no window that counts."]
    said = [
        f"- mean at most {MEAN_MARK} x none: {_verdict(own, MEAN_MARK)}",
        f"- p99 at most {P99_MARK} x none: {_verdict(p99s['ciuic'], P99_MARK)}",
    ]
    peers = [value.middle for arm, value in means.items() if arm not in {"ciuic", NONE}]
    if peers:
        half = 1 + max(0.0, min(peers) - 1) / 2
        said.append(f"- adds less than half of the best peer: {_verdict(own, half)}")
    return said


def _verdict(found: Ratio, mark: float) -> str:
    """Say whether a mark is met; if it lies within the interval, there were too few rounds."""
    if found.high <= mark:
        return "met"
    if found.low > mark:
        return "missed"
    nearer = "met" if found.middle <= mark else "missed"
    return f"not decided, the interval has the mark in it; rather {nearer}"


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse which tools to measure, and for how long."""
    parser = argparse.ArgumentParser(prog="scripts/bench training")
    parser.add_argument("--quick", action="store_true", help="a small model: a look, not a result")
    parser.add_argument(
        "--minutes", type=float, help="how long all of it takes; three rounds at least"
    )
    arms = ("ciuic", "restic", "borg", "tar")
    parser.add_argument("--arm", action="append", choices=arms, help="repeatable; default: all")
    parser.add_argument("--place", type=Path, help="where the training and the stores are")
    parser.add_argument("--output", type=Path, help="Markdown page to write; JSON goes beside it")
    return parser.parse_args(words)


def chosen_tools(options: argparse.Namespace, work: Path, cache: Path) -> list[Any]:
    """Return the tools of the arms."""
    executable = find_ciuic()
    if executable is None:
        raise SystemExit("no ciuic found: install it")
    tools = {
        "ciuic": Daemon(work, executable.absolute(), "pressure_limit = 10%"),
        "restic": Restic(work),
        "borg": Borg(work, cache / "borg" / "bin" / "borg"),
        "tar": Tar(work),
    }
    return [tools[arm] for arm in options.arm or tools]


def fitting(
    training: Training, tools: Sequence[Any], left_s: float, prefix: Prefix
) -> tuple[list[Any], int, dict[str, float]]:
    """Find out which tools can commit each snapshot before the next save, and how often to save.

    Returns:
        The tools; how many iterations to put between two saves; and how long each of all tools
        took.
    """
    longest_s = left_s / (ROUNDS_MIN * (len(tools) + 1) * (SAVES + 1)) / MARGIN
    took_s = {tool.name: needed_s(training, tool, prefix) for tool in tools}
    fit = [tool for tool in tools if took_s[tool.name] <= longest_s]
    began_s = time.monotonic()
    training.until_saved(began_s)
    iterations_s = mean_of([one for _ in range(2) for one in training.until_saved()])
    slowest_s = max((took_s[tool.name] for tool in fit), default=0.0)
    return fit, math.ceil(MARGIN * slowest_s / iterations_s) + 1, took_s


def measure_all(
    training: Training, tools: Sequence[Any], saves: int, end_s: float, prefix: Prefix
) -> list[Window]:
    """Return the windows of as many rounds as fit, three at least, each in another order."""
    windows: list[Window] = []
    turn, round_s = 0, 0.0
    while turn < ROUNDS_MIN or time.monotonic() + round_s < end_s:
        began_s = time.monotonic()
        arms = [None, *tools]
        random.Random(turn).shuffle(arms)
        windows += [measure(training, tool, turn, saves, prefix) for tool in arms]
        turn, round_s = turn + 1, time.monotonic() - began_s
        sys.stderr.write(f"round {turn}: {round_s:.0f} s\n")
    return windows


def main(words: Sequence[str]) -> int:
    """Measure, print the table, write the page; return 1 if a mark is missed."""
    options = parse_arguments(words)
    size = "quick" if options.quick else "full"
    model = QUICK if options.quick else FULL
    end_s = time.monotonic() + 60 * (options.minutes or MINUTES[size])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciuic-bench"
    cache.mkdir(parents=True, exist_ok=True)
    place = (options.place or cache).resolve()
    output = options.output or cache / f"training-{size}.md"
    facts = report.machine_facts(place)
    with (
        tempfile.TemporaryDirectory(prefix="training-", dir=place) as name,
        group("training") as own,
        group("tool") as others,
    ):
        facts |= {"control groups": "one for the training, one for the tool" if own else "none"}
        work = Path(name)
        source = work / "source"
        source.mkdir()
        text = write_training_text(work)
        tools = chosen_tools(options, work, cache)
        training = Training(text, source, model, every=FIRST_EVERY[size], seed=1, prefix=own)
        try:
            training.until_saved()
            for tool in tools:
                tool.fresh([source])
            tools, every, took_s = fitting(training, tools, end_s - time.monotonic(), others)
            training.close()
            said = ", ".join(f"{tool} {needed:.1f} s" for tool, needed in took_s.items())
            sys.stderr.write(f"a snapshot beside the training takes: {said}\n")
            facts |= {"a snapshot beside the training took": said}
            facts |= {"iterations between two saves": str(every)}
            training = Training(text, source, model, every=every, seed=2, prefix=own)
            training.until_saved()
            windows = measure_all(training, tools, SAVES, end_s, others)
        finally:
            training.close()
    found = table(windows, [NONE, *took_s], SAVES)
    head = "".join(f"- {what}: {value}\n" for what, value in facts.items())
    output.write_text(f"{head}\n{found}")
    document = [one._asdict() for one in windows]
    output.with_suffix(".json").write_text(json.dumps(document, indent=1))
    sys.stdout.write(found)
    sys.stderr.write(f"written to {output}\n")
    return 1 if ": missed" in found else 0

"""``scripts/bench training``: how much slower a training gets while snapshots are taken of it.

    scripts/bench training [--quick] [--minutes N] [--arm ARM]... [--place DIR] [--output FILE]

One training (training_loop.py) runs all the time. Windows of it take turns: without snapshots, and
with a snapshot by one tool after each save. All windows have the same number of iterations and of
saves. A window in which a tool did not commit a snapshot of each save before the next one does not
count, and neither does one without its round's window without snapshots.

ciuic runs as ``ciuicd --once``: the daemon's snapshot, with its priorities and its pacer. The peers
run under ``nice -n 19 ionice -c 3``, so that no priority explains a difference.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.corpus import write_training_text
from benchmarks.measure import Command
from benchmarks.tools import Borg, Ciuic, Restic, find_ciuic

FULL = {"width": 512, "layers": 4, "batch": 4, "every": 20}
QUICK = {"width": 128, "layers": 2, "batch": 1, "every": 10}
SAVES = {"full": 6, "quick": 2}
MINUTES = {"full": 10.0, "quick": 2.0}
NONE = "none"
RESAMPLED = 2000
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
    """What one window showed.

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

    @property
    def p99_s(self) -> float:
        """99 of 100 iterations take at most this long."""
        return sorted(self.took_s)[max(0, -(-len(self.took_s) * 99 // 100) - 1)]


class Training:
    """The training that runs all the time."""

    def __init__(self, text: Path, target: Path, size: dict[str, int]) -> None:
        words = [word for name, value in size.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "benchmarks.training_loop", str(text), str(target), *words]
        place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=place)
        self._at_s = 0.0

    def until_saved(self, since_s: float = 0.0) -> list[float]:
        """Return how long each iteration took until the next save that ended after ``since_s``."""
        took_s: list[float] = []
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            took_s.append(line["took_s"])
            if line["saved"] and line["at"] > since_s:
                return took_s
        raise SystemExit("the training ended")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def measure(training: Training, tool: Any, turn: int, saves: int) -> Window:
    """Return one window; the training has just saved."""
    cpu_s, waited = _children_s(), _io_wait()
    before = 0 if tool is None else _size_bytes(tool.store)
    due = 0 if tool is None else len(tool.snapshots()) + saves
    took_s: list[float] = []
    counts = True
    for _ in range(saves):
        process = None if tool is None else _start(tool)
        took_s += training.until_saved()
        if process is not None:
            counts = counts and process.poll() is not None
            finish(tool, process)
    now = _io_wait()
    window = Window(
        NONE if tool is None else tool.name,
        turn,
        took_s,
        _children_s() - cpu_s,
        (now[0] - waited[0]) / max(1, now[1] - waited[1]),
        0 if tool is None else _size_bytes(tool.store) - before,
        counts and (tool is None or len(tool.snapshots()) == due),
    )
    training.until_saved(time.monotonic())  # what the training did meanwhile is in no window
    return window


def finish(tool: Any, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a snapshot; a file that changed meanwhile is no failure."""
    code = process.wait()
    if code and code != CHANGED.get(tool.name):
        said = _log_of(tool).read_text(errors="replace")
        raise SystemExit(f"{tool.name}: exit code {code}\n{said[-2000:]}")


def _log_of(tool: Any) -> Path:
    home: Path = tool.home
    return home / "log"


def _start(tool: Any) -> "subprocess.Popen[bytes]":
    command: Command = tool.snapshot()
    low = () if isinstance(tool, Ciuic) else ("nice", "-n", "19", "ionice", "-c", "3")
    with _log_of(tool).open("wb") as log:
        return subprocess.Popen(
            (*low, *command.arguments),
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


def ratios(windows: Sequence[Window], arm: str, value: Callable[[Window], float]) -> list[float]:
    """Return an arm's value as a multiple of that without snapshots, for each round."""
    without = {one.turn: value(one) for one in windows if one.arm == NONE}
    return [
        value(one) / without[one.turn]
        for one in windows
        if one.arm == arm and one.counts and one.turn in without
    ]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval, by resampling the rounds."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return (
        statistics.fmean(values),
        means[int(0.025 * RESAMPLED)],
        means[int(0.975 * RESAMPLED)],
    )


def mean_s(window: Window) -> float:
    """Return the mean of the iterations."""
    return statistics.fmean(window.took_s)


def p99_s(window: Window) -> float:
    """Return the p99 of the iterations."""
    return window.p99_s


def table(windows: Sequence[Window], arms: Sequence[str], saves: int) -> str:
    """Return the table, and the marks that are met or missed."""
    lines = [
        "| arm | windows | mean, x none (95 %) | p99, x none (95 %) | processor s a snapshot"
        " | I/O wait | MB a snapshot |",
        "|---|---|---|---|---|---|---|",
    ]
    means: dict[str, float] = {}
    p99s: dict[str, float] = {}
    for arm in arms:
        own = [one for one in windows if one.arm == arm]
        counted = [one for one in own if one.counts]
        cells = [arm, f"{len(counted)} of {len(own)}"]
        found = [ratios(windows, arm, value) for value in (mean_s, p99_s)]
        if not found[0]:
            lines.append(f"| {' | '.join(cells)} | | | | | |")
            continue
        for into, values in zip((means, p99s), found, strict=True):
            middle, low, high = interval(values)
            into[arm] = middle
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        snapshots = len(counted) * saves
        cells.append(f"{sum(one.cpu_s for one in counted) / snapshots:.2f}")
        cells.append(f"{statistics.fmean(one.waits for one in counted):.1%}")
        cells.append(f"{sum(one.stored_bytes for one in counted) / snapshots / 1e6:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_marks(means, p99s)]) + "\n"


def _marks(means: dict[str, float], p99s: dict[str, float]) -> list[str]:
    own = means.get("ciuic")
    if own is None:
        return ["ciuic has no window that counts."]
    best = min((value for arm, value in means.items() if arm not in {"ciuic", NONE}), default=None)
    said = [
        (f"mean at most {MEAN_MARK} x none", own <= MEAN_MARK),
        (f"p99 at most {P99_MARK} x none", p99s["ciuic"] <= P99_MARK),
    ]
    if best is not None:
        said.append(("adds less than half of the best peer", own - 1 < max(0.0, best - 1) / 2))
    return [f"- {what}: {'met' if is_met else 'missed'}" for what, is_met in said]


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse how long to measure what."""
    parser = argparse.ArgumentParser(prog="scripts/bench training")
    parser.add_argument("--quick", action="store_true", help="a small model: a look, not a result")
    parser.add_argument("--minutes", type=float, help="how long to measure; at least three rounds")
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


def main(words: Sequence[str]) -> int:
    """Measure, print the table, write the page; return 1 if a mark is missed."""
    options = parse_arguments(words)
    size = "quick" if options.quick else "full"
    saves, minutes = SAVES[size], options.minutes or MINUTES[size]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciuic-bench"
    cache.mkdir(parents=True, exist_ok=True)
    place = (options.place or cache).resolve()
    output = options.output or cache / f"training-{size}.md"
    windows: list[Window] = []
    with tempfile.TemporaryDirectory(prefix="training-", dir=place) as name:
        work = Path(name)
        source = work / "source"
        source.mkdir()
        text = write_training_text(work)
        tools = chosen_tools(options, work, cache)
        training = Training(text, source, QUICK if options.quick else FULL)
        try:
            training.until_saved()
            for tool in tools:
                tool.fresh([source])
                finish(tool, _start(tool))
            end_s = time.monotonic() + 60 * minutes
            turn = 0
            while turn < 3 or time.monotonic() < end_s:
                arms = [None, *tools]
                random.Random(turn).shuffle(arms)
                training.until_saved(time.monotonic())
                windows += [measure(training, tool, turn, saves) for tool in arms]
                turn += 1
        finally:
            training.close()
    found = table(windows, [NONE, *(tool.name for tool in tools)], saves)
    facts = report.machine_facts(place)
    head = "".join(f"- {what}: {value}\n" for what, value in facts.items())
    output.write_text(f"{head}\n{found}")
    document = [one._asdict() for one in windows]
    output.with_suffix(".json").write_text(json.dumps(document, indent=1))
    sys.stdout.write(found)
    sys.stderr.write(f"written to {output}\n")
    return 1 if "missed" in found else 0

"""Rows 1 to 8, and the methods that all rows use.

Guarantees: the tools take turns (A B C, A B C, ...). Every ratio is the median of the ratios within
a turn. A restore or a snapshot that differs from the source in any byte ends the benchmark with an
error.
"""

import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import compare, measure
from benchmarks.corpus import Corpus
from benchmarks.measure import GRAVEYARD, Command, Run
from benchmarks.tools import Ciuic, Tool

PEERS = ("restic", "borg")
MEMORY_MARK_MB = 250
FLAT_FACTOR = 1.15
LIST_TURNS = 21
DATA_SETS = ("checkpoints", "small-files")
BOTH_SETS = {4, 5, 8}


@dataclass(frozen=True)
class Ratio:
    """The median of a ratio over all turns, and its range."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> "Ratio":
        """Return the summary of the ratios of the turns."""
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))


@dataclass(frozen=True)
class Goal:
    """What a line measures, and its mark.

    Attributes:
        row: Number of the row in docs/benchmarks.md.
        what: The text of the line.
        mark: The mark as text.
        factor: How many times better than each of `peers` ciuic must be.
        limit: The maximum, in multiples of the limit (a plain copy, an import).
        peers: The tools to compare with.
    """

    row: int
    what: str
    mark: str
    factor: float | None = None
    limit: float | None = None
    peers: tuple[str, ...] = PEERS

    def about(self, detail: str) -> "Goal":
        """Return the goal with a detail in its text."""
        return replace(self, what=f"{self.what}, {detail}")

    def judge(self, ratios: Mapping[str, Ratio]) -> bool | None:
        """Return whether the mark is met; None without a mark or without a comparison."""
        if not ratios or (self.factor is None and self.limit is None):
            return None
        bound = ratios.get("limit")
        within = self.limit is None or bound is None or bound.median <= self.limit
        peers = [ratios[peer].median for peer in self.peers if peer in ratios]
        return within and (self.factor is None or all(peer >= self.factor for peer in peers))


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Ratios to peers say how many times better ciuic is; the one to the limit, how many times worse.
    """

    row: int
    what: str
    mark: str
    unit: str
    values: Mapping[str, float]
    ratios: Mapping[str, Ratio]
    met: bool | None


def _nothing() -> None:
    """Do nothing before a turn."""


class Bench:
    """The tools and their data, and the lines measured so far."""

    def __init__(
        self,
        corpus: Corpus,
        tools: Sequence[Tool],
        work: Path,
        *,
        turns: int,
        caches: Sequence[str],
    ) -> None:
        self.corpus = corpus
        self.lines: list[Line] = []
        self._tools = tools
        self.ciuic = next((tool for tool in tools if isinstance(tool, Ciuic)), None)
        self.stores = [tool for tool in tools if tool.name != "cp"]
        self.work = work
        self.turns = turns
        self.caches = caches
        self._held: Sequence[Path] = ()

    def first_snapshot(self, goal: Goal, source: Path) -> None:
        """Time snapshots into a new store each time; restore and compare each store afterwards."""

        def once(tool: Tool, cache: str) -> Run:
            tool.fresh([source])
            self.prepare(cache, [source])
            return measure.run(tool.snapshot())

        self.race(goal, self._tools, once)
        self._held = [source]
        for tool in self._tools:
            self._restore_once(tool, source, "warm", check=True)

    def unchanged_snapshot(self, goal: Goal, source: Path) -> None:
        """Time another snapshot of unchanged files."""

        def once(tool: Tool, cache: str) -> Run:
            self.prepare(cache, [source])
            return measure.run(tool.snapshot())

        self._stock([source])
        self.race(goal, self.stores, once)
        # The stores now hold more snapshots than other rows expect.
        self._held = ()

    def restore(self, goal: Goal, source: Path, path: Path) -> None:
        """Time restores into an empty directory, until the tool returns and until it is durable."""
        checked: set[str] = set()

        def once(tool: Tool, cache: str) -> Run:
            result = self._restore_once(tool, path, cache, check=tool.name not in checked)
            checked.add(tool.name)
            return result

        self._stock([source])
        self.race(goal, self._tools, once, durable=True)

    def verify(self, goal: Goal, source: Path) -> None:
        """Time the verification of every byte in the store."""

        def once(tool: Tool, cache: str) -> Run:
            self.prepare(cache, [tool.store])
            return measure.run(tool.verify())

        self._stock([source])
        self.race(goal, self.stores, once)

    def size(self, goal: Goal, source: Path) -> None:
        """Measure the store directory, as file lengths and as allocated blocks."""
        self._stock([source])
        measure.settle()
        for kind, count in (("lengths", length_bytes), ("allocated", allocated_bytes)):
            sizes = {tool.name: [count(tool.store) / 1e6] for tool in self.stores}
            self.add(goal.about(kind), {**sizes, "limit": [count(source) / 1e6]}, unit="MB")

    def memory(self, row: int) -> None:
        """Measure peak memory of commands: checkpoints, four times as many, small files."""
        first, more = self.corpus.checkpoints(), self.corpus.more_checkpoints()
        for verb, peaks in self._peaks(self.stores, [self.corpus.small_files()]).items():
            self._note_memory(row, f"memory, {verb} small files", peaks)
        base = self._peaks(self.stores, [first])
        for verb, peaks in base.items():
            self._note_memory(row, f"memory, {verb} checkpoints", peaks)
        if self.ciuic is not None:
            for verb, peaks in self._peaks([self.ciuic], [first, more]).items():
                before = base[verb]["ciuic"]
                self._note_memory(row, f"memory, {verb} 4x the checkpoints", peaks, before)

    def listing(self, goal: Goal, snapshots: int) -> None:
        """Time `ciuic list` on many snapshots against importing click."""
        if self.ciuic is None:
            return
        source = self.work / "tiny"
        source.mkdir(exist_ok=True)
        self.ciuic.fresh([source])
        self._held = ()
        python = str(self.ciuic.executable.with_name("python"))
        filler = str(Path(__file__).with_name("many_snapshots.py"))
        measure.run(Command((python, filler, str(self.ciuic.store), str(source), str(snapshots))))
        listed = self.ciuic.command("list")
        if len(measure.run(listed).output.splitlines()) < snapshots:
            raise measure.RunFailedError(f"ciuic list shows fewer than {snapshots} snapshots")
        commands = {"ciuic": listed, "limit": Command((python, "-c", "import click"))}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(LIST_TURNS):
            for name, command in commands.items():
                times[name].append(measure.run(command).wall_s)
        self.add(goal, times)

    def race(
        self,
        goal: Goal,
        tools: Sequence[Tool],
        once: Callable[[Tool, str], Run],
        *,
        durable: bool = False,
        before_turn: Callable[[], None] = _nothing,
        limit_s: float | None = None,
    ) -> None:
        """Let the tools take turns, and add a line for each state of the cache.

        Args:
            goal: What to measure.
            tools: Who takes turns.
            once: Runs a tool once, with this state of the cache.
            durable: Add a second line with the times until the result is durable.
            before_turn: Called before each turn.
            limit_s: A fixed time to compare ciuic with.
        """
        for cache in self.caches:
            runs: dict[str, list[Run]] = {tool.name: [] for tool in tools}
            for _ in range(self.turns):
                before_turn()
                for tool in tools:
                    runs[tool.name].append(once(tool, cache))
            # A plain copy counts only once it is durable.
            walls = {
                name: [run.durable_s if name == "cp" else run.wall_s for run in found]
                for name, found in runs.items()
            }
            synced = {name: [run.durable_s for run in found] for name, found in runs.items()}
            limits = {} if limit_s is None else {"limit": [limit_s] * self.turns}
            self.add(goal.about(cache), {**_copy_as_limit(walls), **limits})
            if durable:
                about = goal.about(f"{cache}, durable")
                self.add(about, {**_copy_as_limit(synced), **limits})

    def add(self, goal: Goal, turns: Mapping[str, Sequence[float]], unit: str = "s") -> None:
        """Add a line: the medians of the turns, the ratios within turns, and whether it is met."""
        ratios: dict[str, Ratio] = {}
        for name, found in turns.items():
            pairs = list(zip(turns.get("ciuic", ()), found, strict=False))
            if name != "ciuic" and pairs:
                flip = name == "limit"
                ratios[name] = Ratio.over(own / its if flip else its / own for own, its in pairs)
        values = {name: statistics.median(found) for name, found in turns.items()}
        met = goal.judge(ratios)
        self._note(Line(goal.row, goal.what, goal.mark, unit, values, ratios, met))

    def _note_memory(
        self, row: int, what: str, peaks: Mapping[str, float], before: float | None = None
    ) -> None:
        ours = peaks.get("ciuic")
        mark = f"< {MEMORY_MARK_MB} MB"
        ratios: dict[str, Ratio] = {}
        met = None if ours is None else ours < MEMORY_MARK_MB
        if ours is not None and before is not None:
            mark = f"{mark}, <= {FLAT_FACTOR:g}x a quarter of the data"
            ratios["limit"] = Ratio.over([ours / before])
            met = ours < MEMORY_MARK_MB and ours <= FLAT_FACTOR * before
        self._note(Line(row, what, mark, "MB", peaks, ratios, met))

    def _note(self, line: Line) -> None:
        self.lines.append(line)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in line.values.items())
        print(f"{line.row} {line.what}: {shown} {line.unit}", file=sys.stderr, flush=True)

    def _stock(self, sources: Sequence[Path]) -> None:
        """Make a store with exactly one snapshot of the sources for every tool."""
        if self._held == sources:
            return
        for tool in self._tools:
            tool.fresh(sources)
            measure.run(tool.snapshot())
        self._held = sources

    def drop_stores(self) -> None:
        """Delete all stores to free their space."""
        self._held = ()
        for tool in self._tools:
            shutil.rmtree(tool.home, ignore_errors=True)

    def prepare(self, cache: str, places: Sequence[Path]) -> None:
        """Bring the page cache into the wanted state, and write out dirty data."""
        if cache == "cold":
            measure.drop_caches()
            return
        measure.read_all(places)
        measure.settle()

    def _restore_once(self, tool: Tool, path: Path, cache: str, *, check: bool) -> Run:
        target = self.work / "target"
        target.mkdir()
        command = tool.restore([path], target)
        self.prepare(cache, [tool.store])
        result = measure.run(command, sync=target)
        if check:
            compare.require_equal(path, tool.restored(path, target))
        measure.put_away(target, self.work / GRAVEYARD)
        return result

    def _peaks(self, tools: Sequence[Tool], sources: Sequence[Path]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {"snapshot": {}, "restore": {}, "verify": {}}
        target = self.work / "target"
        self._held = ()
        for tool in tools:
            tool.fresh(sources)
            found["snapshot"][tool.name] = measure.peak_memory_bytes(tool.snapshot()) / 1e6
            target.mkdir()
            restore = tool.restore(sources, target)
            found["restore"][tool.name] = measure.peak_memory_bytes(restore) / 1e6
            measure.put_away(target, self.work / GRAVEYARD)
            found["verify"][tool.name] = measure.peak_memory_bytes(tool.verify()) / 1e6
        return found


def length_bytes(directory: Path) -> int:
    """Return the sum of all file lengths."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


def allocated_bytes(directory: Path) -> int:
    """Return the sum of all blocks of files and directories."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


def measure_rows(bench: Bench, wanted: set[int], data: set[str]) -> None:
    """Run the wanted rows, ordered so that later rows can use the stores of earlier ones.

    Rows with both data sets measure those in `data`.
    """
    others = wanted - BOTH_SETS
    _measure_checkpoints(bench, wanted if "checkpoints" in data else others)
    _measure_small_files(bench, wanted if "small-files" in data else others)
    if 6 in wanted:
        bench.memory(6)
    if 7 in wanted:
        bench.listing(Goal(7, "list 1,000 snapshots", "<= 3x import click", limit=3.0), 1000)


def _measure_checkpoints(bench: Bench, wanted: set[int]) -> None:
    if not wanted & {1, 4, 5, 8}:
        return
    source, file = bench.corpus.checkpoints(), bench.corpus.one_file()
    if 1 in wanted:
        mark = ">= 2x the faster, <= 1.5x cp -a + sync"
        bench.first_snapshot(Goal(1, "first snapshot of checkpoints", mark, 2.0, 1.5), source)
    if 8 in wanted:
        bench.size(Goal(8, "store of checkpoints", "<= the smaller", 1.0), source)
    if 4 in wanted:
        bench.restore(Goal(4, "restore checkpoints", ">= 1.5x the faster", 1.5), source, source)
        bench.restore(Goal(4, "restore one weights file", ">= 1.5x the faster", 1.5), source, file)
    if 5 in wanted:
        bench.verify(Goal(5, "verify checkpoints", ">= 2x the faster", 2.0), source)


def _measure_small_files(bench: Bench, wanted: set[int]) -> None:
    if not wanted & {2, 3, 4, 5, 8}:
        return
    source = bench.corpus.small_files()
    if 2 in wanted:
        bench.first_snapshot(Goal(2, "first snapshot of small files", ">= the faster", 1.0), source)
    if 8 in wanted:
        bench.size(Goal(8, "store of small files", "<= the smaller", 1.0), source)
    if 4 in wanted:
        bench.restore(Goal(4, "restore small files", ">= 1.5x the faster", 1.5), source, source)
    if 5 in wanted:
        bench.verify(Goal(5, "verify small files", ">= 2x the faster", 2.0), source)
    if 3 in wanted:
        goal = Goal(3, "second snapshot of small files, unchanged", ">= the faster", 1.0)
        bench.unchanged_snapshot(goal, source)


def _copy_as_limit(turns: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {"limit" if name == "cp" else name: found for name, found in turns.items()}

"""Rows 14 to 19: maintenance of a store, and the cost of a store with years of snapshots.

Guarantees: those of rows.py. After a prune, the tool verifies every byte of its store before the
time counts. A prune that frees nothing ends the benchmark with an error.
"""

import random
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Command, Run
from benchmarks.rows import Bench, Goal, length_bytes
from benchmarks.tools import Borg, Ciuic, Restic, Tool

ROWS = frozenset(range(14, 20))
SEED = 2026
SNAPSHOTS = 8
CHANGED_SHARE = 0.1
REBUILD_BYTES_PER_S = 500e6
MEMORY_MARK_MB = 300
PARITY_LIMIT = 1.1
YEARS = {"full": (1_000_000, 10_000), "quick": (100_000, 1000)}
"""Files and snapshots in the store of row 19."""


def measure_upkeep(bench: Bench, wanted: set[int], data: set[str], size: str) -> None:
    """Run the wanted rows; rows with both data sets on those in `data`."""
    if wanted & {14, 15, 18}:
        for name in sorted(data):
            Lives(bench, name).measure(wanted)
    ciuic = bench.ciuic
    if ciuic is None:
        return
    sources: dict[str, Callable[[], Path]] = {
        "checkpoints": bench.corpus.checkpoints,
        "small-files": bench.corpus.small_files,
    }
    for name in sorted(data):
        if 16 in wanted:
            goal = Goal(16, f"verify {name}", ">= 3x restic", 3.0, peers=("restic",))
            bench.verify(goal, sources[name]())
        if 17 in wanted:
            parity(bench, ciuic, name, sources[name]())
    if 19 in wanted:
        years(bench, ciuic, *YEARS[size])


class Lives:
    """Stores with eight snapshots of changing files."""

    def __init__(self, bench: Bench, name: str) -> None:
        self._bench = bench
        self._name = name
        self._chance = random.Random(SEED)
        self._source = bench.work / "changing"

    def measure(self, wanted: set[int]) -> None:
        """Run the rows that need these stores."""
        for tool in self._bench.stores:
            tool.fresh([self._source])
        for number in range(SNAPSHOTS):
            self._change(number)
            for tool in self._bench.stores:
                measure.run(tool.snapshot())
        for tool in self._bench.stores:
            shutil.move(tool.home, self._kept(tool))
        if 14 in wanted:
            what = f"forget every other of {SNAPSHOTS} and prune, {self._name}"
            goal = Goal(14, what, ">= 2x restic", 2.0, peers=("restic",))
            self._bench.race(goal, self._bench.stores, self._pruned)
        ciuic = self._bench.ciuic
        if ciuic is not None and 15 in wanted:
            self._rebuild(ciuic)
        if ciuic is not None and 18 in wanted:
            self._memory(ciuic)
        self._bench.drop_stores()
        for tool in self._bench.stores:
            shutil.rmtree(self._kept(tool))
        measure.put_away(self._source, self._bench.work / measure.GRAVEYARD)

    def _kept(self, tool: Tool) -> Path:
        return self._bench.work / f"{tool.name}-kept"

    def _change(self, number: int) -> None:
        """Make the next state: another checkpoint, or new content for a tenth of the files."""
        if self._name == "checkpoints":
            states = sorted(self._bench.corpus.checkpoints().iterdir())
            shutil.rmtree(self._source, ignore_errors=True)
            self._source.mkdir()
            shutil.copy2(states[number % len(states)], self._source)
            return
        if number == 0:
            shutil.copytree(self._bench.corpus.small_files(), self._source)
            return
        files = sorted(path for path in self._source.rglob("*") if path.is_file())
        for path in self._chance.sample(files, int(len(files) * CHANGED_SHARE)):
            other = self._chance.choice(files).read_bytes()
            path.write_bytes(b"%d\n" % number + other)

    def _renewed(self, tool: Tool) -> None:
        """Restore the tool's store with eight snapshots."""
        shutil.rmtree(tool.home, ignore_errors=True)
        measure.run(Command(("cp", "-a", str(self._kept(tool)), str(tool.home))))

    def _pruned(self, tool: Tool, cache: str) -> Run:
        self._renewed(tool)
        before = length_bytes(tool.store)
        command = halved(tool)
        self._bench.prepare(cache, [tool.store])
        result = measure.run(command)
        if length_bytes(tool.store) >= before:
            raise measure.RunFailedError(f"{tool.name} freed nothing")
        measure.run(tool.verify())
        return result

    def _rebuild(self, ciuic: Ciuic) -> None:
        """Time rebuilding the chunk index from the footers of all packs."""
        goal = Goal(
            15, f"rebuilding the chunk index, {self._name}", "500 MB of packs per second", limit=1.0
        )
        self._renewed(ciuic)
        packs = length_bytes(ciuic.store / "packs")

        def once(tool: Tool, cache: str) -> Run:
            (tool.store / "catalog.sqlite").unlink()
            self._bench.prepare(cache, [tool.store])
            return measure.run(ciuic.command("stats"))

        self._bench.race(goal, [ciuic], once, limit_s=packs / REBUILD_BYTES_PER_S)

    def _memory(self, ciuic: Ciuic) -> None:
        self._renewed(ciuic)
        commands = {
            "verify --checksum": ciuic.verify(),
            "scrub": ciuic.command("scrub", "--budget", "1h"),
            "repair": ciuic.command("repair"),
            "forget and prune": halved(ciuic),
        }
        for verb, command in commands.items():
            note_memory(self._bench, 18, f"memory, {verb}, {self._name}", command)
        (ciuic.store / "catalog.sqlite").unlink()
        command = ciuic.command("stats")
        note_memory(self._bench, 18, f"memory, rebuilding the chunk index, {self._name}", command)


def halved(tool: Tool) -> Command:
    """Return the command that forgets every other snapshot and frees its space at once."""
    names = tool.snapshots()
    if isinstance(tool, Ciuic):
        steps = [tool.command("forget", *names[::2], "--prune", "--trash", "0")]
    elif isinstance(tool, Restic):
        steps = [tool.command("forget", *names[::2], "--prune")]
    elif isinstance(tool, Borg):
        steps = tool.deleted(names[::2])
    else:
        raise NotImplementedError(tool.name)
    return in_turn(steps)


def in_turn(steps: list[Command]) -> Command:
    """Join commands into one, with the first's environment and the last's directory."""
    parts: list[str] = []
    places: list[str] = []
    for step in steps:
        first = len(parts) + 1
        parts += step.arguments
        places.append(" ".join(f'"${{{number}}}"' for number in range(first, len(parts) + 1)))
    script = ("sh", "-c", " && ".join(places), "sh", *parts)
    return Command(script, steps[0].environment, steps[-1].directory)


def parity(bench: Bench, ciuic: Ciuic, name: str, source: Path) -> None:
    """Time first snapshots with and without parity, in turns."""
    goal = Goal(17, f"first snapshot with parity, {name}", "<= 1.1x without", limit=PARITY_LIMIT)
    for cache in bench.caches:
        times: dict[str, list[float]] = {"ciuic": [], "limit": []}
        for _ in range(bench.turns):
            for who, share in (("limit", "0"), ("ciuic", "4%")):
                ciuic.fresh([source])
                with ciuic.configuration.open("a") as settings:
                    settings.write(f"parity = {share}\n")
                bench.prepare(cache, [source])
                times[who].append(measure.run(ciuic.snapshot()).wall_s)
        bench.add(goal.about(cache), times)
    bench.drop_stores()


def years(bench: Bench, ciuic: Ciuic, files: int, snapshots: int) -> None:
    """Time the commands on a store of many snapshots of many files."""
    source = bench.work / "years"
    source.mkdir()
    ciuic.fresh([source])
    python = str(ciuic.executable.with_name("python"))
    filler = str(Path(__file__).with_name("many_files.py"))
    made = Command((python, filler, str(ciuic.store), str(source), str(files), str(snapshots)))
    print(f"making {files:,} files and {snapshots:,} snapshots", file=sys.stderr, flush=True)
    measure.run(made)
    about = f"{snapshots:,} snapshots, {files:,} files"
    one_file = str(min(min(source.iterdir()).iterdir()))
    target = bench.work / "target"
    commands: Mapping[str, Command] = {
        "list": ciuic.command("list"),
        "snapshot, nothing changed": ciuic.snapshot(),
        "restore one file": ciuic.command(
            "restore", "-s", "latest", "-p", one_file, "-d", str(target), "--overwrite", "--no-hot"
        ),
        "prune --dry-run": ciuic.command("prune", "--dry-run", "--trash", "0"),
        "forget all but 100, dry": ciuic.command("forget", "--policy", "last:100", "--dry-run"),
        "forget all but 100": ciuic.command("forget", "--policy", "last:100"),
        "prune": ciuic.command("prune", "--trash", "0"),
    }
    for what, command in commands.items():
        bench.add(Goal(19, f"{what}, {about}", ""), {"ciuic": [measure.run(command).wall_s]})
        if not what.startswith(("forget all but 100", "prune")) or "dry" in what:
            note_memory(bench, 19, f"memory, {what}, {about}", command)
    shutil.rmtree(target, ignore_errors=True)
    bench.drop_stores()
    measure.put_away(source, bench.work / measure.GRAVEYARD)


def note_memory(bench: Bench, row: int, what: str, command: Command) -> None:
    """Add a line with the peak memory of one command, against the mark."""
    peak = measure.peak_memory_bytes(command) / 1e6
    limit = {"ciuic": [peak], "limit": [float(MEMORY_MARK_MB)]}
    bench.add(Goal(row, what, f"< {MEMORY_MARK_MB} MB", limit=1.0), limit, unit="MB")

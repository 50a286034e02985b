"""``scripts/bench training``: how much slower a training gets while snapshots are taken of it.

    scripts/bench training [--quick] [--minutes N] [--arm ARM]... [--place DIR] [--output FILE]

One training (training_loop.py) runs all the time. The tools take turns beside it, in random order,
for half a minute each: the training saves, the tool takes a snapshot of that, and so on. While a
tool works, it runs for a second and stands still for a second (SIGSTOP), one of them first by
chance. The iterations of each second are compared with those of the second beside it. The speed
of a training changes by a tenth from one minute to the next, and hardly within two seconds: windows
of half a minute would need hours.

So the table says how much slower the training is while a tool works, and how much time a snapshot
costs it: the tools need different times for one. A tool that has not committed one snapshot for
each save does not count. The arm ``none`` is a program that sleeps: its figures are the error of
the method.

ciuic runs as ``ciuicd --once``: the daemon's snapshot, with its pacer and its own priority. Every
tool runs under ``nice -n 19 ionice -c 3``. The daemon's snapshot sets SCHED_IDLE for itself. So
each peer is also measured with that (``chrt -i 0``), and ciuic without it. The training and the
tool have control groups of their own, as services have; see groups.py.
"""

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.corpus import write_training_text
from benchmarks.groups import Prefix, group
from benchmarks.measure import Command
from benchmarks.tools import Borg, Ciuic, Restic, find_ciuic
from benchmarks.training_table import NONE, Arm, Pair, table

FULL = {"width": 256, "layers": 4, "batch": 1}
QUICK = {"width": 128, "layers": 2, "batch": 1}
MINUTES = {"full": 12.0, "quick": 3.0}
TURN_S = {"full": 30.0, "quick": 8.0}
SLICE_S = 1.0
SETTLE_S = 0.05
"""The first iterations of a slice may still belong to the one before."""
WARM_UP_S = 5.0
LOWEST = ("nice", "-n", "19", "ionice", "-c", "3")
IDLE = ("chrt", "-i", "0")
CHANGED = {"ciuic": 3, "restic": 3, "borg": 1}
"""The exit codes that name a file, the log, which changed while it was read."""


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


class Training:
    """The training that runs all the time.

    Args:
        text: What it reads.
        target: Where it saves.
        size: Of the model, and its batches.
        prefix: Starts it in its control group.
    """

    def __init__(self, text: Path, target: Path, size: dict[str, int], prefix: Prefix) -> None:
        words = [word for name, value in size.items() for word in (f"--{name}", str(value))]
        program = [sys.executable, "-m", "benchmarks.training_loop"]
        command = [*prefix, *program, str(text), str(target), *words, "--seed", "1"]
        place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=place)
        self._lines: list[dict[str, Any]] = []
        self._saves: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._has_begun = threading.Event()
        # Always read: a training whose pipe is full stands still.
        threading.Thread(target=self._read, daemon=True).start()
        self._has_begun.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            self._lines.append(line)
            self._has_begun.set()
            if line["saved"]:
                self._saves.put(True)
        self._has_begun.set()
        self._saves.put(False)

    def save(self) -> None:
        """Have it save, and wait for that."""
        self._process.send_signal(signal.SIGUSR1)
        if not self._saves.get():
            raise SystemExit("the training ended")

    def within(self, began_s: float, ended_s: float) -> list[float]:
        """Return how long each iteration took that lay within a time."""
        found = []
        for line in reversed(self._lines):
            if line["at"] < began_s:
                break
            if line["at"] - line["took_s"] >= began_s and line["at"] <= ended_s:
                found.append(line["took_s"])
        return found

    def forget(self) -> None:
        """Drop the iterations so far."""
        self._lines.clear()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


class Sleeper:
    """A program that does nothing, for as long as a turn lasts."""

    name = NONE

    def __init__(self, work: Path, turn_s: float) -> None:
        self.home = work / "none"
        self.store = self.home / "store"
        self._turn_s = turn_s
        self._count = 0

    def fresh(self, _sources: Sequence[Path]) -> None:
        """Makes an empty directory."""
        self.store.mkdir(parents=True)

    def snapshot(self) -> Command:
        """`sleep`."""
        self._count += 1
        return Command(("sleep", str(self._turn_s)))

    def snapshots(self) -> list[str]:
        """The names of none."""
        return [str(number) for number in range(self._count)]


class Running:
    """A tool that takes a snapshot, and its end.

    Args:
        tool: The tool.
        prefix: Starts it, in its control group and with its priority.
    """

    def __init__(self, tool: Any, prefix: Sequence[str]) -> None:
        command: Command = tool.snapshot()
        self._tool = tool
        with (tool.home / "log").open("wb") as log:
            # In this session, within which nice values count; in a group for the signals.
            self._process = subprocess.Popen(
                (*prefix, *command.arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **command.environment},
                process_group=0,
            )
        self.cpu_s = 0.0
        self._status = 0
        self._has_ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        _, self._status, used = os.wait4(self._process.pid, 0)
        self.cpu_s = used.ru_utime + used.ru_stime
        self._has_ended.set()

    def ends_within(self, duration_s: float) -> bool:
        """Wait for the end, for a time at most; return whether it came."""
        return self._has_ended.wait(duration_s)

    def let(self, number: signal.Signals) -> None:
        """Send its processes a signal."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._process.pid, number)

    def check(self) -> None:
        """Raise if it failed; a file that changed in the meantime is not a failure."""
        code = self._process.returncode = os.waitstatus_to_exitcode(self._status)
        if code and code != CHANGED.get(self._tool.name):
            said = (self._tool.home / "log").read_text(errors="replace")
            raise SystemExit(f"{self._tool.name}: exit code {code}\n{said[-2000:]}")


def pairs_beside(running: Running, draw: random.Random) -> Iterator[tuple[bool, float, float]]:
    """Let a tool run and stand in turns until it has ended.

    Yields:
        For each slice: whether the tool ran, when it began and when it ended.
    """
    while True:
        for runs in draw.sample((True, False), 2):
            running.let(signal.SIGCONT if runs else signal.SIGSTOP)
            began_s = time.monotonic()
            has_ended = running.ends_within(SLICE_S)
            yield runs, began_s, time.monotonic()
            if has_ended:
                return


def take_turn(
    training: Training, tool: Any, arm: Arm, prefix: Sequence[str], *, turn_s: float, seed: int
) -> None:
    """Take snapshots by one tool beside the training for a time, and add what was measured."""
    draw = random.Random(seed)
    end_s = time.monotonic() + turn_s
    before, count = _size_bytes(tool.store), len(tool.snapshots())
    training.forget()
    while time.monotonic() < end_s:
        training.save()
        slices = []
        running = Running(tool, prefix)
        for runs, began_s, ended_s in pairs_beside(running, draw):
            slices.append((runs, training.within(began_s + SETTLE_S, ended_s)))
            arm.ran_s += ended_s - began_s if runs else 0.0
        running.check()
        for (runs, one), (_, other) in zip(slices[::2], slices[1::2], strict=False):
            arm.pairs.append(Pair(one, other) if runs else Pair(other, one))
        arm.snapshots += 1
        arm.cpu_s += running.cpu_s
    arm.committed += len(tool.snapshots()) - count
    arm.stored_bytes += _size_bytes(tool.store) - before


def _size_bytes(store: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in store.rglob("*") if file.is_file())


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse which tools to measure, and for how long."""
    parser = argparse.ArgumentParser(prog="scripts/bench training")
    parser.add_argument("--quick", action="store_true", help="a small model: a look, not a result")
    parser.add_argument("--minutes", type=float, help="how long to measure; a turn each at least")
    arms = ("ciuic", "restic", "borg", "tar")
    parser.add_argument("--arm", action="append", choices=arms, help="repeatable; default: all")
    parser.add_argument("--place", type=Path, help="where the training and the stores are")
    parser.add_argument("--output", type=Path, help="Markdown page to write; JSON goes beside it")
    return parser.parse_args(words)


def chosen_arms(
    options: argparse.Namespace, work: Path, cache: Path, turn_s: float
) -> dict[str, tuple[Any, Prefix]]:
    """Return the tool of each arm, and its priority."""
    executable = find_ciuic()
    if executable is None:
        raise SystemExit("no ciuic found: install it")
    paced = Daemon(work, executable.absolute(), "pressure_limit = 10%")
    # Any other value than the default leaves the priority to nice and ionice.
    nice = Daemon(work, executable.absolute(), "pressure_limit = 10%", "io_priority = none")
    peers: dict[str, Any] = {
        "restic": Restic(work),
        "borg": Borg(work, cache / "borg" / "bin" / "borg"),
        "tar": Tar(work),
    }
    found: dict[str, tuple[Any, Prefix]] = {NONE: (Sleeper(work, turn_s), LOWEST)}
    for name in options.arm or ("ciuic", *peers):
        if name == "ciuic":
            found |= {"ciuic": (paced, LOWEST), "ciuic, nice 19": (nice, LOWEST)}
        else:
            tool = peers[name]
            found |= {tool.name: (tool, LOWEST), f"{tool.name}, idle": (tool, (*LOWEST, *IDLE))}
    return found


def measure_all(
    training: Training,
    arms: dict[str, tuple[Any, Prefix]],
    prefix: Prefix,
    *,
    minutes: float,
    turn_s: float,
) -> dict[str, Arm]:
    """Return what was measured in as many rounds as fit, each in another order."""
    found = {name: Arm() for name in arms}
    end_s = time.monotonic() + 60 * minutes
    seed, draw = 0, random.Random(1)
    while True:
        for name in draw.sample(list(arms), len(arms)):
            tool, priority = arms[name]
            words = (*prefix, *priority)
            take_turn(training, tool, found[name], words, turn_s=turn_s, seed=seed)
            seed += 1
            if seed >= len(arms) and time.monotonic() >= end_s:
                return found
        sys.stderr.write(f"{seed} turns, {max(0.0, end_s - time.monotonic()):.0f} s left\n")


def main(words: Sequence[str]) -> int:
    """Measure, print the table, write the page; return 1 if a mark is missed."""
    options = parse_arguments(words)
    size = "quick" if options.quick else "full"
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
        turn_s = TURN_S[size]
        arms = chosen_arms(options, work, cache, turn_s)
        text = write_training_text(work)
        training = Training(text, source, QUICK if options.quick else FULL, own)
        try:
            training.save()
            for tool in {id(tool): tool for tool, _ in arms.values()}.values():
                tool.fresh([source])
                if tool.name != NONE:  # the first snapshot has all files
                    running = Running(tool, ())
                    running.ends_within(threading.TIMEOUT_MAX)
                    running.check()
            time.sleep(WARM_UP_S)
            minutes = options.minutes or MINUTES[size]
            found = measure_all(training, arms, others, minutes=minutes, turn_s=turn_s)
        finally:
            training.close()
    said = table(found)
    head = "".join(f"- {what}: {value}\n" for what, value in facts.items())
    output.write_text(f"{head}\n{said}")
    document = {name: asdict(arm) for name, arm in found.items()}
    output.with_suffix(".json").write_text(json.dumps(document))
    sys.stdout.write(said)
    sys.stderr.write(f"written to {output}\n")
    return 1 if ": missed" in said else 0

"""Command line of the crash tests; see scripts/crash."""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crashes import mutation
from crashes.blocks import record_and_check
from crashes.bucket import stress_bucket
from crashes.device import MKFS, can_make
from crashes.kills import kill_often
from crashes.stress import stress
from tests.kit.states import Case, Report, cases, sampled, survive
from tests.kit.stories import STORIES
from tests.kit.survival import Story

_PARTS: Final = ("states", "blocks", "torture")
_DRAWS: Final = {"long": 6, "quick": 2}
_STATES: Final = {"long": 1_000_000, "quick": 60}
_BLOCK_STATES: Final = {"long": 200, "quick": 15}


class Row(NamedTuple):
    """One line of the table."""

    what: str
    states: str
    took_s: float
    is_whole: bool


def parse_arguments() -> argparse.Namespace:
    """Parse which parts to run, and how much of them."""
    parser = argparse.ArgumentParser(prog="scripts/crash", description="break ciuic on purpose")
    parser.add_argument(
        "--quick", action="store_true", help="a sample of the states: a look, not a proof"
    )
    parser.add_argument("--only", choices=_PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--story", choices=STORIES, action="append", help="this story; repeatable")
    parser.add_argument(
        "--seed", type=int, help="seed of all random choices (default: a random one)"
    )
    parser.add_argument(
        "--stress", action="store_true", help="writers, daemon, commands and restores at once"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help="how long --bucket runs, and --stress on each file system",
    )
    parser.add_argument(
        "--bucket", action="store_true", help="writers and pruners of one bucket, killed at random"
    )
    parser.add_argument(
        "--on", choices=MKFS, action="append", help="--stress only on this file system; repeatable"
    )
    parser.add_argument(
        "--kills", type=int, metavar="N", help="kill N trainings or their writers, in turn"
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="put bugs into a copy of the source instead; a test must catch each",
    )
    parser.add_argument("--mutant", help="only the bugs with this text in their title")
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the bugs, and those whose text the source no longer has",
    )
    return parser.parse_args()


def main() -> int:
    """Run the requested parts; return 1 if a state did not survive."""
    options = parse_arguments()
    if options.list:
        return mutation.list_all()
    if options.mutants or options.mutant:
        return mutation.run_all(options.mutant or "")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    size = "quick" if options.quick else "long"
    print(f"seed {seed}\n", flush=True)
    if options.kills:
        return 0 if kill_often(options.kills, seed) else 1
    if options.bucket:
        return 0 if stress_bucket(options.minutes * 60, seed) else 1
    if options.stress:
        # Every file system, also after a failure.
        ends = [stress(kind, options.minutes, seed) for kind in options.on or MKFS]
        return 0 if all(ends) else 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="ciuic-crash-", dir="/dev/shm") as directory:
        for part in options.only or _PARTS[: 2 if options.quick else 3]:
            runs = {"states": _states, "blocks": _blocks, "torture": _torture}[part]
            for row in runs(size, seed, Path(directory), options.story or [*STORIES]):
                rows.append(row)
                end = "whole" if row.is_whole else "BROKEN"
                line = f"{part:<7} {row.what:<27} {row.states:>24} {row.took_s:7.1f} s  {end}"
                print(line, flush=True)
    whole = sum([row.is_whole for row in rows])
    print(f"\n{whole} of {len(rows)} whole")
    return 0 if whole == len(rows) else 1


def _row(what: str, run: Callable[[], str]) -> Row:
    """Run one line's work; print a failure in full, so that the next line can run."""
    began_s = time.monotonic()
    try:
        states = run()
    except Exception:  # noqa: BLE001 - every failure is a result of this program
        traceback.print_exc()
        return Row(what, "", time.monotonic() - began_s, is_whole=False)
    return Row(what, states, time.monotonic() - began_s, is_whole=True)


def _states(size: str, seed: int, directory: Path, names: list[str]) -> Iterator[Row]:
    for name in names:

        def run(name: str = name) -> str:
            place = directory / name.replace(" ", "-")
            story = STORIES[name](place / "story", random.Random(f"{seed} {name}"))
            every = cases(story.journal, _DRAWS[size])
            chosen = sampled(every, _STATES[size], random.Random(seed))
            reports = _side_by_side(story, sorted(chosen), seed, place)
            return f"{sum([report.states for report in reports])} in {len(every)} cases"

        yield _row(name, run)


_shared: list[tuple[Story, int, Path]] = []
"""Read by forked workers: a story cannot be pickled."""


def _side_by_side(story: Story, chosen: list[Case], seed: int, place: Path) -> list[Report]:
    workers = len(os.sched_getaffinity(0))
    # Neighboring cases are similar, and a worker skips known states: each gets a whole range.
    length = -(-len(chosen) // workers)
    _shared[:] = [(story, seed, place)]
    parts = [chosen[at : at + length] for at in range(0, len(chosen), length)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return pool.map(_survive, parts)


def _survive(chosen: list[Case]) -> Report:
    story, seed, place = _shared[0]
    failed = Path(tempfile.gettempdir()) / f"ciuic-crash-{seed}-{os.getpid()}"
    return survive(story, chosen, seed, place / str(os.getpid()), failed)


def _blocks(size: str, seed: int, directory: Path, names: list[str]) -> Iterator[Row]:
    del names
    for kind in MKFS:
        if not can_make(kind):
            print(f"blocks  {kind}: needs root, /dev/fuse and mkfs.{kind}")
            continue

        def run(kind: str = kind) -> str:
            count = record_and_check(kind, _BLOCK_STATES[size], seed, directory / kind)
            return f"{count} mounted"

        yield _row(kind, run)


def _torture(size: str, seed: int, directory: Path, names: list[str]) -> Iterator[Row]:
    """Run the long form of the other crash tests."""
    del size, names
    tests = Path(__file__).parents[2] / "tests" / "crash"
    for test in sorted(tests.glob("test_*.py")):
        if test.name == "test_power_cut_states.py":
            continue  # the first part did this

        def run(test: Path = test) -> str:
            environ = {**os.environ, "CIUIC_LONG": "1", "CIUIC_SEED": str(seed)}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            options = ["-o", "timeout=0", "--basetemp", str(directory / test.stem), str(test)]
            done = subprocess.run(
                [*command, *options], env=environ, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(done.stdout[-4000:])
            return done.stdout.splitlines()[-1].partition(" in ")[0]

        yield _row(test.stem.removeprefix("test_"), run)


if __name__ == "__main__":
    sys.exit(main())

"""Command line of the benchmark; see docs/benchmarks.md."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks import chain, cow, failure, library, measure, mounted, report, training, upkeep
from benchmarks.corpus import FULL, QUICK, Corpus, free_space_bytes
from benchmarks.mounts import KINDS
from benchmarks.rows import DATA_SETS, Bench, measure_rows
from benchmarks.tools import (
    Borg,
    Borg2,
    Ciuic,
    Copy,
    Restic,
    Tool,
    compile_program,
    find_ciuic,
)

ALL_ROWS = range(1, 31)
SPACE_BYTES = {"full": 50 << 30, "quick": 8 << 30}


def parse_arguments(cache: Path) -> argparse.Namespace:
    """Parse which rows to measure, how often, and on which data."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="measure ciuic against restic, borg and cp"
    )
    parser.add_argument("--quick", action="store_true", help="small data: a look, not a result")
    parser.add_argument(
        "--only",
        type=int,
        action="append",
        choices=ALL_ROWS,
        metavar="ROW",
        help="1 to 30; repeatable",
    )
    parser.add_argument(
        "--data", choices=DATA_SETS, help="for rows with both data sets: only this one"
    )
    parser.add_argument(
        "--on",
        action="append",
        choices=KINDS,
        help="for rows 9 to 13: only this file system; repeatable",
    )
    parser.add_argument(
        "--series",
        action="append",
        choices=chain.SERIES,
        help="for rows 20 to 24: only these checkpoints; repeatable",
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="number of turns of each tool (odd, default 3)"
    )
    parser.add_argument(
        "--cache", choices=("warm", "cold", "both"), default="both", help="state of the page cache"
    )
    parser.add_argument(
        "--ciuic", type=Path, default=find_ciuic(), help="the executable to measure"
    )
    parser.add_argument(
        "--borg2", action="store_true", help="also measure borg 2, which no mark refers to"
    )
    parser.add_argument("--peers-only", action="store_true", help="leave ciuic out")
    parser.add_argument("--place", type=Path, default=cache, help="directory to make stores in")
    parser.add_argument("--output", type=Path, help="Markdown page to write; JSON goes beside it")
    options = parser.parse_args()
    if options.turns % 2 == 0:
        parser.error("--turns must be odd, so that the median is a real turn")
    if options.ciuic is None and not options.peers_only:
        parser.error("no ciuic found: install it, or use --ciuic FILE or --peers-only")
    return options


def contestants(options: argparse.Namespace, cache: Path, work: Path) -> list[Tool]:
    """Return all tools that take part, ciuic first."""
    borg = cache / "borg" / "bin" / "borg"
    if not borg.exists() or shutil.which("restic") is None:
        raise SystemExit("restic or borg is missing: run scripts/install-peers first")
    tools: list[Tool] = [Restic(work), Borg(work, borg)]
    if options.borg2:
        borg2 = cache / "borg2" / "bin" / "borg"
        if not borg2.exists():
            raise SystemExit("borg 2 is missing: scripts/install-peers says why it cannot be built")
        tools.append(Borg2(work, borg2))
    tools.append(Copy(work))
    return tools if options.peers_only else [Ciuic(work, options.ciuic.absolute()), *tools]


def chosen_caches(wanted: str) -> list[str]:
    """Return warm, cold or both, as far as this user may drop caches."""
    if not measure.may_drop_caches():
        print("cold measurements need root: left out", file=sys.stderr)
        return ["warm"]
    return ["warm", "cold"] if wanted == "both" else [wanted]


def measure_all(bench: Bench, options: argparse.Namespace, size: str) -> None:
    """Measure all wanted rows; those that mount file systems last, since they drop all stores."""
    wanted = set(options.only or ALL_ROWS)
    data = set(DATA_SETS) if options.data is None else {options.data}
    measure_rows(bench, wanted, data)
    upkeep.measure_upkeep(bench, wanted, data, size)
    if wanted & chain.ROWS:
        chain.measure_chains(bench, wanted, set(options.series or chain.SERIES))
    if wanted & mounted.ROWS and not mounted.can_mount():
        print("rows 27 to 30 need fusermount3 and /dev/fuse: left out", file=sys.stderr)
    elif wanted & mounted.ROWS:
        mounted.measure_mounts(bench, wanted)
    if wanted & cow.ROWS and os.geteuid() != 0:
        print("rows 9 to 13 mount file systems and need root: left out", file=sys.stderr)
    elif wanted & cow.ROWS:
        cow.measure_cow(bench, wanted, options.on or KINDS, cow.AMOUNTS[size])


def stop(*_: object) -> None:
    """End as Ctrl-C does, so that mounted file systems are unmounted."""
    raise KeyboardInterrupt


def main() -> int:
    """Measure, print the table, write the page; return 1 if a mark is missed."""
    if sys.argv[1:2] == ["library"]:
        return library.main(sys.argv[2:])
    if sys.argv[1:2] == ["training"]:
        return training.main(sys.argv[2:])
    if sys.argv[1:2] == ["failure"]:
        return failure.main(sys.argv[2:])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciuic-bench"
    cache.mkdir(parents=True, exist_ok=True)
    options = parse_arguments(cache)
    signal.signal(signal.SIGTERM, stop)
    size = QUICK if options.quick else FULL
    output: Path = options.output or cache / f"results-{size.name}.md"
    if free_space_bytes(options.place) < SPACE_BYTES[size.name]:
        needed = f"{SPACE_BYTES[size.name] >> 30} GiB"
        print(f"less than {needed} free: this may run out of space", file=sys.stderr)
    if not options.peers_only:
        compile_program(options.ciuic.absolute())
    facts = report.machine_facts(options.place)
    with tempfile.TemporaryDirectory(prefix="work-", dir=options.place) as name:
        tools = contestants(options, cache, Path(name))
        bench = Bench(
            Corpus(cache, size),
            tools,
            Path(name),
            turns=options.turns,
            caches=chosen_caches(options.cache),
        )
        try:
            measure_all(bench, options, size.name)
        except KeyboardInterrupt:
            print("scripts/bench: stopped", file=sys.stderr)
            return 130
        except measure.RunFailedError as error:
            print(f"scripts/bench: {error}", file=sys.stderr)
            return 2
        finally:
            # Keep the finished lines even if a later one fails.
            command = " ".join(["scripts/bench", *sys.argv[1:]])
            output.write_text(report.page(bench.lines, tools, command, facts))
            output.with_suffix(".json").write_text(report.as_json(bench.lines))
            print(report.table(bench.lines), end="", flush=True)
            print(
                f"written to {output}; deleting stores and restored files now takes minutes",
                file=sys.stderr,
            )
    return 1 if any(line.met is False for line in bench.lines) else 0


if __name__ == "__main__":
    sys.exit(main())

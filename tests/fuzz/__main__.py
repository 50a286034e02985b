"""Coverage-guided fuzzing of every parser; see ``scripts/fuzz``.

A process of its own fuzzes each target, under a memory limit. Inputs that reach new code stay in
``build/fuzz``. With --keep, the smallest set of inputs that reaches the same lines goes to
``tests/fuzz/corpus``, and ``tests/fuzz/test_corpus.py`` replays it in every run. An input that
fails is left in ``build/fuzz/<target>`` as ``crash-*``.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz.reach import least, lines_reached

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
CORPUS = Path(__file__).parent / "corpus"
ADDRESS_SPACE_BYTES = 3 << 30
INPUT_BYTES_MAX = 2048
HANG_S = 20
# A run of these targets spends most of its time on files and SQLite, not on parsing.
SLOW = {"config": 0.1, "header": 0.4, "rows": 0.25, "parity": 0.5, "frozen": 0.5, "footer": 0.7}


def fuzz(target: str, runs: int, seed: int) -> int:
    """Fuzz one target in this process. It does not return if an input fails."""
    import atheris

    # atheris instruments a module when it is imported, so late imports are made here too.
    with atheris.instrument_imports(include=["ciuic", "ciuicd"]):
        import ciuic.codec.dense_delta
        import ciuic.view.damage  # noqa: F401 - instrumented
        from tests.fuzz.targets import TARGETS
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    work = WORK / target
    options = [
        f"-runs={runs}",
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={HANG_S}",
        f"-artifact_prefix={work}/",
        "-print_final_stats=1",
        "-rss_limit_mb=0",
        "-verbosity=1",
        str(work / "inputs"),
    ]
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()
    return 0


def prepare(target: str) -> None:
    """Write the first inputs: the seeds and the saved corpus."""
    from tests.fuzz.seeds import SEEDS

    inputs = WORK / target / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[target]()):
        (inputs / f"seed-{number}").write_bytes(data)
    for one in (CORPUS / target).glob("*"):
        shutil.copy(one, inputs / one.name)


def run(target: str, runs: int, seed: int) -> dict[str, object]:
    """Fuzz one target in a process of its own; return the outcome."""
    prepare(target)
    command = [sys.executable, "-m", "tests.fuzz", "--here", target]
    command += ["--runs", str(runs), "--seed", str(seed)]
    with (WORK / target / "log").open("wb") as log:
        outcome = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False)
    text = (WORK / target / "log").read_text(errors="replace")
    done = [line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line]
    edges = text.split("cov: ")[1:]
    return {
        "target": target,
        "inputs": int(done[-1]) if done else 0,
        "edges": int(edges[-1].split()[0]) if edges else 0,
        "edges_at_first": int(edges[0].split()[0]) if edges else 0,
        "failed": outcome.returncode != 0,
        "log": str(WORK / target / "log"),
    }


def keep(target: str) -> None:
    """Make the corpus the smallest inputs that reach every line that any input reached."""
    found = sorted((WORK / target / "inputs").iterdir(), key=lambda one: one.stat().st_size)
    chosen = least(target, [one.read_bytes() for one in found])
    place = CORPUS / target
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for number, data in enumerate(chosen):
        (place / f"{number:03d}").write_bytes(data)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--runs", type=int, default=20_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="renew tests/fuzz/corpus from it")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        return fuzz(chosen.targets[0], chosen.runs, chosen.seed)
    from tests.fuzz.seeds import SEEDS

    unknown = sorted(set(chosen.targets) - SEEDS.keys())
    if unknown:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(SEEDS)}")
    outcomes = []
    for target in chosen.targets or SEEDS:
        found = run(target, int(chosen.runs * SLOW.get(target, 1.0)), chosen.seed)
        if chosen.keep:
            keep(target)
        reached, there = lines_reached(target, CORPUS / target)
        found |= {"lines_reached": reached, "lines": there}
        outcomes.append(found)
        print(json.dumps(found), flush=True)
    total = sum([one["inputs"] for one in outcomes])  # type: ignore[misc]
    failed = [str(one["target"]) for one in outcomes if one["failed"]]
    print(f"{total:,} inputs; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())

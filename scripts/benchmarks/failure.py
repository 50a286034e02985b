"""``scripts/bench failure``: how long after its death a training is saved, and runs again.

    scripts/bench failure [--quick] [--turns N] [--on xfs|btrfs] [--place DIR] [--output FILE]

A file system is made in a file and mounted; needs root. On it is a checkpoint of 1 GiB, which
ciuicd has in a snapshot. ``ciuic run --restart 1`` starts a training that writes half of a new
checkpoint over it and is killed. Two times count from its death: until the emergency snapshot
begins, and until the command runs again. Before that, the emergency snapshot has stored what was
written, and the checkpoint has its content from before. A turn in which it has not is an error.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure, report
from benchmarks.measure import RunFailedError
from benchmarks.mounts import file_system
from benchmarks.tools import Ciuic, find_ciuic

MIB = 1 << 20
CHECKPOINT_BYTES = {"full": 1024 * MIB, "quick": 128 * MIB}
SAVED_MARK_S, RUNNING_MARK_S = 1.0, 5.0
WAIT_S = 120.0


class Turn(NamedTuple):
    """The times of one turn, both from the death of the training.

    Attributes:
        saved_s: Until the emergency snapshot begins.
        running_s: Until the first line of the command that was started again.
        load: The load of the machine before the turn.
    """

    saved_s: float
    running_s: float
    load: float


def write_checkpoint(path: Path, size_bytes: int) -> str:
    """Write a checkpoint in the safetensors format; return its hash."""
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = json.dumps({"w": tensor})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        for _ in range(size_bytes // MIB):
            file.write(os.urandom(MIB))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_turn(ciuic: Ciuic, source: Path, times: Path, size_bytes: int) -> Turn:
    """Let a training die once."""
    load = os.getloadavg()[0]
    times.unlink(missing_ok=True)
    for earlier in source.glob(".model.*"):  # what was kept aside in the turn before
        earlier.unlink()
    checkpoint = source / "model.safetensors"
    expected = write_checkpoint(checkpoint, size_bytes)
    measure.run(ciuic.command("snapshot"))
    program = str(Path(__file__).with_name("failure_job.py"))
    job = (sys.executable, program, str(checkpoint), str(times), str(size_bytes // 2))
    measure.run(ciuic.command("run", "--restart", "1", "--", *job))
    found = json.loads(times.read_text())
    if found.get("sha256") != expected:
        raise RunFailedError("the command ran again on a checkpoint that is not the one before")
    emergencies = json.loads(
        measure.run(ciuic.command("list", "--tag", "emergency", "--json")).output
    )
    taken_ns = datetime.fromisoformat(emergencies[0]["taken"]).timestamp() * 1e9
    died_ns = found["died_ns"]
    return Turn((taken_ns - died_ns) / 1e9, (found["began_ns"] - died_ns) / 1e9, load)


def start_daemon(ciuic: Ciuic) -> "subprocess.Popen[bytes]":
    """Start ciuicd, and return when it serves the store."""
    daemon = ciuic.executable.with_name("ciuicd")
    command = (str(daemon), "--config", str(ciuic.configuration))
    with (ciuic.home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    end_s = time.monotonic() + WAIT_S
    while "no warnings" not in (ciuic.home / "log").read_text():
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            raise RunFailedError("ciuicd took no first snapshot")
        time.sleep(0.05)
    return process


def table(turns: Sequence[Turn]) -> str:
    """Return the table of the turns, and the verdicts on the marks."""
    lines = ["| turn | load before | death to snapshot, s | death to running again, s |"]
    lines.append("|---|---|---|---|")
    for number, one in enumerate(turns, 1):
        lines.append(f"| {number} | {one.load:.1f} | {one.saved_s:.2f} | {one.running_s:.2f} |")
    saved_s, running_s = ([one[place] for one in turns] for place in (0, 1))
    for what, found, mark in (
        ("the emergency snapshot begins", saved_s, SAVED_MARK_S),
        ("the command runs again", running_s, RUNNING_MARK_S),
    ):
        middle = statistics.median(found)
        verdict = "met" if middle < mark else "missed"
        lines.append(f"\n{what}: median {middle:.2f} s, under {mark:.0f} s: {verdict}")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Measure, print the table, write the page; return 1 if a mark is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench failure")
    parser.add_argument("--quick", action="store_true", help="a checkpoint of 128 MiB")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--on", choices=("xfs", "btrfs"), default="xfs")
    parser.add_argument("--place", type=Path, help="where the image and the store are")
    parser.add_argument("--output", type=Path, help="Markdown page to write")
    options = parser.parse_args(words)
    executable = find_ciuic()
    if executable is None:
        raise SystemExit("no ciuic found: install it")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciuic-bench"
    place = (options.place or cache).resolve()
    place.mkdir(parents=True, exist_ok=True)
    size_bytes = CHECKPOINT_BYTES["quick" if options.quick else "full"]
    facts = report.machine_facts(place)
    with (
        tempfile.TemporaryDirectory(prefix="failure-", dir=place) as name,
        file_system(options.on, Path(name), 6 * size_bytes + (1 << 30)) as mounted,
    ):
        work, source = Path(name), mounted / "training"
        source.mkdir()
        (source / "log").write_text("a first file\n")
        ciuic = Ciuic(work, executable.absolute(), "snapshot_interval = 1h", "scrub_budget = 0")
        ciuic.fresh([source])
        with start_daemon(ciuic) as daemon:
            try:
                turns = [
                    take_turn(ciuic, source, work / "times", size_bytes)
                    for _ in range(options.turns)
                ]
            finally:
                daemon.terminate()
    found = table(turns)
    facts |= {"file system of the training": options.on}
    facts |= {"checkpoint": f"{size_bytes // MIB} MiB, half of it written again"}
    if options.output is not None:
        head = "".join(f"- {what}: {value}\n" for what, value in facts.items())
        options.output.write_text(f"{head}\n{found}")
    sys.stdout.write(found)
    return 1 if ": missed" in found else 0

"""Memory is bounded whatever is saved: much data, and many files in one directory.

Measured is VmHWM, the most that the process ever held since it was started, as the process
reads it at its own end: what getrusage says of a child includes what its parent held before.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.installed import Place, environment

MIB = 1024 * 1024
MOST_MIB = 250
GROWTH_MIB = 40
FILES = 30_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MEASURED = """
import re, sys
from ciuic.cli import main
sys.argv[:2], report = ["ciuic"], sys.argv[1]
try:
    main()
finally:
    with open("/proc/self/status") as status, open(report, "w") as file:
        file.write(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])
"""


def peak_mib(place: Place, *arguments: str | Path) -> float:
    """Run a command that must succeed; returns the most memory that it held, in MiB."""
    report = place.directory / "peak"
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, report, "--config", place.config, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(report.read_text()) / 1024


def verbs(place: Place) -> dict[str, float]:
    """What each command that touches all data takes, in MiB."""
    assert peak_mib(place, "init") < MOST_MIB
    out = place.directory / "out"
    return {
        "snapshot": peak_mib(place, "snapshot"),
        "snapshot again": peak_mib(place, "snapshot"),
        "base snapshot": peak_mib(place, "snapshot", "--base"),
        "verify": peak_mib(place, "verify", "--all", "--checksum"),
        "restore": peak_mib(place, "restore", "-s", "latest", "-p", place.source, "-d", out),
        "restore again": peak_mib(
            place, "restore", "-s", "latest", "-p", place.source, "-d", out, "--overwrite"
        ),
    }


def fill(source: Path, size_bytes: int) -> Iterator[Path]:
    """Checkpoints of a few sizes, no two pieces of them the same, until they are this large."""
    sizes = (192 * MIB, 48 * MIB, 15 * MIB + 12345, MIB)
    number = 0
    while size_bytes > 0:
        length = min(sizes[number % len(sizes)], size_bytes)
        path = source / f"step-{number}.pt"
        with path.open("wb") as file:
            for start in range(0, length, 16 * MIB):
                file.write(os.urandom(min(16 * MIB, length - start)))
        size_bytes -= length
        number += 1
        yield path


def test_memory_is_bounded_and_does_not_grow_with_the_data(tmp_path):
    peaks = {}
    for size_mib in (256, 1024):
        directory = tmp_path / str(size_mib)
        directory.mkdir()
        place = Place(directory)
        paths = list(fill(place.source, size_mib * MIB))
        peaks[size_mib] = verbs(place)
        for path in paths:
            assert (directory / "out" / "source" / path.name).stat().st_size == path.stat().st_size
            path.unlink()
        subprocess.run(["rm", "-r", directory], check=True)

    small, large = peaks[256], peaks[1024]
    assert max(*small.values(), *large.values()) < MOST_MIB, peaks
    grown = {verb: large[verb] - small[verb] for verb in small}
    assert max(grown.values()) < GROWTH_MIB, (grown, peaks)


def test_memory_is_bounded_with_thirty_thousand_files_in_one_directory(tmp_path):
    place = Place(tmp_path)
    crowd = place.source / "shards"
    crowd.mkdir()
    for number in range(FILES):
        (crowd / f"sample-{number:06}.json").write_bytes(b'{"number": %d}\n' % number)

    peaks = verbs(place)
    listing = {
        "ls": peak_mib(place, "ls", "latest", crowd),
        "find": peak_mib(place, "find", "sample-0299*"),
        "diff": peak_mib(place, "diff", "latest", "latest"),
    }

    assert max(peaks.values()) < MOST_MIB, peaks
    assert max(listing.values()) < MOST_MIB, listing
    restored = tmp_path / "out" / "source" / "shards"
    assert len(os.listdir(restored)) == FILES
    assert (restored / "sample-029999.json").read_bytes() == b'{"number": 29999}\n'

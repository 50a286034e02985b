"""Memory is bounded for much data and for many files in one directory.

Each process reads its own VmHWM, the peak since its start, at its end. ``getrusage`` would not do:
for a child it includes what the parent held before.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.hostile import HOSTILE, commit_many_files
from tests.kit.installed import Place, environment

MIB = 1024 * 1024
MOST_MIB = 250
GROWTH_MIB = 40
LONG = bool(os.environ.get("CIUIC_LONG"))
MANY_LINKS = 300_000 if LONG else 100_000
LINK_BYTES = 250
"""Bytes of memory for each file with several names. It was 550 before records went to a file."""
CROWD = 300_000 if LONG else 100_000
CROWD_BASE_MIB = 50
CROWD_BYTES = 450
CROWD_LISTED_BYTES = 170
"""Bytes of memory for each file of a directory, when it is verified with checksums, or listed."""
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
    """Run a command that must succeed; return its peak memory in MiB."""
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
    """Return the peak memory in MiB of each command that touches all data."""
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
    """Write checkpoints of a few sizes, up to this many bytes. No two parts of them are equal."""
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


def test_verify_of_one_crowded_directory_takes_little_memory(tmp_path: Path) -> None:
    """With 300,000 files, it takes about 60 MiB, and 130 with checksums.

    It took 368 MiB when verify held all entries of a directory together. ls --json took 750 MiB
    and diff --json 500 when they held the whole document, and find 137 when it kept each path of
    several snapshots.
    """
    place = Place(tmp_path)
    peak_mib(place, "init")
    peak_mib(place, "snapshot")
    (empty,) = place.ids()
    commit_many_files(place.store, place.source, CROWD)
    peaks = {
        "verify": peak_mib(place, "verify", HOSTILE),
        "verify --checksum": peak_mib(place, "verify", "--all", "--checksum"),
        "ls": peak_mib(place, "ls", "-R", HOSTILE),
        "ls --json": peak_mib(place, "ls", "-R", HOSTILE, "--json"),
        "find": peak_mib(place, "find", "sample-*"),
        "diff --json": peak_mib(place, "diff", empty, HOSTILE, "--json", "--quick"),
    }
    assert peaks.pop("verify --checksum") < CROWD_BASE_MIB + CROWD * CROWD_BYTES / MIB, peaks
    assert max(peaks.values()) < CROWD_BASE_MIB + CROWD * CROWD_LISTED_BYTES / MIB, peaks


def test_memory_does_not_grow_with_links_whose_other_names_lie_outside(tmp_path: Path) -> None:
    """As uv, pnpm and conda do, each file of an environment is a name of a file in a cache."""
    place = Place(tmp_path)
    outside = tmp_path / "cache"
    few = linked_files(place.source, outside, 0, 30_000)
    peaks = {few: linked_peaks(place, few)}
    many = linked_files(place.source, outside, few, MANY_LINKS)
    peaks[many] = linked_peaks(place, many)
    for verb, peak in peaks[many].items():
        assert peak < peaks[few][verb] + (many - few) * LINK_BYTES / MIB, peaks


def linked_files(source: Path, outside: Path, start: int, end: int) -> int:
    for number in range(start, end):
        directory = source / f"{number // 1000}"
        if number % 1000 == 0:
            directory.mkdir(parents=True)
            (outside / f"{number // 1000}").mkdir(parents=True)
        (directory / f"{number}").touch()  # file content would take memory of its own
        os.link(directory / f"{number}", outside / f"{number // 1000}" / f"{number}")
    return end


def linked_peaks(place: Place, count: int) -> dict[str, float]:
    peak_mib(place, "init")
    out = place.directory / f"out-{count}"
    peaks = {
        "snapshot": peak_mib(place, "snapshot", "--base"),
        "restore": peak_mib(place, "restore", "-s", "latest", "-p", place.source, "-d", out),
    }
    subprocess.run(["rm", "-r", out], check=True)  # the file systems of tests have few inodes
    return peaks

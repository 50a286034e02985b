"""ciuic beside restic and rclone, with their stores in buckets of one real Ceph gateway.

    PYTHONPATH=.:scripts python -m benchmarks.bucket_peers DIRECTORY... [--turns N] [--rclone PATH]
    PYTHONPATH=.:scripts python -m benchmarks.bucket_peers --list N

In each turn, every tool takes a first snapshot of a directory, one more when nothing has changed,
and restores the first one; "durable" adds the time until what it has restored is on the disk.
rclone copies the directory and back: it keeps one version. Every restored file is compared. Ceph
has one disk, and runs on the same processors as the tools: its processor time is measured too.

The snapshots to list are taken in a directory, and copied to the bucket.
"""

import argparse
import contextlib
import filecmp
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tools import compile_program, find_ciuic
from tests.kit.ceph import ACCESS_KEY, SECRET_KEY, Server, ceph_server
from tests.kit.signed_requests import make_bucket

_BUCKET = "bench"
_DISKS = 1
_DISK_BYTES = 40 << 30
"""Ceph frees the space of deleted objects hours later."""
_FEW_FILES = 1000
"""Trees of more files stay until the end: for minutes after a deletion, ext4 skips the deleted
inodes one by one for each new file, so the next restore would take up to twice as long."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """The time and memory of one run of a command: the memory is that of its largest process.

    Attributes:
        server_s: Processor time of Ceph meanwhile.
    """

    wall_s: float
    processor_s: float
    server_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Tool:
    """A tool: its commands for a store of its own, and where it restores a directory to."""

    name: str
    server: Server
    environment: Mapping[str, str]
    begin: Callable[[str], Sequence[str]]
    snapshot: Callable[[str, Path], Sequence[str]]
    restore: Callable[[str, Path, Path], Sequence[str]]
    restored: Callable[[Path, Path], Path]

    def run(self, words: Sequence[str]) -> Took:
        """Run a command to its end."""
        server_s = _server_s(self.server)
        began_s = time.perf_counter()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                words, stdout=output, stderr=output, env={**os.environ, **self.environment}
            )
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began_s
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                output.seek(0)
                raise RuntimeError(f"{words}: {output.read()[-2000:].decode()}")
        server_s = _server_s(self.server) - server_s
        return Took(wall_s, used.ru_utime + used.ru_stime, server_s, used.ru_maxrss * 1024)


def _server_s(server: Server) -> float:
    """Return the processor time that the processes of Ceph have taken."""
    config = os.fsencode(server.top / "ceph.conf")
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if config in (process / "cmdline").read_bytes().split(b"\0"):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def _tools(server: Server, work: Path, rclone: str) -> list[Tool]:
    found = find_ciuic()
    if found is None:
        raise RuntimeError("ciuic is not installed")
    compile_program(found)
    ciuic = str(found)
    keys = {**server.environment, "AWS_ENDPOINT_URL": server.endpoint}
    tools = [
        Tool(
            "ciuic",
            server,
            {**keys, "XDG_CACHE_HOME": str(work / "cache")},
            lambda name: [ciuic, "--store", f"s3://{_BUCKET}/{name}", "init"],
            lambda name, top: [ciuic, "--store", f"s3://{_BUCKET}/{name}", "snapshot", str(top)],
            lambda name, top, target: [
                *(ciuic, "--store", f"s3://{_BUCKET}/{name}", "restore", "-s", "latest"),
                *("-p", str(top), "-d", str(target)),
            ],
            lambda top, target: target / top.name,
        ),
        Tool(
            "restic",
            server,
            {**keys, "RESTIC_PASSWORD": "benchmark", "RESTIC_CACHE_DIR": str(work / "restic")},
            lambda name: [*_restic(server, name), "init"],
            lambda name, top: [*_restic(server, name), "backup", "--quiet", str(top)],
            lambda name, _top, target: [
                *_restic(server, name),
                *("restore", "latest", "--target", str(target)),
            ],
            lambda top, target: target / top.relative_to("/"),
        ),
    ]
    if rclone:
        more = {
            "RCLONE_S3_PROVIDER": "Ceph",
            "RCLONE_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "RCLONE_S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "RCLONE_S3_ENDPOINT": server.endpoint,
            "RCLONE_CONFIG": "/dev/null",
        }
        tools.append(
            Tool(
                "rclone",
                server,
                more,
                lambda name: [rclone, "lsd", f":s3:{_BUCKET}"],  # noqa: ARG005 - nothing to make
                lambda name, top: [rclone, "copy", str(top), f":s3:{_BUCKET}/{name}"],
                lambda name, _top, target: [rclone, "copy", f":s3:{_BUCKET}/{name}", str(target)],
                lambda _top, target: target,
            )
        )
    return tools


def _restic(server: Server, name: str) -> list[str]:
    return ["restic", "--repo", f"s3:{server.endpoint}/{_BUCKET}/{name}"]


def _check(top: Path, restored: Path) -> None:
    for directory, _, names in os.walk(top):
        inner = restored / Path(directory).relative_to(top)
        _, differ, errors = filecmp.cmpfiles(directory, inner, names, shallow=False)
        if differ or errors:
            raise RuntimeError(f"restored wrong: {differ[:3]} {errors[:3]}")


def _measure(tools: Sequence[Tool], top: Path, turns: int, work: Path) -> None:
    """Measure a directory, in turns, and print a table of medians."""
    took: dict[tuple[str, str], list[Took]] = {}
    for turn in range(turns):
        for tool in random.sample(tools, len(tools)):
            name = f"{tool.name}-{top.name}-{turn}"
            target = work / f"restored-{name}"
            tool.run(tool.begin(name))
            for what, words in (
                ("first snapshot", tool.snapshot(name, top)),
                ("nothing new", tool.snapshot(name, top)),
                ("restore", tool.restore(name, top, target)),
            ):
                one = tool.run(words)
                took.setdefault((what, tool.name), []).append(one)
                load = os.getloadavg()[0]
                print(f"{turn} {what} {tool.name}: {one}, load {load:.1f}", flush=True)
            synced = tool.run(("sync", "-f", str(target)))
            durable = one._replace(wall_s=one.wall_s + synced.wall_s)
            took.setdefault(("restore, durable", tool.name), []).append(durable)
            _check(top, tool.restored(top, target))
            if sum(len(names) for _, _, names in os.walk(target)) < _FEW_FILES:
                shutil.rmtree(target)
    print(f"\n{top.name}, {turns} turns\n")
    print("| work | tool | s | processor s | Ceph's | MB | times ciuic |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (what, name), runs in sorted(took.items()):
        ours = took[what, "ciuic"]
        ratios = [run.wall_s / own.wall_s for run, own in zip(runs, ours, strict=True)]
        middle = Took(*map(statistics.median, zip(*runs, strict=True)))
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"| {what} | {name} | {middle.wall_s:.2f} | {middle.processor_s:.2f}"
            f" | {middle.server_s:.2f} | {middle.memory_bytes / 1e6:.0f} | {spread} |"
        )


def _list(tool: Tool, count: int, work: Path) -> None:
    """Copy snapshots to the bucket, and time the list of them: warm, then without a cache."""
    source, local = work / "listed", str(work / "local")
    source.mkdir()
    ciuic, option, address, _ = tool.begin("many")
    tool.run([ciuic, option, local, "init"])
    taking = (sys.executable, "-m", "benchmarks.many_snapshots", local, str(source), str(count))
    print(f"taken: {tool.run(taking)}", flush=True)
    copying = (ciuic, option, local, "copy", "--init", "--to", address)
    print(f"copied: {tool.run(copying)}", flush=True)
    command = [ciuic, option, address, "list", "--json"]
    listed: Any = json.loads(
        subprocess.run(
            command, capture_output=True, check=True, env={**os.environ, **tool.environment}
        ).stdout
    )
    print(f"{len(listed)} listed")
    for _ in range(5):
        print(f"warm: {tool.run(command)}, load {os.getloadavg()[0]:.1f}")
    shutil.rmtree(work / "cache")
    print(f"without a cache: {tool.run(command)}")


def main() -> int:
    """Measure, as the arguments say."""
    parser = argparse.ArgumentParser(prog="benchmarks.bucket_peers")
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rclone", default=shutil.which("rclone") or "")
    parser.add_argument("--list", type=int, default=0)
    options = parser.parse_args()
    with (
        ceph_server(_DISKS, _DISK_BYTES) as server,
        tempfile.TemporaryDirectory(prefix="ciuic-bench-") as name,
    ):
        make_bucket(server, _BUCKET)
        tools = _tools(server, Path(name), options.rclone)
        for directory in options.directories:
            _measure(tools, directory.resolve(), options.turns, Path(name))
        if options.list:
            _list(tools[0], options.list, Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())

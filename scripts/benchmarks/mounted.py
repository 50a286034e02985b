"""Rows 27 to 30: reading snapshots through a mount.

Guarantees: each tool serves a new mount in each of its turns, so that the kernel has nothing of it
in its caches, and it is unmounted afterwards, also after a failure. The first bytes that each tool
gives are compared with the source, as is every random read and the number of names that `find`
counts.
"""

import contextlib
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure
from benchmarks.measure import Command, RunFailedError
from benchmarks.rows import Bench, Goal
from benchmarks.tools import Borg, Borg2, Ciuic, Restic, Tool

ROWS = frozenset(range(27, 31))
SEED = 2026
PART_BYTES = 1 << 20
PAGE_BYTES = 4096
RANDOM_READS = 200
RANDOM_MARK_MS = 10.0
MEMORY_MARK_MB = 200.0
SHARE_OF_RESTORE = 0.7
MEMORY_FILES = Path("/dev/shm")
BEGIN_S = 120.0
END_S = 30.0
LOOK_S = 0.01


class Mounted(NamedTuple):
    """A mount of the newest snapshot.

    Attributes:
        root: The directory that stands for `/`.
        pid: The process that serves it.
    """

    root: Path
    pid: int

    def at(self, path: Path) -> Path:
        """Return where a path of the source is."""
        return self.root / path.relative_to("/")


def can_mount() -> bool:
    """Return whether this user can mount through FUSE here."""
    return shutil.which("fusermount3") is not None and os.access("/dev/fuse", os.W_OK)


def measure_mounts(bench: Bench, wanted: set[int]) -> None:
    """Run the wanted rows."""
    Mounts(bench).measure(wanted)
    bench.drop_stores()


class Mounts:
    """Stores with one snapshot of checkpoints and small files, which are mounted in turns."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        # The borg 2 of `scripts/install-peers` has no FUSE.
        self._tools = [tool for tool in bench.stores if not isinstance(tool, Borg2)]
        self._checkpoints = bench.corpus.checkpoints()
        self._small_files = bench.corpus.small_files()
        files = [path for path in self._checkpoints.rglob("*") if path.is_file()]
        self._file = max(files, key=lambda path: (path.stat().st_size, path))

    def measure(self, wanted: set[int]) -> None:
        """Take the snapshots, then run the rows."""
        for tool in self._tools:
            tool.fresh([self._checkpoints, self._small_files])
            measure.run(tool.snapshot())
        if 27 in wanted:
            self._sequential()
        if 28 in wanted:
            goal = Goal(28, "find in a mount, small files", ">= 2x the faster", 2.0)
            self._bench.add(goal, self._turns(self._find))
        if 29 in wanted:
            goal = Goal(29, "4 KiB random read in a mount", "< 10 ms", limit=1.0)
            self._add(goal, self._turns(self._random), RANDOM_MARK_MS, "ms")
        if 30 in wanted:
            goal = Goal(30, "memory of a mount, after rows 27 to 29", "< 200 MB", limit=1.0)
            self._add(goal, self._turns(self._memory), MEMORY_MARK_MB, "MB")

    def _add(self, goal: Goal, turns: dict[str, list[float]], mark: float, unit: str) -> None:
        self._bench.add(goal, {**turns, "limit": [mark] * self._bench.turns}, unit)

    def _turns(
        self, once: Callable[[Mounted], float], before_turn: Callable[[], None] = lambda: None
    ) -> dict[str, list[float]]:
        """Mount each tool's store in turn, and measure something there."""
        found: dict[str, list[float]] = {tool.name: [] for tool in self._tools}
        for _ in range(self._bench.turns):
            before_turn()
            for tool in self._tools:
                self._bench.prepare("warm", [tool.store])
                with mounted(tool, self._bench.work / "mount") as there:
                    found[tool.name].append(once(there))
        return found

    def _sequential(self) -> None:
        """Read a checkpoint from its beginning to its end; the limit is its restore to memory."""
        limit: list[float] = []
        what = "read a checkpoint through a mount"
        mark = ">= 2x the faster, >= 0.7 of the speed of restore"
        goal = Goal(27, what, mark, 2.0, limit=1 / SHARE_OF_RESTORE)
        turns = self._turns(self._read, lambda: limit.extend(self._restored()))
        self._bench.add(goal, {**turns, **({"limit": limit} if limit else {})})

    def _restored(self) -> Iterator[float]:
        """Yield how long `ciuic restore` of the checkpoint takes, if ciuic takes part."""
        ciuic = self._bench.ciuic
        if ciuic is None:
            return
        self._bench.prepare("warm", [ciuic.store])
        with tempfile.TemporaryDirectory(dir=MEMORY_FILES) as target:
            yield measure.run(ciuic.restore([self._file], Path(target))).wall_s

    def _read(self, there: Mounted) -> float:
        place = there.at(self._file)
        buffer = bytearray(PART_BYTES)
        total_bytes, first = 0, b""
        began_s = time.perf_counter()
        with place.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                first = first or bytes(buffer[:count])
                total_bytes += count
        took_s = time.perf_counter() - began_s
        with self._file.open("rb") as source:
            is_same = source.read(len(first)) == first
        if not is_same or total_bytes != self._file.stat().st_size:
            raise RunFailedError(f"{place} differs from {self._file}")
        return took_s

    def _find(self, there: Mounted) -> float:
        command = ("find", str(there.at(self._small_files)), "-type", "f", "-printf", "%s\\n")
        done = measure.run(Command(command))
        wanted = sum(len(names) for _, _, names in os.walk(self._small_files))
        if len(done.output.splitlines()) != wanted:
            raise RunFailedError(f"find does not see {wanted} files in {there.root}")
        return done.wall_s

    def _random(self, there: Mounted) -> float:
        """Return the median of reads past the kernel's cache, in milliseconds."""
        chance = random.Random(SEED)
        pages = self._file.stat().st_size // PAGE_BYTES
        buffer = mmap.mmap(-1, PAGE_BYTES)
        times: list[float] = []
        fd = os.open(there.at(self._file), os.O_RDONLY | os.O_DIRECT)
        try:
            with self._file.open("rb") as source:
                for _ in range(RANDOM_READS):
                    offset_bytes = chance.randrange(pages) * PAGE_BYTES
                    began_s = time.perf_counter()
                    os.preadv(fd, [buffer], offset_bytes)
                    times.append(time.perf_counter() - began_s)
                    if os.pread(source.fileno(), PAGE_BYTES, offset_bytes) != buffer[:]:
                        raise RunFailedError(f"byte {offset_bytes} of {self._file} differs")
        finally:
            os.close(fd)
        # The first read opens packs, and is not warm.
        return statistics.median(times[1:]) * 1e3

    def _memory(self, there: Mounted) -> float:
        """Return the most memory that the process that serves a mount has had, in MB."""
        self._read(there)
        self._find(there)
        self._random(there)
        text = Path(f"/proc/{there.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / 1e6


def mount_command(tool: Tool, point: Path) -> tuple[Command, Path]:
    """Return the command that serves a mount until it is unmounted, and what stands for `/`."""
    if isinstance(tool, Ciuic):
        return tool.command("mount", str(point)), point / "latest"
    if isinstance(tool, Restic):
        return tool.command("mount", str(point)), point / "snapshots" / "latest"
    if isinstance(tool, Borg):
        name = f"{tool.store}::{tool.snapshots()[-1]}"
        return tool.command("mount", "--foreground", name, str(point)), point
    raise NotImplementedError(tool.name)


@contextlib.contextmanager
def mounted(tool: Tool, point: Path) -> Iterator[Mounted]:
    """Mount the newest snapshot at an empty directory, which is made and removed."""
    command, root = mount_command(tool, point)
    point.mkdir()
    try:
        with tempfile.TemporaryFile() as said, _started(command, said.fileno()) as process:
            try:
                _wait(process, point, root, command.arguments, said.fileno())
                yield Mounted(root, process.pid)
            finally:
                _end(process, point)
    finally:
        point.rmdir()


def _started(command: Command, said: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command.arguments,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        env={**os.environ, **command.environment},
    )


def _wait(
    process: "subprocess.Popen[bytes]",
    point: Path,
    root: Path,
    arguments: Sequence[str],
    said: int,
) -> None:
    until_s = time.monotonic() + BEGIN_S
    while not (os.path.ismount(point) and root.is_dir()):
        if process.poll() is not None or time.monotonic() > until_s:
            text = os.pread(said, 2000, 0).decode(errors="replace")
            raise RunFailedError(f"{' '.join(arguments)} mounts nothing\n{text}")
        time.sleep(LOOK_S)


def _end(process: "subprocess.Popen[bytes]", point: Path) -> None:
    # Unmount without a check: the mount point of a crashed process does not look like a mount.
    unmount = ["fusermount3", "-u", "-q", str(point)]
    subprocess.run(unmount, capture_output=True, check=False)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        print(f"{process.args!r} does not end, and is killed", file=sys.stderr)
        process.kill()
        process.wait()
    subprocess.run([*unmount, "-z"], capture_output=True, check=False)

"""Running one command and measuring it: seconds, or the peak memory of its processes.

Guarantees: a command that fails raises with its output, so a failed run is never measured. Times
are wall-clock seconds from before the process starts until it has been waited for.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

READ_BYTES = 4 << 20
SAMPLE_INTERVAL_S = 0.01
DELETED_FILES_MAX = 2000
GRAVEYARD = "done"


class RunFailedError(Exception):
    """A command exited with an unexpected code, or gave a wrong result."""


@dataclass(frozen=True)
class Command:
    """A command to run: arguments, additions to the environment, and its working directory."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None


@dataclass(frozen=True)
class Run:
    """The times of one run; `durable_s` ends when the file system has written everything."""

    wall_s: float
    durable_s: float
    output: str


def run(command: Command, *, sync: Path | None = None) -> Run:
    """Run the command to its end; with `sync`, also time a `sync -f` of that place."""
    with tempfile.TemporaryFile() as captured:
        start_s = time.perf_counter()
        with _start(command, captured.fileno()) as process:
            code = _end_of(process)
        wall_s = time.perf_counter() - start_s
        if sync is not None and code == 0:
            subprocess.run(["sync", "-f", str(sync)], check=True)
        durable_s = time.perf_counter() - start_s
        output = _read_back(captured.fileno())
    _check(command, code, output)
    return Run(wall_s=wall_s, durable_s=durable_s, output=output)


def peak_memory_bytes(command: Command) -> int:
    """Return the peak resident memory of the command and its descendants, sampled every 10 ms.

    Pages that two processes share count twice, so this is an upper bound for a tool that forks. The
    kernel records the peak of a single process, so samples do not miss it.
    """
    most_bytes = 0
    with tempfile.TemporaryFile() as captured:
        process = _start(command, captured.fileno())
        # The child's ru_maxrss is not usable: it starts at the parent's size when it forked.
        while process.poll() is None:
            family = [_memory_bytes(pid) for pid in family_of(process.pid)]
            now_bytes = sum(resident for resident, _ in family)
            most_bytes = max(most_bytes, now_bytes, *(highest for _, highest in family))
            time.sleep(SAMPLE_INTERVAL_S)
        output = _read_back(captured.fileno())
    _check(command, process.returncode, output)
    return most_bytes


def settle() -> None:
    """Write out dirty data of earlier runs, so that the next run does not wait for it."""
    os.sync()


def drop_caches() -> None:
    """Empty the page, dentry and inode caches. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def may_drop_caches() -> bool:
    """Return whether cold measurements are possible here."""
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def evict(directory: Path) -> None:
    """Drop the files below a directory from the page cache, and no others: other work goes on."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def put_away(directory: Path, graveyard: Path) -> None:
    """Remove a directory if that costs later runs nothing; otherwise move it to the graveyard.

    For minutes after a deletion, ext4 skips the deleted inodes one by one for each new file:
    deleting 100,000 files made the next restore, by any tool, several times slower.
    """
    if not directory.exists():
        return
    count = sum(len(names) for _, _, names in os.walk(directory))
    if count <= DELETED_FILES_MAX:
        shutil.rmtree(directory)
        return
    graveyard.mkdir(parents=True, exist_ok=True)
    directory.rename(Path(tempfile.mkdtemp(dir=graveyard), directory.name))


def read_all(places: Iterable[Path]) -> None:
    """Bring everything below the places into the page cache."""
    for place in places:
        for parent, _, names in os.walk(place):
            for name in names:
                with open(os.path.join(parent, name), "rb", buffering=0) as source:
                    while source.read(READ_BYTES):
                        pass


def _start(command: Command, output: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command.arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=command.directory,
        env={**os.environ, **command.environment},
    )


def _end_of(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait()
    except BaseException:
        # The process may use a file system that is about to be unmounted.
        process.kill()
        raise


def _read_back(descriptor: int) -> str:
    size_bytes = os.fstat(descriptor).st_size
    return os.pread(descriptor, size_bytes, 0).decode(errors="replace")


def _check(command: Command, code: int, output: str) -> None:
    if code == 0:
        return
    end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise RunFailedError(f"{' '.join(command.arguments)}: {end}\n{output[-2000:]}")


def family_of(pid: int) -> list[int]:
    """Return the process and its living descendants."""
    found = [pid]
    for member in found:
        for task in _listing(f"/proc/{member}/task"):
            found += [int(child) for child in _text(f"/proc/{member}/task/{task}/children").split()]
    return found


def _memory_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of the process now, and its peak."""
    found = {"VmRSS": 0, "VmHWM": 0}
    for line in _text(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

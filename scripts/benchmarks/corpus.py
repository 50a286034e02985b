"""The files for the benchmarks: real checkpoints, and many small files of real text.

Guarantees: each data set is built once and kept in a cache. A data set under its final name is
complete; an interrupted build starts again. Nothing is downloaded: the text is from the machine
(Python's standard library, /usr/share, /usr/include), the checkpoints are from a real training run
(train.py). Sizes are the same everywhere; contents differ between machines.
"""

import gzip
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
TRAINING_TEXT_BYTES = 48 * MIB
SMALL_FILE_MEAN_BYTES = 6000
SMALL_FILE_SPREAD = 1.1
SMALL_FILE_BYTES_MAX = 256 * 1024
FILES_A_DIRECTORY = 40
SUFFIXES = (".py", ".txt", ".md", ".c", ".h", ".json", ".yaml", ".log")


@dataclass(frozen=True)
class Size:
    """The size of the data sets: the model's shape, its saves, the number of small files."""

    name: str
    width: int
    layers: int
    batch: int
    saves: int
    weights: int
    every: int
    more_saves: int
    small_files: int
    series: tuple[str, ...]


# Full: 25.6 M parameters, 307 MB per full state, 102 MB for weights. 6 x 307 + 3 x 102 MB are
# 2 GiB, and 21 more full states make 8 GiB.
# Series: 2.5 M parameters, 30 MB per full state, 12 of each; quick: 0.48 M, 5.7 MB, 4 of each.
FULL = Size(
    "full",
    512,
    8,
    2,
    saves=6,
    weights=3,
    every=20,
    more_saves=21,
    small_files=100_000,
    series=("--width", "256", "--layers", "3", "--saves", "12", "--rows", "40000"),
)
QUICK = Size(
    "quick",
    256,
    5,
    2,
    saves=6,
    weights=3,
    every=20,
    more_saves=21,
    small_files=10_000,
    series=("--width", "128", "--layers", "2", "--saves", "4", "--wide", "2", "--rows", "8000"),
)
SERIES = {
    "adam10": "pretrain",
    "adam100": "pretrain",
    "adam100-later": "pretrain",
    "adam500": "pretrain",
    "bf16-100": "pretrain",
    "dcp100": "pretrain",
    "tune": "tune",
    "frozen": "frozen",
    "sparse": "sparse",
}
"""The series of checkpoints, and the kind of training of each."""
RESUMED = ("tune", "frozen")


class Corpus:
    """The data sets in one cache directory, each built on first use."""

    def __init__(self, cache: Path, size: Size) -> None:
        self._data = cache / "data"
        self._chain = cache / ("chain" if size is FULL else f"chain-{size.name}")
        self._torch_python = cache / "torch" / "bin" / "python"
        self._size = size

    def checkpoints(self) -> Path:
        """Return 2 GiB: full states and weights-only files of one run, 10 to 20 steps apart."""
        return self._built("checkpoints", self._train)

    def more_checkpoints(self) -> Path:
        """Return 6 GiB more of the same run, a full state every 5 steps."""
        return self._built("more-checkpoints", self._train_on)

    def series(self, name: str) -> Path:
        """Return 12 checkpoints of a small model, as far apart as the name says; see series.py."""
        final = self._chain / name
        if not final.exists():
            self._train_series(SERIES[name])
        return final

    def series_log(self, kind: str) -> Path:
        """Return the log of a training run: a line of JSON for each step."""
        log = self._chain / f"{kind}.jsonl"
        if not log.exists():
            self._train_series(kind)
        return log

    def small_files(self) -> Path:
        """Return 100,000 files of real text, 6 KB on average, log-normal sizes, nested."""
        return self._built("small-files", self._slice_text)

    def one_file(self) -> Path:
        """Return the 102 MB weights file for the restore of a single file."""
        return min(self.checkpoints().glob("*.safetensors"))

    def _built(self, name: str, build: Callable[[Path], None]) -> Path:
        final = self._data / f"{name}-{self._size.name}"
        if not final.exists():
            self._data.mkdir(parents=True, exist_ok=True)
            print(f"building {final} (once)", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=self._data) as scratch:
                inside = Path(scratch, name)
                inside.mkdir()
                build(inside)
                inside.rename(final)
        return final

    def _train(self, target: Path) -> None:
        self._run_training(
            target, ["--saves", str(self._size.saves), "--weights", str(self._size.weights)]
        )

    def _train_on(self, target: Path) -> None:
        last = max(self.checkpoints().glob("*.pt"))
        every = ["--first", "5", "--every", "5"]
        self._run_training(
            target, ["--saves", str(self._size.more_saves), "--resume", str(last), *every]
        )

    def _train_series(self, kind: str) -> None:
        resume: list[str | Path] = []
        if kind in RESUMED:
            states = self.series("adam100").iterdir()
            resume = ["--resume", max(states, key=lambda path: path.stat().st_mtime_ns)]
        print(f"training for {self._chain}: {kind} (once)", file=sys.stderr, flush=True)
        self._chain.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._chain) as scratch:
            inside = Path(scratch, kind)
            inside.mkdir()
            script = Path(__file__).with_name("series.py")
            text = write_training_text(Path(scratch))
            command: list[str | Path] = [self._torch(), script, kind, text, inside]
            subprocess.run([*command, *self._size.series, *resume], check=True)
            for made in sorted(inside.iterdir()):
                # Existing series stay: they come from the same steps and the same seed.
                if not (self._chain / made.name).exists():
                    made.rename(self._chain / made.name)

    def _torch(self) -> Path:
        if not self._torch_python.exists():
            raise SystemExit("PyTorch is missing: run scripts/install-peers first")
        return self._torch_python

    def _run_training(self, target: Path, arguments: list[str]) -> None:
        text = write_training_text(target.parent)
        size = self._size
        shape = [
            "--width",
            str(size.width),
            "--layers",
            str(size.layers),
            "--batch",
            str(size.batch),
        ]
        script = Path(__file__).with_name("train.py")
        # argparse takes the last of two options, so the caller's --every wins.
        command: list[str | Path] = [
            self._torch(),
            script,
            text,
            target,
            *shape,
            "--every",
            str(size.every),
            *arguments,
        ]
        subprocess.run(command, check=True)

    def _slice_text(self, target: Path) -> None:
        chance = random.Random(2026)
        pieces = text_pieces(self._size.small_files * SMALL_FILE_MEAN_BYTES)
        for number in range(self._size.small_files):
            path = target / small_file_name(number)
            if number % FILES_A_DIRECTORY == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pieces.take(small_file_size_bytes(chance)))
            # Tools that trust time stamps treat files of the last second specially.
            written_s = 1_700_000_000 + chance.random() * 50_000_000
            os.utime(path, (written_s, written_s))


def write_training_text(directory: Path) -> Path:
    """Write the text for training into one file and return its path."""
    text = directory / "text"
    with text.open("wb") as out:
        for piece in real_text():
            if out.tell() >= TRAINING_TEXT_BYTES:
                break
            out.write(piece)
    return text


def small_file_name(number: int) -> str:
    """Return a path four levels deep, with 40 files per directory."""
    directory = number // FILES_A_DIRECTORY
    suffix = SUFFIXES[number % len(SUFFIXES)]
    group = f"part_{directory // 400:02d}/group_{directory // 20 % 20:02d}"
    return f"{group}/item_{directory:05d}/f{number:06d}{suffix}"


def small_file_size_bytes(chance: random.Random) -> int:
    """Return a log-normal size with the wanted mean: many small, a few large, some empty."""
    if chance.random() < 0.005:
        return 0
    mean = SMALL_FILE_MEAN_BYTES
    scale = chance.lognormvariate(-(SMALL_FILE_SPREAD**2) / 2, SMALL_FILE_SPREAD)
    return min(int(mean * scale), SMALL_FILE_BYTES_MAX)


class TextPieces:
    """An endless stream of text; it starts again at its end, with other cuts."""

    def __init__(self, stock: bytearray) -> None:
        self._stock = stock
        self._offset = 0

    def take(self, size_bytes: int) -> bytes:
        """Return the next `size_bytes` bytes."""
        if self._offset + size_bytes > len(self._stock):
            self._offset = 0
        piece = bytes(self._stock[self._offset : self._offset + size_bytes])
        self._offset += size_bytes
        return piece


def text_pieces(wanted_bytes: int) -> TextPieces:
    """Read as much of the machine's text as the files will need."""
    stock = bytearray()
    for piece in real_text():
        stock += piece
        if len(stock) >= wanted_bytes:
            break
    return TextPieces(stock)


def text_directories() -> list[Path]:
    """Return directories with text on a Linux machine with Python, the largest first."""
    here = Path(sysconfig.get_path("stdlib"))
    # Other Python versions beside this one, for example from pyenv.
    siblings = sorted(here.parents[2].glob("*/lib/python3*"))
    system = [
        "/usr/share/doc",
        "/usr/share/man",
        "/usr/include",
        "/usr/share/perl",
        "/usr/lib/python3",
        "/usr/share",
    ]
    return [here, *map(Path, system), Path("/usr/lib"), *siblings]


def real_text() -> Iterator[bytes]:
    """Yield the contents of text files, unpacked, ordered by path in each directory, each once."""
    seen: set[tuple[int, int]] = set()
    for directory in text_directories():
        for path in sorted(
            path for path in walk(directory) if path.suffix not in {".pyc", ".so", ".a", ".o"}
        ):
            try:
                status = path.lstat()
                if (status.st_dev, status.st_ino) in seen or not 0 < status.st_size < 4 * MIB:
                    continue
                seen.add((status.st_dev, status.st_ino))
                content = path.read_bytes()
                content = gzip.decompress(content) if path.suffix == ".gz" else content
            except (OSError, EOFError):
                continue
            if b"\0" not in content[:4096]:
                yield content


def walk(directory: Path) -> Iterator[Path]:
    """Yield every regular file below `directory`; links are not followed."""
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def free_space_bytes(path: Path) -> int:
    """Return the free space of the file system of `path`."""
    return shutil.disk_usage(path).free

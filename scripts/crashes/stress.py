"""Everything at once on a real file system: writers, the daemon, commands, restores.

Writers of every kind (crashes.writers) never stop. At the same time, a daemon takes snapshots, and
commands take, forget and prune snapshots. Each snapshot taken here, and some others at random, are
restored and checked file by file:

    torn     a file that is not marked as in flux is a whole version, for every kind of writer
    marked   a file that is only replaced by renames is never marked

At the end, all remaining snapshots are verified. A faulty file is kept, and the run continues.
"""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

from crashes.device import MKFS, mounted
from crashes.writers import KINDS, is_whole, kind_of, write_forever
from tests.kit.program import Outcome, ciuic

__all__ = ["stress"]

_IMAGE_BYTES: Final = 4 << 30
_KEPT_MAX: Final = 20
"""Maximum number of faults kept as files, since a fault usually recurs."""
_INTERVAL_S: Final = 3
_ROUNDS_A_PRUNE: Final = 5
_END_LIMIT_S: Final = 60
_ATOMIC: Final = "atomic"
_BUSY, _NOT_DONE = 5, 1


def stress(kind: str, minutes: float, seed: int) -> bool:
    """Run on a file system of this kind; print a table and return whether there was no fault."""
    images = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    work = Path(tempfile.mkdtemp(prefix="ciuic-stress-"))
    image = images / f"{work.name}.img"
    with image.open("xb") as file:
        file.truncate(_IMAGE_BYTES)
    try:
        command = [*MKFS[kind], str(image)]
        subprocess.run(command, check=True, capture_output=True)
        with mounted(kind, image, work / "m") as place:
            run = _Run(kind, place, Path(f"{work}-found"), seed)
            run.go(minutes * 60)
        run.print_table()
        return not run.faults
    finally:
        image.unlink()
        shutil.rmtree(work, ignore_errors=True)


class _Run:
    """One file system, its store, and the counts."""

    def __init__(self, kind: str, place: Path, found: Path, seed: int) -> None:
        self._kind = kind
        self._place = place
        self._source = place / "source"
        self._store = place / "store"
        self._config = place / "ciuic.conf"
        self._found = found
        self._seed = seed
        self._rng = random.Random(f"{seed} {kind}")
        self._judged: Counter[str] = Counter()
        self._marked: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._written = {kind: multiprocessing.Value("Q", 0) for kind in KINDS}
        self._took_s = 0.0
        self._by_daemon: set[str] = set()
        self.faults: list[str] = []

    def go(self, duration_s: float) -> None:
        """Run for this time."""
        self._source.mkdir()
        self._config.write_text(
            f"snapshot_paths = {self._source}\nsnapshot_dir = {self._store}\ntrash = 0\n"
            f"snapshot_interval = {_INTERVAL_S}s\nbase_interval = 1m\nretention_policy = last:6\n"
            "io_priority = none\n"
        )
        self._command("init")
        began_s = time.monotonic()
        with self._writers():
            while time.monotonic() - began_s < duration_s:
                # With a daemon, the command asks it; without one, the command takes the snapshot.
                with self._daemon() if self._rng.random() < 0.7 else contextlib.nullcontext():
                    for _ in range(_ROUNDS_A_PRUNE):
                        if time.monotonic() - began_s < duration_s:
                            self._round()
                    self._tidy()
        self._end()
        self._took_s = time.monotonic() - began_s

    def print_table(self) -> None:
        """Print the commands, the checked files and the faults."""
        versions = ", ".join(f"{self._written[kind].value:,} {kind}" for kind in KINDS)
        print(f"\n{self._kind}, {self._took_s / 60:.1f} minutes, seed {self._seed}")
        print(f"  versions written   {versions}")
        print(f"  by the daemon      {len(self._by_daemon):,} snapshots seen")
        for what, count in sorted(self._done.items()):
            print(f"  {what:<18} {count:,}")
        print(f"  {'files checked':<18} {'total':>10} {'in flux':>10}")
        for kind in sorted(self._judged):
            print(f"    {kind:<16} {self._judged[kind]:>10,} {self._marked[kind]:>10,}")
        print(f"  {'faults':<18} {len(self.faults)}")
        for fault in self.faults[:_KEPT_MAX]:
            print(f"    {fault}")
        sys.stdout.flush()

    @contextlib.contextmanager
    def _writers(self) -> Iterator[None]:
        context = multiprocessing.get_context("fork")
        processes = [
            context.Process(
                target=_write, args=(kind, self._source, self._seed, self._written[kind])
            )
            for kind in KINDS
        ]
        for process in processes:
            process.start()
        try:
            yield
            for process in processes:
                if not process.is_alive():
                    self._fault(f"a writer ended by itself with code {process.exitcode}")
        finally:
            for process in processes:
                process.kill()
                process.join()

    @contextlib.contextmanager
    def _daemon(self) -> Iterator[None]:
        log = self._place / "daemon.log"
        with log.open("ab") as file:
            command = [sys.executable, "-m", "ciuicd", "--config", str(self._config)]
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            yield
        finally:
            killed = self._rng.random() < 0.3
            process.kill() if killed else process.terminate()
            code = process.wait(_END_LIMIT_S)
            self._done["daemons killed" if killed else "daemons ended"] += 1
            text = log.read_text(errors="replace")
            if code not in {0, -9} or "Traceback" in text:
                self._fault(f"the daemon ended with {code}: {text[-2000:]}")

    def _round(self) -> None:
        taken = self._command("snapshot", *self._rng.choice(((), ("--base",))), codes=(0, 3, _BUSY))
        if taken.code == _BUSY:
            return
        listed = [summary["id"] for summary in self._command("list").document]
        mine = taken.document["id"]
        self._by_daemon.update(name for name in listed if name != mine)
        self._restore(mine)
        if listed and self._rng.random() < 0.5:
            self._restore(self._rng.choice(listed))

    def _restore(self, snapshot_id: str) -> None:
        """Restore a snapshot, from reflink copies or the store, and check each file of it."""
        out = self._place / "out"
        how = self._rng.choice(((), ("--no-hot",)))
        arguments = ("-s", snapshot_id, "-p", self._source, "-d", out, *how)
        done = self._command("restore", *arguments, codes=(0, 3, _NOT_DONE))
        try:
            if done.code == _NOT_DONE:
                if done.document["error"]["kind"] != "snapshot_not_found":
                    self._fault(f"restore of {snapshot_id} failed: {done}")
                return  # forgotten after it was listed
            report = done.document
            for failure in report["failed"]:
                self._fault(f"{snapshot_id}: {failure['path']}: {failure['what']}")
            self._judge(snapshot_id, out / self._source.name, set(report["flux"]))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _judge(self, snapshot_id: str, top: Path, flux: set[str]) -> None:
        for path in sorted(top.rglob("*")):
            if not path.is_file():
                continue
            kind, inner = kind_of(path), path.relative_to(top)
            is_marked = bool({str(path), str(self._source / inner)} & flux)
            self._judged[kind] += 1
            self._marked[kind] += is_marked
            if is_marked and kind == _ATOMIC:
                self._keep(path, f"{snapshot_id}: {inner} was replaced by renames and is marked")
            if not is_marked and not is_whole(path.read_bytes()):
                self._keep(path, f"{snapshot_id}: {inner} is torn and not marked")

    def _tidy(self) -> None:
        codes = (0, _BUSY)
        self._command("forget", "--policy", f"last:{self._rng.randint(2, 5)}", codes=codes)
        self._command("prune", codes=codes)

    def _end(self) -> None:
        verified = self._command("verify", "--all", "--checksum", codes=(0, 4))
        if verified.code:
            self._fault(f"verify found damage: {json.dumps(verified.document)[:2000]}")

    def _command(self, *arguments: Any, codes: tuple[int, ...] = (0,)) -> Outcome:
        done = ciuic("--config", self._config, *arguments, "--json")
        self._done[f"{arguments[0]}: {done.code}"] += 1
        if done.code not in codes:
            self._fault(f"{arguments}: {done}")
            raise RuntimeError(f"{arguments}: {done}")
        return done

    def _keep(self, path: Path, what: str) -> None:
        if len(self.faults) < _KEPT_MAX:
            self._found.mkdir(exist_ok=True)
            kept = self._found / f"{len(self.faults)}-{path.name}"
            shutil.copyfile(path, kept)
            what = f"{what}, {path.stat().st_size} bytes: {kept}"
        self._fault(what)

    def _fault(self, what: str) -> None:
        print(f"{self._kind}: FAULT: {what}", flush=True)
        self.faults.append(what)


def _write(kind: str, top: Path, seed: int, written: "Synchronized[int]") -> None:
    def count() -> None:
        with written.get_lock():
            written.value += 1

    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which ends this process
    write_forever(kind, top, str(seed), count)

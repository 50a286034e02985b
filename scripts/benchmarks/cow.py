"""Rows 9 to 13: copy-on-write capture and rollback, on file systems made for each row.

Guarantees: those of rows.py. At the end of its row, every timed snapshot is restored from the store
alone and compared with the source. After every rollback, all files are compared with the originals.
Stores are outside of the measured file system.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import changes, compare, measure
from benchmarks.changes import Change
from benchmarks.measure import Command, Run
from benchmarks.mounts import can_make, file_system, trim
from benchmarks.rows import Bench, Goal
from benchmarks.tools import Ciuic, Tool

ROWS = frozenset(range(9, 14))
GIB = 1 << 30
MIB = 1 << 20
SEED = 2026
FREEZE_MARK_MS = {"subvolume": 20.0, "reflink": 100.0}
READ_SHARE_MARK = 0.05
APPEND_MARK_MB = 20.0
ROLL_BACK_MARK_S = 1.0
FREEZE_REST_S = 5.0
COPY_ON_WRITE = ("xfs", "btrfs")


@dataclass(frozen=True)
class Amount:
    """Amounts of data: many files for the freeze, a large file, some files for the rollback."""

    image_bytes: int
    frozen_files: int
    frozen_file_bytes: int
    large_bytes: int
    files: int
    file_bytes: int


# Full: 1,000 files of 10.7 MB, 10 GiB; one file of 4 GiB; 100 files of 43 MB, 4 GiB.
AMOUNTS = {
    "full": Amount(40 * GIB, 1000, 10 * GIB // 1000, 4 * GIB, 100, 4 * GIB // 100),
    "quick": Amount(6 * GIB, 100, 10 * GIB // 1000, 256 * MIB, 100, 256 * MIB // 100),
}


def measure_cow(bench: Bench, wanted: set[int], kinds: Sequence[str], amount: Amount) -> None:
    """Run the wanted rows on each of their kinds of file system."""
    for kind in kinds:
        if not can_make(kind):
            print(f"mkfs for {kind} is missing: left out", file=sys.stderr)
            continue
        on = OnFileSystem(bench, kind, amount)
        frozen = {9} & wanted if kind in COPY_ON_WRITE else set()
        large = {10, 11, 13} & wanted if kind in COPY_ON_WRITE else {13} & wanted
        many = {12, 13} & wanted if kind in COPY_ON_WRITE else {13} & wanted
        if frozen and bench.ciuic is not None:
            on.freeze(bench.ciuic)
        if large:
            on.one_large_file(large)
        if many:
            on.many_files(many)


class OnFileSystem:
    """The rows on one kind of file system; each group of rows gets a new, empty one."""

    def __init__(self, bench: Bench, kind: str, amount: Amount) -> None:
        self._bench = bench
        self._kind = kind
        self._amount = amount
        self._chance = random.Random(SEED)

    def freeze(self, ciuic: Ciuic) -> None:
        """Time a freeze, of files without a snapshot and of changed files."""
        amount = self._amount
        with self._file_system() as place:
            source = place / "training"
            if self._kind == "btrfs":
                measure.run(Command(("btrfs", "subvolume", "create", str(source))))
            changes.write_many(source, amount.frozen_files, amount.frozen_file_bytes, self._chance)
            ciuic.fresh([source])
            for cache in self._bench.caches:
                self._freezes(ciuic, source, cache)
            self._compare(ciuic, source)
            self._bench.drop_stores()

    def one_large_file(self, wanted: set[int]) -> None:
        """Measure a snapshot after a small change to a large file, and the rollback of a change."""
        with self._file_system() as place:
            source = place / "training"
            changes.write_files(source, 1, self._amount.large_bytes, self._chance)
            (path,) = source.iterdir()
            self._stock(source)
            if 10 in wanted:
                stretch = self._goal(
                    10, "snapshot after 1% in one stretch", ">= 10x the faster", 10
                )
                self._changed(stretch, path, changes.change_stretch, share=READ_SHARE_MARK)
                scattered = self._goal(10, "snapshot after 1% of the blocks", ">= 2x the faster", 2)
                self._changed(scattered, path, changes.change_scattered)
            if 11 in wanted:
                goal = self._goal(11, "snapshot after appending 10 MB", "")
                self._changed(goal, path, changes.append, most_mb=APPEND_MARK_MB)
            for tool in self._bench.stores if wanted & {10, 11} else ():
                self._compare(tool, source)
            if 13 in wanted:
                goal = self._goal(13, "roll back 1% of one large file", ">= 5x the faster", 5)
                self._rolled_back(goal, source, changes.change_one)
            self._bench.drop_stores()

    def many_files(self, wanted: set[int]) -> None:
        """Time the rollback of a directory when all of it is damaged, and when little is."""
        amount = self._amount
        with self._file_system() as place:
            source = place / "training"
            changes.write_files(source, amount.files, amount.file_bytes, self._chance)
            self._stock(source)
            if 12 in wanted:
                mark = f">= 20x the faster, <= {ROLL_BACK_MARK_S:g} s"
                goal = self._goal(12, "roll back 100 ruined files", mark, 20, 1.0)
                self._rolled_back(goal, source, changes.ruin, limit_s=ROLL_BACK_MARK_S)
            if 13 in wanted:
                goal = self._goal(13, "roll back 1% of one of 100 files", ">= 5x the faster", 5)
                self._rolled_back(goal, source, changes.change_one)
            self._bench.drop_stores()

    def _file_system(self) -> AbstractContextManager[Path]:
        print(f"making {self._kind} and files on it", file=sys.stderr, flush=True)
        return file_system(self._kind, self._bench.work, self._amount.image_bytes)

    def _goal(
        self,
        row: int,
        what: str,
        mark: str,
        factor: float | None = None,
        limit: float | None = None,
    ) -> Goal:
        return Goal(row, f"{what}, {self._kind}", mark, factor, limit)

    def _stock(self, source: Path) -> None:
        for tool in self._bench.stores:
            tool.fresh([source])
            measure.run(tool.snapshot())

    def _freezes(self, ciuic: Ciuic, source: Path, cache: str) -> None:
        found: dict[str, list[float]] = {"first": [], "after one block of each file changed": []}
        how = ""
        for _ in range(self._bench.turns):
            _forget_frozen(source.parent)
            ciuic.fresh([source])
            for times in found.values():
                if times is not found["first"]:
                    changes.change_each(source, self._chance)
                self._bench.prepare(cache, [source])
                # XFS cleans up after the deletion in the background, with the same locks.
                time.sleep(FREEZE_REST_S)
                times.append(_document(measure.run(_snapshot(ciuic)))["freeze_s"] * 1000)
            how = _how(ciuic)
        mark_ms = FREEZE_MARK_MS.get(how, FREEZE_MARK_MS["reflink"])
        size = f"{self._amount.frozen_files:,} files"
        for which, times in found.items():
            goal = self._goal(
                9, f"freeze of {size} by {how}, {which}", f"<= {mark_ms:g} ms", None, 1
            )
            limits = [mark_ms] * len(times)
            self._bench.add(goal.about(cache), {"ciuic": times, "limit": limits}, unit="ms")

    def _changed(
        self,
        goal: Goal,
        path: Path,
        change: Change,
        *,
        share: float | None = None,
        most_mb: float | None = None,
    ) -> None:
        """Time the snapshot after a change; compare its bytes read with the file or a limit."""
        read_mb: list[float] = []

        def once(tool: Tool, cache: str) -> Run:
            self._bench.prepare(cache, [path])
            result = measure.run(_snapshot(tool))
            if isinstance(tool, Ciuic):
                read_mb.append(_document(result)["read_bytes"] / 1e6)
            return result

        self._bench.race(
            goal, self._bench.stores, once, before_turn=lambda: change(path, self._chance)
        )
        if not read_mb:
            return
        limit_mb = most_mb or path.stat().st_size / 1e6
        mark = f"<= {limit_mb:g} MB" if most_mb else f"<= {share:.0%} of the file" if share else ""
        bound = 1.0 if most_mb else share
        read = Goal(goal.row, f"{goal.what}: source bytes read", mark, limit=bound)
        self._bench.add(read, {"ciuic": read_mb, "limit": [limit_mb] * len(read_mb)}, unit="MB")

    def _rolled_back(
        self, goal: Goal, source: Path, damage: Change, *, limit_s: float | None = None
    ) -> None:
        """Time how each tool undoes the same kind of damage; all files must be as before."""
        before = compare.fingerprints(source)

        def once(tool: Tool, cache: str) -> Run:
            if isinstance(tool, Ciuic):
                # The peers made new files of the same content. What ciuic knows of the directory,
                # and its reflink copy, must be from a snapshot after that, as in practice.
                measure.run(tool.snapshot())
            damage(source, self._chance)
            self._bench.prepare(cache, [tool.store, source])
            result = measure.run(tool.roll_back(source), sync=source)
            compare.require_same(before, source)
            return result

        self._bench.race(
            goal,
            self._bench.stores,
            once,
            durable=True,
            before_turn=lambda: trim(source.parent),
            limit_s=limit_s,
        )

    def _compare(self, tool: Tool, source: Path) -> None:
        """Restore the newest snapshot elsewhere (ciuic: without reflink copies) and compare it."""
        target = self._bench.work / "target"
        target.mkdir()
        command = tool.restore([source], target)
        if isinstance(tool, Ciuic):
            command = Command((*command.arguments, "--no-hot"))
        measure.run(command)
        compare.require_equal(source, tool.restored(source, target))
        shutil.rmtree(target)


def _snapshot(tool: Tool) -> Command:
    return tool.command("snapshot", "--json") if isinstance(tool, Ciuic) else tool.snapshot()


def _document(run: Run) -> dict[str, Any]:
    """Return the JSON document that the command printed, perhaps after lines for people."""
    document: dict[str, Any] = json.loads(run.output[run.output.index("{") :])
    return document


def _how(ciuic: Ciuic) -> str:
    """Return how the newest snapshot captured its only root."""
    shown = _document(measure.run(ciuic.command("show", "latest", "--json")))
    return str(shown["roots"][0].get("capture") or "reading in place")


def _forget_frozen(place: Path) -> None:
    """Remove the reflink copies that a deleted store has left, including subvolumes."""
    hidden = place / ".ciuic-frozen"
    for tree in hidden.glob("*/trees/*"):
        measure.run(Command(("btrfs", "subvolume", "delete", str(tree))))
    shutil.rmtree(hidden, ignore_errors=True)

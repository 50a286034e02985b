"""A store and its copy over their lives: a copied snapshot restores equally from both."""

import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.copy.copy import CopyRequest, copy_snapshots
from ciuic.copy.report import CopyReport
from ciuic.store.directory.create import create_store
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.pruning import forget, prune

KIB = 1024
CHUNK = 64 * KIB
HERE = ["take", "take", "take", "base", "copy", "copy", "forget", "prune"]
STEPS = st.sampled_from([*HERE, "forget there", "prune there"])


class TwoLives:
    """A store with snapshots of a changing tensor and small files, and its copy."""

    def __init__(self, directory: Path, seed: int, chain_cost: float) -> None:
        self.box = Box(directory, chunk_bytes=CHUNK)
        self.box.chain_cost = chain_cost
        self.there = Box.__new__(Box)
        self.there.__dict__.update(self.box.__dict__)
        self.there.store = directory / "copy"
        create_store(str(self.there.store), self.box.clock, chunk_bytes=CHUNK)
        self.dice = np.random.default_rng(seed)
        self.weights = self.dice.normal(0, 0.02, 3 * CHUNK // 4).astype("<f4")
        self.files: dict[str, dict[bytes, bytes]] = {}
        self.here: list[str] = []
        self.copied: list[str] = []
        self.gone: set[str] = set()
        self.sent_bytes = 0

    def step(self, what: str) -> None:
        if what in {"take", "base"}:
            self._take(is_full=what == "base")
        elif what == "copy":
            self.copy()
        elif what.startswith("prune"):
            prune(self.there if what.endswith("there") else self.box)
        else:
            self._forget(is_there=what.endswith("there"))

    def _take(self, *, is_full: bool) -> None:
        moves = self.dice.normal(0, 1e-4, len(self.weights))
        self.weights = (self.weights + moves).astype("<f4")
        (self.box.source / "weights.bin").write_bytes(self.weights.tobytes())
        small = self.box.source / f"small{int(self.dice.integers(4))}"
        small.write_bytes(self.dice.bytes(int(self.dice.integers(1, 4000))))
        name = self.box.take(base=is_full).id
        self.files[name] = {
            os.fsencode(path): path.read_bytes() for path in self.box.source.iterdir()
        }
        self.here.append(name)

    def _forget(self, *, is_there: bool) -> None:
        names = self.copied if is_there else self.here
        if len(names) > 1:
            name = names.pop(int(self.dice.integers(len(names) - 1)))
            forget(self.there if is_there else self.box, name)
            if is_there:
                self.gone.add(name)

    def copy(self) -> CopyReport:
        report = CopyReport(copy=str(self.there.store), dry_run=False)
        with (
            open_store(str(self.box.store)) as source,
            open_store(str(self.there.store), write=True) as copy,
        ):
            copy_snapshots(source, copy, CopyRequest(), report, clock=self.box.clock)
        assert report.refused == {}
        self.copied += [one.id for one in report.copied]
        self.sent_bytes += report.sent_bytes
        return report

    def check(self) -> None:
        """Check that both stores have exactly the expected snapshots, and every file of them."""
        assert set(self.copied) >= set(self.here) - self.gone
        for box, names in ((self.box, self.here), (self.there, self.copied)):
            assert {one.id for one in box.snapshots()} == set(names)
            assert box.verify().ok
            for name in names:
                for path, data in self.files[name].items():
                    assert box.read(Path(os.fsdecode(path)), name) == data
        assert self.copy().sent_bytes == 0


@settings(max_examples=10)
@given(
    st.lists(STEPS, min_size=3, max_size=14), st.integers(0, 1000), st.sampled_from([2.0, 100.0])
)
def test_each_store_restores_what_it_lists_whatever_happens_to_both(steps, seed, chain_cost):
    with tempfile.TemporaryDirectory() as directory:
        lives = TwoLives(Path(directory), seed, chain_cost)
        for what in steps:
            lives.step(what)
        lives.copy()
        lives.check()


def test_the_simulated_lives_send_deltas_more_than_once():
    """Otherwise, the test above would prove nothing."""
    with tempfile.TemporaryDirectory() as directory:
        lives = TwoLives(Path(directory), 1, 100.0)
        for what in ["take", "take", "copy", "forget there", "take", "prune there", "copy", "take"]:
            lives.step(what)
        lives.copy()
        lives.check()
        assert len(lives.copied) == 3
        assert lives.sent_bytes > 3 * CHUNK
        with open_store(str(lives.there.store)) as store:
            assert sum(len(rows) for rows in store.index.delta_bases()) > 0

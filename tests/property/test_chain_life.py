"""The checkpoints of a training over its life: every kept one can be read."""

import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic.maintain.forget import apply_forget, plan_forget_by_id
from ciuic.maintain.prune.apply import apply_prune
from ciuic.maintain.prune.plan import plan_prune
from ciuic.store.records.recipe_nodes import iter_pieces
from ciuic.store.store import open_store
from tests.kit.box import Box

KIB = 1024
CHUNK = 64 * KIB
STEPS = st.sampled_from(["step", "step", "step", "rename", "rewind", "base", "forget", "prune"])


class Life:
    """A training that writes one tensor file, and a store with snapshots of it."""

    def __init__(self, directory: Path, seed: int, chain_cost: float) -> None:
        self.box = Box(directory, chunk_bytes=CHUNK)
        self.box.chain_cost = chain_cost
        self.dice = np.random.default_rng(seed)
        self.weights = self.dice.normal(0, 0.02, 3 * CHUNK // 4).astype("<f4")
        self.number = 0
        self.saved = [self.weights]
        self.known: dict[str, dict[bytes, bytes]] = {}
        self.deltas = 0

    def step(self, what: str) -> None:
        """Do one step."""
        if what == "forget" and len(self.known) > 1:
            name = list(self.known)[int(self.dice.integers(len(self.known) - 1))]
            now_ns = self.box.clock.now_ns()
            with open_store(str(self.box.store), write=True) as store:
                apply_forget(store, plan_forget_by_id(store, [name], now_ns), now_ns)
            del self.known[name]
        elif what == "prune":
            with open_store(str(self.box.store), write=True) as store:
                plan = plan_prune(store, trash_s=0, now_ns=self.box.clock.now_ns())
                apply_prune(store, plan, parity=0.0, clock=self.box.clock)
        elif what not in {"forget", "prune"}:
            self.save(what)
            name = self.box.take(base=what == "base").id
            self.known[name] = {
                os.fsencode(path): path.read_bytes() for path in self.box.source.iterdir()
            }

    def save(self, what: str) -> None:
        """Train a little, or go back to an earlier state, and write the file or a new one."""
        if what == "rewind":
            self.weights = self.saved[int(self.dice.integers(len(self.saved)))]
        else:
            moves = self.dice.normal(0, 1e-4, len(self.weights))
            self.weights = (self.weights + moves).astype("<f4")
        self.saved.append(self.weights)
        for path in self.box.source.iterdir():
            if what == "rename":
                path.unlink()
        self.number += what == "rename"
        (self.box.source / f"step_{self.number}.bin").write_bytes(self.weights.tobytes())

    def check(self) -> None:
        """Check that every kept snapshot is sound and restores exactly."""
        for name, files in self.known.items():
            entries = self.box.entries(name)
            with open_store(str(self.box.store)) as store:
                for path in files:
                    pieces = list(iter_pieces(store.reader.node, entries[path]))
                    self.deltas += sum(len(store.reader.chain(one.id) or ()) > 1 for one in pieces)
            for path, data in files.items():
                assert self.box.read(Path(os.fsdecode(path)), name) == data
        assert self.box.verify().ok
        assert self.box.verify(checksum=False).ok


@settings(max_examples=12)
@given(
    st.lists(STEPS, min_size=3, max_size=12),
    st.integers(0, 1000),
    st.sampled_from([2.0, 4.0, 100.0]),
)
def test_every_kept_checkpoint_of_a_chain_reads_back(steps, seed, chain_cost):
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory), seed, chain_cost)
        for what in steps:
            life.step(what)
        life.check()


def test_the_simulated_life_has_chains():
    """Otherwise, the test above would prove nothing."""
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory), 1, 4.0)
        for what in ["step", "rename", "step", "forget", "prune", "rewind", "step"]:
            life.step(what)
        life.check()
        assert life.deltas >= 6

"""Snapshots of files that exist only in memory: stored, read and restored like any other."""

import dataclasses
import errno
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.errors import CancelledError, CommitUncertainError, StoreError, UsageError
from ciuic.model import MEMORY
from ciuic.snapshot import memory
from ciuic.snapshot.memory import STATE_ROOT, MemoryFile, MemoryRequest, take_from_memory
from ciuic.snapshot.report import TakeReport
from ciuic.store.store import open_store
from ciuic.system import durable
from tests.kit.box import Box
from tests.kit.tensors import safetensors, typed

KIB = 1024
MIB = 1024 * KIB
WEIGHTS = b"weights.safetensors"
OPTIMIZER = b"optimizer.safetensors"


def numbers(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def weights(*arrays: np.ndarray) -> bytes:
    return typed(
        {f"layer{at}.w": ("F32", [len(array)], array.tobytes()) for at, array in enumerate(arrays)}
    )


def in_parts(data: bytes, *cuts: int) -> tuple[memoryview, ...]:
    bounds = sorted({0, *[min(cut, len(data)) for cut in cuts], len(data)})
    view = memoryview(data)
    return tuple([view[begin:end] for begin, end in itertools.pairwise(bounds)])


def take(
    box: Box, files: dict[bytes, bytes | tuple[memoryview, ...]], **more: object
) -> TakeReport:
    box.clock.sleep(1)
    request = MemoryRequest(
        tuple(
            MemoryFile(path, data if isinstance(data, tuple) else (data,))
            for path, data in files.items()
        ),
        base_interval_s=0,
        parity=box.parity,
        chain_cost=box.chain_cost,
    )
    with open_store(str(box.store), write=True) as store:
        return take_from_memory(store, dataclasses.replace(request, **more), clock=box.clock)


@pytest.fixture
def state() -> dict[bytes, bytes]:
    return {
        WEIGHTS: weights(numbers(1, 90_000), numbers(2, 700), numbers(3, 400_000)),
        OPTIMIZER: safetensors({"exp_avg": os.urandom(300 * KIB)}),
        b"rank-00000/rng.safetensors": safetensors({"torch": os.urandom(5056)}),
        b"state.json": json.dumps({"epoch": 3}).encode(),
        b"empty": b"",
    }


def test_every_command_reads_a_snapshot_from_memory(box, state, tmp_path):
    report = take(box, state, tags=("full",))
    again = take(box, {**state, b"state.json": b'{"epoch": 4}'})

    listed = box.ciuic("list", "--json").document
    assert [snapshot["id"] for snapshot in listed] == [again.id, report.id]
    assert listed[1]["roots"] == ["/state"]
    assert listed[1]["logical_bytes"] == sum(map(len, state.values()))
    assert box.ciuic("list", "--tag", "full", "--machine-readable").out.startswith(report.id)
    assert "from the memory of a training program" in box.ciuic("show", report.id).out
    shown = box.ciuic("show", report.id, "--json").document
    assert [root["capture"] for root in shown["roots"]] == [MEMORY]
    assert "rank-00000" in box.ciuic("ls", report.id, "/state").out
    assert json.loads(box.ciuic("cat", report.id, "/state/state.json").out) == {"epoch": 3}
    assert "/state/rank-00000/rng.safetensors" in box.ciuic("find", "rng.safetensors").out
    assert box.ciuic("verify", "--all", "--checksum").code == 0
    assert box.ciuic("diff", report.id, again.id).out.count("state.json") == 1
    assert box.ciuic("diff", "--tensors", report.id, again.id).code == 0
    restored = box.ciuic("restore", "-s", report.id, "-p", "/state", "-d", tmp_path / "out")
    assert restored.code == 0, restored.err
    for path, data in state.items():
        assert (tmp_path / "out/state" / path.decode()).read_bytes() == data


def test_a_restore_to_the_memory_of_a_program_is_refused_in_one_sentence(box, state, tmp_path):
    take(box, state)
    before = os.path.lexists("/state")

    for path in ("/state", "/state/state.json"):
        refused = box.ciuic("restore", "-s", "latest", "-p", path)
        assert refused.code == 2
        assert "has no place on this machine" in refused.err
        assert "-d DIR" in refused.err
        assert "Traceback" not in refused.err
    assert os.path.lexists("/state") == before
    placed = box.ciuic("restore", "-s", "latest", "-p", "/state", "--as", tmp_path / "as")
    assert placed.code == 0, placed.err
    assert (tmp_path / "as/state.json").read_bytes() == state[b"state.json"]


def test_a_checkout_of_memory_names_the_command_that_can_restore_it(box, state):
    report = take(box, state)
    done = box.ciuic("checkout", report.id, "/state")
    assert done.code == 2
    assert f"Give 'ciuic --config {box.config} restore' a directory with -d DIR." in done.err


def test_a_file_of_the_disk_and_the_same_file_in_memory_are_stored_once(box, state):
    (box.source / "model.safetensors").write_bytes(state[WEIGHTS])
    first = box.take()
    assert first.new_bytes >= len(state[WEIGHTS])

    # The parts of a file in memory are its tensors, and the cuts must not depend on them.
    parts = in_parts(state[WEIGHTS], 137, 70_000, 360_300, 1_000_003, 1_900_001)
    second = take(box, {WEIGHTS: parts})

    assert second.new_bytes == 0


@given(st.data())
def test_any_parts_give_the_same_chunks(tmp_path_factory, data):
    box = Box(tmp_path_factory.mktemp("parts"), chunk_bytes=256 * KIB)
    kinds = {
        "tensors": weights(numbers(1, 20_000), numbers(2, 30), numbers(3, 100_000)),
        "bytes": np.random.default_rng(4).bytes(700 * KIB),
        "text": b"a line of text\n" * 40_000,
        "small": b"x" * 100,
    }
    content = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=12))
    take(box, {b"file": content})

    report = take(box, {b"file": in_parts(content, *cuts)})

    assert report.new_bytes == 0
    assert box.read(Path("/state/file")) == content


def test_changed_tensors_become_deltas_of_the_last_version(box):
    old = numbers(1, MIB)
    new = old + np.float32(1e-6) * numbers(2, MIB)
    first = take(box, {WEIGHTS: weights(old)})

    second = take(box, {WEIGHTS: weights(new)})

    assert (first.kind, second.kind) == ("base", "delta")
    assert second.stored_bytes < first.stored_bytes * 0.8
    assert box.read(Path("/state/weights.safetensors")) == weights(new)


def test_the_last_version_is_found_behind_snapshots_that_lack_the_file(box):
    old = numbers(1, MIB)
    first = take(box, {WEIGHTS: weights(old), OPTIMIZER: weights(old * 2)})
    for _ in range(3):
        take(box, {WEIGHTS: weights(old)})

    changed = (old + np.float32(1e-6) * numbers(2, MIB)) * 2
    full = take(box, {WEIGHTS: weights(old), OPTIMIZER: weights(changed)})

    assert full.stored_bytes < first.stored_bytes * 0.8


def test_a_full_snapshot_from_memory_has_no_deltas(box):
    old = numbers(1, MIB)
    first = take(box, {WEIGHTS: weights(old)})
    box.clock.sleep(3600)

    base = take(
        box, {WEIGHTS: weights(old + np.float32(1e-6) * numbers(2, MIB))}, base_interval_s=60
    )

    assert base.kind == "base"
    assert base.stored_bytes > first.stored_bytes * 0.95


@pytest.mark.parametrize(
    "paths",
    [[], [b""], [b"/etc"], [b"a/../b"], [b"a//b"], [b"."], [b"a\0"], [b"a", b"a"], [b"a", b"a/b"]],
    ids=repr,
)
def test_a_path_that_no_file_can_have_is_refused(box, paths):
    files = tuple(MemoryFile(path, (b"1",)) for path in paths)
    with open_store(str(box.store), write=True) as store, pytest.raises(UsageError):
        take_from_memory(store, MemoryRequest(files), clock=box.clock)

    assert box.snapshots() == []


def test_a_cancelled_snapshot_commits_nothing(box, state):
    files = tuple(MemoryFile(path, (data,)) for path, data in state.items())
    with open_store(str(box.store), write=True) as store, pytest.raises(CancelledError):
        take_from_memory(store, MemoryRequest(files), clock=box.clock, cancelled=lambda: True)

    assert box.snapshots() == []
    take(box, state)
    assert box.verify().ok


def test_a_store_that_fails_commits_nothing(box, state, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "publish", full)
        with pytest.raises(StoreError) as caught:
            take(box, state)
    assert not isinstance(caught.value, CommitUncertainError)
    assert box.snapshots() == []
    take(box, state)
    assert box.verify().ok


def test_snapshots_from_memory_and_from_a_disk_share_a_store(box, state):
    (box.source / "log").write_text("step 1")
    disk = box.take()
    memory = take(box, state)
    (box.source / "log").write_text("step 2")
    later = box.take()

    assert memory.parent is None, "the library's snapshots are a series of their own"
    assert later.parent == disk.id
    assert later.kind == "delta"
    assert [entry for entry in box.entries(memory.id) if entry.startswith(b"/state/rank")]
    assert STATE_ROOT not in {
        root for s in box.snapshots() if s.id != memory.id for root in s.roots
    }
    assert box.verify().ok


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "EIO"), MemoryError()])
def test_a_failure_after_the_commit_does_not_fail_the_snapshot(box, state, monkeypatch, error):
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(memory, "remember", failing)

    report = take(box, state)

    (note,) = report.notes
    assert note.what.startswith(f"{report.id} was taken, but the chunk index")
    assert report.id in {summary.id for summary in box.snapshots()}
    assert box.verify().ok

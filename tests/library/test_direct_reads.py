"""A load reads cold packs past the page cache, and everything else in the ordinary way."""

import contextlib
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import ResourceError
from ciuic.store.packs import direct_reads
from ciuic.store.packs.direct_reads import DirectReads, Stretch
from ciuic.store.records.layout import pack_name
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from ciuic.training.loading import ahead, files
from tests.kit.damage import flip_byte, packs

TENSORS = 12
TENSOR_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """Return a store with one state, and the state."""
    chance = np.random.default_rng(5)
    state = {f"w{at}": chance.integers(0, 256, TENSOR_BYTES, np.uint8) for at in range(TENSORS)}
    store = tmp_path_factory.mktemp("direct") / "store"
    with SnapshotManager(store) as manager:
        manager.save_snapshot(state, {}, 0, wait=True)
    return store, state


@pytest.fixture
def direct(monkeypatch) -> list[bool]:
    """Make loads of a few bytes read directly, too; returns whether each stretch was read so."""
    found: list[bool] = []
    original = DirectReads._read

    def read(reads: DirectReads, stretch: Stretch, buffer) -> memoryview | None:
        data = original(reads, stretch, buffer)
        found.append(data is not None)
        return data

    monkeypatch.setattr(DirectReads, "_read", read)
    monkeypatch.setattr(ahead, "_DIRECT_BYTES_MIN", 0)
    # So that there are more stretches than buffers.
    monkeypatch.setattr(ahead, "STRETCH_BYTES_MAX", 5 * TENSOR_BYTES // 2)
    monkeypatch.setattr(direct_reads, "_BUFFERS", 2)
    # The kernel reads a small pack ahead when its first bytes are read.
    monkeypatch.setattr(ahead, "are_cold", lambda *_: True)
    return found


def cool(store: Path) -> None:
    """Drop the packs from the page cache, as after a restart of the machine."""
    for pack in packs(store):
        fd = os.open(pack, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def loaded_is(store: Path, state: dict[str, np.ndarray]) -> bool:
    with SnapshotManager(store) as manager:
        found = manager.load_latest_snapshot()["model_state_dict"]
    return found.keys() == state.keys() and all(
        np.array_equal(found[name], value) for name, value in state.items()
    )


def test_cold_packs_are_read_past_the_page_cache(whole, direct):
    store, state = whole
    cool(store)

    assert loaded_is(store, state)

    if not any(direct):
        pytest.skip("this file system reads nothing past the page cache")


def test_packs_in_the_page_cache_are_read_from_it(whole, direct, monkeypatch):
    store, state = whole
    monkeypatch.setattr(ahead, "are_cold", direct_reads.are_cold)
    for pack in packs(store):
        pack.read_bytes()

    assert loaded_is(store, state)

    assert not direct


def test_a_pack_that_is_in_the_page_cache_in_part_is_read_in_both_ways(whole, direct):
    store, state = whole
    cool(store)
    with packs(store)[0].open("rb") as pack:
        pack.read(TENSORS // 2 * TENSOR_BYTES)

    assert loaded_is(store, state)

    assert not all(direct)


def test_a_file_system_that_refuses_direct_reads_is_read_in_the_ordinary_way(
    whole, direct, monkeypatch
):
    store, state = whole
    cool(store)
    original = os.open

    def refuse(path, flags, *more, **others):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads")
        return original(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", refuse)
    assert loaded_is(store, state)
    assert not any(direct)


def test_without_a_further_thread_everything_is_read_in_the_ordinary_way(
    whole, direct, monkeypatch
):
    store, state = whole
    cool(store)

    def refuse(_):
        raise ResourceError("no more threads")

    monkeypatch.setattr(direct_reads, "start", refuse)
    assert loaded_is(store, state)
    assert not direct


def test_a_damaged_frame_is_repaired_after_a_direct_read(tmp_path, direct):
    chance = np.random.default_rng(6)
    state = {f"w{at}": chance.integers(0, 256, TENSOR_BYTES, np.uint8) for at in range(TENSORS)}
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(state, {}, 0, wait=True)
    flip_byte(packs(tmp_path)[0], 3 * TENSOR_BYTES)
    cool(tmp_path)

    assert loaded_is(tmp_path, state)


def test_no_thread_and_no_file_stays_after_a_load_that_fails(whole, direct, monkeypatch):
    store, _ = whole
    cool(store)
    before = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())

    original = files._read_straight

    def fail(reader, part, *more):
        if part.piece.length_bytes == TENSOR_BYTES:
            raise KeyboardInterrupt
        return original(reader, part, *more)

    monkeypatch.setattr(files, "_read_straight", fail)
    with SnapshotManager(store) as manager, pytest.raises(KeyboardInterrupt):
        manager.load_latest_snapshot()

    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_stretch_that_is_given_up_leaves_its_buffer_to_the_others(whole, monkeypatch):
    """A thread that has waited too long reads by itself, and the stretch comes later."""
    store, state = whole
    monkeypatch.setattr(direct_reads, "_BUFFERS", 1)
    monkeypatch.setattr(direct_reads, "_PATIENCE_S", 0.0)
    slow = threading.Event()
    original = DirectReads._read

    def read(reads, stretch, buffer):
        slow.wait()
        return original(reads, stretch, buffer)

    monkeypatch.setattr(DirectReads, "_read", read)
    with open_store(str(store)) as opened:
        ids = [data_id(state[name].tobytes()) for name in ("w0", "w1")]
        first, second = [opened.reader.places([one])[one] for one in ids]
        stretches = [
            Stretch(place.pack_id, place.offset_bytes, place.offset_bytes + place.frame_bytes, 1)
            for place in (first, second)
        ]
        cool(store)
        with contextlib.closing(DirectReads(opened.reader.packs, stretches)) as reads:
            assert reads.frame(0, first) is None
            reads.done(0)
            slow.set()
            reads._found[1].result(60)
            found = reads.frame(1, second)
            if found is None:
                pytest.skip("this file system reads nothing past the page cache")
            pack = (store / "packs" / pack_name(second.pack_id)).read_bytes()
            assert bytes(found) == pack[second.offset_bytes :][: second.frame_bytes]
            reads.done(1)

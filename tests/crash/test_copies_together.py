"""Copies from two stores to one directory, a snapshot there and a prune, all at the same time."""

import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.daemon import wait_until
from tests.kit.program import CIUIC, environment

LIMIT_S = 300
SIZE = 600 * 1024


def versions() -> Iterator[bytes]:
    """The weights of a run, step after step."""
    dice = np.random.default_rng(3)
    values = dice.normal(0, 0.02, SIZE // 4).astype("<f4")
    while True:
        yield values.tobytes()
        values = (values + dice.normal(0, 1e-4, len(values))).astype("<f4")


def begun(box: Box, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*CIUIC, "--config", str(box.config), *map(str, arguments)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> None:
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err


def two_orders(directory: Path) -> list[Box]:
    """Return two stores with the same versions of a file, one forward and the other backward."""
    saves = list(islice(versions(), 4))
    found = []
    for name, order in (("one", saves), ("other", saves[::-1])):
        (directory / name).mkdir()
        box = Box(directory / name, chunk_bytes=256 * 1024)
        box.chain_cost = 50
        for save in order:
            (box.source / "last.bin").write_bytes(save)
            box.take()
        with open_store(str(box.store)) as store:
            assert any(store.index.delta_bases()), "versions are deltas against each other"
        found.append(box)
    return found


@pytest.fixture
def sources(tmp_path: Path) -> list[Box]:
    return two_orders(tmp_path)


@pytest.fixture
def copy(tmp_path: Path) -> Box:
    """The store that gets the copies, with a snapshot of its own in the trash."""
    (tmp_path / "copy").mkdir()
    box = Box(tmp_path / "copy", chunk_bytes=256 * 1024)
    (box.source / "old").write_bytes(b"old" * 50_000)
    gone = box.take().id
    (box.source / "old").write_bytes(b"new" * 50_000)
    box.take()
    assert box.ciuic("forget", gone).code == 0
    return box


def is_filling(copy: Box) -> int:
    return len(list((copy.store / "tmp").iterdir()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_killed", [False, True], ids=["both end", "one is killed"])
def test_copies_a_snapshot_and_a_prune_at_once_lose_nothing(
    sources: list[Box], copy: Box, tmp_path: Path, *, is_killed: bool
) -> None:
    one, other = sources
    to = ("copy", "--to", copy.store, "--wait", "0", "--limit", "200KiB")
    both = []
    for box in (one, other):
        filled = is_filling(copy)
        # The second does not wait for the first, which is stopped in the middle.
        both.append(begun(box, *to))
        wait_until("a copy has begun a pack", lambda filled=filled: is_filling(copy) > filled)
        both[-1].send_signal(signal.SIGSTOP)
    first, second = both
    prune = begun(copy, "prune", "--trash", "0", "--wait", "10m")
    assert copy.ciuic("snapshot", "--wait", "0").code == 0
    assert (first.poll(), second.poll()) == (None, None)
    assert prune.poll() is None, "what removes waits for the copies"
    for process in both:
        process.send_signal(signal.SIGCONT)
    if is_killed:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    else:
        ended(first)
    ended(second)
    ended(prune)
    if is_killed:
        ended(begun(one, *to))

    there = {snapshot.id for snapshot in copy.snapshots()}
    for box in sources:
        assert {snapshot.id for snapshot in box.snapshots()} <= there
    assert copy.verify().ok
    (copy.store / "catalog.sqlite").unlink()
    assert copy.verify().ok
    assert copy.verify(checksum=False).ok
    with open_store(str(copy.store), write=True) as store:
        ids = [chunk_id for rows in store.index.chunk_ids() for chunk_id, _ in rows]
        assert store.index.usable(ids) == set(ids), "every chain ends"
    assert not is_filling(copy)


def test_two_copies_of_the_same_snapshots_at_once_both_end(sources: list[Box], copy: Box) -> None:
    one, _ = sources
    to = ("copy", "--to", copy.store, "--wait", "0", "--limit", "400KiB")
    both = [begun(one, *to), begun(one, *to)]
    for process in both:
        ended(process)
    assert {snapshot.id for snapshot in one.snapshots()} <= {found.id for found in copy.snapshots()}
    assert copy.verify().ok

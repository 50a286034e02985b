"""Several processes add to one store at the same time; commands that remove keep them out."""

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciuic.errors import BusyError
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.adding import new_writer
from ciuic.store.directory import locks
from ciuic.store.directory.locks import WriteLocks
from ciuic.store.records.kinds import DATA, chunk_id_of
from ciuic.store.store import Store, open_store
from tests.kit.box import Box
from tests.kit.chance import drawn_seed
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.program import CIUIC, environment

LIMIT_S = 120
WRITERS = 3
LONG = bool(os.environ.get("CIUIC_LONG"))
ROUNDS = 40 if LONG else 2


@pytest.fixture
def adding(box: Box) -> Iterator[Store]:
    """The store, which this process has opened to add to it."""
    box.take()
    with open_store(str(box.store), write=True, only_adds=True) as store:
        yield store


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A directory with one file, beside the source of the box."""
    directory = tmp_path / "other"
    directory.mkdir()
    (directory / "file").write_bytes(os.urandom(30_000))
    return directory


def inode(path: Path) -> int:
    return path.stat().st_ino


def listed(box: Box) -> set[str]:
    done = box.ciuic("list", "--json")
    assert done.code == 0, done.err
    return {one["id"] for one in json.loads(done.out)}


def assert_whole(box: Box) -> None:
    done = box.ciuic("verify", "--all", "--checksum")
    assert done.code == 0, done.out + done.err


def test_a_small_snapshot_is_taken_in_the_middle_of_a_large_one(box: Box, other: Path) -> None:
    for number in range(20):
        (box.source / f"f{number}").write_bytes(os.urandom(20_000))
    first = box.take(other).id
    # Without its rows, the next snapshot has something to record before it walks.
    (box.store / "catalog.sqlite").unlink()
    small: list[str] = []

    def meanwhile() -> bool:
        if not small:
            done = box.ciuic("snapshot", other, "--wait", "0")
            assert done.code == 0, done.err
            small.append(done.out.strip())
            # A third one finds the chunks that the second has added, and both snapshots are
            # complete by now.
            again = box.ciuic("snapshot", other, "--wait", "0", "--json", "--base")
            assert again.document["stored_bytes"] < 10_000
            small.append(again.document["id"])
            assert_whole(box)
        return False

    request = TakeRequest((os.fsencode(box.source),))
    with open_store(str(box.store), write=True, only_adds=True) as store:
        large = take_snapshot(store, request, clock=ManualClock(), cancelled=meanwhile)
    assert listed(box) == {first, large.id, *small}
    assert_whole(box)
    with open_store(str(box.store)) as store:
        assert store.index.packs() == store.pack_files()


def test_a_process_that_removes_is_refused_while_another_adds(box: Box, adding: Store) -> None:
    newest = box.snapshots()[0].id
    for arguments in (("prune",), ("forget", newest), ("repair", "--apply"), ("pin", newest)):
        done = box.ciuic(*arguments, "--wait", "0")
        assert done.code == 5, (arguments, done.err)
        assert f"in use by process {os.getpid()}" in done.err
    adding.close()
    assert box.ciuic("prune", "--wait", "0").code == 0


def test_a_prune_that_waits_for_a_process_that_adds_keeps_no_other_from_adding(
    box: Box, adding: Store, other: Path
) -> None:
    command = [*CIUIC, "--config", str(box.config), "prune", "--wait", "10m"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as prune:
        # It waits, and between its attempts it holds no lock.
        assert box.ciuic("snapshot", other, "--wait", "60s").code == 0
        assert prune.poll() is None
        adding.close()
        assert prune.wait(LIMIT_S) == 0
    assert_whole(box)


def test_a_process_that_adds_leaves_the_unfinished_files_of_another_alone(
    box: Box, adding: Store, other: Path
) -> None:
    writer = new_writer(adding)
    plain = os.urandom(100_000)
    writer.add_data([(chunk_id_of(DATA, plain), plain)])
    temporary = box.store / "tmp"
    wait_until("the pack is begun", lambda: any(temporary.iterdir()))
    (unfinished,) = temporary.iterdir()
    assert box.ciuic("snapshot", other, "--wait", "0").code == 0
    assert unfinished.exists()
    writer.finish()
    adding.close()
    (temporary / "leftover").write_bytes(b"of a process that was killed")
    assert box.ciuic("snapshot", other, "--wait", "0").code == 0
    assert list(temporary.iterdir()) == []


def test_a_chunk_index_that_another_process_has_open_is_not_removed(
    box: Box, adding: Store, other: Path
) -> None:
    index = box.store / "catalog.sqlite"
    kept = inode(index)
    with index.open("r+b") as file:
        file.write(b"no database")
    done = box.ciuic("snapshot", other, "--wait", "0")
    assert done.code == 0, done.err
    assert inode(index) == kept
    adding.close()
    # Alone, the next process builds it again.
    assert box.ciuic("snapshot", other, "--wait", "0").code == 0
    assert_whole(box)
    with open_store(str(box.store)) as store:
        assert store.index.packs() == store.pack_files()


def test_a_process_that_is_about_to_add_waits_for_another_that_opens_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_OPENING_S", float(LIMIT_S))
    first, second, third = (WriteLocks(str(tmp_path)) for _ in range(3))
    assert first.begin_adding()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(second.begin_adding()))
    thread.start()
    assert not third.try_alone()
    first.share()
    thread.join(LIMIT_S)
    assert answers == [False], "it is not alone"
    assert not third.try_alone()
    second.share()
    first.release()
    with pytest.raises(BusyError):
        third.take_alone()
    second.release()
    third.take_alone()
    with pytest.raises(BusyError):
        first.begin_adding()


def until_killed(box: Box, after_s: float, *arguments: str | Path) -> Callable[[], None]:
    """Start a command; the result ends it by SIGKILL after this time, unless it has ended."""
    process = subprocess.Popen(
        [*CIUIC, "--config", str(box.config), *map(str, arguments)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def end() -> None:
        try:
            _, err = process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        else:
            assert process.returncode == 0, (arguments, err.decode())

    return end


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_writers_and_a_prune_that_are_killed_at_random_lose_nothing(
    box: Box, tmp_path: Path
) -> None:
    rng = random.Random(drawn_seed())
    sources = [tmp_path / f"source-{number}" for number in range(WRITERS)]
    for source in sources:
        source.mkdir()
    for turn in range(ROUNDS):
        for source in sources:
            # Much in common, so that writers rely on each other's packs.
            (source / "shared").write_bytes(random.Random(turn // 2).randbytes(400_000))
            (source / f"own-{turn % 3}").write_bytes(rng.randbytes(50_000))
        kept = (
            box.ciuic("forget", rng.choice(sorted(found)), "--wait", "60s")
            if (found := listed(box)) and len(found) > WRITERS
            else None
        )
        assert kept is None or kept.code in {0, 2}, kept.err
        ends = [
            until_killed(box, rng.choice((0.4, 0.8, LIMIT_S)), "snapshot", source, "--wait", "2m")
            for source in sources
        ]
        ends.append(
            until_killed(box, rng.choice((0.6, LIMIT_S)), "prune", "--trash", "0", "--wait", "2m")
        )
        rng.shuffle(ends)
        for end in ends:
            end()
        assert_whole(box)
    assert box.ciuic("snapshot", sources[0]).code == 0
    assert box.ciuic("prune", "--trash", "0").code == 0
    assert list((box.store / "tmp").iterdir()) == []
    assert_whole(box)

"""Verifying in several processes finds what a single process finds, after any failure of them."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from ciuic.catalog import list_snapshots
from ciuic.errors import StoreError
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.system.workers.processes import Processes
from ciuic.verify import chunk_lookup, frame_checks
from ciuic.verify.frame_checks import Checker
from ciuic.verify.report import VerifyReport
from ciuic.verify.tasks import Task
from ciuic.verify.verify import verify_snapshots
from tests.kit.box import Box
from tests.kit.damage import flip_byte, flip_content, pack_of, packs
from tests.kit.tensors import safetensors

KIB = 1024
PATIENCE_S = 60

Asked = list[bytes | None]
Verify = Callable[[Box], VerifyReport]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Uses processes for the smallest store, once they are ready, and records their answers."""
    heard: Asked = []
    ask = Processes.ask

    def when_ready(processes: Processes, request: bytes) -> bytes | None:
        end = time.monotonic() + PATIENCE_S
        while (answer := ask(processes, request)) is None and time.monotonic() < end:
            if not any(child.is_alive for child in processes._all):
                break
            time.sleep(0.005)
        heard.append(answer)
        return answer

    monkeypatch.setattr(Processes, "ask", when_ready)
    monkeypatch.setattr(frame_checks, "_WORTH_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return heard


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Three snapshots: small files in many directories, large files, and deltas."""
    made = Box(tmp_path, chunk_bytes=512 * KIB)
    dice = np.random.default_rng(7)
    values = dice.normal(0, 0.02, 300 * KIB).astype("<f4")
    for step in range(3):
        for number in range(60):
            directory = made.source / f"part_{number % 12}" / f"inner_{number}"
            directory.mkdir(parents=True, exist_ok=True)
            for name in range(20):
                (directory / f"{name}").write_bytes(
                    random.Random(name * 1000 + number).randbytes(900)
                )
        (made.source / "log").write_bytes(b"%d\n" % step * 5000)
        values = (values + dice.normal(0, 1e-4, len(values))).astype("<f4")
        (made.source / "model.safetensors").write_bytes(safetensors({"w": values.tobytes()}))
        made.take()
    with open_store(str(made.store)) as store:
        assert any(store.index._db.execute("SELECT 1 FROM reference"))
    return made


@pytest.fixture(params=["listing", "catalog"])
def verify(request: pytest.FixtureRequest) -> Verify:
    """All snapshots are verified with the footers, some snapshots with the chunk index."""
    return Box.verify if request.param == "listing" else by_catalog


def by_catalog(box: Box) -> VerifyReport:
    with open_store(str(box.store)) as store:
        snapshots = list_snapshots(store)
        return verify_snapshots(store, snapshots, {}, checksum=True, clock=box.clock)


def kinds(box: Box) -> dict[bytes, int]:
    """Of all chunks in the chunk index."""
    with open_store(str(box.store)) as store:
        return {name: kind for rows in store.index.chunk_ids() for name, kind in rows}


def outcome(report: VerifyReport) -> tuple[object, ...]:
    return report.snapshots, report.chunks, report.bad


def here(box: Box, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The result with the chunk index and without processes."""
    with monkeypatch.context() as patch:
        patch.setattr(frame_checks, "_WORTH_BYTES", 1 << 60)
        return outcome(by_catalog(box))


def test_processes_find_a_sound_store_sound_and_leave_nothing_to_do_again(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> bool:
        raise AssertionError("looked at once more")

    expected = here(box, monkeypatch)
    monkeypatch.setattr(frame_checks, "_is_sound_here", never)
    report = verify(box)
    assert report.ok
    assert outcome(report) == expected
    assert set(answers) == {b""}


def test_frames_of_small_files_are_begun_before_all_is_found(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    left: list[int] = []
    begin, finish = Checker.begin, Checker.finish

    def chunks_of(task: Task) -> int:
        with open_store(str(box.store)) as store:
            return len(task.needed) or len(store.reader.frame(task.place)[0].chunks)

    def counting(checker: Checker, task: Task) -> None:
        begun.append(chunks_of(task))
        begin(checker, task)

    def last(checker: Checker, groups: Iterable[list[Task]], left_bytes: int) -> None:
        tasks = [list(group) for group in groups]
        left.extend(chunks_of(task) for group in tasks for task in group)
        assert left_bytes == sum(task.place.frame_bytes for group in tasks for task in group)
        finish(checker, tasks, left_bytes)

    monkeypatch.setattr(Checker, "begin", counting)
    monkeypatch.setattr(Checker, "finish", last)
    report = verify(box)
    if verify is Box.verify:
        nodes = [one for one, kind in kinds(box).items() if kind != DATA]
        left.append(len(nodes))  # read during the walk
    assert sum(begun) + sum(left) == report.chunks
    assert sum(begun) >= 1000


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_named_alike(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    for pack in packs(box.store):
        for _ in range(dice.randrange(3)):
            flip_byte(pack, dice.randrange(16, pack.stat().st_size - 200))
    expected = here(box, monkeypatch)
    assert outcome(verify(box)) == expected
    assert answers


def test_frames_that_are_read_in_batches_are_read_once_and_judged_alike(
    box: Box, answers: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the frames that wait take little memory, however large the snapshots are."""
    waiting: list[int] = []
    finish = Checker.finish

    def last(checker: Checker, groups: Iterable[list[Task]], left_bytes: int) -> None:
        left = list(groups)
        waiting.append(len(left))
        finish(checker, left, left_bytes)

    whole = by_catalog(box)
    monkeypatch.setattr(Checker, "finish", last)
    monkeypatch.setattr(chunk_lookup, "_FRAMES_MAX", 2)
    batches = by_catalog(box)
    assert batches.ok
    assert batches.read_bytes == whole.read_bytes
    assert outcome(batches) == outcome(whole)
    flip_content(box.store, (box.source / "log").read_bytes())
    damaged = by_catalog(box)
    assert [len(one.damaged) for one in damaged.snapshots] == [1, 0, 0]
    assert max(waiting) < 2


def test_a_damaged_delta_base_damages_all_its_deltas(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = box.read(box.source / "model.safetensors", snapshot=box.snapshots()[-1].id)
    expected = here(box, monkeypatch)
    with open_store(str(box.store)) as store:
        bases = [row[0] for row in store.index._db.execute("SELECT base FROM reference")]
        base = bytes(store.reader.chunk(bases[0], kind=DATA))
    assert base in first
    flip_content(box.store, base)
    report = verify(box)
    assert outcome(report) == here(box, monkeypatch) != expected
    assert [len(one.damaged) for one in report.snapshots] == [1, 1, 1]


def test_a_pack_that_is_gone_is_named_alike(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_of(box.store, (box.source / "log").read_bytes()).unlink()
    assert outcome(verify(box)) == here(box, monkeypatch)
    assert not verify(box).ok


def test_a_wrong_chunk_index_is_no_damage(box: Box, answers: Asked, verify: Verify) -> None:
    with open_store(str(box.store), write=True) as store:
        store.index._db.execute("UPDATE chunk SET start_bytes = start_bytes + 1 WHERE kind = 1")
        store.index.commit()
    assert verify(box).ok
    assert any(answers) == (verify is by_catalog)


@pytest.mark.parametrize("how", ["die", "vanish"])
def test_processes_that_end_in_the_middle_change_nothing(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    expected = here(box, monkeypatch)
    heard = Processes.ask

    def then_killed(processes: Processes, request: bytes) -> bytes | None:
        answer = heard(processes, request)
        for child in processes._all:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
        return answer if how == "die" else None

    monkeypatch.setattr(Processes, "ask", then_killed)
    monkeypatch.setattr(frame_checks, "_BATCH_BYTES", 100 * KIB)
    assert outcome(verify(box)) == expected
    assert answers[0] == b""
    assert answers[-1] is None


def test_an_error_of_the_store_ends_a_scrub_and_is_not_damage(
    box: Box, answers: Asked, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Checker.finish

    def then_gone(checker: Checker, groups: Iterable[list[Task]], left_bytes: int) -> None:
        shutil.move(box.store / "packs", box.store / "elsewhere")
        (box.store / "packs").write_bytes(b"")
        finish(checker, groups, left_bytes)

    monkeypatch.setattr(Checker, "finish", then_gone)
    with pytest.raises(StoreError):
        verify(box)

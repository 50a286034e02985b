"""Each of several ranks saves a part of one state; the snapshot exists once all are durable."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.catalog import find_snapshot
from ciuic.errors import StoreError, UsageError
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.training.loading.files import StateFiles
from ciuic.training.loading.latest import LoadOptions
from ciuic.training.manager import SnapshotManager as Manager
from ciuic.training.ranks.client import RankClient
from tests.kit.daemon import wait_until
from tests.kit.damage import flip_content
from tests.kit.filesystems import disk
from tests.kit.program import ciuic

TRAINING = Path(__file__).with_name("rank_training.py")
HANG_S = 60
"""Less than a rank waits for another one."""


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Make the manager of a rank, as in a process of its own."""
    made = []

    def make(number: int, world_size: int = 2, **more) -> Manager:
        environment = {
            "RANK": number,
            "WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29_500,
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        manager = SnapshotManager(tmp_path / "store", ranks="torchrun", **more)
        made.append(manager)
        return manager

    yield make
    for manager in reversed(made):
        try:
            manager.close()
        except StoreError:
            # The last save failed on purpose.
            manager._saves.close()


def together(*calls):
    """Call functions at the same time; returns their results, or their errors."""
    found = [None] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except StoreError as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def save(manager: Manager, step: int, value: float, **more):
    model = {"w": np.full(1_000, value)}
    return manager.save_snapshot(model, {"m": model["w"] * 2}, 0, step=step, **more)


def waiting_step(first: Manager) -> int:
    """Return the step of the part that rank 1 has handed over, as rank 0 is told."""
    with pytest.raises(StoreError, match=r"rank 1 saves step \d+") as refused:
        save(first, 2, 1.0, wait=True)
    return int(str(refused.value).split("rank 1 saves step ")[1].split()[0])


def damage_part_of_rank_1(path: Path, snapshot_id: str) -> None:
    with open_store(str(path)) as store:
        summary = find_snapshot(store, snapshot_id)
        pieces, _ = StateFiles(store, summary, "rank-00001/")._pieces_of("extra.safetensors")
        content = bytes(store.reader.chunk(pieces[-1].id, kind=DATA))
    flip_content(path, content)
    shutil.rmtree(path / "parity")


def test_the_parts_of_all_ranks_are_one_snapshot_and_each_loads_its_own(rank, tmp_path):
    managers = [rank(number, 3) for number in range(3)]
    expected, handles = [], []
    for number, manager in enumerate(managers):
        np.random.seed(number)
        random.seed(number)
        handles.append(save(manager, 7, 1.5, extra={"of": number}))
        expected.append((np.random.random(), random.random()))
    assert len({handle.wait() for handle in handles}) == 1
    assert len(managers[0].list()) == 1

    loaded = together(*[manager.load_latest_snapshot for manager in managers])
    for number, state in enumerate(loaded):
        assert state["step"] == 7
        assert state["model_state_dict"]["w"][0] == 1.5
        assert state["optimizer_state_dict"]["m"][0] == 3
        assert state["extra"] == {"of": number}
        assert "ranks" not in state
        state.restore_rng()
        assert (np.random.random(), random.random()) == expected[number]

    printed = ciuic("--store", tmp_path / "store", "find", "*")
    assert printed.code == 0, printed.err
    assert "rank-00002" in printed.out
    assert "/state/rank-00000/weights.safetensors" in printed.out
    assert "/state/weights.safetensors" not in printed.out
    assert ciuic("--store", tmp_path / "store", "verify", "--all", "--checksum").code == 0


def test_the_weights_alone_are_those_of_rank_0(rank):
    managers = [rank(number) for number in range(2)]
    for number, manager in enumerate(managers):
        save(manager, 1, 5.0 + number, channel="weights")

    for state in together(*[manager.load_latest_snapshot for manager in managers]):
        assert state["model_state_dict"]["w"][0] == 5
        assert "optimizer_state_dict" not in state


def test_an_older_state_of_ranks_keeps_its_weights_alone(rank):
    managers = [rank(number, keep_optimizer=1) for number in range(2)]
    for step in (1, 2):
        handles = [save(manager, step, float(step), extra={"of": 1}) for manager in managers]
        for handle in handles:
            handle.wait()
    assert [saved.channel for saved in managers[0].list()] == ["full", "weights"]
    for state in together(*[lambda one=manager: one.load_snapshot(1) for manager in managers]):
        assert state["model_state_dict"]["w"][0] == 1
        assert set(state) == {"model_state_dict", "epoch", "step", "metrics"}


def test_a_rank_that_ends_costs_the_save_and_leaves_no_half_snapshot(rank, tmp_path):
    managers = [rank(number, 3) for number in range(3)]
    for manager in managers:
        save(manager, 1, 1.0)
    assert managers[0].wait() is not None
    managers[2].close()

    for manager in managers[:2]:
        save(manager, 2, 2.0)
    for manager in managers[:2]:
        with pytest.raises(StoreError, match="rank 2 ended before it handed over"):
            manager.wait()
    assert [saved.step for saved in managers[0].list()] == [1]
    assert ciuic("--store", tmp_path / "store", "verify", "--all", "--checksum").code == 0


def test_a_rank_that_never_comes_is_named_after_the_time_limit(rank):
    first, second = rank(0, rank_timeout=0.3), rank(1)
    handle = save(first, 4, 1.0)

    with pytest.raises(StoreError, match=r"rank 1 has not handed over .* step 4 in 0.3 s"):
        handle.wait()
    assert first.list() == []
    with pytest.raises(StoreError, match=r"rank 1 came too late .* step 4: rank 1 has not"):
        save(second, 4, 1.0, wait=True)


def test_a_rank_that_comes_too_late_is_told_and_saves_the_next_step(rank):
    first, second = rank(0), rank(1)
    with pytest.raises(TypeError, match="extra"):
        save(first, 1, 1.0, extra=object())
    # Requests are answered in order: after this, rank 0 has abandoned the step.
    first.verify()

    with pytest.raises(StoreError, match=r"rank 1 came too late .* step 1: rank 0 could not save"):
        save(second, 1, 1.0, wait=True)
    for step in (1, 2):
        handle = save(second, step, 2.0)
        assert save(first, step, 2.0).wait() == handle.wait()


def test_rank_0_that_does_not_save_a_step_is_named_after_the_time_limit(rank):
    rank(0, rank_timeout=0.3)
    second = rank(1)
    with pytest.raises(StoreError, match=r"rank 0 has not saved step 3 in 0.3 s"):
        save(second, 3, 1.0, wait=True)


def test_a_rank_that_waits_for_a_rank_0_that_has_ended_is_told(rank):
    first, second = rank(0), rank(1)
    part = save(second, 3, 1.0)
    # The part has arrived: rank 0 sees that it belongs to another step.
    with pytest.raises(StoreError, match="rank 1 saves step 3"):
        save(first, 2, 1.0, wait=True)
    first.close()

    with pytest.raises(StoreError, match="rank 0 ended before it saved step 3"):
        part.wait()


@pytest.mark.timeout(45)  # less than rank 0 waits for its last answers
def test_a_part_whose_manager_is_gone_holds_up_nothing_when_the_rank_comes_again(rank):
    first, gone = rank(0), rank(1)
    save(gone, 3, 1.0)
    wait_until("the part has arrived", lambda: waiting_step(first) == 3)
    gone._saves.close(timeout_s=0.0)

    new = save(rank(1), 4, 1.0)
    wait_until("the new part has arrived", lambda: waiting_step(first) == 4)
    handle = save(first, 4, 1.0)
    assert new.wait() == handle.wait()
    first.close()


@pytest.mark.timeout(HANG_S)
def test_a_rank_is_not_taken_for_ended_while_it_waits_for_a_save_that_ctrl_c_has_ended(
    rank, monkeypatch
):
    first, second = rank(0), rank(1)
    real = RankClient.ask

    def interrupted(self, request):
        real(self, request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RankClient, "ask", interrupted)
        save(second, 1, 1.0)
    # The part of rank 1 was handed over whole.
    save(first, 1, 1.0, wait=True)

    handle = save(first, 2, 2.0)
    connect = second._saves._connected

    def connected():
        with pytest.raises(TimeoutError):
            handle.wait(0.3)  # rank 0 looks for its ranks meanwhile
        return connect()

    monkeypatch.setattr(second._saves, "_connected", connected)
    assert save(second, 2, 2.0).wait() == handle.wait()


@pytest.mark.root
def test_a_rank_that_waits_hurries_the_writer_of_rank_0(rank):
    """Only root may change a session as often as it likes."""
    first, second = rank(0), rank(1)
    writer = first._saves.writer_pid
    path, own = Path(f"/proc/{writer}/autogroup"), Path("/proc/self/autogroup")
    if not path.exists():
        pytest.skip("this kernel has no groups of sessions")
    normal = int((own.read_text().split() or ["0"])[-1])  # empty below PID 1
    os.kill(writer, signal.SIGSTOP)
    try:
        waiting, handle = save(second, 2, 1.0), save(first, 2, 1.0)
        found = [int(path.read_text().split()[-1])]
        with pytest.raises(TimeoutError):
            waiting.wait(0.3)
        found.append(int(path.read_text().split()[-1]))
    finally:
        os.kill(writer, signal.SIGCONT)
    assert found == [min(normal + 10, 19), normal]
    assert waiting.wait() == handle.wait()


def test_ranks_that_save_different_steps_are_refused(rank):
    first, second = rank(0), rank(1)
    waiting = save(second, 8, 1.0)
    with pytest.raises(StoreError, match=r"rank 1 saves step 8 \(full\) while rank 0 saves step 7"):
        save(first, 7, 1.0, wait=True)
    # Rank 1 goes on waiting for rank 0 to reach its step.
    assert save(first, 8, 1.0).wait() == waiting.wait()


@pytest.mark.timeout(HANG_S)
def test_a_rank_that_waits_for_a_step_that_rank_0_has_passed_is_told_at_once(rank):
    first, second = rank(0), rank(1)
    waiting = save(second, 3, 1.0)
    for handle in (save(first, 4, 1.0), waiting):
        with pytest.raises(StoreError, match=r"rank 1 saves step 3 .* while rank 0 saves step 4"):
            handle.wait()
    handles = [save(manager, 5, 1.0) for manager in (second, first)]
    assert handles[0].wait() == handles[1].wait()


@pytest.mark.timeout(HANG_S)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("wrong", [{"extra": object()}, {"epoch": "a\nb"}], ids=["extra", "epoch"])
def test_a_rank_that_cannot_copy_its_state_fails_the_save_of_all_at_once(rank, failing, wrong):
    managers = [rank(number) for number in range(2)]
    other = save(managers[1 - failing], 1, 1.0)
    with pytest.raises((TypeError, UsageError), match=next(iter(wrong))):
        managers[failing].save_snapshot({"w": np.ones(3)}, {}, **{"epoch": 0, "step": 1} | wrong)
    with pytest.raises(StoreError, match=f"rank {failing} could not save"):
        other.wait()

    handles = [save(manager, 1, 2.0) for manager in managers]
    assert handles[0].wait() == handles[1].wait()


def test_all_ranks_resume_from_an_older_snapshot_if_a_part_is_damaged(rank, tmp_path):
    managers = [rank(number) for number in range(2)]
    for step in (1, 2):
        for number, manager in enumerate(managers):
            loader = {"at": np.random.default_rng([step, number]).bytes(300_000)}
            loader["at"] = np.frombuffer(loader["at"], np.uint8)
            save(manager, step, float(step), dataloader=loader)
    newest = managers[0].wait()
    damage_part_of_rank_1(tmp_path / "store", newest)

    with pytest.warns(RuntimeWarning) as told:
        states = together(*[manager.load_latest_snapshot for manager in managers])
    assert len(told) == 1, "rank 0 alone warns"
    assert f"could not be loaded, and the state is that of {states[0].snapshot_id}" in str(
        told[0].message
    )
    assert [state["step"] for state in states] == [1, 1]
    assert [list(state.skipped) for state in states] == [[newest], [newest]]
    for error in together(*[lambda one=one: one.load_snapshot(2) for one in managers]):
        assert isinstance(error, StoreError)


@pytest.mark.timeout(HANG_S)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_exception_that_ends_the_load_of_rank_0_ends_that_of_all_at_once(rank, error):
    first, second = rank(0, rank_timeout=HANG_S / 3), rank(1)
    for manager in (first, second):
        save(manager, 1, 1.0)

    def fail(_state):
        raise error

    def fails() -> None:
        with pytest.raises(error):
            first._loads.newest(None, LoadOptions(None, first._job, fail), joins=False)

    _, told = together(fails, second.load_latest_snapshot)
    assert f"rank 0 could not load a snapshot: {error.__name__}" in str(told)
    states = together(first.load_latest_snapshot, second.load_latest_snapshot)
    assert [state["step"] for state in states] == [1, 1]


def test_no_rank_loads_anything_from_an_empty_store(rank):
    managers = [rank(number) for number in range(2)]
    assert together(*[manager.load_latest_snapshot for manager in managers]) == [None, None]


def test_another_number_of_ranks_loads_the_state_without_what_belongs_to_ranks(rank, tmp_path):
    managers = [rank(number) for number in range(2)]
    for manager in managers:
        save(manager, 1, 6.0)
    for manager in managers:
        manager.close()

    with (
        SnapshotManager(tmp_path / "store") as manager,
        pytest.warns(RuntimeWarning, match="saved by 2 ranks and is loaded by 1"),
    ):
        state = manager.load_latest_snapshot()
    assert state["optimizer_state_dict"]["m"][0] == 12
    with pytest.raises(KeyError, match="random number generators"):
        state.restore_rng()


@pytest.mark.root
def test_a_full_disk_costs_all_ranks_the_optimizer(rank, tmp_path):
    def states(step: int) -> list[dict]:
        """Return 1 MiB of weights, and 14 MiB that only a resumed run needs."""
        chance = np.random.default_rng(step)
        return [{"w": np.frombuffer(chance.bytes(size << 20), np.uint8)} for size in (1, 14)]

    with disk("ext4", tmp_path / "disk", size_mib=96) as place:
        (place.path / "store").mkdir()
        (tmp_path / "store").symlink_to(place.path / "store")
        managers = [rank(number) for number in range(2)]
        for manager in managers:
            manager.save_snapshot(*states(1), step=1)
        managers[0].wait()
        place.leave_free(8 << 20)
        handles = [manager.save_snapshot(*states(2), step=2) for manager in managers]
        with pytest.warns(RuntimeWarning, match="the disk is full"):
            managers[0].wait()
        assert [handle.wait() for handle in handles] == [handles[0].id] * 2
        assert all(handle.is_reduced for handle in handles)

        loads = [lambda one=one: one.load_snapshot(2) for one in managers]
        for state in together(*loads):
            assert np.array_equal(state["model_state_dict"]["w"], states(2)[0]["w"])
            assert "optimizer_state_dict" not in state
        for manager in managers:
            manager.close()


def test_a_killed_writer_is_started_again_and_the_ranks_find_it(rank):
    managers = [rank(number) for number in range(2)]
    for manager in managers:
        save(manager, 1, 1.0)
    for manager in managers:
        manager.wait()
    writer = managers[0]._saves.writer_pid
    os.kill(writer, signal.SIGKILL)
    for manager in managers:
        wait_until("the rank sees it", lambda one=manager: not one._saves._writer.is_alive)

    first, second = together(*[lambda one=one: save(one, 2, 2.0) for one in managers])
    assert first.wait() == second.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": "mpi"}, "is not 'torchrun'"),
        ({"interval": 60}, "ranks reach it at different steps"),
        ({"preemption_grace": 60}, "cannot be combined with ranks"),
        ({"rank_timeout": 0}, "rank_timeout"),
        ({"if_busy": "skip"}, "cannot be combined with ranks"),
    ],
)
def test_what_ranks_cannot_do_is_refused(tmp_path, monkeypatch, arguments, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1" if name != "RANK" else "0")
    with pytest.raises(UsageError, match=message):
        SnapshotManager(tmp_path / "store", **{"ranks": "torchrun", **arguments})
    assert not (tmp_path / "store").exists()


def test_ranks_without_torchrun_or_on_two_machines_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="lacks RANK"):
        SnapshotManager(tmp_path / "store", ranks="torchrun")
    values = {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a"}
    for name, value in {**values, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match="2 of 4 ranks run on this machine"):
        SnapshotManager(tmp_path / "store", ranks="torchrun")


def test_ranks_do_not_load_a_mixture_yet(rank):
    manager = rank(0, 1)
    for wanted in ({"fill_layers": True}, {"join_optimizer": True}):
        with pytest.raises(UsageError, match="cannot be combined with ranks"):
            manager.load_latest_snapshot(**wanted)


def test_a_save_of_ranks_needs_a_step(rank):
    with pytest.raises(UsageError, match="needs step"):
        rank(0, 1).save_snapshot({"w": np.ones(3)})


def losses_of(prefix: Path, number: int) -> dict[int, str]:
    lines = Path(f"{prefix}-{number}").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_with_ddp_that_torchrun_restarts_has_the_same_losses_to_the_bit(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    for name, death in (("whole", -1), ("killed", 8)):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run(
            [sys.executable, *launcher, "--max-restarts=3", TRAINING]
            + [str(value) for value in (tmp_path / name, tmp_path / f"{name}-log", death)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    for number in range(2):
        whole = losses_of(tmp_path / "whole-log", number)
        assert len(whole) == 14
        assert losses_of(tmp_path / "killed-log", number) == whole
        lines = Path(f"{tmp_path / 'killed-log'}-{number}").read_text().splitlines()
        assert json.loads(lines[-1])["first"] == 7
    assert losses_of(tmp_path / "whole-log", 0) != losses_of(tmp_path / "whole-log", 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_layers_of_ranks_are_durable_in_their_order_and_all_ranks_pass_over_a_cut_save(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = [TRAINING.with_name("rank_layers.py"), tmp_path / "store", tmp_path / "log"]
    done = subprocess.run(
        [sys.executable, *launcher, "--max-restarts=1", *program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = (
        [json.loads((tmp_path / f"log-{attempt}-{rank}").read_text()) for rank in range(2)]
        for attempt in range(2)
    )
    assert "was killed by signal 9" in before[0]["error"]
    assert "rank 1 has lost the process that commits for rank 0" in before[1]["error"]
    first = {name: before[0]["step 2"][name] for name in ("0.weight", "0.bias")}
    # The second layer is not due at step 2, so it is the one of step 1.
    second = {name: before[0]["step 1"][name] for name in ("1.weight", "1.bias")}
    for rank, one in enumerate(after):
        assert one["resumed"] == [1, {"rank": rank}, before[rank]["step 1"]]
        assert one["partial"] == [2, first | second]
        assert "fill_layers and join_optimizer cannot be combined with ranks" in one["refused"]
        assert one["step 2"] == before[rank]["step 2"]
        assert "error" not in one

    store = tmp_path / "store"
    listed = ciuic("--store", store, "list", "--json").document
    assert [one["complete"] for one in listed] == [True] * 3
    assert ciuic("--store", store, "verify", "--all", "--checksum").code == 0
    weights = ciuic("--store", store, "ls", "latest", "/state/rank-00000/weights").out
    assert all(name in weights for name in ("first", "second", "rest"))

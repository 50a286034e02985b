"""Several runs in one store: each keeps and loads its own snapshots."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import SnapshotNotFoundError, UsageError
from ciuic.training.finding import run_of
from tests.kit.clock import ManualClock
from tests.kit.filesystems import disk
from tests.kit.program import ciuic

FREEZE, THAW = 0xC004_5877, 0xC004_5878
"""FIFREEZE and FITHAW: a process that writes waits in the kernel until the thaw."""
LIMIT_S = 60
PROGRAM = """\
import os, sys, time, numpy as np
from ciuic import SnapshotManager
store, run, channel = sys.argv[1], sys.argv[2] or None, sys.argv[3]
manager = SnapshotManager(store, run=run)
manager.save_snapshot({"w": np.ones(9)}, step=1, channel=channel, wait=True)
# A worker of a data loader, which may outlive a training that is killed.
worker = os.fork()
if worker == 0:
    time.sleep(600)
print(worker, flush=True)
input()
manager.close()
print("closed", flush=True)
input()
"""


def test_runs_neither_remove_nor_load_each_other_s_snapshots(tmp_path):
    store = tmp_path / "store"
    names = (None, "a", "b")
    managers = {name: SnapshotManager(store, max_snapshots=2, run=name) for name in names}
    newest = {}
    for step in (1, 2, 3):
        for number, (name, manager) in enumerate(managers.items()):
            if (name, step) != ("b", 3):
                state = {"w": np.full(1_000, 10.0 * step + number)}
                newest[name] = manager.save_snapshot(state, epoch=0, step=step)
    for handle in newest.values():
        handle.wait()

    found = {(saved.run, saved.step) for saved in managers["a"].list()}
    assert found == {(None, 3), (None, 2), ("a", 3), ("a", 2), ("b", 2), ("b", 1)}
    for name, manager in managers.items():
        assert manager.load_latest_snapshot().snapshot_id == newest[name].id
    assert managers["b"].load_snapshot("epoch-0")["model_state_dict"]["w"][0] == 22
    assert managers["a"].load_snapshot(2)["model_state_dict"]["w"][0] == 21
    with pytest.raises(SnapshotNotFoundError, match="step 3 of the run b"):
        managers["b"].load_snapshot(3)
    other = managers["b"].load_snapshot(newest["a"].id)
    assert other["model_state_dict"]["w"][0] == 31
    for manager in managers.values():
        manager.close()

    with SnapshotManager(store, run="c") as manager:
        assert manager.load_latest_snapshot() is None
    printed = ciuic("--store", store, "list", "--json")
    assert sum("run-a" in one["tags"] for one in printed.document) == 2


@pytest.mark.parametrize("name", ["a,b", "a|b", "a\n", "x" * 1_000])
def test_a_name_that_can_be_no_tag_is_refused_and_no_store_is_made(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be a tag"):
        SnapshotManager(tmp_path / "store", run=name)
    assert not (tmp_path / "store").exists()


def test_the_name_of_a_distributed_checkpoint_is_no_run():
    assert run_of(("full", "run-a", "step-3")) == "a"
    assert run_of(("full", "step-3")) is None
    assert run_of(("dcp", "run-5")) is None


def test_two_managers_of_one_run_save_and_count_together(tmp_path):
    with SnapshotManager(tmp_path, max_snapshots=3) as one, SnapshotManager(tmp_path) as other:
        for step in range(1, 8):
            manager = one if step % 2 else other
            manager.save_snapshot({"w": np.full(1_000, float(step))}, step=step, wait=True)
        # At the same time, beside each other.
        weights = {"w": np.ones(1_000)}
        handles = [both.save_snapshot(weights, channel="weights") for both in (one, other)]
        assert len({handle.wait() for handle in handles}) == 2

        assert [saved.step for saved in one.list() if saved.channel == "full"] == [7, 6, 5]
        assert other.load_latest_snapshot()["model_state_dict"]["w"][0] == 7
        assert one.verify()["ok"]


def test_a_clock_that_goes_back_changes_neither_the_latest_snapshot_nor_which_stay(tmp_path):
    hour_ns = 3_600 * 10**9
    with SnapshotManager(tmp_path, max_snapshots=2) as manager:
        now_ns = manager._clock.now_ns()
        for step, back_ns in enumerate([0, 2 * hour_ns, hour_ns, 3 * hour_ns]):
            manager._clock = ManualClock(now_ns - back_ns)
            manager.save_snapshot({"w": np.full(1_000, float(step))}, step=step, wait=True)

        assert [saved.step for saved in manager.list()] == [3, 2]
        assert manager.load_latest_snapshot()["step"] == 3


@contextlib.contextmanager
def another_training(store, run, channel) -> Iterator["subprocess.Popen[str]"]:
    """A process that has saved a channel of a run, and a process that it has forked."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, store, run, channel],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        worker = int(process.stdout.readline())
        try:
            yield process
        finally:
            process.kill()
            os.kill(worker, signal.SIGKILL)


def save_all(store, **more) -> list[str]:
    """Save both channels twice with a new manager; returns its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with SnapshotManager(store, **more) as manager:
            for step, channel in enumerate(("weights", "full") * 2):
                manager.save_snapshot({"w": np.ones(9)}, step=step, channel=channel, wait=True)
    assert {one.filename for one in caught} <= {__file__}
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(("run", "said"), [("", "without a name"), ("a", "named a")])
def test_the_second_training_that_saves_a_channel_of_a_run_says_so_once(tmp_path, run, said):
    store = tmp_path / "link" / "store"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with another_training(store, run, "full") as process:
        (warning,) = save_all(store, run=run or None)
        assert f"process {process.pid} saves to {store} as well" in warning
        assert f"the one {said}" in warning
        assert save_all(store, run="b") == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert save_all(store, run=run or None) == [], "it saves no more"


def test_only_the_first_save_of_a_channel_asks_the_file_system_for_others(tmp_path):
    """A store that hangs later, such as one on NFS, then hangs no step of the training."""
    asked = []

    def noted(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"fcntl.lockf", "fcntl.fcntl"}:
            asked.append(event)

    sys.addaudithook(noted)
    with SnapshotManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save_snapshot({"w": np.ones(9)}, step=step, wait=True)
        assert asked == ["fcntl.lockf", "fcntl.fcntl"]
        with SnapshotManager(tmp_path) as other:
            other.save_snapshot({"w": np.ones(9)}, channel="weights", wait=True)
        # Closing the second one's file released the locks of the first one.
        manager.save_snapshot({"w": np.ones(9)}, step=4, wait=True)
        assert asked == ["fcntl.lockf", "fcntl.fcntl"] * 3


def test_a_training_that_was_killed_is_no_other_one(tmp_path):
    with another_training(tmp_path, "", "full") as process:
        process.kill()
        process.wait()
        assert save_all(tmp_path) == []


def test_a_training_that_saves_another_channel_is_no_other_one(tmp_path):
    with another_training(tmp_path, "", "weights"), SnapshotManager(tmp_path) as manager:
        manager.save_snapshot({"w": np.ones(9)}, step=2, wait=True)


@contextlib.contextmanager
def frozen(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY)
    fcntl.ioctl(fd, FREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(fd, THAW, 0)
        os.close(fd)


@pytest.mark.root
def test_the_first_save_of_a_channel_does_not_wait_for_a_file_system_that_hangs(tmp_path):
    """As one on NFS does whose server is gone. When it answers, the channel is claimed."""
    with disk("ext4", tmp_path / "disk", size_mib=64) as made:
        store = made.path / "store"
        with SnapshotManager(store) as manager:
            handles = []

            def save():
                handles.append(manager.save_snapshot({"w": np.ones(9)}, step=2))

            saving = threading.Thread(target=save, daemon=True)
            with frozen(made.path):
                saving.start()
                saving.join(LIMIT_S)
                has_returned = not saving.is_alive()
            assert has_returned, "the save waited for the file system"
            assert handles[0].wait(LIMIT_S)
            manager._claims._asking.join(LIMIT_S)
            inode = (store / "lock.runs").stat().st_ino
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            mine = [lock for lock in locks if lock[1] == "POSIX" and lock[4] == str(os.getpid())]
            assert [lock for lock in mine if lock[5].endswith(f":{inode}")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_newest_state_is_loaded_from_any_machine_with_a_warning_if_this_one_has_another(
    tmp_path: Path,
) -> None:
    """A scheduler may have moved the training, or there are two of them."""
    store = tmp_path / "store"
    program = (
        "import sys, numpy as np; from ciuic import SnapshotManager;"
        "manager, step = SnapshotManager(sys.argv[1]), int(sys.argv[2]);"
        "manager.save_snapshot({'w': np.ones(9)}, step=step, wait=True)"
    )

    def save_elsewhere(step: int) -> None:
        save = [sys.executable, "-c", program, store, str(step)]
        renamed = ["unshare", "-u", "sh", "-c", 'hostname gpu2 && exec "$@"', "sh"]
        subprocess.run([*renamed, *save], check=True, timeout=LIMIT_S)

    def loaded() -> tuple[object, list[str]]:
        with warnings.catch_warnings(record=True) as caught, SnapshotManager(store) as manager:
            warnings.simplefilter("always")
            state = manager.load_latest_snapshot()
        assert state is not None
        said = [one for one in caught if "gpu2" in str(one.message)]
        assert all(one.filename == __file__ for one in said), "it names the caller"
        return state["step"], [str(one.message) for one in said]

    save_elsewhere(1)
    assert loaded() == (1, []), "the training has moved here"
    with SnapshotManager(store) as manager:
        manager.save_snapshot({"w": np.ones(9)}, step=2, wait=True)
    assert loaded() == (2, [])
    save_elsewhere(3)
    step, (said,) = loaded()
    assert step == 3
    assert "was saved on gpu2, and the newest state of this machine is cs-" in said

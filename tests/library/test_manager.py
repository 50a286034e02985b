"""``SnapshotManager``: saving in the background, errors, retention, and bad input."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import (
    BusyError,
    CiuicError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    UsageError,
)
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from ciuic.training.retention.keeping import Keeper
from ciuic.training.retention.planning import Rules
from tests.kit.damage import flip_byte, packs
from tests.kit.program import ciuic

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def manager(tmp_path):
    with SnapshotManager(tmp_path / "store", max_snapshots=3) as made:
        yield made


def state(seed: int, count: int = 100_000) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).normal(size=count).astype(np.float32)}


def writer_pid(manager: SnapshotManager) -> int:
    return manager._saves.writer_pid


def test_the_calls_of_the_documents_work(tmp_path):
    class Counter:
        def __init__(self) -> None:
            self.value = np.zeros(3)

        def state_dict(self) -> dict[str, object]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, object]) -> None:
            self.value = state["value"]

    model, optimizer = Counter(), Counter()
    with contextlib.chdir(tmp_path):
        manager = SnapshotManager(save_dir="./snapshots", interval=3600, max_snapshots=10)
        model.value += 5
        manager.save_snapshot(model, optimizer, 7)
        latest = manager.load_latest_snapshot()
    fresh = Counter()
    fresh.load_state_dict(latest["model_state_dict"])
    assert fresh.value.tolist() == [5, 5, 5]
    assert latest["optimizer_state_dict"]["value"].tolist() == [0, 0, 0]
    assert latest["epoch"] + 1 == 8
    other = Counter()
    manager.load_latest_snapshot(model=other)
    assert other.value.tolist() == [5, 5, 5]
    manager.close()
    assert (tmp_path / "snapshots" / "ciuic-store.json").exists()


def test_an_empty_store_has_no_latest_snapshot(manager):
    assert manager.load_latest_snapshot() is None
    assert manager.list() == []
    assert manager.wait() is None
    with pytest.raises(SnapshotNotFoundError):
        manager.load_snapshot("latest")


def test_a_snapshot_is_found_by_step_tag_id_and_channel(manager):
    for step in (100, 200):
        manager.save_snapshot(state(step), state(1), 1, step=step, metrics={"loss": 0.5})
    weights = manager.save_snapshot(state(300), state(1), 2, step=300, channel="weights").wait()

    listed = manager.list()
    assert [(found.step, found.epoch, found.channel) for found in listed] == [
        (300, 2, "weights"),
        (200, 1, "full"),
        (100, 1, "full"),
    ]
    assert manager.load_snapshot(100)["metrics"] == {"loss": 0.5}
    assert manager.load_snapshot("step-300").snapshot_id == weights
    assert manager.load_snapshot(weights)["step"] == 300
    assert manager.load_latest_snapshot()["step"] == 200
    loaded = manager.load_latest_snapshot(channel="weights")
    assert loaded["step"] == 300
    assert "optimizer_state_dict" not in loaded
    with pytest.raises(KeyError):
        loaded.restore_rng()
    with pytest.raises(UsageError, match="holds only the weights"):
        manager.load_snapshot(300, optimizer=object())
    with pytest.raises(SnapshotNotFoundError, match="step 7"):
        manager.load_snapshot(7)


def test_the_newest_of_each_channel_stay_and_a_pinned_one_is_not_counted(manager):
    first = manager.save_snapshot(state(0), epoch=0, step=0).wait()
    manager.pin(first)
    for step in range(1, 7):
        manager.save_snapshot(state(step), epoch=0, step=step)
        manager.save_snapshot(state(step), epoch=0, step=step, channel="weights")

    full = [found.step for found in manager.list() if found.channel == "full"]
    weights = [found.step for found in manager.list() if found.channel == "weights"]

    assert full == [6, 5, 4, 0]
    assert weights == [6, 5, 4]
    manager.pin(first, pinned=False)
    manager.save_snapshot(state(7), epoch=0, step=7, wait=True)
    assert [found.step for found in manager.list() if found.channel == "full"] == [7, 6, 5]


SAVES = """\
import json, pathlib, resource, sys
from ciuic import SnapshotManager
from tests.library.test_manager import state, writer_pid
store = pathlib.Path(sys.argv[1])
sizes, memory, writer_kb = [], [], []
def of_writer(name, field):
    text = pathlib.Path(f"/proc/{writer_pid(manager)}/{name}").read_text()
    return int(text.split(field)[1].split()[0])
with SnapshotManager(store, max_snapshots=5) as manager:
    for step in range(200):
        manager.save_snapshot(state(step, 400_000), epoch=0, step=step, wait=True)
        sizes.append(sum(path.stat().st_size for path in store.rglob("*") if path.is_file()))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        writer_kb.append(of_writer("smaps_rollup", "Private_Dirty:"))
    peak_kb = of_writer("status", "VmHWM:")
    done = [sizes, memory, writer_kb, peak_kb, len(manager.list()), manager.verify()["ok"]]
json.dump(done, sys.stdout)
"""


@pytest.mark.slow
def test_the_size_on_the_disk_and_the_memory_stay_flat(tmp_path):
    """A state of 1.6 MB that changes completely, two hundred times.

    In a process of its own: the memory of this one depends on the tests before.
    """
    saved = subprocess.run(
        [sys.executable, "-c", SAVES, tmp_path],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
    )
    sizes, memory, writer_kb, writer_peak_kb, count, is_ok = json.loads(saved.stdout)
    assert count == 5
    assert is_ok
    assert max(sizes[100:]) <= max(sizes[20:100]) * 1.1
    assert max(sizes) < 13 * 1_600_000
    assert memory[-1] < memory[20] + 30_000
    assert writer_peak_kb < 400_000
    # What each save leaves in reference cycles was 27 KB; a hundred saves would show it.
    assert min(writer_kb[-20:]) < min(writer_kb[80:100]) + 1_500


def test_a_failed_save_is_raised_by_the_next_call_and_not_again(manager, tmp_path):
    manager.save_snapshot(state(1), epoch=1, wait=True)
    header = tmp_path / "store" / "ciuic-store.json"
    hidden = header.rename(tmp_path / "hidden")
    handle = manager.save_snapshot(state(2), epoch=2)

    with pytest.raises(StoreError):
        manager.save_snapshot(state(3), epoch=3)

    assert handle.done
    assert handle.id is None
    hidden.rename(header)
    manager.save_snapshot(state(4), epoch=4, wait=True)
    assert [found.epoch for found in manager.list()] == [4, 1]


@pytest.mark.parametrize("call", ["wait", "close", "load_latest_snapshot", "list", "handle"])
def test_a_failed_save_is_never_lost(tmp_path, call):
    manager = SnapshotManager(tmp_path / "store")
    header = tmp_path / "store" / "ciuic-store.json"
    hidden = header.rename(tmp_path / "hidden")
    handle = manager.save_snapshot(state(2), epoch=2)
    while not handle.done:
        threading.Event().wait(0.01)
    hidden.rename(header)

    with pytest.raises(StoreError):
        handle.wait() if call == "handle" else getattr(manager, call)()

    manager.close()  # raised once, the failure is not raised again
    manager.close()


def test_a_save_that_would_wait_is_skipped_if_the_program_says_so(tmp_path):
    with SnapshotManager(tmp_path, if_busy="skip", full_every=2) as manager:
        # While this process has the store, the first save cannot end.
        with open_store(str(tmp_path), write=True):
            first = manager.save_snapshot(state(1), step=1)
            skipped = manager.step(2, state(2))
            assert (skipped.done, skipped.id) == (True, None)
            with pytest.raises(BusyError, match="was not saved"):
                skipped.wait()
        first.wait()
        manager.step(4, state(4)).wait()
        assert [one.step for one in manager.list()] == [4, 1]
        # A save that waits is not skipped, and does not raise the error of the skipped one.
        manager.save_snapshot(state(5), step=5)
        manager.save_snapshot(state(6), step=6, wait=True)
        assert [one.step for one in manager.list()] == [6, 5, 4, 1]
    with pytest.raises(UsageError, match="if_busy"):
        SnapshotManager(tmp_path / "new", if_busy="never")
    assert not (tmp_path / "new").exists()


def test_the_program_s_own_error_is_not_replaced(tmp_path, capsys):
    header = tmp_path / "store" / "ciuic-store.json"
    with pytest.raises(ZeroDivisionError), SnapshotManager(tmp_path / "store") as manager:
        header.rename(tmp_path / "hidden")
        manager.save_snapshot(state(2), epoch=2)
        raise ZeroDivisionError

    assert "ciuic: the last save failed" in capsys.readouterr().err


def test_a_program_that_ends_without_close_still_saves_and_reports(tmp_path):
    program = (
        "import sys, numpy as np; from ciuic import SnapshotManager\n"
        "manager = SnapshotManager(sys.argv[1])\n"
        "manager.save_snapshot({'w': np.ones(3)}, epoch=1)\n"
        "if sys.argv[2:]:\n"
        "    manager.wait()\n"
        "    import os; os.rename(sys.argv[1] + '/ciuic-store.json', sys.argv[1] + '/../hidden')\n"
        "    manager.save_snapshot({'w': np.ones(3)}, epoch=2)\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with SnapshotManager(tmp_path / "store") as manager:
        assert manager.load_latest_snapshot()["epoch"] == 1

    done = subprocess.run([*command, "fail"], capture_output=True, text=True, check=False)
    assert "ciuic: the last save failed: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_writer_stands_back_until_the_program_waits_for_it(manager):
    """Only root may change a session as often as it likes."""
    manager.save_snapshot({"w": np.zeros(3)}, wait=True)
    path, own = Path(f"/proc/{writer_pid(manager)}/autogroup"), Path("/proc/self/autogroup")
    for _ in range(2):
        os.kill(writer_pid(manager), signal.SIGSTOP)
        handle = manager.save_snapshot({"w": np.zeros(3)})
        nice = [path.read_text().split()[-1]] if path.exists() else []
        with pytest.raises(TimeoutError):
            handle.wait(0.3)
        nice += [path.read_text().split()[-1]] if path.exists() else []
        os.kill(writer_pid(manager), signal.SIGCONT)
        handle.wait()
        if nice and os.geteuid() == 0:
            normal = int((own.read_text().split() or ["0"])[-1])  # empty below PID 1
            assert list(map(int, nice)) == [min(normal + 10, 19), normal]


def test_a_writer_that_is_killed_costs_one_save(manager):
    manager.save_snapshot(state(1), epoch=1, wait=True)
    os.kill(writer_pid(manager), signal.SIGSTOP)
    handle = manager.save_snapshot(state(2), epoch=2)
    os.kill(writer_pid(manager), signal.SIGKILL)

    with pytest.raises(StoreError, match="was killed by signal 9; this save is lost"):
        handle.wait()

    assert manager.save_snapshot(state(3), epoch=3).wait()
    assert [found.epoch for found in manager.list()] == [3, 1]
    assert manager.verify()["ok"]


def test_a_damaged_snapshot_is_passed_over_and_named(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store) as manager:
        good = manager.save_snapshot(state(1), epoch=1).wait()
        before = set(packs(store))
        bad = manager.save_snapshot(state(2), epoch=2).wait()
        for pack in set(packs(store)) - before:
            flip_byte(pack, pack.stat().st_size // 2)
        shutil.rmtree(store / "parity")

        with pytest.warns(RuntimeWarning) as warned:
            loaded = manager.load_latest_snapshot()

        (said,) = [str(one.message) for one in warned]
        assert said.startswith(
            f"ciuic: 1 snapshot could not be loaded, and the state is that of {good} (epoch 1):"
            f" {bad}: {loaded.skipped[bad]}"
        )
        assert warned[0].filename == __file__, "the line that loads"
        assert loaded.snapshot_id == good
        assert list(loaded.skipped) == [bad]
        assert np.array_equal(loaded["model_state_dict"]["w"], state(1)["w"])
        assert not manager.verify(bad)["ok"]
        assert manager.verify(good)["ok"]
        with pytest.raises(CorruptionError):
            manager.load_snapshot(bad)
        for pack in packs(store):
            flip_byte(pack, pack.stat().st_size // 2 + 1)
        with pytest.raises(CorruptionError, match=r"no snapshot in .* is undamaged"):
            manager.load_latest_snapshot()


def test_a_command_in_an_error_reaches_the_store(tmp_path):
    store = tmp_path / "it's mine"
    with SnapshotManager(store) as manager:
        manager.save_snapshot(state(1), wait=True)
        with pytest.raises(SnapshotNotFoundError) as caught:
            manager.load_snapshot("cs-123456")
        assert caught.value.__notes__ == [caught.value.hint]
        told = re.fullmatch("Run '(ciuic .* list)' to see .*", caught.value.hint)
        assert ciuic(*shlex.split(told[1])[1:]).code == 0

        shutil.rmtree(store / "snapshots")
        with pytest.raises(CorruptionError) as caught:
            manager.save_snapshot(state(2)).wait()  # another process raises it
    told = re.search("run '(ciuic .* repair --apply)'", caught.value.hint)
    assert ciuic(*shlex.split(told[1])[1:]).code == 0
    assert len(SnapshotManager(store).list()) == 1


def test_a_damaged_manifest_is_named(tmp_path):
    store = tmp_path / "store"
    with SnapshotManager(store) as manager:
        manager.save_snapshot(state(1), epoch=1).wait()
        bad = manager.save_snapshot(state(2), epoch=2).wait()
        (store / "snapshots" / f"{bad}.json").write_text("{}")
        assert manager.load_latest_snapshot()["epoch"] == 2  # from the copy of its manifest
        shutil.rmtree(store / "parity")

        with pytest.warns(RuntimeWarning, match=f"could not be loaded, .*{bad}"):
            loaded = manager.load_latest_snapshot()

        assert loaded["epoch"] == 1
        assert bad in loaded.skipped


@pytest.mark.parametrize("damaged", [True, False])
def test_no_snapshot_is_removed_while_none_that_stays_is_sound(tmp_path, damaged):
    store = tmp_path / "store"
    with SnapshotManager(store) as manager:
        good = manager.save_snapshot(state(1), epoch=1).wait()
        before = set(packs(store))
        newest = manager.save_snapshot(state(2), epoch=2).wait()
    if damaged:
        for pack in set(packs(store)) - before:
            pack.unlink()
        shutil.rmtree(store / "parity")

    with open_store(str(store), write=True) as opened:
        Keeper(SystemClock()).keep(opened, "full", Rules(1))

    with SnapshotManager(store) as manager:
        assert [saved.id for saved in manager.list()] == [newest, good][: 2 if damaged else 1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"max_snapshots": 0}, "max_snapshots=0"),
        ({"max_snapshots": 2.5}, "max_snapshots=2.5"),
        ({"max_snapshots": None}, "max_snapshots=None"),
        ({"interval": "soon"}, "interval='soon'"),
        ({"interval": -1}, "interval=-1"),
        ({"full_every": 0}, "full_every=0"),
        ({"save_dir": "ftp://bucket/run"}, "'ftp:' is not a kind of store"),
        ({"save_dir": "s3://me:key@bucket/run"}, "holds a user name or a password"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, arguments, what):
    with pytest.raises(UsageError) as caught:
        SnapshotManager(**{"save_dir": tmp_path / "store", **arguments})

    assert what in caught.value.message
    assert not (tmp_path / "store").exists()


def test_a_directory_that_is_no_store_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(StoreError, match="is not empty"):
        SnapshotManager(tmp_path)

    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_store_that_has_lost_its_header_is_not_taken_for_another_directory(tmp_path):
    with SnapshotManager(tmp_path) as manager:
        manager.save_snapshot(state(1), wait=True)
    for name in ("copies", "restored"):  # of 'ciuic copy' and of 'ciuic restore'
        (tmp_path / name).mkdir()
    (tmp_path / "ciuic-store.json").unlink()

    with pytest.raises(StoreError, match="has lost its header"):
        SnapshotManager(tmp_path)


def test_wrong_calls_are_refused(manager, tmp_path):
    with pytest.raises(UsageError, match="neither 'full' nor 'weights'"):
        manager.save_snapshot({}, channel="both")
    with pytest.raises(TypeError, match="model has no state: int"):
        manager.save_snapshot(5)
    with pytest.raises(UsageError, match="has no schedule"):
        manager.step(1, {})
    with pytest.raises(TypeError, match="model cannot take a state"):
        manager.save_snapshot(state(1), wait=True)
        manager.load_latest_snapshot(model=5)
    if not (child := os.fork()):
        try:
            manager.save_snapshot({})
        except UsageError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    manager.close()
    with pytest.raises(UsageError, match="is closed"):
        manager.save_snapshot({})


def test_a_forked_process_does_not_keep_the_writer_alive(tmp_path):
    """Workers of a data loader are forked, and hold every pipe of the training program."""
    manager = SnapshotManager(tmp_path / "store")
    manager.save_snapshot({}, wait=True)
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        closing = threading.Thread(target=manager.close)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)


def test_steps_save_by_their_rules(tmp_path):
    rules = {"full_every": 10, "weights_every": 4}
    with SnapshotManager(tmp_path / "store", max_snapshots=100, **rules) as manager:
        for step in range(1, 25):
            handle = manager.step(step, state(step, 10), state(1, 10), 0)
            assert (handle is not None) == (step % 10 == 0 or step % 4 == 0)
        found = {saved.step: saved.channel for saved in manager.list()}
    weights = dict.fromkeys([4, 8, 12, 16, 24], "weights")
    assert found == {**weights, 10: "full", 20: "full"}

    with SnapshotManager(tmp_path / "other", interval="7 steps") as manager:
        assert [step for step in range(0, 30, 2) if manager.should_save(step)] == [8, 14, 22, 28]
    with SnapshotManager(tmp_path / "other", interval=3600) as manager:
        assert not any(manager.should_save(step) for step in range(50))
    with SnapshotManager(tmp_path / "other", interval=1e-9) as manager:
        assert manager.should_save(1) == "full"


def test_the_store_can_be_shared_with_the_commands(manager, tmp_path):
    manager.save_snapshot(state(1), epoch=1, wait=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log").write_text("1")
    store = tmp_path / "store"
    assert ciuic("--store", store, "snapshot", tmp_path / "data").code == 0
    manager.save_snapshot(state(2), epoch=2, wait=True)

    assert manager.load_latest_snapshot()["epoch"] == 2
    assert len(manager.list()) == 2
    files = ciuic("--store", store, "list", "--json").document
    other = next(found["id"] for found in files if "/state" not in found["roots"])
    with pytest.raises(UsageError, match="is a snapshot of files"):
        manager.load_snapshot(other)
    with open_store(str(store), write=True):
        handle = manager.save_snapshot(state(3), epoch=3)
        with pytest.raises(TimeoutError):
            handle.wait(0.5)
    assert handle.wait() == handle.id
    assert not issubclass(BusyError, TimeoutError)
    assert issubclass(BusyError, CiuicError)

"""After a signal to end, the program saves at the next step, and ends by itself."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from ciuic import SnapshotManager
from ciuic.errors import BusyError, UsageError
from tests.kit.daemon import wait_until

PATIENCE_S = 120
STATE = {"w": np.arange(50_000.0)}
LOOP = """\
import os, signal, sys, numpy as np
from ciuic import SnapshotManager
manager = SnapshotManager(sys.argv[1], interval="1000000 steps", preemption_grace="10m")
weights = np.zeros(100_000)
for step in range(1, 10**9):
    weights += step
    manager.step(step, {"w": weights}, {"m": -weights}, 0)
    print(step, flush=True)
    if manager.should_stop:
        # Nothing after this line may be needed: the machine goes away.
        os.kill(manager._saves.writer_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def manager(tmp_path):
    with SnapshotManager(tmp_path / "store", preemption_grace=600) as made:
        yield made


def notify(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def writer_pid(manager: SnapshotManager) -> int:
    return manager._saves.writer_pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda each: each.name)
def test_a_preempted_run_is_durable_when_its_next_step_returns(tmp_path, number):
    store = tmp_path / "store"
    run = subprocess.Popen([sys.executable, "-c", LOOP, store], stdout=subprocess.PIPE, text=True)
    with run.stdout:
        assert run.stdout.readline() == "1\n"
        run.send_signal(number)
        last = int(run.stdout.read().split()[-1])
    assert run.wait(PATIENCE_S) == -signal.SIGKILL

    with SnapshotManager(store) as manager:
        (only,) = manager.list()
        latest = manager.load_latest_snapshot()
    assert (only.step, only.channel) == (last, "full")
    assert latest["model_state_dict"]["w"][0] == last * (last + 1) / 2
    assert latest["optimizer_state_dict"]["m"][-1] == -last * (last + 1) / 2


def test_a_signal_sets_a_flag_and_one_state_is_saved_for_it(manager):
    assert not manager.preempted
    assert manager.step(1, STATE) is None
    assert manager.list() == []
    notify()
    assert manager.preempted
    assert not manager.should_stop

    # A run cannot resume from the weights alone.
    manager.save_snapshot(STATE, epoch=0, step=1, channel="weights")
    assert not manager.should_stop
    handle = manager.step(2, STATE)

    assert handle.id is not None
    assert manager.preempted
    assert manager.should_stop
    assert manager.step(3, STATE) is None
    notify(signal.SIGUSR1)
    assert manager.should_save(4) == "full"
    assert manager.save_snapshot(STATE, step=4).id is not None
    assert manager.should_save(5) is None
    assert [saved.step for saved in manager.list()] == [4, 2, 1]


def test_the_earlier_handlers_are_called_and_come_back(tmp_path):
    seen = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def handler(number: int, _frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, handler)
    try:
        first = SnapshotManager(tmp_path / "store", preemption_grace=600)
        second = SnapshotManager(tmp_path / "other", preemption_grace=600)
        notify()
        assert seen == [signal.SIGTERM]
        assert first.preempted
        assert second.preempted
        # The first one closes first: the second one still knows it, and calls it.
        first.close()
        notify()
        assert seen == [signal.SIGTERM] * 2
        second.close()
        notify()
        assert seen == [signal.SIGTERM] * 3
        signal.signal(signal.SIGTERM, handler)
        with SnapshotManager(tmp_path / "store", preemption_grace=600):
            assert signal.getsignal(signal.SIGTERM) is not handler
        assert signal.getsignal(signal.SIGTERM) is handler
        with SnapshotManager(tmp_path / "store") as manager:
            assert signal.getsignal(signal.SIGTERM) is handler
            notify()
            assert not manager.preempted
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def test_a_forked_worker_ends_at_a_signal_as_it_did_before(manager):
    ready, told = os.pipe()
    if not (child := os.fork()):
        os.write(told, b".")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    # ``pause`` may begin after the first one: the default action does not need it.
    os.kill(child, signal.SIGTERM)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert not manager.preempted


def test_a_save_that_outlasts_the_grace_period_goes_on_without_the_program(tmp_path):
    with SnapshotManager(tmp_path / "store", preemption_grace=0.2) as manager:
        manager.save_snapshot(STATE, step=1, wait=True)
        os.kill(writer_pid(manager), signal.SIGSTOP)
        try:
            notify()
            with pytest.warns(RuntimeWarning, match="the grace period ends before"):
                handle = manager.step(2, STATE)
            assert not handle.done
            notify()
            # The memory that is being stored cannot take another state.
            with pytest.warns(RuntimeWarning, match="the grace period ends before"):
                assert manager.step(3, STATE) is handle
        finally:
            os.kill(writer_pid(manager), signal.SIGCONT)
        assert handle.wait(PATIENCE_S)
        assert [saved.step for saved in manager.list()] == [2, 1]


@pytest.mark.timeout(PATIENCE_S)
def test_a_save_that_an_exception_ended_does_not_outlast_the_grace_period(tmp_path, monkeypatch):
    with SnapshotManager(tmp_path / "store", preemption_grace=0.2) as manager:
        manager.save_snapshot(STATE, step=1, wait=True)
        writer = manager._saves._writer
        os.kill(writer.pid, signal.SIGSTOP)
        try:
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr("ciuic.training.saves.SaveHandle", interrupt)
                manager.save_snapshot(STATE, step=2)
            notify()
            # The memory of step 2 cannot take another state.
            with pytest.warns(RuntimeWarning, match="the grace period ends before"):
                handle = manager.step(3, {"w": STATE["w"] * 2})
            with pytest.raises(BusyError, match="this state was not saved: an earlier save"):
                handle.wait()
            assert not manager.should_stop
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        wait_until("step 2 is durable", lambda: writer.has_ended)
        with pytest.warns(RuntimeWarning, match="the grace period ends before"):
            assert manager.step(4, STATE).wait(PATIENCE_S)
        assert [saved.step for saved in manager.list()] == [4, 2, 1]
        assert np.array_equal(manager.load_snapshot(2)["model_state_dict"]["w"], STATE["w"])


def test_the_wait_for_a_writer_that_hangs_ends_in_time(tmp_path):
    with SnapshotManager(tmp_path / "store") as manager:
        manager.save_snapshot(STATE, step=1, wait=True)
        writer = manager._saves._writer
        os.kill(writer.pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            writer.close(3.0)
            took_s = time.monotonic() - began_s
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        assert 3.0 <= took_s < 5.8, "the thread that listens was waited for as well"


def test_the_failure_of_an_earlier_save_does_not_prevent_the_last_one(manager):
    manager.save_snapshot(STATE, step=1, wait=True)
    os.kill(writer_pid(manager), signal.SIGSTOP)
    manager.save_snapshot(STATE, step=2)
    os.kill(writer_pid(manager), signal.SIGKILL)
    notify()

    with pytest.warns(RuntimeWarning, match="was killed by signal 9; this save is lost") as caught:
        handle = manager.step(3, STATE)

    assert caught[0].filename == __file__, "the warning is about this line"
    assert handle.id is not None
    assert [saved.step for saved in manager.list()] == [3, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_the_writer_survives_what_a_scheduler_sends_to_every_process(tmp_path, number):
    with SnapshotManager(tmp_path / "store") as manager:
        handle = manager.save_snapshot(STATE, step=1)
        # At its very first moment as well, before it runs a line of Python.
        os.kill(writer_pid(manager), number)
        assert handle.wait(PATIENCE_S)
        os.kill(writer_pid(manager), number)
        assert manager.save_snapshot(STATE, step=2).wait(PATIENCE_S)


@pytest.mark.parametrize("grace", [0, -1, "soon", "0s"])
def test_a_grace_period_that_makes_no_sense_is_refused(tmp_path, grace):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(UsageError, match="preemption_grace="):
        SnapshotManager(tmp_path / "store", preemption_grace=grace)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_is_told_that_it_cannot_handle_signals(tmp_path):
    found = []

    def make() -> None:
        try:
            SnapshotManager(tmp_path / "store", preemption_grace=1)
        except UsageError as error:
            found.append(error.message)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert found == ["only the main thread can handle SIGTERM and SIGUSR1"]


def test_a_warning_that_is_an_error_comes_when_the_preempted_state_is_durable(manager):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Linear(2, 2)
    notify()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="it has no optimizer"):
            manager.save_snapshot(module, step=1)
    assert manager.should_stop

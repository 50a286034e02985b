"""Work in a child process of the daemon: what comes back, and what happens when one dies."""

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ciuic.config.load import load_settings
from ciuic.control import request_snapshot, request_status
from ciuic.errors import BusyError, CancelledError, ResourceError, StoreError
from ciuic.system.clock import SystemClock, rfc3339
from ciuicd.jobs.background import in_background
from ciuicd.jobs.child import Child, in_child
from ciuicd.jobs.steps import all_steps
from ciuicd.schedules.state import ScheduleState
from tests.kit.clock import ManualClock
from tests.kit.daemon import Daemon, Machine, wait_until

MIB = 1024 * 1024


def run(
    work: Callable[[Child], object],
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
    note_progress: Callable[[], None] = lambda: None,
) -> tuple[object, list[object]]:
    """Return what the work returned, and what it told."""
    told: list[object] = []
    steps = in_child(
        work,
        clock=SystemClock(),
        is_cancelled=is_cancelled,
        note_progress=note_progress,
        told=told.append,
    )
    return all_steps(steps), told


def test_what_the_work_tells_and_returns_comes_back_and_nothing_else() -> None:
    here: list[int] = []

    def work(child: Child) -> tuple[int, str]:
        here.append(1)
        for number in range(3):
            child.tell({"number": number, "path": "\udcff"})
        return os.getpid(), "x" * 300_000

    (pid, text), told = run(work)  # type: ignore[misc]
    assert pid != os.getpid()
    assert text == "x" * 300_000
    assert told == [{"number": number, "path": "\udcff"} for number in range(3)]
    assert here == []
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "error",
    [
        BusyError("it is held", hint="Wait."),
        CancelledError("it was stopped"),
        OSError(28, "No space left on device", "/a"),
    ],
)
def test_an_error_of_the_work_is_raised_here(error: Exception) -> None:
    def work(_child: Child) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run(work)
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "hint", "") == getattr(error, "hint", "")


def test_a_bug_keeps_its_traceback_and_what_cannot_be_sent_becomes_a_store_error() -> None:
    def has_a_bug(_child: Child) -> None:
        raise ValueError("seven")

    with pytest.raises(ValueError, match="seven") as raised:
        run(has_a_bug)
    assert "in has_a_bug" in "".join(raised.value.__notes__)

    def returns_a_lock(_child: Child) -> object:
        return threading.Lock()

    with pytest.raises(TypeError, match="pickle"):
        run(returns_a_lock)

    class LocalError(Exception):
        pass

    def raises_it(_child: Child) -> None:
        raise LocalError("of this function")

    with pytest.raises(StoreError, match="LocalError: of this function"):
        run(raises_it)


def test_too_few_descriptors_for_a_child_are_a_shortage() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(ResourceError, match="no process can be started"):
            run(lambda _child: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class TwoPartError(Exception):
    """Can be pickled, but not read again: its arguments are not those of its constructor."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_that_cannot_be_read_again_becomes_a_store_error() -> None:
    def work(_child: Child) -> None:
        raise TwoPartError("one", "two")

    with pytest.raises(StoreError, match="TwoPartError: one two"):
        run(work)


def test_work_that_is_cancelled_notices_and_shows_progress_until_then() -> None:
    noted: list[int] = []

    def work(child: Child) -> None:
        while not child.is_cancelled():
            pass
        raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        run(work, is_cancelled=lambda: len(noted) > 2, note_progress=lambda: noted.append(1))


def test_work_that_hangs_shows_no_progress() -> None:
    read_end, write_end = os.pipe()
    looks: list[int] = []
    noted: list[int] = []
    others = psutil.Process().children()  # other tests may leave a helper of theirs

    def is_cancelled() -> bool:
        looks.append(1)
        if len(looks) == 10:
            (child,) = set(psutil.Process().children()) - set(others)
            child.kill()
        return False

    def work(_child: Child) -> None:
        signal.pause()

    with pytest.raises(StoreError, match="was killed by signal 9"):
        run(work, is_cancelled=is_cancelled, note_progress=lambda: noted.append(1))
    assert noted == []
    os.close(read_end)
    os.close(write_end)


def test_upkeep_that_never_asks_whether_to_stop_is_not_taken_for_hung(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    noted: list[int] = []

    def note_progress() -> None:
        noted.append(1)
        if len(noted) == 5:
            gate.touch()

    def work(_must_stop: Callable[[], bool], _is_ending: Callable[[], bool]) -> str:
        wait_until("progress was noted", gate.exists)
        return "done"

    found = in_background(
        "prune",
        work,
        apart=True,
        clock=SystemClock(),
        must_stop=lambda: False,
        is_ending=lambda: False,
        note_progress=note_progress,
    )
    assert found == "done"


def test_the_child_has_no_descriptor_of_its_parent() -> None:
    ours, theirs = socket.socketpair()

    def work(_child: Child) -> list[str]:
        places = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
        found = []
        for place in places:
            with contextlib.suppress(OSError):  # of the listing itself
                found.append(os.readlink(place))
        return [one for one in found if one != os.devnull]

    with ours, theirs:
        found, _ = run(work)
    assert isinstance(found, list)
    assert len(found) == 1, "the pipe to the parent"
    assert found[0].startswith("pipe:")


def is_taking(machine: Machine) -> bool:
    status = request_status(str(machine.store))
    return status is not None and status["state"] == "taking"


@pytest.fixture
def held(machine: Machine) -> tuple[Machine, Daemon, Path]:
    """A daemon whose first snapshot waits in a hook, and the file that lets it go on."""
    gate = machine.directory / "gate"
    machine.configure(before=f"while [ ! -e {gate} ]; do sleep 0.05; done", hook_timeout="10m")
    daemon = machine.start()
    wait_until("the snapshot has begun", lambda: is_taking(machine) and bool(below(daemon)))
    return machine, daemon, gate


def below(daemon: Daemon) -> list[psutil.Process]:
    return psutil.Process(daemon.process.pid).children()


def test_a_snapshot_whose_process_is_killed_is_one_line_and_the_next_is_taken(
    held: tuple[Machine, Daemon, Path],
) -> None:
    machine, daemon, gate = held
    (taking,) = below(daemon)
    taking.suspend()
    gate.touch()
    taking.kill()
    daemon.wait_for_log("snapshot failed: the daemon's process that did the work was killed by")
    assert (
        f"'ciuic --config {machine.config} list' shows whether the snapshot was committed"
        in daemon.log()
    )
    wait_until("it waits", lambda: not is_taking(machine))
    status = request_status(str(machine.store))
    assert status is not None
    assert status["next"] <= rfc3339(time.time_ns()), "the slot is not served: it tries again"
    assert request_snapshot(str(machine.store)) is not None
    daemon.wait_for_log("no warnings")
    assert daemon.stop() == 0
    assert daemon.log().count("snapshot failed") == 1
    assert "Traceback" not in daemon.log()


def test_a_slot_whose_process_is_killed_is_repeated_once(machine: Machine) -> None:
    clock = ManualClock()
    settings = load_settings(str(machine.config)).schedules[0]
    state = ScheduleState(settings, clock, lambda: None)

    def attempts() -> int:
        count = 0
        for _ in range(10):
            if state.is_due:
                count += 1
                state.try_again_once()
                state.attempt_ended()
            clock.advance(61)
        return count

    assert attempts() == 2
    clock.advance(365 * 86_400)
    assert attempts() == 2, "the next slot is repeated too"


def test_a_daemon_whose_starter_ignores_the_end_of_children_takes_snapshots(
    machine: Machine,
) -> None:
    ignores = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    run_rest = "os.execvp(sys.argv[1], sys.argv[1:])"
    daemon = machine.launch(wrapper=(sys.executable, "-c", f"{ignores}; {run_rest}"))
    daemon.wait_for_log("serves")
    wait_until("the first attempt ended", lambda: "snapshot " in daemon.log())
    assert "no warnings" in daemon.log()
    assert daemon.stop() == 0


def test_a_daemon_that_is_killed_takes_the_process_of_its_snapshot_with_it(
    held: tuple[Machine, Daemon, Path],
) -> None:
    machine, daemon, gate = held
    (taking,) = below(daemon)
    daemon.kill()
    wait_until("its process ends", lambda: not taking.is_running())
    gate.touch()
    assert machine.snapshots() == []
    machine.configure()
    machine.start().wait_for_log("no warnings")


def test_a_client_that_was_answered_is_not_kept_waiting_by_a_snapshot(machine: Machine) -> None:
    gate = machine.directory / "gate"
    machine.configure(before=f"while [ ! -e {gate} ]; do sleep 0.05; done", hook_timeout="10m")
    daemon = machine.launch()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)

        def is_connected() -> bool:
            with contextlib.suppress(OSError):
                client.connect(str(machine.store / "control.sock"))
                return True
            return daemon.ended()

        wait_until("the socket is there", is_connected)
        wait_until("the snapshot has begun", lambda: is_taking(machine) and bool(below(daemon)))
        client.sendall(b'{"do": "status"}\n')
        received = b""
        while piece := client.recv(100_000):
            received += piece
        assert received.startswith(b'{"status"')
    gate.touch()
    assert daemon.stop() == 0


def test_a_daemon_stays_small_after_a_snapshot_of_many_files(machine: Machine) -> None:
    for number in range(20_000):
        place = machine.source / f"d{number // 500}"
        if number % 500 == 0:
            place.mkdir()
        (place / f"f{number}").write_bytes(b"%d" % number)
    machine.configure(metrics_file=str(machine.directory / "ciuic.prom"))
    daemon = machine.start()
    daemon.wait_for_log("no warnings")
    assert daemon.answers()
    wait_until("no process of it is left", lambda: not below(daemon))
    memory_bytes = psutil.Process(daemon.process.pid).memory_info().rss
    print(f"{memory_bytes / MIB:.0f} MiB")
    assert memory_bytes < 60 * MIB

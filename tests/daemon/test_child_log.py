"""The log of the daemon's child processes: through the pipe, in order, without locks of threads."""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ciuic.control import request_status
from ciuic.documents import Document
from ciuic.errors import ChildDiedError
from ciuic.system.clock import SystemClock
from ciuicd.control import Server
from ciuicd.jobs import forking, watching
from ciuicd.jobs.child import Child, in_child
from ciuicd.jobs.forking import without_forks
from ciuicd.jobs.steps import all_steps
from tests.kit.daemon import Machine, wait_until

log = logging.getLogger("tests.child")
RECORDS = 2_000


class Kept(logging.Handler):
    """Keeps the records, with the process that they came to."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The only handler of this process."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [Kept()]
    root.setLevel(logging.INFO)
    yield root.handlers[0]  # type: ignore[misc]
    root.handlers[:] = before
    root.setLevel(level)


def run(work: object, is_ending: object = lambda: False) -> object:
    return all_steps(
        in_child(
            work,  # type: ignore[arg-type]
            clock=SystemClock(),
            is_cancelled=lambda: False,
            is_ending=is_ending,  # type: ignore[arg-type]
        )
    )


def test_what_a_killed_process_has_logged_is_in_the_log_in_order(kept: Kept) -> None:
    def work(_child: Child) -> None:
        for number in range(RECORDS):
            log.warning("line %d", number, extra={"fields": {"event": "test", "id": number}})
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildDiedError):
        run(work)
    assert [one.getMessage() for one in kept.records] == [f"line {n}" for n in range(RECORDS)]
    last = kept.records[-1]
    assert (last.name, last.levelname, last.process) == ("tests.child", "WARNING", os.getpid())
    assert last.__dict__["fields"] == {"event": "test", "id": RECORDS - 1}


def test_a_traceback_of_a_child_process_is_in_the_log(kept: Kept) -> None:
    def work(_child: Child) -> None:
        try:
            raise ValueError("seven")
        except ValueError:
            log.exception("a bug")

    run(work)
    (record,) = kept.records
    assert "ValueError: seven" in str(record.exc_text)
    assert record.levelno == logging.ERROR


class Slow(io.RawIOBase):
    """A stream whose writer waits, with the lock of the buffer above it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()
        self.released = threading.Event()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.waits.set()
        self.released.wait(60)
        return len(data)  # type: ignore[arg-type]


def test_no_lock_that_another_thread_holds_at_the_fork_hangs_the_child(
    monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    slow = Slow()
    stream = io.TextIOWrapper(io.BufferedWriter(slow), line_buffering=True)
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    writing = threading.Thread(target=log.warning, args=("a thread writes",))
    writing.start()
    assert slow.waits.wait(60)

    def work(_child: Child) -> str:
        # Both would wait for the thread, which does not exist here.
        log.info("from the child")
        print("nothing of the parent", file=sys.stderr)
        return "done"

    hung = threading.Event()
    others = psutil.Process().children()  # other tests may leave a helper of theirs

    def is_zombie() -> bool:
        return [one.status() for one in psutil.Process().children() if one not in others] == [
            psutil.STATUS_ZOMBIE
        ]

    def release() -> None:
        # The parent's own log waits for the thread, so the child has to end first.
        try:
            wait_until("the child has ended", is_zombie)
        except AssertionError:
            hung.set()
        slow.released.set()

    monkeypatch.setattr(watching, "ENDS_WITHIN_S", 0.0)
    releasing = threading.Thread(target=release)
    releasing.start()
    assert run(work, hung.is_set) == "done"
    releasing.join()
    writing.join()
    assert [one.getMessage() for one in kept.records] == ["a thread writes", "from the child"]


def test_a_fork_waits_until_no_thread_is_in_code_that_holds_locks(kept: Kept) -> None:
    del kept
    inside = threading.Event()
    order: list[str] = []

    def import_something() -> None:
        with without_forks():
            inside.set()
            wait_until("the main thread wants to fork", lambda: forking._is_forking)
            order.append("imported")

    thread = threading.Thread(target=import_something)
    thread.start()
    assert inside.wait(60)
    assert run(lambda _child: list(order)) == ["imported"]
    thread.join()

    def enter(_child: Child) -> str:
        with without_forks():
            return "free in the child"

    assert run(enter) == "free in the child"


def test_a_thread_that_hangs_there_does_not_keep_the_daemon_from_forking(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    del kept
    monkeypatch.setattr(forking, "_PATIENCE_S", 0.2)
    inside, released = threading.Event(), threading.Event()

    def hang() -> None:
        with without_forks():
            inside.set()
            released.wait(60)

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(60)
    assert run(lambda _child: "done") == "done"
    released.set()
    thread.join()


def test_the_daemon_logs_what_its_child_says_while_it_works(machine: Machine) -> None:
    machine.configure(before="echo stops the database; exec sleep 1000", hook_timeout="10m")
    daemon = machine.start()
    daemon.wait_for_log("hook before: stops the database")
    (child,) = psutil.Process(daemon.process.pid).children()
    child.kill()
    daemon.wait_for_log("snapshot failed")
    assert daemon.stop() == 0
    lines = [line for line in daemon.log().splitlines() if "hook" in line or "failed" in line]
    assert [line.split(":")[1] for line in lines] == [" hook before", " snapshot failed"]


class Asked:
    """What a control socket offers; it records whether a fork would wait."""

    def __init__(self) -> None:
        self.kept_from_forking: list[bool] = []

    def status(self) -> Document:
        self.kept_from_forking.append(forking._busy == 1)
        return {}

    def control_group(self) -> None:
        return None


def test_no_fork_finds_a_client_in_the_middle_of_its_request(tmp_path: Path) -> None:
    asked = Asked()
    server = Server(str(tmp_path), asked, SystemClock())  # type: ignore[arg-type]
    try:
        assert request_status(str(tmp_path)) is not None
    finally:
        server.close()
    assert asked.kept_from_forking == [True]
    assert forking._busy == 0

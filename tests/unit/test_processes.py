"""Worker processes answer while they can. After any failure, no caller waits or fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic.system.workers.processes import Processes

ANSWERS = "tests.kit.answers"
LAST = bytes(range(256))
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(ANSWERS, ["first", "\udcff second\n'\""]) as started:
        started.begin(LAST)
        yield started


def asked(processes: Processes, request: bytes) -> bytes | None:
    """Return the answer of a process that is ready."""
    for _ in until(PATIENCE_S):
        answer = processes.ask(request)
        if answer is not None:
            return answer
    return None


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.005)


def pids(processes: Processes) -> set[int]:
    found: set[int] = set()
    for _ in until(PATIENCE_S):
        found.add(int(asked(processes, b"who") or 0))
        if len(found) == 2:
            break
    return found


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_each_answers_what_it_was_asked(processes: Processes) -> None:
    assert len(pids(processes) - {os.getpid()}) == 2
    for request in (b"", b"short", os.urandom(3 << 20)):
        assert asked(processes, request) == request


def test_arguments_arrive_whatever_is_in_them(processes: Processes) -> None:
    assert asked(processes, b"arguments") == b"first\0\xff second\n'\"\0" + LAST


def test_a_worker_that_dies_of_a_request_is_given_up(processes: Processes) -> None:
    assert len(pids(processes)) == 2
    assert processes.ask(b"die") is None
    assert [processes.ask(b"still there") for _ in range(4)] == [b"still there"] * 4
    assert processes.ask(b"die") is None
    assert [processes.ask(b"still there") for _ in range(4)] == [None] * 4


def test_killed_workers_are_given_up(processes: Processes) -> None:
    for pid in pids(processes):
        os.kill(pid, signal.SIGKILL)
    assert [processes.ask(b"still there") for _ in range(4)] == [None] * 4


def test_an_interrupt_of_the_process_group_does_not_end_the_workers(processes: Processes) -> None:
    for pid in pids(processes):
        os.kill(pid, signal.SIGINT)
    assert asked(processes, b"still there") == b"still there"


def test_workers_end_when_they_are_closed(processes: Processes) -> None:
    found = pids(processes)
    processes.close()
    assert not [pid for pid in found if is_there(pid)]


def test_only_one_process_imports_the_modules_of_the_workers(processes: Processes) -> None:
    found = pids(processes)
    imported_by = {int(asked(processes, b"parent") or 0) for _ in range(8)}
    assert len(found) == 2
    assert len(imported_by) == 1
    assert imported_by < found


def test_workers_do_not_answer_before_they_are_ready() -> None:
    with Processes(ANSWERS, ["first", "second"]) as processes:
        assert processes.ask(b"anybody") is None
        processes.begin(LAST)
        assert processes.ask(b"anybody") == b"anybody"


def test_the_other_workers_answer_after_the_first_is_killed(processes: Processes) -> None:
    found = pids(processes)
    (first,) = {int(asked(processes, b"parent") or 0)}
    os.kill(first, signal.SIGKILL)
    answers = {processes.ask(b"who") for _ in range(8)}
    assert answers == {None, *[str(one).encode() for one in found - {first}]}
    processes.close()
    for _ in until(PATIENCE_S):
        if not any(is_there(one) for one in found):
            return
    pytest.fail("a process outlives the one that it worked for")


def test_no_zombie_process_is_left(processes: Processes) -> None:
    found = pids(processes)
    processes.close()
    assert not [one for one in found if Path(f"/proc/{one}").exists()]


def test_no_caller_waits_for_a_worker_that_hangs(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciuic.system.workers.processes._PATIENCE_S", 0.01)
    found = pids(processes)
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    processes.close()
    for _ in until(PATIENCE_S):
        if not any(is_there(one) for one in found):
            return
    pytest.fail("a process that was stopped is still there")


def test_a_missing_module_is_not_a_failure() -> None:
    with Processes("ciuic.no_such_module", []) as processes:
        processes.begin(LAST)
        for _ in until(PATIENCE_S):
            assert processes.ask(b"anybody") is None
            if not any(child.is_alive for child in processes._all):
                return
        pytest.fail("a process that cannot answer is still waited for")


@pytest.mark.parametrize("program", ["", "/usr/bin/training", "/no/such/python3"])
def test_without_an_interpreter_no_worker_answers(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with Processes(ANSWERS, ["first", "second"]) as processes:
        processes.begin(LAST)
        assert processes.ask(b"anybody") is None


def test_a_single_processor_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with Processes(ANSWERS, ["first", "second"]) as processes:
        processes.begin(LAST)
        assert processes._all == []
        assert processes.ask(b"anybody") is None


def test_workers_end_if_their_parent_is_killed() -> None:
    program = (
        "import os, sys, time\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        "from ciuic.system.workers.processes import Processes\n"
        f"processes = Processes({ANSWERS!r}, ['first', 'second'])\n"
        "processes.begin(b'')\n"
        "found = set()\n"
        "while len(found) < 2:\n"
        "    found.add(processes.ask(b'who') or b'')\n"
        "    found.discard(b'')\n"
        "print(*[one.decode() for one in found], flush=True)\n"
        "time.sleep(600)\n"
    )
    here = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=here,
    ) as parent:
        assert parent.stdout is not None
        found = [int(one) for one in parent.stdout.readline().split()]
        assert len(found) == 2
        parent.kill()
    for _ in until(PATIENCE_S):
        if not any(is_there(pid) for pid in found):
            return
    pytest.fail("a process outlives the one that it worked for")

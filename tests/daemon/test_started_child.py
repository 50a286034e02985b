"""A child process of the daemon that is started, and is no fork."""

import contextlib
import errno
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ciuic.config.load import load_settings
from ciuic.errors import BusyError, ChildDiedError, ResourceError, StoreError
from ciuic.model import ExcludeRules
from ciuic.snapshot.hooks import Hooks
from ciuic.snapshot.pace.disk_waits import DiskWaits
from ciuic.snapshot.pace.pressure import Pressure
from ciuic.snapshot.plan import TakeRequest
from ciuic.system.clock import SystemClock
from ciuicd.jobs import starting
from ciuicd.jobs.child import Child, in_child
from ciuicd.jobs.snapshot import SnapshotWork
from ciuicd.jobs.steps import all_steps
from tests.kit import works
from tests.kit.daemon import REPOSITORY, Machine, wait_until


def run(work: Callable[[Child], Any], told: Callable[[Any], None] = lambda _document: None) -> Any:
    """Return what the work returned."""
    steps = in_child(work, clock=SystemClock(), is_cancelled=lambda: False, told=told, starts=True)
    return all_steps(steps)


@pytest.fixture
def descriptors() -> Any:
    """Fail if the test has left a descriptor open."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    # Others may be closed meanwhile: those that another test has left.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_it_is_another_process_with_this_environment_and_none_of_these_descriptors(
    descriptors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        found = run(works.Work("a value \udcff").do)
    assert found["value"] == "a value \udcff"
    assert found["parent"] == os.getpid() != found["pid"]
    assert found["environ"] == dict(os.environ)
    assert found["nice"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert found["encoding"] == sys.getfilesystemencoding()
    assert [one.partition(":")[0] for one in sorted(found["open"])] == ["/memfd", "pipe"]
    assert b"secret" not in found["command"]
    assert b"a value" not in found["command"]
    with pytest.raises(ChildProcessError):
        os.waitpid(found["pid"], 0)


def test_a_hook_has_none_of_its_descriptors(descriptors: None) -> None:
    """A hook may give up its rights, and the daemon trusts what it reads from the pipe."""
    assert run(works.runs_a_hook) == ["0", "1", "2"]


def test_what_the_work_tells_comes_back(descriptors: None) -> None:
    told: list[Any] = []
    assert run(works.tells, told.append) == "x" * 300_000
    assert told == [{"number": number, "path": "\udcff"} for number in range(3)]


def test_it_has_threads_of_its_own() -> None:
    assert run(works.ThreadedWork.do) == 2


def test_its_log_goes_through_this_process_and_its_standard_error_is_the_same(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        run(works.says)
    assert [record.getMessage() for record in caplog.records] == ["one", "three 3"]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert capfd.readouterr().err == "two\n"


def test_errors_of_the_work_are_raised_here(descriptors: None) -> None:
    with pytest.raises(BusyError, match="it is held") as raised:
        run(works.fails)
    assert raised.value.hint == "Wait."
    with pytest.raises(ValueError, match="seven") as bug:
        run(works.has_a_bug)
    assert "in has_a_bug" in "".join(bug.value.__notes__)


def test_an_interpreter_that_is_gone_is_one_sentence(
    descriptors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python3")
    with pytest.raises(StoreError, match="cannot be started: /nowhere/bin/python3: No such file"):
        run(works.tells)


def test_a_program_that_is_gone_is_one_sentence_with_what_python_says(
    descriptors: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As in the middle of an upgrade."""
    (tmp_path / "ciuicd").mkdir()
    (tmp_path / "ciuicd" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StoreError) as raised:
        run(works.tells)
    assert raised.value.message == (
        "the daemon's process for the work did not start:"
        " ModuleNotFoundError: No module named 'ciuicd.program'"
    )
    assert "Install ciuic again" in raised.value.hint
    assert capfd.readouterr().err == "", "the sentence is in the log, and no traceback"


@pytest.mark.parametrize(
    "raises",
    [
        "MemoryError",
        "OSError(9, os.strerror(9))",
        "OSError(24, os.strerror(24))",
        "ImportError('libx.so: cannot open shared object file: Error 24')",
        "ImportError('libx.so: failed to map segment from shared object')",
    ],
)
def test_a_limit_that_a_new_process_meets_is_a_shortage(
    descriptors: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raises: str
) -> None:
    (tmp_path / "ciuicd").mkdir()
    (tmp_path / "ciuicd" / "__init__.py").write_text(f"import os\nraise {raises}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ResourceError, match="did not start: ") as raised:
        run(works.tells)
    assert "LimitNOFILE=" in raised.value.hint


def test_a_program_that_was_replaced_meanwhile_does_no_work(
    descriptors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starting.AT_START is not None
    monkeypatch.setattr(starting, "AT_START", starting.AT_START + 1)
    with pytest.raises(BusyError, match="ciuic was replaced on disk"):
        run(works.tells)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_too_many_processes_are_a_shortage(
    descriptors: None, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_arguments: object, **_more: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(ResourceError, match=f"for the work: {os.strerror(number)}"):
        run(works.tells)


@pytest.mark.parametrize("more", range(5))
def test_too_few_descriptors_are_a_shortage(descriptors: None, more: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(2)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + more, limits[1]))
    try:
        with pytest.raises(ResourceError, match="no process can be started"):
            run(works.tells)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("moment", ["before it begins", "while it works"])
def test_one_that_is_killed_is_an_error_of_the_work(descriptors: None, moment: str) -> None:
    others = psutil.Process().children()
    steps = in_child(
        works.waits,
        clock=SystemClock(),
        is_cancelled=lambda: False,
        told=lambda document: os.kill(document["pid"], signal.SIGKILL),
        starts=True,
    )
    next(steps)
    if moment == "before it begins":
        for child in set(psutil.Process().children()) - set(others):
            child.kill()
    with pytest.raises(ChildDiedError, match="was killed by signal 9") as raised:
        all_steps(steps)
    assert raised.value.exit_status == 128 + signal.SIGKILL


def test_one_that_ends_without_an_answer_had_begun(descriptors: None) -> None:
    with pytest.raises(ChildDiedError, match="ended with exit status 3") as raised:
        run(works.ends)
    assert raised.value.exit_status == 3


def test_steps_that_are_given_up_kill_it(descriptors: None) -> None:
    pids: list[int] = []
    steps = in_child(
        works.waits,
        clock=SystemClock(),
        is_cancelled=lambda: False,
        told=lambda document: pids.append(document["pid"]),
        starts=True,
    )
    wait_until("it works", lambda: next(steps) is None and bool(pids))
    steps.close()
    assert not psutil.pid_exists(pids[0])


PARENT = """
from ciuic.system.clock import SystemClock
from ciuicd.jobs.child import in_child
from ciuicd.jobs.steps import all_steps
from tests.kit import works
all_steps(in_child(
    works.waits,
    clock=SystemClock(),
    is_cancelled=lambda: False,
    told=lambda document: print(document["pid"], flush=True),
    starts=True,
))
"""


def test_it_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    try:
        wait_until("it ends", lambda: not child.is_running())
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def test_the_work_of_a_snapshot_can_be_sent(machine: Machine) -> None:
    machine.configure(exclude_patterns="*.tmp, /cache/", before="true")
    clock = SystemClock()
    work = SnapshotWork(
        load_settings(str(machine.config)),
        TakeRequest(
            (b"/a\xff",),
            exclude=ExcludeRules(("*.tmp",)),
            base_interval_s=1.0,
            hot_by_schedule={"hourly": 3},
        ),
        Hooks("true", "", 3.0),
        "f" * 32,
        2.0,
        idles_s=None,
        waits=(Pressure({"io": ["/proc/pressure/io"]}), DiskWaits(clock)),
        clock=clock,
    )
    sent = pickle.loads(pickle.dumps(work))
    assert sent[:6] == work[:6]
    assert [type(one) for one in sent.waits] == [Pressure, DiskWaits]
    assert sent.waits[0].waited_us() is not None

"""A child process of the daemon that hangs, or is killed while hooks run."""

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ciuic.control import request_status
from ciuic.errors import ChildDiedError
from ciuic.system.clock import SystemClock
from ciuicd.alerting.faults import find_faults
from ciuicd.jobs import background, watching
from ciuicd.jobs.child import Child, in_child
from ciuicd.jobs.steps import all_steps
from tests.kit.daemon import Daemon, Machine, wait_until
from tests.kit.notified import notified
from tests.kit.program import ciuic

LIMITS = """
import sys
from ciuicd import notify
from ciuicd.jobs import background, watching
notify.STALLED_S = watching.STALLED_S = {stalled_s}
background.ENDS_WITHIN_S = watching.ENDS_WITHIN_S = {ends_within_s}
{more}
from ciuicd.__main__ import main
sys.exit(main(sys.argv[4:]))
"""
"""The daemon with other limits; its own command follows: interpreter, -m, ciuicd."""


def start(
    machine: Machine,
    *,
    stalled_s: float = 1800.0,
    ends_within_s: float = 45.0,
    more: str = "",
    **environ: str,
) -> Daemon:
    program = LIMITS.format(stalled_s=stalled_s, ends_within_s=ends_within_s, more=more)
    return machine.launch(environ, wrapper=(sys.executable, "-c", program))


def taking(machine: Machine, daemon: Daemon) -> psutil.Process:
    """Return the process that takes a snapshot, once it runs a hook."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        status = request_status(str(machine.store))
        if status is not None and status["state"] == "taking":
            found[:] = psutil.Process(daemon.process.pid).children()
        return any(child.children() for child in found)

    wait_until("the snapshot has begun", is_there)
    return found[0]


def holding(machine: Machine, **more: str) -> Path:
    """Have snapshots wait in the hook ``before``; return the file that lets them go on."""
    gate = machine.directory / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    machine.configure(before=wait, **{"hook_timeout": "10m", **more})
    return gate


def stop_process(process: psutil.Process) -> None:
    process.suspend()
    wait_until("it is stopped", lambda: process.status() == psutil.STATUS_STOPPED)


def test_a_child_that_hangs_is_killed_when_the_daemon_ends_and_that_is_one_line(
    machine: Machine,
) -> None:
    # The hook stops its parent: the test itself might come too late for its time limit.
    machine.configure(before="kill -STOP $PPID; exec sleep 1000", hook_timeout="1s")
    daemon = start(machine, ends_within_s=1.0)
    child = taking(machine, daemon)
    wait_until("it is stopped", lambda: child.status() == psutil.STATUS_STOPPED)
    assert daemon.stop() == 0
    assert not child.is_running()
    lines = [line for line in daemon.log().splitlines() if "was killed" in line]
    assert len(lines) == 1
    assert "snapshot failed: the daemon's process that did the work was killed: it did" in lines[0]
    assert (
        f"'ciuic --config {machine.config} list' shows whether the snapshot was committed"
        in lines[0]
    )
    assert "Traceback" not in daemon.log()


HANGS = """
import pathlib, signal
from ciuic.snapshot import hooks
def hang(*_arguments, **_more):
    pathlib.Path({mark!r}).touch()
    signal.pause()
hooks.take_snapshot = hang
"""
"""A snapshot that hangs between its hooks."""


def test_a_hook_that_is_over_gives_no_time_to_a_child_that_hangs_and_after_has_its_own(
    machine: Machine,
) -> None:
    hangs, said = machine.directory / "hangs", machine.directory / "said"
    # A hook that is over at once needs no time, and asks for none.
    after = f"echo $CIUIC_HOOK > {said}; while [ ! -e {said}.heard ]; do sleep 0.05; done"
    machine.configure(before="true", after=after, hook_timeout="10m")
    address = machine.directory / "notify"
    with notified(address) as messages:
        more = HANGS.format(mark=str(hangs))
        daemon = start(machine, ends_within_s=0.2, more=more, NOTIFY_SOCKET=str(address))
        wait_until("the snapshot hangs", hangs.exists)
        daemon.signal(signal.SIGTERM)
        wait_until("it asks for time", lambda: bool(extended(messages)))
        Path(f"{said}.heard").touch()
        assert daemon.stop() == 0
    assert extended(messages) == [b"EXTEND_TIMEOUT_USEC=605000000"]
    assert "was killed: it did not end in" in daemon.log()
    assert said.read_text() == "after\n"


def extended(messages: list[bytes]) -> list[bytes]:
    return [one for one in messages if one.startswith(b"EXTEND_TIMEOUT_USEC=")]


def test_a_child_that_shows_no_progress_is_in_the_log_and_in_the_status_until_it_goes_on(
    machine: Machine,
) -> None:
    gate = holding(machine)
    daemon = start(machine, stalled_s=3.0)
    child = taking(machine, daemon)
    wait_until("it makes progress", lambda: stalled_s(machine) is None)
    stop_process(child)
    wait_until("the status knows it", lambda: stalled_s(machine) is not None)
    shown = ciuic("--config", machine.config, "status")
    assert "the work has made no progress for" in shown.out, shown
    checked = ciuic("--config", machine.config, "doctor")
    assert "has made no progress" in checked.out + checked.err
    faults = {
        fault.key: fault.text for fault in find_faults(machine_settings(machine), SystemClock())
    }
    assert "there is no snapshot" in faults["snapshot"], "although one is being taken"
    child.resume()
    gate.touch()
    daemon.wait_for_log("no warnings")
    assert stalled_s(machine) is None
    assert daemon.log().count(f"{child.pid}, has made no progress for") == 1
    assert daemon.stop() == 0


def machine_settings(machine: Machine):
    from ciuic.config.load import load_settings

    return load_settings(str(machine.config))


def stalled_s(machine: Machine) -> object:
    status = request_status(str(machine.store))
    assert status is not None
    return status["stalled_s"]


def test_a_child_that_hangs_in_the_middle_of_a_message_is_killed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "ENDS_WITHIN_S", 0.2)
    reported: list[int] = []

    def work(child: Child) -> None:
        os.write(child._answers.fd, b"\xff\0\0\0\0\0\0\0half")
        child.is_cancelled()
        signal.pause()

    with pytest.raises(ChildDiedError, match="was killed: it did not end in") as raised:
        all_steps(
            in_child(
                work,
                clock=SystemClock(),
                is_cancelled=lambda: False,
                is_ending=lambda: bool(reported),
                note_progress=lambda: reported.append(1),
            )
        )
    assert raised.value.exit_status == 128 + signal.SIGKILL


def test_work_that_needs_its_time_has_it_although_the_daemon_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watching, "ENDS_WITHIN_S", 0.0)
    end = tmp_path / "end"
    looks: list[int] = []

    def work(child: Child) -> str:
        child.needs(60)
        wait_until("it is over", end.exists)
        return "done"

    def is_ending() -> bool:
        looks.append(1)
        if len(looks) == 20:
            end.touch()
        return len(looks) > 5

    steps = in_child(work, clock=SystemClock(), is_cancelled=lambda: False, is_ending=is_ending)
    assert all_steps(steps) == "done"


@pytest.mark.parametrize("moment", ["before runs", "before is over", "after runs"])
def test_after_runs_once_to_its_end_if_the_process_of_the_snapshot_is_killed(
    machine: Machine, moment: str
) -> None:
    here, said, orphan = (machine.directory / name for name in ("here", "said", "orphan"))
    once = f"[ -e {here} ] || {{ touch {here}; "
    forever = f"echo $$ > {orphan}; exec sleep 1000; }}"
    hooks = {
        "before runs": (once + forever, ""),
        "before is over": (f"{once} kill -STOP $PPID; }}", ""),
        "after runs": ("true", f"{once} kill -KILL $PPID; {forever}; "),
    }
    before, begin = hooks[moment]
    machine.configure(
        before=before,
        after=f"{begin}echo $CIUIC_HOOK $CIUIC_EXIT_STATUS >> {said}",
        hook_timeout="10m",
    )
    daemon = machine.start()
    wait_until("the moment has come", here.exists)
    if moment == "before runs":
        wait_until("the hook runs", lambda: orphan.exists() and orphan.read_text().endswith("\n"))
        taking(machine, daemon).kill()
    elif moment == "before is over":
        child = taking(machine, daemon)
        wait_until("it is stopped", lambda: child.status() == psutil.STATUS_STOPPED)
        child.kill()
    daemon.wait_for_log("snapshot failed: the daemon's process that did the work was killed")
    assert said.read_text() == "after 137\n"
    if orphan.exists():
        pid = int(orphan.read_text())
        wait_until("the hook that ran is gone", lambda: not psutil.pid_exists(pid))
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_hook_after_that_fails_after_the_death_of_its_process_is_a_line(machine: Machine) -> None:
    machine.configure(before="kill -KILL $PPID", after="echo no database; exit 3")
    daemon = machine.start()
    daemon.wait_for_log("hook the hook 'after' failed with exit status 3: no database")
    daemon.wait_for_log("snapshot failed")
    assert daemon.stop() == 0


def test_a_thread_that_hangs_does_not_keep_the_daemon_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "ENDS_WITHIN_S", 0.2)
    released = threading.Event()
    with pytest.raises(ChildDiedError, match="the thread that did the work did not end in"):
        background.in_background(
            "scrub",
            lambda _must_stop, _is_ending: released.wait(60),
            apart=False,
            clock=SystemClock(),
            must_stop=lambda: True,
            is_ending=lambda: True,
            note_progress=lambda: None,
        )
    released.set()

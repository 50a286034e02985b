"""``ciuic run``: the command's terminal, signals, environment and exit status are its own."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.jobs import WITHOUT_CGROUP, Run
from tests.kit.program import CIUIC, ciuic, environment

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_it_exits_with_the_status_of_the_command(code: int) -> None:
    with Run("run", "--", "sh", "-c", f"exit {code}") as run:
        assert run.end() == code


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "INT", "PIPE"])
def test_a_command_that_a_signal_kills_ends_it_by_the_same_signal(name: str) -> None:
    with Run("run", "--job", "seven", "--", "sh", "-c", f"kill -{name} $$") as run:
        assert run.end() == -getattr(signal, f"SIG{name}")
    assert (
        f"job seven was killed by signal {getattr(signal, f'SIG{name}'):d} (SIG{name})" in run.err
    )


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [("/nowhere/train", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")],
)
def test_a_command_that_cannot_be_started(command: str, status: int, said: str) -> None:
    done = ciuic("run", "--", command, "--json")

    assert done.code == status
    assert f"'{command}' cannot be started: {said}" in done.err
    assert done.out == ""


def test_its_options_end_where_the_command_begins(tmp_path: Path) -> None:
    """Even without ``--``: the command's options are not those of ciuic."""
    program = "import sys; print(sys.argv[1:])"
    for begin in ([], ["--"]):
        done = ciuic("run", *begin, sys.executable, "-c", program, "--config", "x", "--job", "y")
        assert (done.code, done.out) == (0, "['--config', 'x', '--job', 'y']\n")


SEEN = """
import os, signal
names = ("SigBlk", "SigIgn", "SigCgt")
with open("/proc/self/status") as file:
    print(*[line.strip() for line in file if line.startswith(names)])
print(sorted(os.listdir("/proc/self/fd")))
print(sorted(os.environ.items()))
print(os.getpgrp() == os.getpgid(os.getppid()), os.nice(0), os.umask(0))
"""


def test_the_command_finds_everything_as_without_ciuic() -> None:
    """Signals, descriptors, environment, process group and priority."""
    plain = subprocess.run(
        [sys.executable, "-c", SEEN], capture_output=True, text=True, env=environment(), check=True
    )
    with Run("run", "--job", "j", "--", sys.executable, "-c", SEEN) as run:
        assert run.end() == 0

    assert run.out.replace("('CIUIC_JOB', 'j'), ", "") == plain.stdout


TRAPS = """
import signal, sys, time
counts = {}
def note(number, frame):
    counts[number] = counts.get(number, 0) + 1
    print("got", signal.Signals(number).name, counts[number], flush=True)
    if number in (signal.SIGTERM, signal.SIGINT):
        sys.exit(23)
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    signal.signal(getattr(signal, "SIG" + name), note)
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


@pytest.mark.parametrize("last", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(last: signal.Signals) -> None:
    with Run("run", "--", sys.executable, "-c", TRAPS) as run:
        run.waits_for("ready")
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
            run.send(number)
            run.waits_for(f"got {number.name} 1")
        run.send(last)
        assert run.end() == 23
    assert "critical" not in run.err, "the user ended it"


def test_a_terminal_stays_the_users_and_ctrl_c_comes_once() -> None:
    program = f"import os; print('tty', os.isatty(0), os.tcgetpgrp(0) == os.getpgrp()){TRAPS}"
    pid, terminal = pty.fork()
    if pid == 0:
        command = [*CIUIC, "run", "--", sys.executable, "-c", program]
        os.execvpe(command[0], command, environment())
    said = b""
    try:
        while b"ready" not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while True:
            said += os.read(terminal, 4096)
    except OSError:  # the terminal was closed
        pass
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)

    assert os.waitstatus_to_exitcode(status) == 23, said
    assert b"tty True True" in said
    assert b"got SIGINT 1" in said
    assert b"got SIGINT 2" not in said


def test_a_failure_takes_an_emergency_snapshot(box: Box) -> None:
    (box.source / "weights").write_bytes(b"w" * 10_000)
    done = box.ciuic("run", "--job", "seven", "--", "sh", "-c", f"echo x > {box.source}/y; exit 3")

    assert done.code == 3
    assert "critical: job seven failed with exit status 3" in done.err
    (taken,) = box.snapshots()
    assert f"emergency snapshot {taken.id} was taken" in done.err
    assert taken.tags == ("emergency",)
    assert box.read(box.source / "y") == b"x\n"


def test_success_and_an_end_that_was_asked_for_take_none(box: Box) -> None:
    assert box.ciuic("run", "--", "true").code == 0
    with Run("--config", box.config, "run", "--", sys.executable, "-c", TRAPS) as run:
        run.waits_for("ready")
        run.send(signal.SIGTERM)
        assert run.end() == 23

    assert box.snapshots() == []


@ROOT
def test_a_user_without_rights_on_the_store_is_told_at_once(public_box: Box) -> None:
    public_box.store.chmod(0o700)
    done = ciuic(
        "--config", public_box.config, "run", "--", "sh", "-c", "echo here; exit 3", user=65534
    )

    assert done.code == 3
    assert done.out == "here\n"
    assert "no snapshot can be taken if the job fails" in done.err
    assert "emergency" not in done.err


def test_limits_apply_or_the_command_is_not_started(tmp_path: Path) -> None:
    """Only a system whose controllers belong to cgroups of version 2 has limits."""
    mark = tmp_path / "started"
    limits = ("--memory-max", "64M", "--cpus", "1.5", "--cpu-weight", "50", "--io-weight", "20")
    shown = f"d=$(awk '/ - cgroup2 /{{print $5}}' /proc/self/mountinfo)$(sed -n \"s/^0:://p\" \
/proc/self/cgroup); touch {mark}; cat $d/memory.max $d/cpu.max $d/cpu.weight $d/io.weight"
    done = ciuic("run", *limits, "--", "sh", "-c", shown)

    if done.code == 0:
        assert done.out == "67108864\n150000 100000\n50\ndefault 20\n"
    else:
        assert done.code == 1
        assert "the limits cannot be set: " in done.err
        assert not mark.exists()


@ROOT
def test_without_cgroups_it_says_so_and_runs_the_command() -> None:
    done = ciuic("run", "--job", "j", "--", "sh", "-c", "exit 4", wrapper=WITHOUT_CGROUP)

    assert done.code == 4
    assert "job j has no cgroup of its own: this system has no cgroups of version 2" in done.err


def test_processes_that_outlive_the_command_are_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with Run(
        "run", "--", "sh", "-c", f"setsid sleep 100 >/dev/null 2>&1 & echo $! > {file}"
    ) as run:
        assert run.end() == 0
    left = int(file.read_text())
    try:
        assert "1 process of job sh is still running" in run.err
        assert Path(f"/proc/{left}").exists()
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["--cpu-weight", "0", "--", "true"], "'0' is not a whole number from 1 to 10,000"),
        (["--cpu-weight", "2.5", "--", "true"], "'2.5' is not a whole number from 1 to 10,000"),
        (["--cpus", "0", "--", "true"], "'0' is not a number from 0.01 to 100,000"),
        (["--cpus", "many", "--", "true"], "'many' is not a number from 0.01 to 100,000"),
        (["--cpus", "nan", "--", "true"], "'nan' is not a number from 0.01 to 100,000"),
        (["--memory-max", "much", "--", "true"], "'much' is not a size"),
        (["--memory-max", "1k", "--", "true"], "less than 1 MiB"),
        (["--nonsense", "--", "true"], "No such option"),
        (["--job", "", "--", "true"], "is empty"),
    ],
)
def test_wrong_options_start_nothing(arguments: list[str], said: str) -> None:
    done = ciuic("run", *arguments)

    assert done.code == 2
    assert said in done.err

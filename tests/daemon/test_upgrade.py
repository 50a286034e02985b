"""A running daemon whose program is replaced on disk, in a virtual environment of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuic import __version__
from ciuic.control import request_done, request_snapshot, request_status
from ciuic.errors import ConfigError, StoreError
from ciuic.system.clock import SystemClock, cpu_time_ns
from ciuicd.program import Program
from tests.kit.daemon import REPOSITORY, Machine, wait_until
from tests.kit.notified import notified
from tests.kit.program import ciuic

LOOKS = 30
RUN = "import sys; from ciuicd.__main__ import main; sys.exit(main(sys.argv[1:]))"
VERSION = f'__version__ = "{__version__}"'


class Installed:
    """A virtual environment with a copy of the program, and a daemon that it runs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._processes: list[subprocess.Popen[bytes]] = []
        top = machine.directory / "venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(top)], check=True
        )
        self.python = top / "bin" / "python"
        (self.site,) = (top / "lib").glob("python*/site-packages")
        # The third-party packages are those of this environment.
        (self.site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.install("ciuic")
        self.install("ciuicd")
        self.log = machine.directory / "installed.log"

    def install(self, package: str, version: str = "") -> None:
        """Put a package in place of the one that is there, as pip does: remove it, then copy."""
        place = self.site / package
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(
            REPOSITORY / package,
            place,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=shutil.copyfile,
        )
        if version:
            first = place / "__init__.py"
            text = first.read_text()
            assert VERSION in text
            first.write_text(text.replace(VERSION, f'__version__ = "{version}"'))

    def start(self, code: str = "", **environ: str) -> subprocess.Popen[bytes]:
        """Start a daemon that serves, after some code."""
        program = ["-c", f"{code}\n{RUN}"] if code else ["-m", "ciuicd"]
        command = [self.python, *program, "--config", self.machine.config]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.machine.directory,
                stdout=log,
                stderr=log,
                env={**os.environ, **environ},
            )
        self._processes.append(process)
        wait_until("it serves", lambda: self.version() is not None)
        return process

    def close(self) -> None:
        """Kill the daemon, if it has not ended; pytest shows its log if the test failed."""
        for process in self._processes:
            process.kill()
            process.wait(60)
        if self.log.exists():
            print(self.log.read_text())

    def version(self) -> object:
        """Return the version of the daemon that answers."""
        status = None
        with contextlib.suppress(StoreError):  # it is about to end
            status = request_status(str(self.machine.store))
        return None if status is None else status["version"]

    def wait_for_log(self, text: str) -> None:
        wait_until(f"'{text}' in the log", lambda: text in self.log.read_text())


class Alerts:
    """The alerts of a machine, as an intact program sends them to a file."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._heard = machine.directory / "heard"
        with machine.config.open("a") as config:
            config.write(f"[alert all]\ntype = command\ncommand = cat >> {self._heard}; echo >> ")
            config.write(f"{self._heard}\n")

    def look(self) -> list[tuple[str, str, str]]:
        """Look for faults; return event, severity and end of the key of every message so far."""
        at_once = "from ciuicd.alerting import faults; faults._UPGRADE_S = 0.0"
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{at_once}\n{RUN}",
                "--config",
                self._machine.config,
                "--alert",
            ],
            cwd=REPOSITORY,
            env={**os.environ, "STATE_DIRECTORY": str(self._machine.directory)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = self._heard.read_text().splitlines() if self._heard.exists() else []
        messages = [json.loads(line) for line in lines if line]
        return [(one["event"], one["severity"], one["key"].rpartition("/")[2]) for one in messages]


@pytest.fixture
def installed(machine: Machine) -> Iterator[Installed]:
    it = Installed(machine)
    try:
        yield it
    finally:
        it.close()


def test_a_daemon_becomes_the_new_program_and_goes_on(
    installed: Installed,
) -> None:
    process = installed.start()
    installed.wait_for_log("no warnings")
    installed.install("ciuic", "99.0")
    wait_until("the new program serves", lambda: installed.version() == "99.0")
    status = request_status(str(installed.machine.store))
    assert status is not None
    assert status["pid"] == process.pid
    assert request_snapshot(str(installed.machine.store)) is not None
    log = installed.log.read_text()
    assert log.count("ciuic was replaced on disk by another version: ciuicd starts again") == 1
    process.terminate()
    assert process.wait(60) == 0
    assert "Traceback" not in log
    assert len(installed.machine.snapshots()) == 2


def test_a_service_manager_is_told_of_a_reload_and_keeps_the_process(
    installed: Installed, tmp_path: Path
) -> None:
    with notified(tmp_path / "notify") as told:
        process = installed.start(NOTIFY_SOCKET=str(tmp_path / "notify"))
        installed.wait_for_log("no warnings")
        # Quickly: a daemon that has just looked waits for 20 seconds, or for a request.
        module = installed.site / "ciuicd" / "taking.py"
        code = module.read_bytes() + b"# new\n"
        used_ns: list[int] = []

        def is_waiting() -> bool:
            used_ns.append(cpu_time_ns(process.pid))
            return used_ns.count(used_ns[-1]) > LOOKS

        wait_until("it waits", is_waiting)
        module.write_bytes(code)
        with pytest.raises(StoreError, match="the daemon starts again") as raised:
            request_snapshot(str(installed.machine.store))
        assert raised.value.hint == "Try again in a few seconds."
        # Until it leaves for the new program, the old one may still answer.
        wait_until("it serves again", lambda: told.count(b"READY=1") == 2)
        process.terminate()
        assert process.wait(60) == 0
    said = [message.partition(b"\n")[0] for message in told]
    states = [one for one in said if not one.startswith((b"STATUS", b"WATCHDOG"))]
    assert states == [b"READY=1", b"RELOADING=1", b"READY=1", b"STOPPING=1"]
    assert len(installed.machine.snapshots()) == 1


def test_a_pause_outlives_an_upgrade(installed: Installed) -> None:
    store = str(installed.machine.store)
    process = installed.start()
    installed.wait_for_log("no warnings")
    assert request_done(store, "pause")["paused"]
    for version in ("98.0", "99.0"):
        installed.install("ciuic", version)
        process.send_signal(signal.SIGHUP)  # it looks at once
        wait_until("the new program serves", lambda new=version: installed.version() == new)
        assert request_status(store)["paused"]
    # The daemon answers just before it says so.
    said = "still paused: no scheduled snapshots"
    wait_until("it has said so twice", lambda: installed.log.read_text().count(said) == 2)
    assert not request_done(store, "resume")["paused"]
    installed.install("ciuic", "97.0")
    process.send_signal(signal.SIGHUP)
    wait_until("the new program serves", lambda: installed.version() == "97.0")
    assert not request_status(store)["paused"]
    process.terminate()
    assert process.wait(60) == 0


def test_the_lock_of_an_editor_beside_a_module_is_no_upgrade(installed: Installed) -> None:
    process = installed.start()
    installed.wait_for_log("no warnings")
    (installed.site / "ciuicd" / ".#taking.py").symlink_to("user@machine.1")
    assert request_snapshot(str(installed.machine.store)) is not None
    process.terminate()
    assert process.wait(60) == 0
    assert "ciuic was replaced on disk" not in installed.log.read_text()


def test_a_daemon_that_becomes_the_new_program_keeps_no_watch_of_files(
    installed: Installed,
) -> None:
    def watches() -> int:
        found = 0
        for place in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found += os.readlink(place) == "anon_inode:inotify"
        return found

    with (installed.machine.source / "checkpoint.pt").open("wb"):
        process = installed.start()
        installed.wait_for_log("1 file being written")
        assert watches() == 1
        installed.install("ciuic", "99.0")
        wait_until("the new program serves", lambda: installed.version() == "99.0")
        assert watches() == 0


def test_an_upgrade_while_a_daemon_starts_is_noticed(installed: Installed) -> None:
    module = installed.site / "ciuic" / "config" / "load.py"
    mark = installed.machine.directory / "mark"
    changes_itself = f"""
import pathlib
if not pathlib.Path({str(mark)!r}).exists():
    pathlib.Path({str(mark)!r}).touch()
    with open(__file__, "a") as file:
        file.write("# new")
"""
    module.write_text(module.read_text() + changes_itself)
    process = installed.start()
    installed.wait_for_log("ciuicd starts again")
    process.terminate()
    assert process.wait(60) == 0


def test_a_daemon_takes_nothing_until_a_broken_upgrade_is_repaired(installed: Installed) -> None:
    process = installed.start()
    installed.wait_for_log("no warnings")
    broken = installed.site / "ciuicd" / "taking.py"
    right = broken.read_bytes()
    broken.write_text("this is no Python\n")
    with pytest.raises(StoreError, match="ciuic was changed on disk and does not start"):
        request_snapshot(str(installed.machine.store))
    why = "does not start, so no snapshots are taken (SyntaxError: invalid syntax)"
    installed.wait_for_log(f"{why}. Install ciuic again")
    installed.wait_for_log("If ciuic is elsewhere now, restart the daemon from there")
    status = request_status(str(installed.machine.store))
    assert status is not None
    assert (status["state"], status["next"]) == ("blocked", None)
    assert status["blocked"]["message"].endswith(why)
    broken.write_bytes(right + b"# repaired\n")
    # The old program, which is about to end, still answers for a moment.
    serves = f"ciuicd {__version__} serves"
    wait_until("it serves again", lambda: installed.log.read_text().count(serves) == 2)
    assert request_snapshot(str(installed.machine.store)) is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_program_that_does_not_start_is_shown_and_said_once(
    installed: Installed, tmp_path: Path
) -> None:
    machine = installed.machine
    alerts = Alerts(machine)
    with notified(tmp_path / "notify") as told:
        process = installed.start(NOTIFY_SOCKET=str(tmp_path / "notify"))
        installed.wait_for_log("no warnings")
        assert alerts.look() == []
        broken = installed.site / "ciuicd" / "taking.py"
        broken.rename(broken.with_suffix(".away"))

        def shown() -> list[str]:
            return ciuic("--config", machine.config, "status").out.splitlines()

        # A status looks, at most every five seconds, and has the daemon try the new program.
        wait_until("it is blocked", lambda: any(one.startswith("blocked:") for one in shown()))
        status, doctor = shown(), ciuic("--config", machine.config, "doctor", "--json").document
        said = "ciuic was changed on disk and does not start, so no snapshots are taken"
        why = "(ModuleNotFoundError: No module named 'ciuicd.taking')"
        assert f"daemon:  blocked, process {process.pid}" in "\n".join(status)
        assert f"{said} {why}, since " in " ".join(line.strip() for line in status)
        assert "Install ciuic again" in "".join(status)
        assert not any(line.startswith(("next:", "failed:")) for line in status)
        daemon = [one for one in doctor["findings"] if one["about"] == "daemon"]
        assert [(one["level"], one["what"]) for one in daemon] == [("problem", f"{said} {why}")]
        assert "Install ciuic again" in daemon[0]["advice"]
        assert doctor["checklist"][0]["level"] == "problem"
        began = [("began", "critical", "daemon")]
        assert (alerts.look(), alerts.look()) == (began, began)

        broken.with_suffix(".away").rename(broken)
        process.send_signal(signal.SIGHUP)  # it looks at once
        installed.wait_for_log("reloaded ")
        assert request_status(str(machine.store))["state"] == "idle"
        assert installed.log.read_text().count(said) == 1
        assert alerts.look() == [*began, ("ended", "critical", "daemon")]
    later = told[told.index(f"STATUS=blocked: {said} {why}".encode()) :]
    assert any(one.startswith(b"STATUS=next ") for one in later)


def test_a_program_that_does_not_answer_is_said_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = [sys.executable, "-c", "import time; time.sleep(1000)"]
    monkeypatch.setattr("sys.orig_argv", hangs)
    monkeypatch.setattr("sys.argv", ["-c"])
    monkeypatch.setattr("ciuicd.program._TRIAL_S", 2.0)
    monkeypatch.setattr("ciuicd.program._TRIALS_APART_S", 0.0)
    program = Program(SystemClock())
    assert not program.can_start(lambda: False)
    assert program.said == "it did not answer for 2 seconds"
    monkeypatch.setattr("ciuicd.program._TRIAL_S", 1000.0)
    assert not program.can_start(lambda: True)


def test_a_signal_to_end_does_not_wait_for_a_program_that_does_not_answer(
    installed: Installed,
) -> None:
    begun = installed.machine.directory / "begun"
    process = installed.start("from ciuicd import program; program._TRIAL_S = 1000.0")
    installed.wait_for_log("no warnings")
    hangs = f"import time; open({str(begun)!r}, 'x').close(); time.sleep(1000)\n"
    (installed.site / "ciuicd" / "taking.py").write_text(hangs)
    process.send_signal(signal.SIGHUP)  # it looks at once
    wait_until("the new program has begun", begun.exists)
    process.terminate()
    assert process.wait(60) == 0
    log = installed.log.read_text()
    assert "does not start" not in log
    assert "Traceback" not in log


def test_a_daemon_below_a_service_manager_ends_if_its_program_is_gone(
    installed: Installed,
) -> None:
    waits_little = "from ciuicd import program; program._STUCK_S = 0.0"
    process = installed.start(waits_little, NOTIFY_SOCKET="@nothing listens")
    installed.wait_for_log("no warnings")
    assert request_done(str(installed.machine.store), "pause")["paused"]
    shutil.rmtree(installed.site / "ciuicd")
    installed.python.unlink()
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 1
    log = installed.log.read_text()
    assert "has not started for five minutes, so this ciuicd ends. The service manager" in log
    assert "the pause ends here" in log
    assert "Traceback" not in log


def test_a_daemon_waits_until_the_new_program_can_use_the_configuration(
    installed: Installed,
) -> None:
    waits_little = "from ciuicd import program; program._STUCK_S = program._TRIALS_APART_S = 0.0"
    process = installed.start(waits_little, NOTIFY_SOCKET="@nothing listens")
    installed.wait_for_log("no warnings")
    config = installed.machine.config
    right = config.read_text()
    config.write_text(right + "snapshot_interval = never\n")
    # In the middle of the installation, the program does not start, and this daemon ends at once.
    process.send_signal(signal.SIGSTOP)
    installed.install("ciuic", "99.0")
    process.send_signal(signal.SIGCONT)
    with pytest.raises(ConfigError, match="changed on disk and cannot use the configuration"):
        request_snapshot(str(installed.machine.store))
    assert installed.version() == __version__
    config.write_text(right)
    wait_until("the new program serves", lambda: installed.version() == "99.0")
    process.terminate()
    assert process.wait(60) == 0


def test_a_snapshot_of_the_daemon_that_an_upgrade_interrupts_is_taken_by_the_new_program(
    installed: Installed,
) -> None:
    gate, begun = (installed.machine.directory / name for name in ("gate", "begun"))
    installed.machine.configure(
        before=f"touch {begun}; while [ ! -e {gate} ]; do sleep 0.05; done", hook_timeout="10m"
    )
    process = installed.start()
    wait_until("the snapshot has begun", begun.exists)
    installed.install("ciuic", "99.0")
    installed.wait_for_log("a snapshot was cancelled because ciuic was replaced on disk")
    gate.touch()
    installed.wait_for_log("no warnings")
    assert installed.version() == "99.0"
    process.terminate()
    assert process.wait(60) == 0
    assert len(installed.machine.snapshots()) == 1


def test_a_snapshot_that_a_user_takes_with_once_is_taken_although_an_upgrade_comes(
    installed: Installed,
) -> None:
    module = installed.site / "ciuicd" / "taking.py"
    installed.machine.configure(before=f"echo '# new' >> {module}")
    looks_always = "from ciuicd import program; program._LOOK_S = 0.0"
    done = subprocess.run(
        [
            installed.python,
            "-c",
            f"{looks_always}\n{RUN}",
            *("--config", installed.machine.config, "--once"),
        ],
        cwd=installed.machine.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(installed.machine.snapshots()) == 1


def test_a_signal_to_end_is_not_lost_while_a_daemon_becomes_the_new_program(
    installed: Installed,
) -> None:
    process = installed.start()
    installed.wait_for_log("no warnings")
    installed.install("ciuicd")
    installed.wait_for_log("ciuicd starts again")
    process.terminate()
    assert process.wait(60) == 0

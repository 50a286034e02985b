"""A real ciuicd in a temporary directory, and waiting for its effects without fixed sleeps."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ciuic.catalog import list_snapshots
from ciuic.control import request_status
from ciuic.model import SnapshotSummary
from ciuic.store.store import open_store

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 120.0
_PAUSE_MAX_S = 0.2
"""The longest pause after a condition that ran a program, or waited for one."""


def wait_until(what: str, happened: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Return as soon as the condition holds; fail with ``what`` after the time limit."""
    end_s = time.monotonic() + deadline_s
    began_s, asked_s = time.thread_time(), time.monotonic()
    while not happened():
        if time.monotonic() > end_s:
            raise AssertionError(f"within {deadline_s} s this did not happen: {what}")
        # A condition that opens the store, or starts a program, must not take the processor that
        # the daemon needs.
        program_s = min(2 * (time.monotonic() - asked_s), _PAUSE_MAX_S)
        time.sleep(max(0.005, 4 * (time.thread_time() - began_s), program_s))
        began_s, asked_s = time.thread_time(), time.monotonic()


class Machine:
    """A source, a store, a configuration, and the daemons of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "source"
        self.store = directory / "store"
        self.config = directory / "ciuic.conf"
        self.source.mkdir()
        (self.source / "weights.bin").write_bytes(os.urandom(100_000))
        self.daemons: list[Daemon] = []
        self.configure()

    def configure(self, **values: str) -> None:
        """Write the configuration; by default with an interval of a year and no upkeep."""
        settings = {
            "snapshot_paths": str(self.source),
            "snapshot_dir": str(self.store),
            "snapshot_interval": "365d",
            "retention_policy": "3650d",
            "scrub_budget": "0",
            "drill_interval": "0",
        } | values
        lines = [f"{key} = {value}\n" for key, value in settings.items()]
        self.config.write_text("".join(lines))

    def once(self) -> subprocess.CompletedProcess[str]:
        """Run ``ciuicd --once``."""
        command = [sys.executable, "-m", "ciuicd", "--config", str(self.config), "--once"]
        return subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
        )

    def start(self, environ: Mapping[str, str] | None = None) -> "Daemon":
        """Start a daemon, and return once it serves the store."""
        daemon = self.launch(environ)
        wait_until("the daemon answers", lambda: daemon.answers() or daemon.ended())
        if daemon.ended():
            raise AssertionError(f"the daemon ended at once: {daemon.log()}")
        return daemon

    def launch(
        self,
        environ: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> "Daemon":
        """Start a daemon, in a wrapper that execs it, and return at once."""
        daemon = Daemon(self, len(self.daemons), environ or {}, arguments, wrapper)
        self.daemons.append(daemon)
        return daemon

    def snapshots(self) -> list[SnapshotSummary]:
        """Return the snapshots in the store, newest first."""
        if not (self.store / "ciuic-store.json").exists():
            return []
        with open_store(str(self.store)) as store:
            return list_snapshots(store)

    def close(self) -> None:
        """End all daemons; pytest shows their logs if the test failed."""
        for daemon in self.daemons:
            daemon.kill()
            print(f"log of daemon {daemon.process.pid}:\n{daemon.log()}")


class Daemon:
    """One process of ciuicd."""

    def __init__(
        self,
        machine: Machine,
        number: int,
        environ: Mapping[str, str],
        arguments: tuple[str, ...],
        wrapper: tuple[str, ...],
    ) -> None:
        self._machine = machine
        self._log = machine.directory / f"daemon-{number}.log"
        command = [sys.executable, "-m", "ciuicd", "--config", str(machine.config), *arguments]
        command = [*wrapper, *command]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=log, stderr=log, env={**os.environ, **environ}
            )

    def log(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="surrogateescape")

    def wait_for_log(self, text: str, count: int = 1) -> None:
        """Return once ``text`` is in the log ``count`` times."""
        try:
            wait_until(f"'{text}' in the log", lambda: self.log().count(text) >= count)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log: {self.log()}") from None

    def answers(self) -> bool:
        """Whether this daemon, and no earlier one, serves the store."""
        status = request_status(str(self._machine.store))
        return status is not None and status["pid"] == self.process.pid

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its end."""
        return self.process.wait(deadline_s)

    def stop(self) -> int:
        """End it with SIGTERM; return the exit code."""
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        """Kill it; harmless after its end."""
        if not self.ended():
            self.process.kill()
            # A stopped process dies of SIGKILL too.
            self.process.wait(DEADLINE_S)

"""Running commands visibly: each command line is shown, then its output.

The shown command is exactly the one that runs, in the same directory and with the same PATH, so
that every line can be typed again after ``scripts/demo --keep``.

Each command has a session of its own: Ctrl-C reaches only the demonstration, which ends the others.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

__all__ = ["DemoError", "Finished", "Stage", "StoppedError", "fail"]

Found = TypeVar("Found")

_BOLD, _GREEN, _PLAIN = "\033[1m", "\033[32m", "\033[0m"
_NOTICE_WITHIN_S = 0.2
_LINES_MAX = 20
"""Maximum number of output lines shown for a command."""


class DemoError(Exception):
    """A claim of the demonstration failed; the message is one sentence."""


def fail(message: str) -> NoReturn:
    """End the demonstration with this sentence.

    Raises:
        DemoError: Always.
    """
    raise DemoError(message)


class StoppedError(Exception):
    """A signal asked the demonstration to stop."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    output: str
    errors: str
    took_s: float


class Stage:
    """A directory and an environment in which commands run, and the screen that shows them.

    Attributes:
        directory: Every command's working directory.
        environment: Every command's environment; acts add to it as a user's shell would.
        stopped_by: The number of the signal that asked to stop. The signal handler only sets it: an
            exception from the handler could come right after the start of a process, before this
            object knows the process, and would leave it running.
    """

    def __init__(self, directory: str, environment: dict[str, str], *, colours: bool) -> None:
        self.directory = directory
        self.environment = environment
        self.stopped_by: int | None = None
        self._colours = colours
        self._background: list[tuple[subprocess.Popen[bytes], str]] = []

    def title(self, text: str) -> None:
        """Print the heading of an act."""
        print(f"\n{self._in(_BOLD, text)}", flush=True)

    def say(self, text: str) -> None:
        """Print an explanation, in lines of at most 96 characters."""
        for line in text.splitlines():
            print(f"  {line}".rstrip(), flush=True)

    def show(self, command: str) -> None:
        """Show a command line that this process does itself, such as ``export``."""
        print(f"  {self._in(_BOLD, '$ ' + command)}", flush=True)

    def prove(self, claim: str, *, holds: bool, otherwise: str) -> None:
        """Show a claim that holds.

        Raises:
            DemoError: It does not hold; the message is ``otherwise``.
        """
        if not holds:
            fail(otherwise)
        print(f"  {self._in(_GREEN, 'ok')}  {claim}", flush=True)

    def run(
        self,
        command: list[str],
        *,
        expect: int | None = 0,
        shown: bool = True,
        timeout_s: float = 120.0,
    ) -> Finished:
        """Run a command to its end; show it and its output.

        Args:
            command: The program and its arguments.
            expect: The only acceptable exit code; None: the caller checks it.
            shown: False for queries of the demonstration itself.
            timeout_s: How long it may take.

        Raises:
            DemoError: It could not be run, took too long, or ended with another code.
            StoppedError: A signal asked to stop; the command was killed.
        """
        if shown:
            self.show(shlex.join(command))
        began_s = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            fail(f"'{command[0]}' cannot be run: {error}")
        with process:
            output, errors = self._collect(process, shlex.join(command), timeout_s)
        finished = Finished(process.returncode, output, errors, time.monotonic() - began_s)
        if shown:
            self._show_output(finished)
        if expect is not None and finished.code != expect:
            words = (finished.errors or finished.output).strip().splitlines() or ["nothing"]
            fail(
                f"'{shlex.join(command)}' ended with exit code {finished.code}, not {expect}; "
                f"its output: {' / '.join(words[-4:])}"
            )
        return finished

    def start(self, command: list[str], log_name: str) -> subprocess.Popen[bytes]:
        """Start a command in the background; ``stop_all`` ends it at the latest."""
        self.show(f"{shlex.join(command)} > {log_name} 2>&1 &")
        with open(os.path.join(self.directory, log_name), "wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.directory,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                fail(f"'{command[0]}' cannot be started: {error}")
        self._background.append((process, log_name))
        return process

    def wait_for(
        self,
        what: str,
        look: Callable[[], Found | None],
        *,
        alive: tuple[subprocess.Popen[bytes], ...],
        timeout_s: float = 60.0,
        pause_s: float = 0.3,
    ) -> Found:
        """Call ``look`` until it returns a value, and return that.

        Raises:
            DemoError: A process in ``alive`` ended, or it took too long.
            StoppedError: A signal asked to stop.
        """
        deadline_s = time.monotonic() + timeout_s
        while (found := look()) is None:
            for process in alive:
                if process.poll() is not None:
                    fail(f"{self._name(process)} ended by itself before {what} appeared")
            if time.monotonic() > deadline_s:
                fail(f"{what} did not appear within {timeout_s:.0f} s")
            self.pause(pause_s)
        return found

    def pause(self, duration_s: float) -> None:
        """Wait.

        Raises:
            StoppedError: A signal asked to stop.
        """
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0 and self.stopped_by is None:
            time.sleep(min(left_s, _NOTICE_WITHIN_S))
        self._heed_signals()

    def stop(self, process: subprocess.Popen[bytes], timeout_s: float = 15.0) -> int:
        """End a background process with SIGTERM; return its exit code.

        Raises:
            DemoError: It did not end in time.
        """
        self.show(f"kill {process.pid}")
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            fail(f"process {process.pid} did not end within {timeout_s:.0f} s of SIGTERM")

    def stop_all(self) -> None:
        """End every background process, with SIGKILL if necessary; return once they have ended."""
        for process, _ in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process, _ in self._background:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def last_words(self) -> str:
        """Return the last lines of each background process, for a failure report."""
        parts: list[str] = []
        for _, log_name in self._background:
            with open(os.path.join(self.directory, log_name), errors="replace") as log:
                lines = log.read().splitlines()
            if lines:
                parts += [f"The end of {log_name}:", *lines[-_LINES_MAX:], ""]
        return "".join(f"{line}\n" for line in parts)

    def _collect(
        self, process: subprocess.Popen[str], command: str, timeout_s: float
    ) -> tuple[str, str]:
        """Return the output of a process after its end; kill the process on an error."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline_s:
                self._heed_signals()
                try:
                    return process.communicate(timeout=_NOTICE_WITHIN_S)
                except subprocess.TimeoutExpired:
                    continue
            fail(f"'{command}' did not end within {timeout_s:.0f} s")
        except (DemoError, StoppedError):
            os.killpg(process.pid, signal.SIGKILL)  # the group, because pip has children
            raise

    def _heed_signals(self) -> None:
        if self.stopped_by is not None:
            raise StoppedError

    def _name(self, process: subprocess.Popen[bytes]) -> str:
        """Return the name of a background process, from its log's name."""
        logs = [log_name for other, log_name in self._background if other is process]
        return f"{logs[0].partition('.')[0]} (exit code {process.returncode})"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text

    def _show_output(self, finished: Finished) -> None:
        lines = (finished.output + finished.errors).splitlines()
        for line in lines[:_LINES_MAX]:
            print(f"      {line}", flush=True)
        if len(lines) > _LINES_MAX:
            print(f"      ... and {len(lines) - _LINES_MAX} more lines", flush=True)

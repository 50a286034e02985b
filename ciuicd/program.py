"""Whether the program on disk is still the one that runs, and starting the one on disk.

A child process of the daemon imports modules that the daemon has not loaded. After an upgrade,
these are new, beside old ones in memory. So the daemon looks before each piece of work, and
executes the new program in its own place instead.

Every way of installing gives a changed file another size or another time of change: pip, a package
of a distribution, a checkout that is installed with ``pip install -e``.

The new program runs in the old process, also below systemd. To end for systemd to start it would
leave a unit with ``Restart=no`` without a daemon, and would end a pause. But a program that has
moved, with its interpreter, never starts from where it was: after minutes, only its end helps.
"""

import contextlib
import os
import sys
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

import ciuic
import ciuicd
from ciuic.errors import DONE, FAILED, USAGE, BusyError
from ciuic.system.clock import Clock

__all__ = ["AT_START", "PAUSED_VARIABLE", "Program", "last_line", "replaced", "start_again"]

PAUSED_VARIABLE: Final = "CIUICD_PAUSED"
"""In the environment of a program that goes on with the pause of the one before it."""

_SUFFIXES: Final = (".py", ".so")
_LOOK_S: Final = 5.0
_TRIAL_S: Final = 60.0
_ASK_S: Final = 0.5
"""How often a trial asks whether the daemon is to end."""
_TRIALS_APART_S: Final = 60.0
_STUCK_S: Final = 300.0
_CHECK: Final = "--check"
_SAID_MAX: Final = 200


class Program:
    """The files of the two packages as they were when this module was imported.

    Attributes:
        is_config_refused: The program on disk starts, but refuses the configuration.
        said: What it said last when it was tried and did not start; empty: nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._print = AT_START
        self._looked_s = clock.monotonic_s()
        self._was_replaced = False
        self._failed: tuple[int, float] | None = None
        self._broken_since_s: float | None = None
        self.is_config_refused = False
        self.said = ""

    def is_replaced(self) -> bool:
        """Return whether a file was changed, added or removed since then."""
        self._looked_s = self._clock.monotonic_s()
        # Too few descriptors, for example, are no upgrade.
        with contextlib.suppress(OSError):
            print_now = _fingerprint()
            self._print = print_now if self._print is None else self._print
            self._was_replaced = print_now != self._print
            if not self._was_replaced:
                self._broken_since_s = None
        return self._was_replaced

    def was_replaced(self) -> bool:
        """Return the same as seen some seconds ago, for callers that ask often."""
        if self._clock.monotonic_s() > self._looked_s + _LOOK_S:
            return self.is_replaced()
        return self._was_replaced

    def can_start(self, is_ending: Callable[[], bool]) -> bool:
        """Return whether the program on disk starts with the configuration on disk.

        In the middle of an upgrade it does not.

        A program that did not is tried again when it has changed, or after a minute.

        Args:
            is_ending: Whether to wait no longer for the answer, because the daemon is to end.
        """
        try:
            print_now, now_s = _fingerprint(), self._clock.monotonic_s()
        except OSError:
            return False
        if self._failed is not None:
            failed_print, failed_s = self._failed
            if failed_print == print_now and now_s < failed_s + _TRIALS_APART_S:
                return False
        trial = _try(is_ending)
        self._failed = None if trial.code == DONE else (print_now, now_s)
        self.is_config_refused, self.said = trial.code == USAGE, trial.said
        if self._failed is None or self.is_config_refused:
            self._broken_since_s = None
        elif self._broken_since_s is None:
            self._broken_since_s = now_s
        return self._failed is None

    def is_stuck(self) -> bool:
        """Return whether the program on disk has not started for minutes.

        It may have moved, with its interpreter: then it never starts from where it was.
        """
        since_s = self._broken_since_s
        return since_s is not None and self._clock.monotonic_s() >= since_s + _STUCK_S


class _Trial(NamedTuple):
    """How a trial of the program on disk ended.

    Attributes:
        code: Its exit code: ``USAGE`` if it refuses the configuration.
        said: The last line that it wrote to standard error.
    """

    code: int
    said: str


def _try(is_ending: Callable[[], bool]) -> _Trial:
    """Start the program on disk, and have it load the configuration."""
    import subprocess

    def run(command: list[str]) -> tuple[int, bytes]:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                for _ in range(int(_TRIAL_S / _ASK_S)):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        _, stderr = process.communicate(timeout=_ASK_S)
                        return process.returncode, stderr
                    if is_ending():
                        break
            finally:
                process.kill()
        raise TimeoutError

    arguments = len(sys.argv) - 1
    try:
        # Python, too, exits with ``USAGE`` if the program is gone.
        code, stderr = run([*_command()[: len(sys.orig_argv) - arguments], "--version"])
        if code != DONE:
            return _Trial(FAILED, last_line(stderr))
        code, stderr = run([*_command(), _CHECK])
    except TimeoutError:
        return _Trial(FAILED, f"it did not answer for {_TRIAL_S:.0f} seconds")
    except (OSError, subprocess.SubprocessError) as error:
        return _Trial(FAILED, last_line(str(error).encode("utf-8", "replace")))
    return _Trial(code, last_line(stderr))


def replaced() -> BusyError:
    """Return the error of work that is refused because the daemon is to start again."""
    return BusyError(
        "the daemon starts again, because ciuic was replaced on disk",
        hint="Try again in a few seconds.",
    )


def last_line(stderr: bytes) -> str:
    """Return the last line that a program wrote, for a sentence; empty if it wrote JSON."""
    lines = stderr.decode("utf-8", "replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if line.startswith("{"):  # '--log json'
        return ""
    line = line.removeprefix("ciuicd: ").rstrip(".")
    return "".join(one for one in line if one.isprintable())[:_SAID_MAX]


def start_again(*, is_paused: bool) -> NoReturn:
    """Replace this process with the program on disk, with the same arguments.

    Args:
        is_paused: It takes no scheduled snapshots until it is told to.

    Raises:
        OSError: The interpreter cannot be started.
    """
    command = _command()
    environ = {**os.environ, PAUSED_VARIABLE: "1"} if is_paused else os.environ
    os.execve(command[0], command, environ)  # noqa: S606 - no shell: the arguments stay as they are


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]


def _fingerprint() -> int:
    """Return a number for names, sizes and times of change: the same in every process.

    Raises:
        OSError: They cannot be read.
    """
    found: set[tuple[str, int, int]] = set()
    waiting = [*ciuic.__path__, *ciuicd.__path__]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith("."):  # such as the lock of an editor
                        continue
                    if entry.name.endswith(_SUFFIXES):
                        found.add((entry.path, *_size_and_time(entry)))
                    elif "." not in entry.name and entry.name != "__pycache__":
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # In the middle of an upgrade, a file may go at any time.
            found.add((directory, 0, 0))
    return zlib.crc32(ascii(sorted(found)).encode())


def _size_and_time(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _fingerprint_at_start() -> int | None:
    try:
        return _fingerprint()
    except OSError:
        return None


AT_START: Final = _fingerprint_at_start()
"""The fingerprint when ``__main__`` imported this module, before the other files of the program.

None: they could not be read; the first look that can counts.
"""

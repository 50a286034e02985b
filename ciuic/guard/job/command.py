"""A command as a job: it has this process's terminal, group and environment, and a cgroup.

It stays in the process group of ``ciuic run``. So the terminal sends Ctrl-C and Ctrl-Z to it
directly, and it may read from the terminal, as if ciuic were not there.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

from ciuic.errors import CiuicError
from ciuic.guard.job.cgroup import Cgroup
from ciuic.guard.job.processes import descendants, is_running, send, stop_all
from ciuic.guard.job.release import Release
from ciuic.system.clock import Clock

__all__ = ["Command", "CommandError", "Guarded", "Watched"]

_END_S: Final = 10.0
_KILL_S: Final = 60.0
_REMOVE_S: Final = 2.0
_POLL_S: Final = 0.05


class CommandError(CiuicError):
    """The command cannot be started.

    Attributes:
        status: The exit status of a shell in this case: 127 if there is no such command, else 126.
    """

    status = 126


class Guarded(Protocol):
    """A job that can be paused.

    Attributes:
        pid: Its first process.
        is_paused: ``pause`` was called last.
        is_own: The guard started it, and ends with it.
    """

    pid: int
    is_paused: bool
    is_own: bool

    def members(self) -> list[int]:
        """Return every process of the job that has not ended."""
        ...

    def pause(self) -> bool:
        """Stop every process; returns whether all stand still."""
        ...

    def resume(self) -> None:
        """Let every process go on."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process."""
        ...

    def ended(self) -> int | None:
        """Return the wait status of the first process if it has ended, -1 if it is not known."""
        ...

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed because the memory was used up."""
        ...


class Command:
    """A command that this process started.

    Args:
        command: The program and its arguments.
        environ: Its environment.
        cgroup: The cgroup that it runs in; None: it runs in that of this process.
        clock: For waiting.

    Raises:
        CommandError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: dict[str, str],
        *,
        cgroup: Cgroup | None,
        clock: Clock,
    ) -> None:
        self.is_paused = False
        self.is_own = True
        self.cgroup = cgroup
        self.helpers: set[int] = set()
        self._release: Release | None = None
        self._clock = clock
        self._status: int | None = None
        # A job that starts again keeps its cgroup.
        self._oom_before = 0 if cgroup is None else cgroup.oom_kills()

        def prepare() -> None:
            if cgroup is not None:
                cgroup.enter()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])

        try:
            # A copy of this process runs ``prepare``: it has one thread, so no lock is held.
            self._process = subprocess.Popen(
                command,
                env=environ,
                preexec_fn=prepare,  # noqa: PLW1509
                close_fds=True,
            )
        except OSError as error:
            refusal = CommandError(
                f"{command[0]!r} cannot be started: {os.strerror(error.errno or 0)}",
                hint="Check the command after '--'.",
            )
            refusal.status = 127 if isinstance(error, FileNotFoundError) else 126
            raise refusal from error
        except subprocess.SubprocessError as error:
            path = "" if cgroup is None else cgroup.path
            raise CommandError(
                f"the command cannot be moved into its cgroup {path}",
                hint="Start it again: another program may have removed the cgroup.",
            ) from error
        self.pid = self._process.pid

    def members(self) -> list[int]:
        """See ``Guarded``."""
        if self.cgroup is not None:
            return [pid for pid in self.cgroup.pids() if is_running(pid)]
        return descendants(os.getpid(), without=self.helpers)

    def pause(self) -> bool:
        """See ``Guarded``."""
        self.is_paused = True
        cgroup = self.cgroup
        release = self._release = Release("" if cgroup is None else cgroup.freezer)
        # The process that releases the job is not a part of the job.
        self.helpers.add(release.pid)
        if cgroup is not None:
            return cgroup.freeze(self._clock)
        return stop_all(lambda: release.add(self.members()))

    def resume(self) -> None:
        """See ``Guarded``."""
        self.is_paused = False
        if self.cgroup is not None:
            self.cgroup.thaw()
        # Processes may be stopped one by one as well.
        send(self.members(), signal.SIGCONT)
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def send(self, number: signal.Signals) -> None:
        """See ``Guarded``."""
        if self._status is None:
            send([self.pid], number)

    def ended(self) -> int | None:
        """See ``Guarded``. Orphans of the job are reaped as well."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.helpers.discard(pid)
            if pid == self.pid:
                self._status = status
                self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._status

    def oom_kills(self) -> int:
        """See ``Guarded``."""
        return 0 if self.cgroup is None else self.cgroup.oom_kills() - self._oom_before

    def end_all(self) -> list[int]:
        """End every process of the job that is left, first with SIGTERM, then with SIGKILL.

        Returns:
            The processes that are still there: busy in the kernel, or of another user.
        """
        self.resume()
        for number, patience_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _KILL_S)):
            end_s = self._clock.monotonic_s() + patience_s
            send(self.members(), number)
            while self.members() and self._clock.monotonic_s() < end_s:
                self._clock.sleep(_POLL_S)
                self.ended()
                if number == signal.SIGKILL:
                    send(self.members(), number)
        return self.members()

    def close(self) -> None:
        """Remove the cgroup if no process is left in it."""
        if self.cgroup is None:
            return
        # A process that has just ended stays in its cgroup until its parent, this one, reaps it.
        end_s = self._clock.monotonic_s() + _REMOVE_S
        while not self.cgroup.remove() and not self.members():
            if self._clock.monotonic_s() > end_s:
                return
            self.ended()
            self._clock.sleep(_POLL_S)


class Watched:
    """A process that another program started, and the processes below it.

    Args:
        pid: The process.

    Raises:
        CommandError: There is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_paused = False
        self.is_own = False
        self._release: Release | None = None
        try:
            self._handle = os.pidfd_open(pid)
        except OSError as error:
            raise CommandError(
                f"process {pid} cannot be watched: {os.strerror(error.errno or 0)}",
                hint="Give the ID of a running process: 'pgrep -f train.py' finds it.",
            ) from error

    def members(self) -> list[int]:
        """See ``Guarded``."""
        return [self.pid, *descendants(self.pid)] if is_running(self.pid) else []

    def pause(self) -> bool:
        """See ``Guarded``."""
        self.is_paused = True
        release = self._release = Release()
        return stop_all(lambda: release.add(self.members()))

    def resume(self) -> None:
        """See ``Guarded``."""
        self.is_paused = False
        send(reversed(self.members()), signal.SIGCONT)
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def send(self, number: signal.Signals) -> None:
        """Do nothing: another program started the process, and ends it."""

    def ended(self) -> int | None:
        """See ``Guarded``; only the parent of a process learns its exit status."""
        return -1 if select.select([self._handle], [], [], 0)[0] else None

    def oom_kills(self) -> int:
        """See ``Guarded``; not known."""
        return 0

    def close(self) -> None:
        """Close the handle."""
        os.close(self._handle)

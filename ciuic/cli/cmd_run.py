"""``ciuic run``."""

import contextlib
import math
import os
import resource
import signal
import sys
from typing import Final, NamedTuple

import click

from ciuic.cli.after_failure import recover_files, take_emergency
from ciuic.cli.alerting import Alerts
from ciuic.cli.guarding import (
    JobEvents,
    announce_host,
    announce_logs,
    announce_snapshots,
    channels_of,
    close_logs,
    environment,
    log_paths,
    oom_text,
    rules_of,
    run_rule_command,
    say,
)
from ciuic.cli.options import Number, WholeNumber, given, rule_logs_option, size_bytes
from ciuic.cli.session import Session
from ciuic.errors import CiuicError, UsageError
from ciuic.guard.job.cgroup import Cgroup, NoCgroup, create_cgroup
from ciuic.guard.job.command import Command, CommandError
from ciuic.guard.job.guarding import Ended, block_signals, guard, is_asked_to_end
from ciuic.guard.job.idle import Idleness
from ciuic.guard.job.logs import JobLogs
from ciuic.guard.job.processes import become_subreaper
from ciuic.guard.rules.watching import Finding
from ciuic.source.trainings import JOB_VARIABLE
from ciuic.system.clock import Clock, SystemClock
from ciuic.units import counted, inflected

__all__ = ["command"]

_PERIOD_US: Final = 100_000
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 300.0
_WEIGHT: Final = WholeNumber(1, 10_000)


@click.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.option(
    "--job",
    metavar="NAME",
    callback=given,
    help="The name of the job in messages.  [default: the name of the program]",
)
@rule_logs_option
@click.option(
    "--restart",
    type=WholeNumber(0, 1000),
    default=0,
    metavar="N",
    help="How often to start COMMAND again if it fails.  [default: 0]",
)
@click.option(
    "--host",
    metavar="H",
    callback=given,
    help="With --restart: put back versions of files from snapshots of this host only: see 'ciuic"
    " recover'.",
)
@click.option("--cpu-weight", type=_WEIGHT, metavar="N", help="Its share of the CPUs: 1 to 10000.")
@click.option(
    "--cpus",
    type=Number(0.01, 100_000),
    metavar="N",
    help="How many CPUs it may use at most, such as 2.5.",
)
@click.option(
    "--memory-max",
    "memory_bytes",
    metavar="SIZE",
    callback=size_bytes,
    help="How much memory it may use at most.",
)
@click.option("--io-weight", type=_WEIGHT, metavar="N", help="Its share of disk I/O: 1 to 10000.")
@click.argument("arguments", metavar="[--] COMMAND...", nargs=-1, required=True)
@click.pass_obj
def command(
    session: Session,
    *,
    job: str | None,
    logs: tuple[str, ...],
    restart: int,
    host: str | None,
    cpu_weight: int | None,
    cpus: float | None,
    memory_bytes: int | None,
    io_weight: int | None,
    arguments: tuple[str, ...],
) -> None:
    """Run COMMAND, watch its logs with the rules, and take a snapshot when it fails.

    COMMAND keeps the terminal. ciuic passes signals on to it, and exits as it did. If the system
    has cgroups of version 2, COMMAND runs in a cgroup of its own. If a rule with the action 'pause'
    fires, every process of the job stops: send SIGCONT to ciuic to let it go on.
    """
    if host is not None and not restart:
        raise UsageError("--host requires --restart", hint="Add --restart N, or leave --host out.")
    name = job or os.path.basename(arguments[0]) or "job"
    paths = log_paths(logs)
    rules = rules_of(session)
    limits = _limits(cpu_weight, cpus, memory_bytes, io_weight)
    clock = SystemClock()
    alerts = Alerts(channels_of(session), name, clock)
    cgroup = _cgroup(name, limits)
    can_snapshot = announce_snapshots(session)
    if can_snapshot and host is not None:
        announce_host(session, host)
    become_subreaper()
    block_signals()
    watched = JobLogs(paths, rules if paths else (), clock)
    announce_logs(watched)
    guarded = _GuardedJob(
        _Start(arguments, name, cgroup, clock),
        session,
        watched,
        Idleness(rules, clock),
        alerts=alerts,
        restarts=_Restarts(session, name, restart, clock, host=host, has_store=can_snapshot),
        has_store=can_snapshot,
    )
    while (ended := guarded.once()) is None:
        pass
    close_logs(watched, name)
    guarded.finish()
    _exit_like(ended.code)


class _Start(NamedTuple):
    """How the job is started.

    Attributes:
        arguments: The command.
        name: The name of the job.
        cgroup: Where it runs; None: in that of ciuic.
        clock: Tells the time.
    """

    arguments: tuple[str, ...]
    name: str
    cgroup: Cgroup | None
    clock: SystemClock

    def begin(self) -> Command:
        """Start the command, or end ciuic as a shell would."""
        try:
            return Command(
                self.arguments,
                environment() | {JOB_VARIABLE: self.name},
                cgroup=self.cgroup,
                clock=self.clock,
            )
        except CommandError as error:
            if self.cgroup is not None:
                self.cgroup.remove()
            say(error.message, error.hint)
            sys.exit(error.status)


class _GuardedJob:
    """The job from its first start to its last end.

    Args:
        start: How it is started; it is started at once.
        session: The store.
        watched: Its logs.
        idleness: Notices that it hangs.
        alerts: Where faults are reported, besides stderr.
        restarts: Decides whether it starts again.
        has_store: Snapshots can be taken, pinned and tagged.
    """

    def __init__(
        self,
        start: _Start,
        session: Session,
        watched: JobLogs,
        idleness: Idleness,
        *,
        alerts: Alerts,
        restarts: "_Restarts",
        has_store: bool,
    ) -> None:
        self._start = start
        self._session = session
        self._watched = watched
        self._idleness = idleness
        self._alerts = alerts
        self._restarts = restarts
        self._has_store = has_store
        self._running = start.begin()
        self._events = JobEvents(
            session, start.name, start.clock, self._run_command, has_store=has_store, alerts=alerts
        )

    def once(self) -> Ended | None:
        """Guard the job until it ends; returns None if it was started again, and else its end."""
        name, alerts, running = self._start.name, self._alerts, self._running
        alerts.started = running.helpers
        ended = guard(running, self._watched, self._idleness, self._events, self._start.clock)
        alerts.idle()  # what the last lines say is told before anything that takes long
        if not ended.is_failure:
            return ended
        failed_s = self._start.clock.monotonic_s()
        _report_failure(name, ended, alerts)
        is_saved = not self._has_store or _save_emergency(self._session, name, alerts)
        self._events.mark()  # first: broken files are not replaced from suspect snapshots
        if not self._restarts.may_begin(running, ended, failed_s, is_saved=is_saved):
            if refusal := self._restarts.refusal:
                alerts.began("no restart", "critical", refusal, step=ended.last_step)
            return ended
        self._running = self._start.begin()
        # Alerts are still being sent: the end of the job before must not end them.
        self._running.helpers = running.helpers
        alerts.ended("failure", "critical", self._restarts.said)
        return None

    def finish(self) -> None:
        """Report what is left, and stop guarding the job."""
        self._events.finish()
        _let_go(self._running, self._start.name)
        self._alerts.wait()

    def _run_command(self, text: str, found: Finding) -> None:
        """Run the command of a rule in the background."""
        pid = run_rule_command(self._running.pid, text, self._start.name, found)
        if pid:
            self._running.helpers.add(pid)


def _report_failure(name: str, ended: Ended, alerts: Alerts) -> None:
    said = f"job {name} {_how(ended)}"
    say(f"critical: {said}")
    alerts.began("failure", "critical", said, step=ended.last_step)


def _save_emergency(session: Session, name: str, alerts: Alerts) -> bool:
    """Take the snapshot of a job that failed; returns whether there is one."""
    if take_emergency(session):
        return True
    said = f"job {name} failed, and its emergency snapshot failed too"
    alerts.began("emergency snapshot", "critical", said)
    return False


def _let_go(running: Command, name: str) -> None:
    """Name the processes that are left of a job, and stop guarding it."""
    left = running.members()
    if left:
        count = counted(len(left), "process", "processes")
        say(
            f"{count} of job {name} {inflected(len(left), 'is', 'are')} still running",
            f"ciuic no longer guards {inflected(len(left), 'it', 'them')}.",
        )
    running.close()


class _Restarts:
    """Decides whether a job starts again, and prepares that.

    Args:
        session: The store.
        job: The name of the job.
        most: How often at most.
        clock: Tells the time.
        host: The machine whose versions are put back; None: see ``ciuic recover``.
        has_store: Files can be put back.

    Attributes:
        refusal: Why the job did not start again, unless a signal asked for that; empty before, and
            without restarts.
        said: What was said about the last restart.
    """

    def __init__(
        self,
        session: Session,
        job: str,
        most: int,
        clock: Clock,
        *,
        host: str | None,
        has_store: bool,
    ) -> None:
        self._session = session
        self._job = job
        self._most = most
        self._clock = clock
        self._host = host
        self._has_store = has_store
        self._began_ns = clock.now_ns()
        self._count = 0
        self._failed_step: int | None = None
        self.refusal = self.said = ""

    def may_begin(self, running: Command, ended: Ended, failed_s: float, *, is_saved: bool) -> bool:
        """Wait until the job can start again; returns False, and says why, if it must not.

        Every process of the job has ended then: otherwise two trainings would write the same files.
        Broken files have been put back.
        """
        if not self._most:
            return False
        step, not_again = ended.last_step, "is not started again"
        if self._count >= self._most:
            restarts = counted(self._most, "restart")
            return self._refuse(f"failed after {restarts}, and {not_again}")
        if not is_saved:
            return self._refuse(f"{not_again}, because its state could not be saved first")
        if self._count and step is not None and step == self._failed_step:
            return self._refuse(f"failed twice at step {step}, and {not_again}")
        left = running.end_all()
        if left:
            return self._refuse(f"{not_again}: its process {left[0]} cannot be ended")
        if self._has_store and not recover_files(
            self._session, self._host, since_ns=self._began_ns, until_ns=self._clock.now_ns()
        ):
            return self._was_asked()
        wait_s = min(_FIRST_WAIT_S * 2**self._count, _LONGEST_WAIT_S)
        wait_s = max(wait_s - (self._clock.monotonic_s() - failed_s), 0.0)
        self._count += 1
        self._failed_step = step
        when = f"in {wait_s:.0f} s" if round(wait_s) else "now"
        say(f"job {self._job} starts again {when}: restart {self._count} of {self._most}")
        self.said = f"job {self._job} was started again: restart {self._count} of {self._most}"
        return not is_asked_to_end(wait_s) or self._was_asked()

    def _refuse(self, why: str) -> bool:
        self.refusal = f"job {self._job} {why}"
        say(self.refusal)
        return False

    def _was_asked(self) -> bool:
        say(f"job {self._job} is not started again, because a signal asked ciuic to end")
        return False


def _limits(
    cpu_weight: int | None, cpus: float | None, memory_bytes: int | None, io_weight: int | None
) -> dict[str, str]:
    """Return the files of a cgroup and their texts."""
    found = {}
    if cpu_weight is not None:
        found["cpu.weight"] = str(cpu_weight)
    if cpus is not None:
        found["cpu.max"] = f"{math.ceil(cpus * _PERIOD_US)} {_PERIOD_US}"
    if memory_bytes is not None:
        if memory_bytes < 1024 * 1024:
            raise UsageError("--memory-max is less than 1 MiB", hint="Write a size like 64 GiB.")
        found["memory.max"] = str(memory_bytes)
    if io_weight is not None:
        found["io.weight"] = f"default {io_weight}"
    return found


def _cgroup(name: str, limits: dict[str, str]) -> Cgroup | None:
    try:
        return create_cgroup(name, limits)
    except NoCgroup as error:
        if limits:
            raise CiuicError(
                f"the limits cannot be set: {error}; the command was not started",
                hint=f"Run it without limits, or under '{_by_systemd(limits)} ciuic run ...'.",
            ) from error
        say(f"job {name} has no cgroup of its own: {error}; a pause stops its processes one by one")
        return None


def _by_systemd(limits: dict[str, str]) -> str:
    """Return the command that asks systemd for a cgroup with these limits."""
    properties = {
        "cpu.weight": "CPUWeight",
        "cpu.max": "CPUQuota",
        "memory.max": "MemoryMax",
        "io.weight": "IOWeight",
    }
    given = []
    for file, text in limits.items():
        value = text.rpartition(" ")[2]
        if file == "cpu.max":
            value = f"{int(text.partition(' ')[0]) * 100 // _PERIOD_US}%"
        given.append(f"-p {properties[file]}={value}")
    return " ".join(["systemd-run", *(["--user"] if os.geteuid() else []), "--scope", *given])


def _how(ended: Ended) -> str:
    """Say how a job ended."""
    code = ended.code or 0
    if code >= 0:
        how = f"failed with exit status {code}"
    else:
        how = f"was killed by signal {-code} ({_signal_name(-code)})"
    how += oom_text(ended)
    return how + ("" if ended.last_step is None else f"; its last step was {ended.last_step}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _exit_like(code: int | None) -> None:
    """End this process as the command ended: with its status, or by the same signal."""
    if code is None or code >= 0:
        sys.exit(code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # The program has left a core dump if it should; one of ciuic would be useless.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)

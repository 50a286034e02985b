"""What ``ciuic run`` and ``ciuic watch`` do about a job: messages, snapshots, pins and tags.

A failing store never harms the training: what cannot be done is said on stderr, and tried again
while the job runs.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

from ciuic.cli.alerting import Alerts
from ciuic.cli.error_output import hinted
from ciuic.cli.options import absolute
from ciuic.cli.render import brief, printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.errors import CiuicError, UsageError
from ciuic.guard.alerts.channels import Channel
from ciuic.guard.job.guarding import Ended
from ciuic.guard.job.logs import JobLogs
from ciuic.guard.rules.language import Rule, default_rules
from ciuic.guard.rules.watching import Finding
from ciuic.ids import SnapshotId
from ciuic.model import SUSPECT_TAG, complete_ones, path_text
from ciuic.source.trainings import JOB_VARIABLE
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine
from ciuic.units import counted, format_duration

__all__ = [
    "JobEvents",
    "announce_host",
    "announce_logs",
    "announce_snapshots",
    "channels_of",
    "close_logs",
    "environment",
    "log_paths",
    "oom_text",
    "rules_of",
    "run_rule_command",
    "say",
]

_OWN_VARIABLES: Final = ("OPENBLAS_NUM_THREADS",)
"""Variables that ciuic sets for itself. They would slow down the training."""

_RETRY_S: Final = 5.0
_WAIT_S: Final = 1.0
_LAST_WAIT_S: Final = 30.0


def say(text: str, hint: str = "") -> None:
    """Print a message on stderr."""
    print_pair("ciuic:", hinted(text), len("ciuic: "), err=True)
    if hint:
        print_pair("", hinted(hint), len("ciuic: "), err=True)


class JobEvents:
    """The events of one job; see ``Events``.

    Args:
        session: The store.
        job: The name of the job.
        clock: For retries.
        run_command: Runs the command of a rule in the background.
        has_store: Snapshots can be pinned and tagged.
        alerts: Where faults are reported, besides stderr.
    """

    def __init__(
        self,
        session: Session,
        job: str,
        clock: Clock,
        run_command: Callable[[str, Finding], None],
        *,
        has_store: bool,
        alerts: Alerts,
    ) -> None:
        self._session = session
        self._job = job
        self._clock = clock
        self._run_command = run_command
        self._has_store = has_store
        self._alerts = alerts
        self._pending: list[Callable[[float], None]] = []
        self._good_ns = sys.maxsize
        self._fired_ns = 0
        self._next_s = 0.0
        self._failure = ""
        self._pinned: SnapshotId | None = None

    def fired(self, finding: Finding, *, is_paused: bool) -> None:
        """Report it, pin the last good snapshot, and tag the later ones."""
        rule = finding.rule
        at = "" if finding.step is None else f" at step {finding.step}"
        back = "" if finding.go_back_step is None else f"; go back to step {finding.go_back_step}"
        said = f"job {self._job}: {rule.name}{at}: {finding.what}{back}"
        say(f"{rule.severity}: {said}")
        self._alerts.began(
            f"rule {rule.name}",
            rule.severity,
            said + ("; the job is paused" if is_paused else ""),
            rule=rule.name,
            step=finding.step,
            # A job that hangs has spoiled nothing.
            **({} if rule.idle_s else {"go_back_step": finding.go_back_step}),
        )
        if is_paused:
            say(
                f"job {self._job} is paused",
                f"'kill -CONT {os.getpid()}' lets it go on; Ctrl-C or SIGTERM lets it end.",
            )
        elif rule.action == "run":
            self._run_command(rule.command, finding)
        if (
            not self._has_store or rule.idle_s
        ):  # a job that hangs has not spoiled its earlier snapshots
            return
        now_ns = self._clock.now_ns()
        self._good_ns = min(self._good_ns, finding.good_ns or now_ns)
        self._fired_ns = self._fired_ns or now_ns
        self._add(self._pin_before)
        self._next_s = 0.0

    def fault_ended(self, finding: Finding) -> None:
        """Report it."""
        at = "" if finding.step is None else f" at step {finding.step}"
        said = f"job {self._job}: {finding.rule.name} ended{at}"
        say(said)
        self._alerts.ended(f"rule {finding.rule.name}", finding.rule.severity, said)

    def resumed(self) -> None:
        """Report it."""
        said = f"job {self._job} goes on"
        say(said)
        self._alerts.ended("long pause", "critical", said)

    def paused_long(self, duration_s: float) -> None:
        """Report it."""
        said = (
            f"job {self._job} has been paused for {format_duration(duration_s)}, and its"
            " collectives may time out when it goes on"
        )
        self._alerts.began("long pause", "critical", said)
        say(
            f"critical: {said}",
            "NCCL allows 10 minutes and gloo 30, unless the program sets another limit.",
        )

    def blind(self, text: str) -> None:
        """Report it."""
        said = f"job {self._job}: {text}"
        self._alerts.began(f"log {text}", "warning", said)
        say(f"warning: {said}")

    def idle(self) -> None:
        """Try again what could not be done, and send what was held back."""
        self._alerts.idle()
        if self._pending and self._clock.monotonic_s() >= self._next_s:
            self._work(_WAIT_S)
            self._next_s = self._clock.monotonic_s() + _RETRY_S

    def mark(self) -> None:
        """Pin the last good snapshot, and tag those since a rule fired; ``idle`` tries again."""
        if self._fired_ns:
            self._add(self._tag_since)
        self._work(_LAST_WAIT_S)

    def finish(self) -> None:
        """Like ``mark``, and say what could not be done."""
        self.mark()
        if self._pending:
            say(f"snapshots could not be pinned and tagged: {self._failure}")

    def _add(self, act: Callable[[float], None]) -> None:
        if act not in self._pending:
            self._pending.append(act)

    def _work(self, wait_s: float) -> None:
        waiting, self._pending = self._pending, []
        for act in waiting:
            try:
                act(wait_s)
            except (CiuicError, OSError) as error:
                self._failure = str(error)
                self._pending.append(act)

    def _pin_before(self, wait_s: float) -> None:
        """Pin the newest snapshot that was taken before every fault, not only the last."""
        # Imported when a rule has fired: the store takes as much memory as the rest.
        from ciuic.catalog import list_snapshots
        from ciuic.catalog.whose import of_this_machine
        from ciuic.cli.opening import opened
        from ciuic.maintain.label import set_pinned

        with opened(self._session, write=True, adds=False, wait_s=wait_s) as store:
            before = [
                snapshot
                for snapshot in complete_ones(list_snapshots(store))
                if snapshot.taken_ns <= self._good_ns
            ]
            try:
                own = of_this_machine(before).snapshots
            except UsageError as error:
                say(f"no snapshot before the fault is pinned: {error.message.partition(':')[0]}")
                return
            # The tag is from an earlier run of ciuic.
            good = [snapshot for snapshot in own if SUSPECT_TAG not in snapshot.tags]
            if not good:
                say("no snapshot was taken before the fault")
                return
            newest = max(good, key=lambda one: one.taken_ns)
            if newest.id == self._pinned:
                return
            if not newest.pinned:
                set_pinned(store, newest.id, pinned=True)
            self._pinned = newest.id
        what = "was pinned already" if newest.pinned else "is now pinned"
        is_here = newest.owner.machine.is_same(this_machine())
        on = "" if is_here else f" on {printable(brief(newest.host))}"
        say(f"snapshot {newest.id} was taken before the fault{on}, and {what}")

    def _tag_since(self, wait_s: float) -> None:
        from ciuic.catalog import list_snapshots
        from ciuic.cli.opening import opened
        from ciuic.maintain.label import change_tags

        here = this_machine()
        with opened(self._session, write=True, adds=False, wait_s=wait_s) as store:
            for snapshot in list_snapshots(store):
                # Those of other machines have nothing of this job.
                is_since = snapshot.taken_ns > self._fired_ns
                is_since = is_since and snapshot.owner.machine.is_same(here)
                if is_since and SUSPECT_TAG not in snapshot.tags:
                    change_tags(store, snapshot.id, add=(SUSPECT_TAG,))


def oom_text(ended: Ended) -> str:
    """Say what the kernel killed for lack of memory; an empty text if nothing."""
    count = ended.oom_kills or ended.oom_kills_meanwhile
    if not count:
        return ""
    killed = counted(count, "process", "processes")
    if ended.oom_kills:
        return f"; it ran out of memory, and the kernel killed {killed} of it"
    return f"; meanwhile, this machine ran out of memory, and the kernel killed {killed}"


def rules_of(session: Session) -> tuple[Rule, ...]:
    """Return the rules of the configuration, or the default ones."""
    if session.config_path is None:
        return default_rules()
    return session.settings().rules


def channels_of(session: Session) -> tuple[Channel, ...]:
    """Return where alerts go; nowhere without a configuration."""
    return () if session.config_path is None else session.settings().channels


def log_paths(logs: Sequence[str]) -> list[bytes]:
    """Return the absolute paths and patterns of the logs that a user names.

    Raises:
        UsageError: One is a directory, which no rule can watch.
    """
    paths = [absolute(log) for log in logs]
    for path in paths:
        if os.path.isdir(path):
            raise UsageError(
                f"the log {printable(path_text(path))} is a directory",
                hint="Name a file, or a pattern in quotes that names several: 'DIR/*.jsonl'.",
            )
    return paths


def announce_logs(logs: JobLogs) -> None:
    """Say on stderr which logs are not there: the job creates them later, or a name is wrong."""
    for path in logs.absent():
        name = printable(path_text(path))
        is_there = os.path.exists(path)
        say(f"the log {name} cannot be read" if is_there else f"there is no log {name} yet")


def close_logs(logs: JobLogs, job: str) -> None:
    """Close the logs of a job that has ended, and say which were never there."""
    for path in logs.absent():
        name = printable(path_text(path))
        why = "could not be read" if os.path.exists(path) else "never appeared"
        say(f"warning: job {job}: the log {name} {why}, so no rule watched it")
    logs.close()


def announce_snapshots(session: Session) -> bool:
    """Say on stderr if no snapshot can be taken; returns whether one can."""
    # Imported here: ``ciuic rules`` needs no store.
    from ciuic.cli.addresses import place_options
    from ciuic.cli.opening import opened
    from ciuic.control import request_status
    from ciuic.store.addressed import control_directory
    from ciuic.store.directory.find import read_header
    from ciuic.store.place.keys import is_url

    try:
        store_path = session.store_path()
        session.take_settings(names_paths=False)
        control = control_directory(store_path, os.environ, place_options(session, store_path))
        status = None if control is None else request_status(control)
        if status is not None and status.get("may_take", True):
            return True
        if is_url(store_path):
            with opened(session):
                return True
        read_header(store_path)
        if os.access(store_path, os.R_OK | os.W_OK | os.X_OK):
            return True
        why = f"this user cannot write to {store_path}, and "
        why += (
            "no daemon is running"
            if status is None
            else "is not a member of the control_group of the daemon"
        )
    except CiuicError as error:
        why = error.message
    except OSError as error:
        why = f"the store cannot be opened: {os.strerror(error.errno or 0)}"
    say(f"no snapshot can be taken if the job fails: {why}")
    return False


def announce_host(session: Session, host: str) -> None:
    """Say on stderr if a restart could put back no version of this host: its name may be wrong."""
    from ciuic.cli.opening import opened
    from ciuic.guard.recovery.versions import sources_of

    try:
        with opened(session) as store:
            sources_of(store, (), host)
    except CiuicError as error:
        say(f"no broken file can be put back if the job fails: {error.message}", error.hint)


def run_rule_command(pid: int, text: str, name: str, found: Finding) -> int:
    """Run the command of a rule in the background; returns its process ID, 0 if that failed."""
    environ = {
        **environment(),
        JOB_VARIABLE: name,
        "CIUIC_JOB_PID": str(pid),
        "CIUIC_RULE": found.rule.name,
        "CIUIC_STEP": "" if found.step is None else str(found.step),
        "CIUIC_GO_BACK_STEP": "" if found.go_back_step is None else str(found.go_back_step),
    }
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", text],
            environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        say(f"the command of rule {found.rule.name} cannot be run: {error.strerror}")
        return 0


def environment() -> dict[str, str]:
    """Return the environment that this process got: the program must not see ciuic's changes."""
    environ = dict(os.environ)
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        given_names = {item.partition(b"=")[0] for item in file.read().split(b"\0")}
        for name in _OWN_VARIABLES:
            if name.encode() not in given_names:
                environ.pop(name, None)
    return environ

"""``ciuic watch``."""

import sys
from collections.abc import Sequence

import click

from ciuic.cli.after_failure import take_emergency
from ciuic.cli.alerting import Alerts
from ciuic.cli.guarding import (
    JobEvents,
    announce_logs,
    announce_snapshots,
    channels_of,
    close_logs,
    log_paths,
    oom_text,
    rules_of,
    run_rule_command,
    say,
)
from ciuic.cli.options import WholeNumber, given, rule_logs_option
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import DONE, FAILED, TROUBLE, UsageError
from ciuic.guard.job.command import Watched
from ciuic.guard.job.guarding import block_signals, guard
from ciuic.guard.job.idle import Idleness
from ciuic.guard.job.logs import JobLogs
from ciuic.guard.job.processes import ancestors
from ciuic.guard.rules.watching import Finding
from ciuic.system.clock import SystemClock

__all__ = ["command"]


@click.command("watch")
@click.option(
    "--pid",
    type=WholeNumber(1),
    required=True,
    metavar="PID",
    help="The first process of the job: torchrun, or the program itself.",
)
@click.option(
    "--job",
    metavar="NAME",
    callback=given,
    help="The name of the job in messages.  [default: 'process PID']",
)
@rule_logs_option
@click.pass_obj
def command(session: Session, *, pid: int, job: str | None, logs: tuple[str, ...]) -> None:
    """Watch a process that is already running, and take a snapshot when it ends.

    Only the parent of a process learns how it ended. So 'ciuic watch' treats every end as a
    failure; 'ciuic run' can tell them apart. A pause stops the process and every process below it.
    SIGCONT to ciuic lets them go on. After Ctrl-C or SIGTERM, ciuic lets them go on and exits with
    0, and they keep running. If the process ends first, ciuic exits as 'ciuic snapshot' does: with
    1 if no snapshot was taken, and with 3 if one has warnings.
    """
    name = job or f"process {pid}"
    paths = log_paths(logs)
    clock = SystemClock()
    alerts = Alerts(channels_of(session), name, clock)
    watched = Watched(pid)
    if pid in ancestors():
        raise UsageError(
            f"process {pid} is ciuic itself or above it, so ciuic cannot watch it",
            hint="Give the ID of the training program: 'pgrep -f train.py' finds it.",
        )
    rules = rules_of(session)
    can_snapshot = announce_snapshots(session)
    block_signals()
    read = JobLogs(paths, rules if paths else (), clock)
    announce_logs(read)
    events = JobEvents(
        session,
        name,
        clock,
        lambda text, found: _start(pid, text, name, found),
        has_store=can_snapshot,
        alerts=alerts,
    )
    ended = guard(watched, read, Idleness(rules, clock), events, clock)
    alerts.idle()  # what the last lines say is told before anything that takes long
    close_logs(read, name)
    status = DONE
    if not ended.asked:
        step = "" if ended.last_step is None else f"; its last step was {ended.last_step}"
        said = f"job {name} has ended{oom_text(ended)}{step}"
        say(f"critical: {said}")
        alerts.began("failure", "critical", said, step=ended.last_step)
        taken = take_emergency(session) if can_snapshot else []
        if can_snapshot and not taken:
            said = f"job {name} has ended, and its emergency snapshot failed"
            alerts.began("emergency snapshot", "critical", said)
        status = _status(taken)
    events.finish()
    watched.close()
    alerts.wait()
    sys.exit(status)


def _status(taken: Sequence[Document]) -> int:
    """Return the exit status after the end of the process."""
    if not taken:
        return FAILED
    return TROUBLE if any(report["trouble_count"] for report in taken) else DONE


def _start(pid: int, text: str, name: str, found: Finding) -> None:
    run_rule_command(pid, text, name, found)

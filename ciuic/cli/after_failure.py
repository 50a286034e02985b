"""What ``ciuic run`` and ``ciuic watch`` do after a job has failed, each in a process of its own.

A process of its own, because a snapshot lowers the priority of its process for good, and because
the memory of a restore is given back when it ends.
"""

import contextlib
import json
import signal
import subprocess
import sys
from typing import Final

from ciuic.cli.guarding import say
from ciuic.cli.render import printable, warning_text
from ciuic.cli.session import Session
from ciuic.documents import Document
from ciuic.errors import ConfigError
from ciuic.guard.job.guarding import is_asked_to_end
from ciuic.model import EMERGENCY_TAG
from ciuic.units import counted, format_duration

__all__ = ["recover_files", "take_emergency"]

_PROGRAM: Final = "import sys; sys.argv[0] = 'ciuic'; from ciuic.cli import main; main()"
_POLL_S: Final = 0.05
_NAMED_MAX: Final = 10
_NS: Final = 1_000_000_000
_COARSE_NS: Final = 2 * _NS
"""A file system may store whole seconds, and its clock may be a tick behind."""


def take_emergency(session: Session) -> list[Document]:
    """Take a snapshot of each schedule now, in the order of the configuration.

    Returns:
        The report of each; none if one failed.
    """
    names: list[str] = []
    if session.store is None:
        with contextlib.suppress(ConfigError):  # 'ciuic snapshot' says what is wrong
            names = [other.schedule for other in session.settings().others]
    reports = [_take(session), *(_take(session, "--schedule", name) for name in names)]
    taken = [report for report in reports if report is not None]
    return taken if len(taken) == len(reports) else []


def _take(session: Session, *options: str) -> Document | None:
    command = _command(session, "snapshot", *options, "--tag", EMERGENCY_TAG, "--wait", "60s")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
            preexec_fn=_unblock,
        )
        report: Document = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say(f"the emergency snapshot failed: {printable(str(error))}")
        return None
    if "id" not in report:
        say("the emergency snapshot failed")
        return None
    total = format_duration(float(report["total_s"]))
    say(f"emergency snapshot {report['id']} was taken in {total}")
    for warning in report["trouble"][:_NAMED_MAX]:
        say(warning_text(warning).removeprefix("ciuic: "))
    # The first is a list of some, with harmless ones; the second counts all others.
    left = max(len(report["trouble"]), report["trouble_count"]) - _NAMED_MAX
    if left > 0:
        say(f"and {counted(left, 'more warning')}: see 'ciuic show {report['id']}'")
    return report


def recover_files(session: Session, host: str | None, *, since_ns: int, until_ns: int) -> bool:
    """Put back what the job left broken; every process of it has ended.

    The command says on stderr what it finds and does. If it cannot put them back, the job still
    starts again: the job may find another checkpoint.

    Args:
        session: The store.
        host: The machine that a user has chosen for versions; None: see ``ciuic recover``.
        since_ns: When the job was started first.
        until_ns: When its last process had ended.

    Returns:
        False if a signal asked ciuic to end.
    """
    window = [f"--since={_moment(since_ns - _COARSE_NS)}", f"--until={_moment(until_ns)}"]
    chosen = [] if host is None else [f"--host={host}"]
    try:
        running = subprocess.Popen(
            _command(session, "recover", *window, *chosen),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=_unblock,  # noqa: PLW1509
        )
    except (OSError, subprocess.SubprocessError) as error:
        say(f"broken files cannot be looked for: {printable(str(error))}")
        return True
    with running:
        while True:
            try:
                out, _ = running.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if is_asked_to_end(0):
                    running.terminate()
                    return False
    try:
        report: Document = json.loads(out)
    except ValueError:
        report = {}
    if "broken" not in report:
        say("broken files could not be looked for: the job starts with its files as they are")
    return True


def _moment(time_ns: int) -> str:
    return f"@{time_ns // _NS}.{time_ns % _NS:09d}"


def _command(session: Session, *arguments: str) -> list[str]:
    # -P: without the current directory, where the modules of the training program are.
    command = [sys.executable, "-P", "-c", _PROGRAM]
    for option, value in (("--config", session.config), ("--store", session.store)):
        command += [] if value is None else [option, value]
    return [*command, *arguments, "--json"]


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])

"""``ciuic doctor``."""

import os
import sys
from collections.abc import Iterator, Sequence

import click

from ciuic.cli.addresses import place_options
from ciuic.cli.options import (
    json_option,
)
from ciuic.cli.render import coloured, print_json
from ciuic.cli.session import Session
from ciuic.cli.table import (
    print_pair,
)
from ciuic.config.settings import Settings
from ciuic.control import request_status
from ciuic.errors import FAILED, CiuicError, ConfigError
from ciuic.report.doctor.checklist import NOT_KNOWN, checklist
from ciuic.report.doctor.examine import examine
from ciuic.report.doctor.findings import (
    LEVELS,
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Finding,
    Plan,
    Schedule,
    Subject,
)
from ciuic.store.addressed import control_directory
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
)

__all__ = ["command", "subject_of"]

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@click.command("doctor")
@click.option("--test-alerts", is_flag=True, help="Also send a test message through each alert.")
@json_option
@click.pass_obj
def command(session: Session, *, test_alerts: bool, as_json: bool) -> None:
    """Check the configuration, the roots, the store, the daemon and the machine.

    Each result is ok, a note, a warning or a problem, and says what to do next. At the end comes a
    checklist for a recovery, in six lines. The command changes nothing. It exits with 1 if there is
    a problem.
    """
    found = []
    for finding in _check_configuration(session):
        found.append(finding)
        if not as_json:
            _print(*finding)
    for finding in examine(subject_of(session), clock=SystemClock()):
        found.append(finding)
        if not as_json:
            _print(*finding)
    for finding in _test_alerts(session) if test_alerts else ():
        found.append(finding)
        if not as_json:
            _print(*finding)
    answers = list(checklist(found))
    counts = _counts(found)
    is_well = not counts[PROBLEM]
    if as_json:
        print_json(
            {
                "ok": is_well,
                "counts": counts,
                "findings": [finding.as_json() for finding in found],
                "checklist": [answer.as_json() for answer in answers],
            }
        )
    else:
        for number, answer in enumerate(answers, start=1):
            _print(answer.level, f"{number}. {answer.about}", answer.what, answer.advice)
        # The other answers repeat findings.
        counts = _counts([*found, *(answer for answer in answers if answer.what == NOT_KNOWN)])
        said = [counted(counts[level], level) for level in reversed(LEVELS) if level != OK]
        click.echo(", ".join(said), err=True)
    sys.exit(0 if is_well else FAILED)


def _counts(found: Sequence[Finding]) -> dict[str, int]:
    return {level: sum(finding.level == level for finding in found) for level in LEVELS}


def _check_configuration(session: Session) -> Iterator[Finding]:
    """Yield the finding about the configuration."""
    path = session.config_path
    if path is None:
        what = "there is none, so the directories and the interval of snapshots are not known"
        yield Finding(NOTE, "configuration", what, "Name it with --config FILE, or write one.")
        return
    try:
        session.settings()
    except ConfigError as error:
        yield Finding(PROBLEM, "configuration", error.message, error.hint or "")
    else:
        yield Finding(OK, "configuration", path)


def _test_alerts(session: Session) -> Iterator[Finding]:
    """Send a test message through each alert; yield the findings."""
    # Imported here because these modules know mail and web servers.
    from ciuic.cli.alerting import test_message
    from ciuic.guard.alerts.send import NotSent, send

    try:
        channels = session.settings().channels
    except ConfigError:
        return  # _check_configuration reports it
    if not channels:
        what = "there are none, so ciuic sends no message about a fault"
        yield Finding(WARNING, "alerts", what, "Add an [alert NAME] section; see the reference.")
    for channel in channels:
        about = f"alert {channel.name}"
        try:
            send(channel, test_message(SystemClock()))
        except NotSent as error:
            advice = "Correct the section of the configuration, or what it names."
            yield Finding(PROBLEM, about, f"the test message was not sent: {error}", advice)
        else:
            yield Finding(OK, about, "the test message was handed over")


def subject_of(session: Session) -> Subject:
    """Return the subject of the checks, as far as the configuration can be read."""
    plan = None
    try:
        settings = session.settings()
        plan = Plan(
            roots=tuple(os.fsencode(path) for path in settings.all_paths),
            schedules=tuple(map(_schedule_of, settings.schedules)),
            hot_snapshots=max(schedule.hot_snapshots for schedule in settings.schedules),
            io_priority=settings.io_priority,
            contacts=settings.contacts,
            channels=tuple(
                section.name for section in settings.sections if section.kind == "alert"
            ),
            copies=session.copies(),
        )
    except ConfigError:
        pass  # _check_configuration reports it
    try:
        store_path = session.store_path(checked=False)
        options = place_options(session, store_path)
    except ConfigError:
        return Subject(None, plan, None, typed=session.options)
    try:
        control = control_directory(store_path, os.environ, options)
        status = None if control is None else request_status(control)
    except CiuicError as error:
        return Subject(store_path, plan, error, options, session.options)
    return Subject(store_path, plan, status, options, session.options)


def _schedule_of(settings: Settings) -> Schedule:
    roots = tuple(os.fsencode(path) for path in settings.snapshot_paths)
    every_s, full_every_s = settings.snapshot_interval_s, settings.base_interval_s
    return Schedule(settings.schedule, roots, every_s, full_every_s)


def _print(level: str, about: str, what: str, advice: str) -> None:
    sign = coloured(f"{level:8} ", _COLOURS[level])
    print_pair(sign, f"{about}: {what}", 9)
    if advice:
        print_pair("", advice, 9)

"""``ciuic doctor``."""

import os
import sys
from collections.abc import Iterator

import click

from ciuic.cli.options import (
    json_option,
)
from ciuic.cli.render import coloured, print_json
from ciuic.cli.session import Session
from ciuic.cli.table import (
    print_pair,
)
from ciuic.control import request_status
from ciuic.errors import FAILED, CiuicError, ConfigError
from ciuic.report.doctor.examine import examine
from ciuic.report.doctor.findings import LEVELS, NOTE, OK, PROBLEM, Finding, Plan, Subject
from ciuic.system.clock import SystemClock
from ciuic.units import (
    counted,
)

__all__ = ["command"]

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@click.command("doctor")
@json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Check the configuration, the roots, the store, the daemon and the machine.

    Each result is ok, a note, a warning or a problem, and says what to do next. Changes nothing.
    Exits with 1 if there is a problem.
    """
    found = []
    for finding in _check_configuration(session):
        found.append(finding)
        if not as_json:
            _print(*finding)
    for finding in examine(_subject(session), clock=SystemClock()):
        found.append(finding)
        if not as_json:
            _print(*finding)
    counts = {level: sum(finding.level == level for finding in found) for level in LEVELS}
    is_well = not counts[PROBLEM]
    if as_json:
        print_json(
            {"ok": is_well, "counts": counts, "findings": [finding.as_json() for finding in found]}
        )
    else:
        said = [counted(counts[level], level) for level in reversed(LEVELS) if level != OK]
        click.echo(", ".join(said), err=True)
    sys.exit(0 if is_well else FAILED)


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


def _subject(session: Session) -> Subject:
    """Return the subject of the checks, as far as the configuration can be read."""
    plan = None
    try:
        settings = session.settings()
        plan = Plan(
            roots=tuple(os.fsencode(path) for path in settings.snapshot_paths),
            interval_s=settings.snapshot_interval_s,
            base_interval_s=settings.base_interval_s,
            hot_snapshots=settings.hot_snapshots,
            io_priority=settings.io_priority,
        )
    except ConfigError:
        pass  # _check_configuration reports it
    try:
        store_path = session.store_path(checked=False)
    except ConfigError:
        return Subject(None, plan, None)
    try:
        return Subject(store_path, plan, request_status(store_path))
    except CiuicError as error:
        return Subject(store_path, plan, error)


def _print(level: str, about: str, what: str, advice: str) -> None:
    sign = coloured(f"{level:8} ", _COLOURS[level])
    print_pair(sign, f"{about}: {what}", 9)
    if advice:
        print_pair("", advice, 9)

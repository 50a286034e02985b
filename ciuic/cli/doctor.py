"""``ciuic doctor``."""

import os
import sys
from typing import Any

import click

from ciuic.cli.render import coloured, print_json, printable
from ciuic.cli.session import FAILED, Session, json_option
from ciuic.errors import CiuicError, ConfigError

__all__ = ["doctor"]

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@click.command(short_help="Look for what would go wrong on the worst day.")
@json_option
@click.pass_obj
def doctor(session: Session, *, as_json: bool) -> None:
    """Look at the configuration, the roots, the store, the daemon and the machine.

    Says of each whether it is ok, worth a note, a warning or a problem, and what to do next;
    changes nothing. Exits with 1 if there is a problem.
    """
    from ciuic.clock import SystemClock
    from ciuic.verbs.doctor import LEVELS, OK, PROBLEM, examine

    found = []
    for finding in _configuration(session):
        found.append(finding)
        if not as_json:
            _print(*finding)
    for finding in examine(_subject(session), clock=SystemClock()):
        found.append(finding)
        if not as_json:
            _print(*finding)
    counts = {level: sum(one.level == level for one in found) for level in LEVELS}
    is_well = not counts[PROBLEM]
    if as_json:
        print_json({"ok": is_well, "counts": counts, "findings": [one.as_json() for one in found]})
    else:
        said = [_plural(counts[level], level) for level in reversed(LEVELS) if level != OK]
        click.echo(", ".join(said), err=True)
    sys.exit(0 if is_well else FAILED)


def _configuration(session: Session) -> Any:
    from ciuic.verbs.doctor import NOTE, OK, PROBLEM, Finding

    path = session.config_path
    if path is None:
        what = "there is none: what should be taken, and how often, is not known"
        yield Finding(NOTE, "configuration", what, "Name it with --config FILE, or write one.")
        return
    try:
        session.settings()
    except ConfigError as error:
        yield Finding(PROBLEM, "configuration", error.message, error.hint or "")
    else:
        yield Finding(OK, "configuration", path)


def _subject(session: Session) -> Any:
    from ciuic.control import request_status
    from ciuic.verbs.doctor import Plan, Subject

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
        pass  # it has been told
    try:
        store_path = session.store_path(checked=False)
    except ConfigError:
        return Subject(None, plan, None)
    try:
        return Subject(store_path, plan, request_status(store_path))
    except CiuicError as error:
        return Subject(store_path, plan, error)


def _print(level: str, about: str, what: str, advice: str) -> None:
    sign = coloured(f"{level:8}", _COLOURS[level])
    click.echo(f"{sign} {printable(about)}: {printable(what)}")
    if advice:
        click.echo(f"{'':8} {printable(advice)}")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"

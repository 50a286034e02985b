"""``ciuic status``."""

import os
from collections.abc import Iterable, Sequence

import click

from ciuic.catalog import list_snapshots
from ciuic.cli.addresses import place_options
from ciuic.cli.checks import check_lines
from ciuic.cli.daemon_lines import daemon_lines
from ciuic.cli.error_output import hinted
from ciuic.cli.opening import opened, warn_damaged
from ciuic.cli.options import (
    json_option,
)
from ciuic.cli.render import brief, print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import (
    print_pair,
)
from ciuic.control import Document, request_status
from ciuic.copy.record import standings
from ciuic.errors import CiuicError
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import SnapshotSummary, complete_ones, holds_one, newest_first
from ciuic.source.roots import absent_roots
from ciuic.store.addressed import control_directory
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.system.machine import names_of, this_machine
from ciuic.units import (
    format_duration,
)

__all__ = ["command"]


@click.command("status")
@json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Show what the daemon is doing, the age of the newest snapshot, and how current copies are."""
    path = session.store_path()
    settings = session.store_settings()
    try:
        with opened(session) as store:
            ordered = newest_first(complete_ones(list_snapshots(store)))
            warn_damaged(session, store)
            checks = health(store)
            control_path = store.path
            copies = standings(store, session.copies(), SystemClock().now_ns())
    except CiuicError as error:
        _show_rest(session, error, as_json=as_json)
        raise
    schedules = {schedule.schedule for schedule in settings.schedules}
    scopes, here = session.scopes, this_machine()
    if scopes:
        # The schedules of another machine may have the same names, and other directories.
        ordered = [
            one
            for one in ordered
            if holds_one(one.roots, scopes)
            or (one.schedule in schedules and one.owner.machine.is_same(here))
        ]
    newest = next(iter(ordered), None)
    own = next((found for found in ordered if found.owner.machine.is_same(here)), None)
    daemon, refusal = None, None
    try:
        daemon = request_status(control_path)
    except CiuicError as error:
        refusal = error  # the store says the rest without it
    absent = absent_roots(settings.all_paths)
    if as_json:
        document = {
            "store": path,
            "daemon": daemon,
            "newest": None if newest is None else newest.as_json(),
            "newest_here": None if own is None else own.as_json(),
            "checks": checks.as_json(),
            "copies": [copy.as_json() for copy in copies],
            "absent_paths": absent,
            "damaged_snapshots": session.damaged_snapshots,
        }
        if refusal is not None:
            refusal.done = document
            raise refusal
        print_json(document)
        return
    lines = [("store", path), *_newest_lines(ordered, own, is_scoped=bool(scopes))]
    lines += _absence_lines(absent)
    lines += check_lines(checks)
    lines += [("copy", printable(f"{copy.name} {copy.sentence()}")) for copy in copies]
    if refusal is None:
        lines += _daemon_lines(path, daemon, is_damaged=checks.is_damaged)
    _print(lines)
    if refusal is not None:
        raise refusal


def _newest_lines(
    ordered: Sequence[SnapshotSummary], own: SnapshotSummary | None, *, is_scoped: bool
) -> list[tuple[str, str]]:
    """Return the lines about the newest snapshot, and the newest of this machine."""
    newest = next(iter(ordered), None)
    if newest is None:
        whose = " of the configured directories" if is_scoped else ""
        return [("newest", f"no snapshot{whose} yet")]
    if own is newest:
        return [("newest", _age_text(newest))]
    names = names_of([this_machine(), *(found.owner.machine for found in ordered)])
    where = printable(brief(names[newest.owner.machine]))
    return [
        ("newest", f"{_age_text(newest)}, on {where}"),
        ("here", "no snapshot of this machine" if own is None else _age_text(own)),
    ]


def _show_rest(session: Session, error: CiuicError, *, as_json: bool) -> None:
    """Show what needs no store: it cannot be opened, and its daemon may say why."""
    path = session.store_path()
    daemon, silent = None, ""
    try:
        control = control_directory(path, os.environ, place_options(session, path))
        daemon = None if control is None else request_status(control)
    except CiuicError as refusal:
        silent = refusal.message
    if daemon is None and not is_url(path):
        return  # a directory without a store has no daemon
    absent = absent_roots(session.store_settings().all_paths)
    if as_json:
        error.done = {"store": path, "daemon": daemon, "absent_paths": absent}
        return
    says = [("daemon", silent)] if silent else _daemon_lines(path, daemon)
    _print([("store", path), *_absence_lines(absent), *says])


def _absence_lines(absent: Iterable[str]) -> list[tuple[str, str]]:
    return [("absent", f"there is no directory {root}, which is configured") for root in absent]


def _daemon_lines(
    path: str, daemon: Document | None, *, is_damaged: bool = False
) -> list[tuple[str, str]]:
    if daemon is not None:
        return list(daemon_lines(daemon, is_damaged=is_damaged))
    if is_url(path):  # the socket is in the cache directory of the daemon's user
        return [("daemon", "none of this user on this store; those of others are not seen")]
    return [("daemon", "not running on this store")]


def _print(lines: Iterable[tuple[str, str]]) -> None:
    for key, value in lines:
        print_pair(f"{key}:", hinted(value), 9)


def _age_text(snapshot: SnapshotSummary) -> str:
    age_s = (SystemClock().now_ns() - snapshot.taken_ns) / 1e9
    age = f"{format_duration(age_s)} ago" if age_s >= 0 else "in the future: a clock was wrong"
    return f"{snapshot.id} of {local_time_text(snapshot.taken_ns)}, {age}"

"""``ciuic status``."""

import click

from ciuic.catalog import list_snapshots
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
from ciuic.control import request_status
from ciuic.copy.record import standings
from ciuic.maintain.scrub.pack_health import health
from ciuic.model import SnapshotSummary, complete_ones, newest_first
from ciuic.source.roots import absent_roots
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock, local_time_text
from ciuic.system.machine import this_machine
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
    with opened(session) as store:
        ordered = newest_first(complete_ones(list_snapshots(store)))
        warn_damaged(session, store)
        checks = health(store)
        control_path = store.path
        copies = standings(store, session.copies(), SystemClock().now_ns())
    newest = next(iter(ordered), None)
    here = this_machine()
    own = next((found for found in ordered if found.owner.machine.is_same(here)), None)
    daemon = request_status(control_path)
    absent = absent_roots(session.store_settings().all_paths)
    if as_json:
        print_json(
            {
                "store": path,
                "daemon": daemon,
                "newest": None if newest is None else newest.as_json(),
                "newest_here": None if own is None else own.as_json(),
                "checks": checks.as_json(),
                "copies": [copy.as_json() for copy in copies],
                "absent_paths": absent,
                "damaged_snapshots": session.damaged_snapshots,
            }
        )
        return
    lines = [("store", path)]
    if newest is None:
        lines.append(("newest", "no snapshot yet"))
    elif own is newest:
        lines.append(("newest", _age_text(newest)))
    else:
        lines.append(("newest", f"{_age_text(newest)}, on {printable(brief(newest.host))}"))
        lines.append(("here", "no snapshot of this machine" if own is None else _age_text(own)))
    lines += [("absent", f"there is no directory {root}, which is configured") for root in absent]
    lines += check_lines(checks)
    lines += [("copy", printable(f"{copy.name} {copy.sentence()}")) for copy in copies]
    if daemon is not None:
        lines += daemon_lines(daemon, is_damaged=checks.is_damaged)
    elif is_url(path):  # the socket is in the cache directory of the daemon's user
        lines.append(("daemon", "none of this user on this store; those of others are not seen"))
    else:
        lines.append(("daemon", "not running on this store"))
    for key, value in lines:
        print_pair(f"{key}:", hinted(value), 9)


def _age_text(snapshot: SnapshotSummary) -> str:
    age_s = (SystemClock().now_ns() - snapshot.taken_ns) / 1e9
    age = f"{format_duration(age_s)} ago" if age_s >= 0 else "in the future: a clock was wrong"
    return f"{snapshot.id} of {local_time_text(snapshot.taken_ns)}, {age}"

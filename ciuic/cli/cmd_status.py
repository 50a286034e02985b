"""``ciuic status``."""

import click

from ciuic.catalog import latest_snapshot
from ciuic.cli.checks import check_lines
from ciuic.cli.daemon_lines import daemon_lines
from ciuic.cli.error_output import hinted
from ciuic.cli.opening import opened, warn_damaged
from ciuic.cli.options import (
    json_option,
)
from ciuic.cli.render import print_json, printable
from ciuic.cli.session import Session
from ciuic.cli.table import (
    print_pair,
)
from ciuic.control import request_status
from ciuic.copy.record import standings
from ciuic.maintain.scrub.pack_health import health
from ciuic.source.roots import absent_roots
from ciuic.system.clock import SystemClock, local_time_text
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
        newest = latest_snapshot(store)
        warn_damaged(session, store)
        checks = health(store)
        control_path = store.path
        copies = standings(store, session.copies(), SystemClock().now_ns())
    daemon = request_status(control_path)
    absent = absent_roots(session.store_settings().all_paths)
    if as_json:
        print_json(
            {
                "store": path,
                "daemon": daemon,
                "newest": None if newest is None else newest.as_json(),
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
    else:
        age_s = max(0.0, (SystemClock().now_ns() - newest.taken_ns) / 1e9)
        when = local_time_text(newest.taken_ns)
        lines.append(("newest", f"{newest.id} of {when}, {format_duration(age_s)} ago"))
    lines += [("absent", f"there is no directory {root}, which is configured") for root in absent]
    lines += check_lines(checks)
    lines += [("copy", printable(f"{copy.name} {copy.sentence()}")) for copy in copies]
    lines += [("daemon", "not running on this store")] if daemon is None else daemon_lines(daemon)
    for key, value in lines:
        print_pair(f"{key}:", hinted(value), 9)

"""``ciuic runbook``."""

import os

import click

import ciuic
from ciuic.catalog import list_snapshots
from ciuic.cli.opening import opened, warn_damaged
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.config.settings import Settings
from ciuic.drill.drill import last_drill
from ciuic.model import complete_ones, newest_first, preferred
from ciuic.report.doctor.runbook import Facts, Reach, runbook
from ciuic.system.clock import SystemClock
from ciuic.system.machine import this_machine
from ciuic.units import format_duration

__all__ = ["command"]


@click.command("runbook")
@click.pass_obj
def command(session: Session) -> None:
    """Write the page with the steps of a recovery to stdout.

    The page names this machine's directories, its store, the people in 'contacts' of the
    configuration, and complete commands. Keep it where you can read it without this machine.
    """
    settings = session.settings()
    here = this_machine()
    with opened(session) as store:
        known = [one for one in list_snapshots(store) if one.owner.machine.is_same(here)]
        newest = next(iter(newest_first(preferred(complete_ones(known), session.scopes))), None)
        warn_damaged(session, store)
        drill = last_drill(store)
    config_path = os.path.abspath(settings.path)
    reach = _reach(settings)
    program = ["ciuic", "--config", config_path]
    if session.store is not None:
        reach = Reach(session.store_path())
        program = ["ciuic", "--store", reach.address]
    facts = Facts(
        machine=here,
        version=ciuic.__version__,
        config_path=config_path,
        program=program,
        store=reach,
        roots=settings.all_paths,
        schedules=[_plan(schedule, is_only=not settings.others) for schedule in settings.schedules],
        drill_interval_s=settings.drill_interval_s,
        contacts=settings.contacts,
        channels=[channel.name for channel in settings.channels],
        copies=[_reach(copy.settings) for copy in settings.copies],
        newest=newest,
        last_drill=drill,
        now_ns=SystemClock().now_ns(),
    )
    for line in runbook(facts).splitlines():
        click.echo(printable(line))


def _reach(settings: Settings) -> Reach:
    return Reach(
        settings.snapshot_dir,
        settings.store_endpoint,
        settings.store_region,
        settings.store_credentials,
        settings.store_path_style,
    )


def _plan(settings: Settings, *, is_only: bool) -> str:
    every = f"every {format_duration(settings.snapshot_interval_s)}"
    if settings.interval_bounds_s is not None:
        every = f"at least {every}, as the daemon chooses"
    text = f"{every}, retention policy {settings.retention_policy}."
    if is_only:
        return f"Snapshots are taken {text}"
    return f"- Schedule {settings.schedule}: {', '.join(settings.snapshot_paths)}, {text}"

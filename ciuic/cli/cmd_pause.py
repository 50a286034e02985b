"""``ciuic pause``."""

import click

from ciuic.cli.daemon_requests import ask_daemon
from ciuic.cli.error_output import hinted
from ciuic.cli.options import json_option
from ciuic.cli.render import print_json
from ciuic.cli.session import Session

__all__ = ["command"]


@click.command("pause")
@json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Have the daemon take no scheduled snapshots until 'ciuic resume'.

    It also stops a prune, a scrub or a drill. A snapshot that is being taken is finished, and
    'ciuic snapshot' and 'ciuic run' still get theirs. The pause outlives an upgrade, but not a
    restart of the daemon. Alerts about snapshots that are too old go on.
    """
    ask_daemon(session, "pause")
    if as_json:
        print_json({"paused": True})
    else:
        click.echo(hinted("the daemon takes no scheduled snapshots until 'ciuic resume'"))

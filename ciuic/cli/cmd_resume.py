"""``ciuic resume``."""

import click

from ciuic.cli.daemon_requests import ask_daemon
from ciuic.cli.options import json_option
from ciuic.cli.render import print_json
from ciuic.cli.session import Session

__all__ = ["command"]


@click.command("resume")
@json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Have the daemon take scheduled snapshots again, after 'ciuic pause'.

    A snapshot that is due is taken at once.
    """
    ask_daemon(session, "resume")
    if as_json:
        print_json({"paused": False})
    else:
        click.echo("the daemon takes scheduled snapshots again")

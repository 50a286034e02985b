"""``ciuic web``."""

import os
import re
from collections.abc import Sequence

import click

from ciuic.cli.addresses import place_options
from ciuic.cli.cmd_doctor import subject_of
from ciuic.cli.opening import opened
from ciuic.cli.options import absolute, copies_option, given, local_file, logs_option
from ciuic.cli.read_copies import sources_of
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.config.load import read_store_path
from ciuic.copy.read_through import CopySource
from ciuic.errors import CiuicError, ConfigError, UsageError
from ciuic.guard.logs.paths import log_files
from ciuic.hints import pip_install
from ciuic.report.doctor.findings import Subject
from ciuic.store.place.keys import is_url
from ciuic.system.clock import SystemClock
from ciuic.units import counted

__all__ = ["command"]

_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@click.command("web")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    metavar="ADDRESS",
    callback=given,
    help="Where to listen: 127.0.0.1:PORT, [::1]:PORT, or the path of a socket; port 0 is any free"
    " one.",
)
@logs_option(
    "A log of a training for the timeline, or a pattern that names several; may be repeated."
)
@click.option(
    "--certificate",
    metavar="FILE",
    callback=given,
    shell_complete=local_file,
    help="Encrypt with this TLS certificate; the page may then listen on any address.",
)
@click.option(
    "--key",
    metavar="FILE",
    callback=given,
    shell_complete=local_file,
    help="The private key of the certificate.",
)
@click.option(
    "--name",
    "names",
    metavar="HOST",
    multiple=True,
    callback=given,
    help="With --certificate: a host name or address under which browsers reach the page; may be"
    " repeated.",
)
@copies_option
@click.pass_obj
def command(
    session: Session,
    *,
    listen: str,
    logs: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    names: tuple[str, ...],
) -> None:
    """Serve the page and the HTTP API of the store to this machine, until Ctrl-C.

    The line on stdout is the address of the page. Its token, new with each start, is the key to the
    page: keep it to yourself. The page loads nothing from other servers. To see the page of another
    machine, let ssh forward a port: ssh -L 8080:127.0.0.1:8080 HOST, and there ciuic web --listen
    127.0.0.1:8080. /v1/openapi.json describes the API; a program sends the token as
    'Authorization: Bearer TOKEN'.

    To listen on another address than loopback, give a TLS certificate, its key, and the names under
    which browsers reach the page. Requests for other names are refused.
    """
    tls_files = certificate, key, names
    if any(tls_files) and not all(tls_files):
        raise UsageError(
            "--certificate, --key and --name go together", hint="Give all three, or none."
        )
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--name: '{name}' is not the name of a host",
                hint="Give a host name or an address, without a port and a path.",
            )
    context = click.get_current_context()

    def subject() -> Subject:
        # Requests are answered by other threads, and click's context belongs to this one.
        with context.scope(cleanup=False):
            return subject_of(session)

    def copies() -> Sequence[CopySource]:
        with context.scope(cleanup=False):
            return sources_of(session)

    with opened(session) as store:
        path = store.path if store.bucket is None else store.name
    try:
        from ciuic.web.server import Tls, parse_address, serve
    except ModuleNotFoundError as error:
        raise CiuicError(
            f"the page needs the Python package {error.name}, which is not installed",
            hint=f"Install it: {pip_install('ciuic[web]')}",
        ) from error
    for log in logs:
        if not any(map(os.path.exists, log_files([absolute(log)]))):
            click.echo(
                f"ciuic: there is no log {printable(log)} yet; the timeline needs it", err=True
            )
    tls = Tls(certificate, key, names) if certificate and key else None
    serve(
        path,
        subject,
        parse_address(listen, tls),
        logs=[absolute(log) for log in logs],
        words=lambda: _words(session, path),
        clock=SystemClock(),
        options=place_options(session, path),
        copies=copies,
        tls=tls,
        ready=_ready,
        ending=_ending,
    )


def _words(session: Session, store_path: str) -> list[bytes]:
    """Return the options with which a command finds the store and its configuration.

    Raises: ConfigError: The configuration cannot be read, or now names another store.
    """
    config = session.config_path
    if config is not None and session.store is None and not is_url(store_path):
        named = read_store_path(config)
        if os.path.realpath(named) != os.path.realpath(store_path):
            raise ConfigError(
                f"this page shows {store_path}, but {config} now names {named}",
                hint="Start 'ciuic web' again.",
            )
    found = [] if config is None else [b"--config", os.path.abspath(os.fsencode(config))]
    # Given with --store, a configuration is that of another store.
    return found if session.store is None else [*found, b"--store", os.fsencode(store_path)]


def _ready(url: str) -> None:
    click.echo(url)
    click.echo("ciuic: press Ctrl-C to end", err=True)


def _ending(running: int) -> None:
    click.echo(f"ciuic: stopping {counted(running, 'job')}", err=True)

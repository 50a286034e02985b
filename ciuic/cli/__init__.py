"""The command line: thin commands over the verbs, and errors turned into exit codes.

Imported here is only what ``--help`` needs; each command imports the rest when it runs.
"""

import os
import sys

import click

import ciuic
from ciuic.cli.look import cat, diff, find, list_, ls, show
from ciuic.cli.maintain import completion, init, stats, status
from ciuic.cli.proof import verify
from ciuic.cli.putback import restore
from ciuic.cli.session import Session, exit_code, report_error
from ciuic.cli.take import snapshot
from ciuic.errors import CiuicError

__all__ = ["main"]

_INTERRUPTED = 130
_BROKEN_PIPE = 141


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 failed, nothing changed; 2 wrong usage; 3 done, but some paths"
    " were unreadable or changing and are named; 4 damage found; 5 another process holds the"
    " store.",
)
@click.version_option(ciuic.__version__, prog_name="ciuic")
@click.option(
    "--config",
    metavar="FILE",
    help="Configuration; otherwise $CIUIC_CONFIG, /etc/ciuic.conf or /etc/ciuric.conf.",
)
@click.option(
    "--store",
    metavar="DIR",
    help="The store's directory; all but taking snapshots needs nothing else.",
)
@click.pass_context
def cli(context: click.Context, config: str | None, store: str | None) -> None:
    """Snapshots that bring training runs back: take, list, verify, restore."""
    context.obj = Session(config, store)


for command in (init, snapshot, list_, show, ls, cat, find, diff, verify, restore, stats, status):
    cli.add_command(command)
cli.add_command(completion)


def main() -> None:
    """Entry point of ``ciuic`` and ``ciuric``: run, explain what went wrong, exit."""
    as_json = "--json" in sys.argv
    try:
        code = cli.main(prog_name=_program_name(), standalone_mode=False)
        sys.stdout.flush()
    except CiuicError as error:
        report_error(error, as_json=as_json)
        code = exit_code(error)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        code = _INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output has had enough; say nothing more to it, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = _BROKEN_PIPE
    except OSError as error:
        report_error(_from_system(error), as_json=as_json)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _program_name() -> str:
    return os.path.basename(sys.argv[0]) or "ciuic"


def _from_system(error: OSError) -> CiuicError:
    where = f" {os.fspath(error.filename)!r}" if error.filename else ""
    return CiuicError(f"the operating system refused{where}: {error.strerror or error}")

"""The command line: thin commands over the verbs, and errors turned into exit codes.

Imported here is only what ``--help`` needs; each command imports the rest when it runs.
"""

import contextlib
import errno
import os
import sys

import click
from click.shell_completion import shell_complete

import ciuic
from ciuic.cli.doctor import doctor
from ciuic.cli.lifetime import forget, pin, tag
from ciuic.cli.look import cat, diff, find, list_, ls, show
from ciuic.cli.maintain import completion, init, stats, status
from ciuic.cli.proof import scrub, verify
from ciuic.cli.prune import prune
from ciuic.cli.putback import restore
from ciuic.cli.repair import repair
from ciuic.cli.session import (
    FAILED,
    Session,
    exit_code,
    given,
    late_options,
    report_error,
    report_json,
)
from ciuic.cli.take import snapshot
from ciuic.errors import CancelledError, CiuicError, UsageError, shortage

__all__ = ["cli", "main", "program"]

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_COMPLETE = "_CIUIC_COMPLETE"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 failed, nothing half written; 2 wrong usage; 3 done, but some"
    " paths were unreadable or changing and are named; 4 damage found; 5 another process holds the"
    " store.",
)
@click.version_option(ciuic.__version__, prog_name="ciuic")
@click.option(
    "--config",
    metavar="FILE",
    callback=given,
    help="Configuration; otherwise $CIUIC_CONFIG, /etc/ciuic.conf or /etc/ciuric.conf.",
)
@click.option(
    "--store",
    metavar="DIR",
    callback=given,
    help="The store's directory; all but taking snapshots needs nothing else.",
)
@click.pass_context
def cli(context: click.Context, config: str | None, store: str | None) -> None:
    """Snapshots that bring training runs back: take, list, verify, restore."""
    context.obj = Session(config, store)


for command in (
    init,
    snapshot,
    list_,
    show,
    ls,
    cat,
    find,
    diff,
    verify,
    scrub,
    restore,
    tag,
    pin,
    forget,
    repair,
    prune,
    stats,
    status,
    doctor,
):
    command.params += late_options()
    cli.add_command(command)
cli.add_command(completion)


def main() -> None:
    """Entry point of ``ciuic`` and ``ciuric``: run, explain what went wrong, exit."""
    _open_standard_streams()
    # numpy would start a thread a core for linear algebra, which nobody here does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    as_json = "--json" in sys.argv
    try:
        code = _run()
        sys.stdout.flush()
    except CiuicError as error:
        report_error(error, as_json=as_json)
        code = exit_code(error)
    except (click.exceptions.Abort, KeyboardInterrupt):
        report_error(CancelledError("interrupted", hint="Run the command again."), as_json=as_json)
        code = _INTERRUPTED
    except click.ClickException as error:
        if as_json:
            report_json(UsageError(error.format_message(), hint=""))
        with contextlib.suppress(OSError):
            error.show()
        code = error.exit_code
    except BrokenPipeError:
        code = _BROKEN_PIPE
        _abandon_output()
    except OSError as error:
        report_error(_from_system(error), as_json=False)
        code = FAILED
        _abandon_output()
    except (MemoryError, ImportError, RuntimeError) as error:
        short = shortage(error)
        if short is None:
            raise
        report_error(short, as_json=as_json)
        code = FAILED
    sys.exit(code)


def program() -> None:
    """What the installed scripts run: ``main``, and then nothing any more.

    Python takes itself apart at its end, which takes as long as a short command; here everything
    is closed and written by then, and what is not was given up.
    """
    try:
        main()
    except SystemExit as end:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else FAILED)


def _run() -> int:
    """Run the command; not by click's own ``main``, which turns a closed pipe into a failure."""
    instruction = os.environ.get(_COMPLETE)
    if instruction:
        return shell_complete(cli, {}, _program_name(), _COMPLETE, instruction)
    try:
        with cli.make_context(_program_name(), sys.argv[1:]) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _open_standard_streams() -> None:
    """Started with some of them closed, as cron and other daemons do: print into nothing.

    None of the store's files may get the number of one, or what is printed would go into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        # For the life of the process.
        sys.stdout = open(1, "w", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115


def _abandon_output() -> None:
    """Nobody reads stdout, or it can't be written: say nothing more to it, at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _program_name() -> str:
    return os.path.basename(sys.argv[0]) or "ciuic"


def _from_system(error: OSError) -> CiuicError:
    what = error.strerror or str(error)
    if error.errno in _UNWRITABLE and not error.filename:
        # All else that is written knows its file; and where the store is full, it says so.
        return CiuicError(
            f"the output can't be written: {what}", hint="'ciuic list' shows what was done."
        )
    where = f" {os.fspath(error.filename)!r}" if error.filename else ""
    return CiuicError(f"the operating system refused{where}: {what}")

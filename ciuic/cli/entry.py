"""The entry points: run a command, explain what went wrong, exit with the right code."""

import contextlib
import errno
import os
import sys
from typing import Final

import click

from ciuic.cli.error_output import aim_error, report_error, report_json
from ciuic.cli.group import cli
from ciuic.cli.interrupt import interrupted_code, raising_interrupts
from ciuic.cli.render import printable
from ciuic.errors import (
    DAMAGE,
    DONE,
    FAILED,
    TROUBLE,
    CancelledError,
    CiuicError,
    ResourceError,
    UsageError,
    exit_code,
    shortage,
)

__all__ = ["main", "program"]

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_COMPLETE: Final = "_CIUIC_COMPLETE"
_HELP: Final = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Its message is the help, with its lines; click 8.1 has no such error."""


def main() -> None:
    """Entry point of ``ciuic`` and ``ciuric``: run, explain what went wrong, exit."""
    _open_standard_streams()
    # numpy would start one thread per core for linear algebra, which ciuic does not use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What follows "--" may be the command line of another program.
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    as_json = "--json" in own
    try:
        with raising_interrupts():
            code = _run()
            sys.stdout.flush()
    except CancelledError as error:
        report_error(error, as_json=as_json)
        code = interrupted_code() or exit_code(error)
    except CiuicError as error:
        report_error(error, as_json=as_json)
        code = exit_code(error)
    except (click.exceptions.Abort, KeyboardInterrupt):
        report_error(CancelledError("interrupted", hint=""), as_json=as_json)
        code = interrupted_code() or _INTERRUPTED
    except click.ClickException as error:
        if as_json:
            report_json(UsageError(error.format_message(), hint=""))
        if not isinstance(error, _HELP):
            # click repeats an argument as it was given, and declares the message final.
            vars(error).update(message=printable(error.message))
        with contextlib.suppress(OSError):
            error.show()
        code = error.exit_code
    except BrokenPipeError:
        code = _BROKEN_PIPE
        _abandon_output()
    except OSError as error:
        said = _from_system(error)
        report_error(said, as_json=False)
        code = exit_code(said)
        _abandon_output()
    except (MemoryError, ImportError, RuntimeError) as error:
        short = shortage(error)
        if short is None:
            raise
        report_error(short, as_json=as_json)
        code = FAILED
    sys.exit(code)


def program() -> None:
    """Run ``main`` for the installed scripts, and end without Python's own shutdown.

    That shutdown takes as long as a short command. Everything is closed and written by then, or
    was given up.
    """
    try:
        main()
    except SystemExit as end:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else FAILED)


def _run() -> int:
    """Run the command. click's own ``main`` would turn a closed pipe into a failure."""
    instruction = os.environ.get(_COMPLETE)
    if instruction and instruction.endswith("_complete"):
        # Imported here and below: few processes are asked for completions.
        from ciuic.cli.complete import answer

        answer(cli, _program_name())
        return 0
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, _program_name(), _COMPLETE, instruction)
    try:
        with cli.make_context(_program_name(), sys.argv[1:]) as context:
            code = _invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    # A snapshot that had to be left out is damage, even if everything else succeeded.
    return DAMAGE if context.obj.damaged and code in {DONE, TROUBLE} else code


def _invoke(context: click.Context) -> int:
    try:
        cli.invoke(context)
    except CiuicError as error:
        aim_error(error)
        raise
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    return DONE


def _open_standard_streams() -> None:
    """Open the standard streams that are closed, as cron and daemons leave them, on /dev/null.

    No file of the store may get the number of a standard stream: messages would be written into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        # For the life of the process.
        sys.stdout = open(1, "w", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115


def _abandon_output() -> None:
    """Write nothing more to stdout, also at exit: it has no reader or cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _program_name() -> str:
    return os.path.basename(sys.argv[0]) or "ciuic"


def _from_system(error: OSError) -> CiuicError:
    what = error.strerror or str(error)
    if error.errno in _UNWRITABLE and not error.filename:
        # Every other write knows its file, and a full store has an error of its own.
        return CiuicError(
            f"the output cannot be written: {what}",
            hint="Send it elsewhere. 'ciuic list' shows what a command did that changes the store.",
        )
    if error.errno == errno.ENOENT and not error.filename and _is_directory_gone():
        return UsageError(
            "the current directory no longer exists", hint="Change to another directory."
        )
    where = f" {os.fspath(error.filename)!r}" if error.filename else ""
    is_own_limit = error.errno in {errno.EMFILE, errno.ENFILE}
    hint = ResourceError.default_hint if is_own_limit else ""
    return CiuicError(f"the operating system refused{where}: {what}", hint=hint)


def _is_directory_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False

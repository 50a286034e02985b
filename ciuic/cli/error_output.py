"""How a command reports an error, and what it advises.

The one place where the command line makes the commands in its messages fit to be pasted.
"""

import contextlib
from typing import Final

import click

from ciuic.cli.render import print_json_last
from ciuic.cli.table import print_pair
from ciuic.errors import CiuicError

__all__ = ["advise", "aim_error", "hinted", "report_error", "report_json"]

_INDENT: Final = len("ciuic: ")


def report_error(error: CiuicError, *, as_json: bool) -> None:
    """Print what went wrong and what to do next, on stderr; with ``as_json`` on stdout as well.

    A stream that cannot be written is skipped. A full disk under the log must not replace this
    error with one of its own, and the exit code still tells the caller.
    """
    if as_json:
        with contextlib.suppress(OSError):
            report_json(error)
    with contextlib.suppress(OSError):
        print_pair("ciuic:", error.message, _INDENT, err=True)
        if error.hint:
            print_pair("", error.hint, _INDENT, err=True)


def report_json(error: CiuicError) -> None:
    """Print an error's JSON document on stdout: it ends an array that was being printed."""
    body = {"kind": error.kind, "message": error.message, "hint": error.hint}
    print_json_last({**error.done, "error": body})


def advise(text: str) -> None:
    """Print a message on stderr that names commands."""
    click.echo(hinted(text), err=True)


def hinted(text: str) -> str:
    """Return a message whose commands have the ``--config`` and ``--store`` of this command."""
    # Imported here because help must be instant, and most commands advise nothing.
    from ciuic.hints import aimed

    return aimed(text, *_reach(text))


def aim_error(error: CiuicError) -> None:
    """Do the same for what an error says."""
    from ciuic.hints import aim  # as above

    aim(error, *_reach(f"{error.message} {error.hint}"))


def _reach(text: str) -> tuple[list[str], str]:
    """Return what was typed to name the store, and the configuration's store if a text names it."""
    from ciuic.cli.session import Session  # as above

    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(Session)
    if session is None:
        return [], ""
    if "'ciuic --store " not in text:
        return session.options, ""
    with contextlib.suppress(CiuicError):
        return session.options, session.store_path(checked=False)
    return session.options, ""

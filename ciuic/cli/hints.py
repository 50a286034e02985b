"""The one place where the command line makes the commands in its messages fit to be pasted."""

import click

from ciuic.cli.session import Session
from ciuic.errors import CiuicError
from ciuic.hints import aimed

__all__ = ["advise", "aim_error", "hinted"]


def advise(text: str) -> None:
    """Print a message on stderr that names commands."""
    click.echo(hinted(text), err=True)


def hinted(text: str) -> str:
    """Return a message whose commands have the ``--config`` and ``--store`` of this command."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(Session)
    return text if session is None else aimed(text, session.options)


def aim_error(error: CiuicError) -> None:
    """Do the same for what an error says."""
    error.message, error.hint = hinted(error.message), hinted(error.hint)

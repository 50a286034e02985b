"""Commands inside messages: a user pastes them, so they must reach the place they are about."""

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence

from ciuic.errors import CiuicError

__all__ = ["aim", "aimed", "aiming", "pip_install"]

_COMMAND = "'ciuic "


def aimed(text: str, options: Sequence[str], configured: str = "") -> str:
    """Return a message with options before the name of each command that it quotes.

    Messages name commands as ``'ciuic list'``. A command that has such an option already, as one
    about a copy does, stays as it is. A command that names the configured bucket loses that option:
    with it, the configuration's credentials and server would not be used.

    Args:
        text: The message.
        options: The ``--config`` and ``--store`` with which the user reaches the store.
        configured: The address of the configuration's store; unused if ``options`` name a store.
    """
    if _COMMAND not in text:
        return text
    if "--store" not in options and "://" in configured:
        address = configured.rstrip("/")
        for form in (address, f"{address}/"):
            text = text.replace(f"{_COMMAND}--store {shlex.quote(form)} ", _COMMAND)
    if not options:
        return text
    first, *rest = text.split(_COMMAND)
    words = shlex.join(options)
    return first + "".join(
        _COMMAND + (part if part.startswith("-") else f"{words} {part}") for part in rest
    )


def aim(error: CiuicError, options: Sequence[str], configured: str = "") -> None:
    """Do the same for what an error says, also where Python prints it."""
    hint = error.hint
    error.message = aimed(error.message, options, configured)
    error.hint = aimed(hint, options, configured)
    error.args = (error.message,)
    notes = getattr(error, "__notes__", [])
    notes[:] = [error.hint if note == hint else note for note in notes]


@contextlib.contextmanager
def aiming(store: str) -> Iterator[None]:
    """Aim the errors of a block at a store: the block is of a program that was given its address.

    Args:
        store: The store's directory, or the URL of its bucket.
    """
    try:
        yield
    except CiuicError as error:
        aim(error, ["--store", store])
        raise


def pip_install(*arguments: str) -> str:
    """Return the command that installs packages where this process would import them.

    A plain ``pip`` may belong to another environment: ciuic's own is rarely first in ``$PATH``.
    """
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *arguments])

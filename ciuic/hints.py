"""Commands inside messages: a user pastes them, so they must reach the place they are about."""

import shlex
import sys
from collections.abc import Sequence

__all__ = ["aimed", "pip_install"]

_COMMAND = "'ciuic "


def aimed(text: str, options: Sequence[str]) -> str:
    """Return a message with options before the name of each command that it quotes.

    Messages name commands as ``'ciuic list'``. A command that has such an option already, as one
    about a copy does, stays as it is.

    Args:
        text: The message.
        options: The ``--config`` and ``--store`` with which the user reaches the store.
    """
    if not options or _COMMAND not in text:
        return text
    first, *rest = text.split(_COMMAND)
    words = shlex.join(options)
    return first + "".join(
        _COMMAND + (part if part.startswith("-") else f"{words} {part}") for part in rest
    )


def pip_install(*arguments: str) -> str:
    """Return the command that installs packages where this process would import them.

    A plain ``pip`` may belong to another environment: ciuic's own is rarely first in ``$PATH``.
    """
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *arguments])

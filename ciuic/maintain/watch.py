"""Progress and cancellation of long work."""

from collections.abc import Callable

from ciuic.errors import CancelledError

__all__ = ["OnProgress", "cancel_check"]

OnProgress = Callable[[str, int, int], None]
"""Receives the stage of the work, how many of its steps are done, and their total."""


def cancel_check(cancelled: Callable[[], bool], message: str) -> Callable[[], None]:
    """Return a function that raises CancelledError once ``cancelled`` returns true."""

    def check() -> None:
        if cancelled():
            raise CancelledError(message, hint="")

    return check

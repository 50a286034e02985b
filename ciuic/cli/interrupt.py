"""SIGINT and SIGTERM: a command ends at once, or a command that writes ends in an orderly way.

The exit code is 130 after SIGINT and 143 after SIGTERM, as if the signal had killed the command.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final

import click

__all__ = ["interrupted_code", "interruptible", "raising_interrupts"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL: Final = 128
_AGAIN_S: Final = 0.02
_Handler = Callable[[int, FrameType | None], None]


class _Received:
    """The first signal that asked this process to end; 0 if none did."""

    number = 0


def interrupted_code() -> int | None:
    """Return the exit code of a command that a signal ended; None if no signal did."""
    return _BY_SIGNAL + _Received.number if _Received.number else None


@contextlib.contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread on SIGINT and SIGTERM."""
    _Received.number = 0

    def stop(number: int, frame: FrameType | None) -> None:
        _Received.number = _Received.number or number
        if _ignores_exceptions(frame):
            again = (threading.main_thread().ident, number)
            with contextlib.suppress(RuntimeError):  # no more threads
                threading.Timer(_AGAIN_S, signal.pthread_kill, again).start()
                return
        raise KeyboardInterrupt

    with _handling(stop, [number for number in _SIGNALS if not _is_ignored(number)]):
        yield


def _ignores_exceptions(frame: FrameType | None) -> bool:
    """Return whether Python is in the callback of a lock of an import, where exceptions get lost.

    A command imports much in its first moments, and the signal would have no effect.
    """
    return frame is not None and frame.f_code.co_filename == "<frozen importlib._bootstrap>"


def _is_ignored(number: signal.Signals) -> bool:
    """Return whether the caller of this process has set a signal to be ignored, as ``nohup``."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGINT or SIGTERM asked the command to stop.

    The second signal raises KeyboardInterrupt.
    """
    asked = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        _Received.number = number
        again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        click.echo(f"ciuic: stopping{again}", err=True)

    with _handling(stop, _SIGNALS):
        yield lambda: asked


@contextlib.contextmanager
def _handling(handler: _Handler, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Handle signals by a function; afterwards as before."""
    before = {}
    for number in numbers:
        # Only the main thread may set handlers.
        with contextlib.suppress(ValueError):
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

"""Messages to systemd: sd_notify(3), one datagram each.

Outside systemd, and when its socket is gone, every call does nothing: the daemon must work without
a listener.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ciuic.system.clock import Clock

__all__ = ["STALLED_S", "Notifier", "Watchdog"]

STALLED_S: Final = 1800.0
"""Work without progress for so long hangs. An fsync of a large pack at idle priority may wait
behind a checkpoint for minutes."""


class Notifier:
    """Sends messages to the service manager.

    Attributes:
        has_manager: There is a manager. It starts the daemon again after a failure.
        watchdog_s: How often the manager expects a sign of life; None: never.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.has_manager = bool(address)
        interval = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = int(interval) if interval.isascii() and interval.isdigit() and ours else 0
        self.watchdog_s = usec / 1e6 if usec else None

    def ready(self) -> None:
        """Say that the start, or a reload, has ended."""
        self._send("READY=1")

    def reloading(self, monotonic_s: float) -> None:
        """Say that a reload begins, also of the program itself; ``ready`` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1e6)}")

    def stopping(self) -> None:
        """Say that the daemon is about to end."""
        self._send("STOPPING=1")

    def extend(self, duration_s: float) -> None:
        """Say that the end may take so long from now, whatever the unit's TimeoutStopSec is."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(duration_s * 1e6)}")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send("STATUS=" + text.replace("\n", " "))

    def alive(self) -> None:
        """Keep the watchdog quiet for another ``watchdog_s``."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager,
        ):
            # A manager that is itself stuck must not take the daemon with it.
            manager.settimeout(1)
            manager.sendto(message.encode("utf-8", "surrogateescape"), self._address)


class _Work:
    """Knows when a piece of work made progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.note_progress()

    def note_progress(self) -> None:
        """Record that the work goes on."""
        self.progress_s = self._clock.monotonic_s()


class Watchdog:
    """Keeps systemd's watchdog quiet as long as the main thread and all its work make progress.

    The main thread alone calls ``note_progress`` and ``watching``; any thread may ask.
    """

    def __init__(self, notifier: Notifier, clock: Clock) -> None:
        self._notifier = notifier
        self._clock = clock
        self._progress_s = clock.monotonic_s()
        self._watched: tuple[_Work, ...] = ()

    def note_progress(self) -> None:
        """Record that the main thread is not stuck."""
        self._progress_s = self._clock.monotonic_s()

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[], None]]:
        """Watch a piece of work while the block runs.

        The block calls what it is given as long as the work makes progress. The main thread only
        waits for its work, so it makes progress as long as all of it does.
        """
        work = _Work(self._clock)
        self._watched = (*self._watched, work)
        try:
            yield work.note_progress
        finally:
            self._watched = tuple(one for one in self._watched if one is not work)
            self.note_progress()

    @property
    def stalled_s(self) -> float | None:
        """For how long some work, or without any the main thread, has made no progress.

        None: it has.
        """
        watched = self._watched
        noted_s = min((one.progress_s for one in watched), default=self._progress_s)
        silent_s = self._clock.monotonic_s() - noted_s
        return silent_s if silent_s >= STALLED_S else None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Send signs of life on a thread while the block runs."""
        interval_s = self._notifier.watchdog_s
        if interval_s is None:
            yield
            return
        ended = threading.Event()

        def keep_quiet() -> None:
            while not ended.wait(interval_s / 2):
                if self.stalled_s is None:
                    self._notifier.alive()

        thread = threading.Thread(target=keep_quiet, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

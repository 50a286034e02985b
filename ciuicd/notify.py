"""What systemd is told: sd_notify(3), which is one datagram a message.

Outside systemd, and when its socket is gone, every call does nothing: whether the daemon works
must not depend on who listens.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]


class Notifier:
    """The service manager's ear.

    Attributes:
        watchdog_s: How often the manager wants to hear that the daemon lives; None: never.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        interval = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = int(interval) if interval.isascii() and interval.isdigit() and ours else 0
        self.watchdog_s = usec / 1e6 if usec else None

    def ready(self) -> None:
        """Start-up, or a reload, has ended."""
        self._send("READY=1")

    def reloading(self, monotonic_s: float) -> None:
        """A reload begins; ``ready`` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1e6)}")

    def stopping(self) -> None:
        """The daemon is about to end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + text.replace("\n", " "))

    def alive(self) -> None:
        """Keep the watchdog quiet for another ``watchdog_s``."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ear,
        ):
            # A manager that is itself stuck must not take the daemon with it.
            ear.settimeout(1)
            ear.sendto(message.encode("utf-8", "surrogateescape"), self._address)

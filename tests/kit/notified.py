"""What a daemon tells its service manager, as in sd_notify(3)."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["notified"]


@contextlib.contextmanager
def notified(path: Path) -> Iterator[list[bytes]]:
    """Be the service manager at this socket; gives the messages, all of them after the block.

    They are read at once: the kernel keeps ten, and a daemon drops one that waits for a second.
    """
    messages: list[bytes] = []

    def listen() -> None:
        while message := manager.recv(4096):
            messages.append(message)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        listening = threading.Thread(target=listen)
        listening.start()
        try:
            yield messages
        finally:
            manager.shutdown(socket.SHUT_RDWR)  # what has come is still read
            listening.join()

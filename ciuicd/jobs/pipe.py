"""The pipe from a child process of the daemon to its parent: messages, each complete or not there.

The end that reads never blocks: a child may be stopped or killed in the middle of a message.
"""

import os
import pickle
import select
import struct
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["ReadEnd", "WriteEnd"]

_LENGTH: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 64 * 1024
_CLOSED_POLL_S: Final = 0.005
"""How long a wait takes at an end that has nothing more to read: the child is about to end."""


class WriteEnd:
    """The end of the child; any thread of it may send."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._turn = threading.Lock()

    def send(self, kind: str, value: object) -> None:
        """Send a message that can be pickled; returns when the pipe has all of it."""
        data = pickle.dumps((kind, value))
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        with self._turn:
            while rest:
                rest = rest[os.write(self.fd, rest) :]


class ReadEnd:
    """The end of the parent.

    Attributes:
        fd: The descriptor, which ``close`` closes.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._received = bytearray()
        self._is_open = True
        os.set_blocking(fd, False)

    def messages(self, wait_s: float) -> Iterator[tuple[str, object]]:
        """Yield the messages that are complete; wait a moment for one if there is none."""
        if self._is_open:
            select.select([self.fd], [], [], wait_s)
        else:
            select.select([], [], [], min(wait_s, _CLOSED_POLL_S))
        self._take()
        yield from self._complete()

    def rest(self) -> Iterator[tuple[str, object]]:
        """Yield what a process that has ended left in the pipe; a part of a message is dropped."""
        while self._take():
            yield from self._complete()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def _take(self) -> bool:
        """Read a block; return whether there was any. The caller looks around between two."""
        try:
            data = os.read(self.fd, _BLOCK_BYTES)
        except BlockingIOError:
            return False
        self._is_open = bool(data)
        self._received += data
        return self._is_open

    def _complete(self) -> Iterator[tuple[str, object]]:
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            data = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            message: tuple[str, object] = pickle.loads(data)  # noqa: S301 - from a child of this process
            yield message

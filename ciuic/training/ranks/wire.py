"""Messages between processes of one machine: a JSON object, and at most one descriptor."""

import json
import os
import socket
import struct
from typing import Any, Final

__all__ = ["Message", "peer_user", "receive", "send"]

Message = dict[str, Any]
"""Values of JSON."""

_CREDENTIALS: Final = struct.Struct("3i")
_LENGTH: Final = struct.Struct("<Q")
_MESSAGE_MAX_BYTES: Final = 1 << 30
_READ_BYTES: Final = 1 << 20


def peer_user(connection: socket.socket) -> int:
    """Return the user of the process on the other side, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user


def send(connection: socket.socket, message: Message, fd: int | None = None) -> None:
    """Send a message.

    Raises:
        OSError: The other side is gone.
    """
    data = json.dumps(message).encode()
    head = _LENGTH.pack(len(data))
    if fd is None:
        connection.sendall(head + data)
    else:
        socket.send_fds(connection, [head], [fd])
        connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Message, int | None]:
    """Receive a message; the caller closes the descriptor.

    Raises:
        ValueError: The other side sent something that is not a message.
        OSError: The other side is gone.
    """
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    try:
        head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
        if not head:
            raise ConnectionResetError("the connection ended")
        (length,) = _LENGTH.unpack(head)
        if length > _MESSAGE_MAX_BYTES:
            raise ValueError("the message is too long")
        message: Message = json.loads(_exactly(connection, length))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds[0] if fds else None


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = connection.recv(min(length - len(data), _READ_BYTES))
        if not more:
            raise ConnectionResetError("the connection ended")
        data += more
    return bytes(data)

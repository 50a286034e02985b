"""How the ranks of one machine hand their shards to the one that commits.

A rank sends the descriptor of its shared memory through a local socket, so nothing is copied. Its
connection stays open until the save has ended: if a rank dies, its shard is gone. Both sides refuse
processes of other users. The training's process group is not involved.
"""

import contextlib
import json
import mmap
import os
import secrets
import socket
import struct
import threading
from typing import Any, Final, NamedTuple

from ciuic.errors import StoreError
from ciuic.training.ranks.wire import peer_user

__all__ = ["Connection", "Exchange", "Part", "Shard", "the_exchange"]

_TIMEOUT_S: Final = 60.0
_KEPT: Final = b"k"
_LENGTH: Final = struct.Struct("<Q")
_TABLE_MAX_BYTES: Final = 1 << 30

Part = tuple[int, int]
"""Offset and length of a part of a file in the shared memory."""


class Shard(NamedTuple):
    """What a rank handed over.

    Attributes:
        name: Path of its file below the root of the snapshot.
        parts: The bytes of the file, in order.
    """

    name: str
    parts: tuple[memoryview, ...]


class Exchange:
    """The side of the rank that commits: keeps the shards of ranks while they are connected.

    Attributes:
        address: What the other ranks need to reach it.
    """

    def __init__(self) -> None:
        self.address = f"ciuic-{os.getpid()}-{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        self._shards: dict[str, Shard] = {}
        # A name without a file: it vanishes with this process.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(128)
        threading.Thread(target=self._accept, name="ciuic-exchange", daemon=True).start()

    def take(self, key: str) -> Shard:
        """Return a shard that was handed over, and keep it no longer.

        Raises:
            StoreError: The rank has ended, or has given the save up.
        """
        with self._lock:
            shard = self._shards.pop(key, None)
        if shard is None:
            rank = key.partition("-")[0]
            raise StoreError(
                f"rank {rank} ended before the save was committed; no snapshot was saved",
                hint="Earlier snapshots are intact. The log of that rank may say why it ended.",
            )
        return shard

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(
                target=self._serve, args=(connection,), name="ciuic-shard", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Keep what a rank hands over until it closes the connection."""
        key = ""
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            connection.settimeout(_TIMEOUT_S)
            if peer_user(connection) != os.geteuid():
                return
            key, shard = _received(connection)
            with self._lock:
                self._shards[key] = shard
            del shard
            connection.sendall(_KEPT)
            connection.settimeout(None)
            connection.recv(1)
        with self._lock:
            self._shards.pop(key, None)


class Connection:
    """The side of a rank that hands its shard over.

    Args:
        address: See ``Exchange``.
        rank: The number of this rank.

    Raises:
        StoreError: The coordinator cannot be reached.
    """

    def __init__(self, address: str, rank: int) -> None:
        self._rank = rank
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.connect(f"\0{address}")
            user = peer_user(self._socket)
        except OSError as error:
            self._socket.close()
            raise StoreError(
                f"rank {rank} cannot reach the rank that commits: {error}",
                hint="All ranks must run on one machine, as one user, in one network namespace.",
            ) from error
        if user != os.geteuid():
            self._socket.close()
            raise StoreError(f"the rank that commits runs as another user, {user}")

    def hand_over(self, memory_fd: int, name: str, parts: tuple[Part, ...]) -> str:
        """Send the shard; returns its key. This rank may then close the memory, but not change it.

        Raises:
            StoreError: The coordinator is gone.
        """
        key = f"{self._rank}-{secrets.token_hex(16)}"
        table = json.dumps({"key": key, "name": name, "parts": parts}).encode()
        try:
            socket.send_fds(self._socket, [_LENGTH.pack(len(table))], [memory_fd])
            self._socket.sendall(table)
            is_kept = self._socket.recv(1) == _KEPT
        except OSError:
            is_kept = False
        if not is_kept:
            raise StoreError(
                f"rank {self._rank} could not hand over its part: the rank that commits has ended",
                hint="Earlier snapshots are intact. The log of that rank may say why it ended.",
            )
        return key

    def close(self) -> None:
        """End the connection; a shard that is not committed yet is dropped."""
        self._socket.close()


_process: list[tuple[int, Exchange]] = []
_process_lock = threading.Lock()


def the_exchange() -> Exchange:
    """Return this process's exchange.

    Its address stays the same: a planner that caches plans sends the address once.
    """
    with _process_lock:
        if not _process or _process[0][0] != os.getpid():
            _process[:] = [(os.getpid(), Exchange())]
        return _process[0][1]


def _received(connection: socket.socket) -> tuple[str, Shard]:
    """Receive a shard and its key.

    Raises:
        ValueError: What was received is not a shard.
        OSError: The rank is gone.
    """
    data, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    try:
        if len(fds) != 1 or len(data) != _LENGTH.size:
            raise ValueError("no descriptor")
        (length,) = _LENGTH.unpack(data)
        if length > _TABLE_MAX_BYTES:
            raise ValueError("the table is too long")
        # Any: values of JSON.
        table: dict[str, Any] = json.loads(_exactly(connection, length))
        size_bytes = os.fstat(fds[0]).st_size
        memory = memoryview(mmap.mmap(fds[0], size_bytes, access=mmap.ACCESS_READ))
        parts = tuple([memory[begin : begin + size] for begin, size in table["parts"]])
        return table["key"], Shard(table["name"], parts)
    finally:
        for fd in fds:
            os.close(fd)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = connection.recv(min(length - len(data), 1 << 20))
        if not more:
            raise ValueError("the connection ended")
        data += more
    return bytes(data)

"""The control socket's server: requests in, replies out, on threads of its own.

What comes in may be anything: a request has one deadline as a whole and a greatest length, is
parsed strictly, and only so many clients are served at a time. Who may ask for what:

    status                            everybody whom the socket's mode (0660) lets in
    snapshot, pause, resume, reload   root, and the user the daemon runs as

Nothing here takes a snapshot: a request for one becomes a ``Job``, which the daemon's main thread
fulfils while the client's thread waits. A client that goes away leaves its job behind; the
snapshot is taken all the same.
"""

import contextlib
import logging
import os
import socket
import stat
import struct
import threading
from typing import Any, Final, Protocol

from ciuic import durable
from ciuic.clock import Clock
from ciuic.control import (
    LINE_BYTES_MAX,
    Request,
    SimpleRequest,
    SnapshotRequest,
    encode_line,
    error_document,
    parse_request,
    socket_address,
)
from ciuic.errors import BusyError, CiuicError, StoreError, UsageError
from ciuic.model import TakeReport
from ciuic.store.layout import CONTROL_SOCKET

__all__ = ["Job", "Server", "Services"]

_log = logging.getLogger(__name__)

_CLIENTS_MAX: Final = 16
_REQUEST_S: Final = 10.0
_SEND_S: Final = 5.0
_PROGRESS_S: Final = 1.0
_FAREWELL_S: Final = 1.0
_SOCKET_MODE: Final = 0o660
_CREDENTIALS: Final = struct.Struct("iII")


class Job:
    """A snapshot that somebody asked for; shared by who waits for it and who takes it.

    Without a ``scope``, roots and patterns, it is of what the configuration says.
    """

    def __init__(
        self,
        *,
        base: bool = False,
        tags: tuple[str, ...] = (),
        scope: tuple[tuple[bytes, ...], tuple[str, ...]] | None = None,
    ) -> None:
        self.base = base
        self.tags = tags
        self.scope = scope
        self.progress: dict[str, Any] = {"state": "waiting"}
        self._done = threading.Event()
        self._outcome: TakeReport | CiuicError | None = None

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """See ``ciuic.verbs.take.Progress``."""
        name = os.fsdecode(path)
        self.progress = {"state": "taking", "files": files, "bytes": size_bytes, "path": name}

    def finish(self, outcome: TakeReport | CiuicError) -> None:
        """Let go of whoever waits."""
        self._outcome = outcome
        self._done.set()

    def wait(self, timeout_s: float) -> TakeReport | CiuicError | None:
        """What became of it; None if that is not known within ``timeout_s``."""
        self._done.wait(timeout_s)
        return self._outcome


class Services(Protocol):
    """What the daemon does for a client. Called from several threads at a time."""

    def status(self) -> dict[str, Any]:
        """What the daemon is doing."""
        ...

    def pause(self) -> None:
        """No more snapshots by schedule, until ``resume``."""
        ...

    def resume(self) -> None:
        """Back to the schedule."""
        ...

    def reload(self) -> None:
        """Read the configuration again; raises ConfigError and keeps the old one."""
        ...

    def submit(self, job: Job) -> None:
        """Take a snapshot as soon as no other is being taken."""
        ...


class Server:
    """Listens on the socket of a store from ``__init__`` to ``close``.

    Whoever makes one holds the daemon's lock on the store: a socket that is there already is
    left from a daemon that was killed, and is replaced.

    Raises:
        StoreError: The socket can't be made.
    """

    def __init__(self, store_path: str, services: Services, clock: Clock) -> None:
        self._path = os.path.join(store_path, CONTROL_SOCKET)
        self._services = services
        self._clock = clock
        self._masters = {0, os.geteuid()}
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(_CLIENTS_MAX)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._bind(store_path)
        except OSError as error:
            self._listener.close()
            raise StoreError(
                f"cannot listen on {self._path}: {os.strerror(error.errno or 0)}"
            ) from (error)
        self._inode = self._inode_there()
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def _bind(self, store_path: str) -> None:
        durable.remove_file(self._path)
        with socket_address(store_path) as address:
            # bind() gives the file the mode of the socket less the umask: never a wider one.
            os.fchmod(self._listener.fileno(), _SOCKET_MODE)
            self._listener.bind(address)
            os.chmod(address, _SOCKET_MODE)
        self._listener.listen(_CLIENTS_MAX)

    @property
    def intact(self) -> bool:
        """Clients that look for the socket in the store find this one."""
        return self._inode is not None and self._inode_there() == self._inode

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still this one.

        Clients get a moment for the replies that they are owed.
        """
        self._closing.set()
        # Wakes accept(), which close() alone would leave asleep.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        deadline_s = self._clock.monotonic_s() + _FAREWELL_S
        for _ in range(_CLIENTS_MAX):
            self._places.acquire(timeout=max(0.0, deadline_s - self._clock.monotonic_s()))
        if self.intact:
            with contextlib.suppress(OSError):
                durable.remove_file(self._path)

    def _inode_there(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self._path)
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # No descriptors left, most likely: wait for some instead of spinning.
                    _log.warning("the control socket can't take a client: %s", error.strerror)
                    self._closing.wait(_PROGRESS_S)
                continue
            client.settimeout(_SEND_S)
            if not self._places.acquire(blocking=False):
                _reply(client, error_document(BusyError("the daemon has too many clients")))
                client.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(client,), name="client", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads for this user: the next client may have better luck.
                _log.warning("the control socket can't serve a client: %s", error)
                self._places.release()
                client.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                try:
                    line = self._receive(client)
                    if line is not None:
                        self._answer(client, parse_request(line))
                except CiuicError as error:
                    _reply(client, error_document(error))
        finally:
            self._places.release()

    def _receive(self, client: socket.socket) -> bytes | None:
        """One line without its end; None if the client went away or was too slow."""
        deadline_s = self._clock.monotonic_s() + _REQUEST_S
        received = bytearray()
        while b"\n" not in received:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return None
            if len(received) > LINE_BYTES_MAX:
                raise UsageError(f"a request is longer than {LINE_BYTES_MAX} bytes")
            client.settimeout(left_s)
            try:
                piece = client.recv(LINE_BYTES_MAX)
            except OSError:
                return None
            if not piece:
                return None
            received += piece
        client.settimeout(_SEND_S)
        return bytes(received.partition(b"\n")[0])

    def _answer(self, client: socket.socket, request: Request) -> None:
        if not (isinstance(request, SimpleRequest) and request.do == "status"):
            self._check_peer(client)
        match request:
            case SnapshotRequest():
                self._take(client, request)
            case SimpleRequest(do="status"):
                _reply(client, {"status": self._services.status()})
            case SimpleRequest(do="pause"):
                self._services.pause()
                _reply(client, {"done": self._services.status()})
            case SimpleRequest(do="resume"):
                self._services.resume()
                _reply(client, {"done": self._services.status()})
            case SimpleRequest(do="reload"):
                self._services.reload()
                _reply(client, {"done": self._services.status()})

    def _take(self, client: socket.socket, request: SnapshotRequest) -> None:
        job = Job(base=request.base, tags=request.tags, scope=request.scope())
        self._services.submit(job)
        while True:
            outcome = job.wait(_PROGRESS_S)
            if isinstance(outcome, CiuicError):
                raise outcome
            if outcome is not None:
                _reply(client, {"report": outcome.as_json()})
                return
            if not _reply(client, {"progress": job.progress}):
                return

    def _check_peer(self, client: socket.socket) -> None:
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        if uid not in self._masters:
            raise StoreError(
                f"user {uid} may ask this daemon for its status only",
                hint="Run the command as root, or as the user the daemon runs as.",
            )


def _reply(client: socket.socket, document: dict[str, Any]) -> bool:
    """Send it; False if the client has gone or does not listen."""
    try:
        client.sendall(encode_line(document))
    except OSError:
        return False
    return True

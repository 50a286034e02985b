"""The server of the control socket: requests in, replies out, on threads of its own.

A request may hold any bytes. It has one deadline and a maximum length, is parsed strictly, and the
number of clients at a time is limited. Permissions:

    status                            every user whom the socket's mode (0660) lets in
    snapshot of the configured roots  the members of ``control_group``, too
    snapshot, pause, resume, reload   root, and the user the daemon runs as

An access control list lets the group through the store's directory, which it cannot list, and to
the socket.

Other users' clients share half of the slots, so they cannot keep root out.

A request for a snapshot becomes a ``Job``. The daemon's main thread has the snapshot taken while
the client's thread waits, and finishes it even if the client goes away.
"""

import contextlib
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterable
from typing import Final, Protocol

from ciuic.catalog import check_tags
from ciuic.control import (
    LINE_BYTES_MAX,
    Document,
    Request,
    SimpleRequest,
    SnapshotRequest,
    encode_line,
    error_document,
    parse_request,
    socket_address,
)
from ciuic.control.access import give_group
from ciuic.errors import BusyError, CiuicError, StoreError, UsageError
from ciuic.model import COMMAND, ExcludeRules
from ciuic.store.records.layout import CONTROL_SOCKET
from ciuic.system import durable, nofollow
from ciuic.system.clock import Clock
from ciuicd.jobs.forking import without_forks
from ciuicd.jobs.job import Job

__all__ = ["Server", "Services"]

_log = logging.getLogger(__name__)

_CLIENTS_MAX: Final = 16
_GUESTS_MAX: Final = 8
"""Maximum number of clients that are neither root nor the user the daemon runs as."""
_REQUEST_S: Final = 10.0
_SEND_S: Final = 5.0
_PROGRESS_S: Final = 1.0
_FAREWELL_S: Final = 1.0
_SOCKET_MODE: Final = 0o660
_CREDENTIALS: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59
_GID: Final = struct.Struct("I")
_GROUPS_BYTES: Final = 1024
"""Python reads no more: a client in more than 256 groups counts as in its first one alone."""
_NAME_SHOWN: Final = 60
_PASS: Final = 1
_CONNECT: Final = 6
"""Rights in an access control list: through a directory; reading and writing."""


class Services(Protocol):
    """What the daemon does for clients. Several threads may call it at a time."""

    def status(self) -> Document:
        """Return what the daemon is doing, as a JSON document."""
        ...

    def pause(self) -> None:
        """Stop scheduled snapshots until ``resume``."""
        ...

    def resume(self) -> None:
        """Return to the schedule."""
        ...

    def reload(self) -> None:
        """Read the configuration again.

        Raises:
            ConfigError: The new configuration cannot be used; the old one stays in effect.
        """
        ...

    def submit(self, job: Job) -> None:
        """Take a snapshot as soon as no other one is being taken that it must wait for."""
        ...

    def control_group(self) -> int | None:
        """Return the group whose members may ask for snapshots of the configured roots."""
        ...

    def schedule_of(self, scope: tuple[tuple[bytes, ...], ExcludeRules]) -> str:
        """Return the schedule that has these roots and exclude rules; empty: none has them."""
        ...

    def schedule_names(self) -> tuple[str, ...]:
        """Return the names of the configured schedules."""
        ...


class Server:
    """Listens on the socket of a store from ``__init__`` to ``close``.

    The caller holds the daemon's lock on the store. So an existing socket was left by a daemon
    that was killed, and is replaced.

    Raises:
        StoreError: The socket cannot be made.
    """

    def __init__(self, store_path: str, services: Services, clock: Clock) -> None:
        self._path = os.path.join(store_path, CONTROL_SOCKET)
        self._services = services
        self._clock = clock
        self._masters = {0, os.geteuid()}
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(_CLIENTS_MAX)
        self._guest_places = threading.BoundedSemaphore(_GUESTS_MAX)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._bind(store_path)
        except OSError as error:
            self._listener.close()
            raise StoreError(
                f"cannot listen on {self._path}: {os.strerror(error.errno or 0)}"
            ) from (error)
        self._store_path = store_path
        self._admitted: int | None = None
        self.admit_group()
        self._inode = self._inode_there()
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def _bind(self, store_path: str) -> None:
        durable.remove_file(self._path)
        with socket_address(store_path) as address:
            # bind() gives the file the mode of the socket without the umask: never a wider mode.
            os.fchmod(self._listener.fileno(), _SOCKET_MODE)
            self._listener.bind(address)
            nofollow.change_mode(address, _SOCKET_MODE)
        self._listener.listen(_CLIENTS_MAX)

    def admit_group(self) -> None:
        """Let the members of ``control_group`` connect; a failure is one warning in the log.

        The members of an earlier group can still connect, but their requests are refused.
        """
        gid = self._services.control_group()
        if gid is None or gid == self._admitted:
            return
        try:
            give_group(self._store_path, gid, _PASS)
            give_group(self._path, gid, _CONNECT)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            _log.warning("control_group has no effect: no access to %s: %s", self._path, why)
            return
        self._admitted = gid

    @property
    def intact(self) -> bool:
        """Whether the socket in the store is still the one of this server."""
        return self._inode is not None and self._inode_there() == self._inode

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still the one of this server.

        Clients get a second to read their last replies.
        """
        self._closing.set()
        # This wakes accept(); close() alone would not.
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
            status = nofollow.status(self._path)
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # Most likely no descriptors are left: wait instead of spinning.
                    _log.warning("the control socket cannot accept a client: %s", error.strerror)
                    self._closing.wait(_PROGRESS_S)
                continue
            client.settimeout(_SEND_S)
            places = self._places_for(client)
            if places is None:
                _reply(client, error_document(BusyError("the daemon has too many clients")))
                client.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(client, places), name="client", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads for this user now; the next client may get one.
                _log.warning("the control socket cannot serve a client: %s", error)
                _release(places)
                client.close()

    def _places_for(self, client: socket.socket) -> tuple[threading.Semaphore, ...] | None:
        """Return the semaphores that the client must release; None if no slot is free."""
        wanted = [self._places]
        if _user_of(client) not in self._masters:
            wanted.insert(0, self._guest_places)
        taken: list[threading.Semaphore] = []
        for places in wanted:
            if not places.acquire(blocking=False):
                _release(taken)
                return None
            taken.append(places)
        return tuple(taken)

    def _serve(self, client: socket.socket, places: tuple[threading.Semaphore, ...]) -> None:
        try:
            with client:
                try:
                    line = self._receive(client)
                    if line is not None:
                        self._answer(client, line)
                except CiuicError as error:
                    _reply(client, error_document(error))
        finally:
            _release(places)

    def _receive(self, client: socket.socket) -> bytes | None:
        """Return a line without its end; None if the client went away or was too slow."""
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

    def _answer(self, client: socket.socket, line: bytes) -> None:
        # A fork must not find this thread in an import, for example.
        with without_forks():
            found = self._do(client, parse_request(line))
        if isinstance(found, Job):
            self._follow(client, found)
        else:
            _reply(client, found)

    def _do(self, client: socket.socket, request: Request) -> Document | Job:
        """Do what is asked; returns the reply, or the job that the client waits for."""
        match request:
            case SimpleRequest(do="status"):
                may_take = self._is_master(client) or self._is_member(client)
                return {"status": {**self._services.status(), "may_take": may_take}}
            case SnapshotRequest() if not self._is_master(client) and self._is_member(client):
                self._check_scope(client, request)
                return self._submitted(request)
        self._check_master(client)
        match request:
            case SnapshotRequest():
                return self._submitted(request)
            case SimpleRequest(do="pause"):
                self._services.pause()
            case SimpleRequest(do="resume"):
                self._services.resume()
            case SimpleRequest(do="reload"):
                self._services.reload()
        return {"done": self._services.status()}

    def _check_scope(self, client: socket.socket, request: SnapshotRequest) -> None:
        scope = request.scope()
        if scope is not None and not self._services.schedule_of(scope):
            raise StoreError(
                f"user {_user_of(client)} may have this daemon take snapshots of the configured"
                " directories only",
                hint="Leave out directories and exclude options. If the configuration was changed,"
                " have root run 'systemctl reload ciuicd'.",
            )

    def _submitted(self, request: SnapshotRequest) -> Job:
        job = self._job_of(request)
        self._services.submit(job)
        return job

    def _follow(self, client: socket.socket, job: Job) -> None:
        """Tell the client how its job goes, until it is done or the client is gone."""
        while True:
            outcome = job.wait(_PROGRESS_S)
            if isinstance(outcome, CiuicError):
                raise outcome
            if outcome is not None:
                _reply(client, {"report": outcome.as_json()})
                return
            if not _reply(client, {"progress": job.progress}):
                return

    def _job_of(self, request: SnapshotRequest) -> Job:
        """Return the job: of a schedule, if the request names it or has its roots and rules."""
        check_tags(request.tags)  # here, so that a mistyped one is no failure of the daemon
        scope, schedule = request.scope(), request.schedule or None
        if schedule is not None and scope is not None:
            raise UsageError(
                "a snapshot of a schedule has the directories of the schedule",
                hint="Leave out the directories, or the schedule.",
            )
        if schedule is not None and schedule not in self._services.schedule_names():
            raise UsageError(
                f"the daemon has no schedule '{schedule[:_NAME_SHOWN]}'",
                hint="'ciuic status' shows its schedules; 'systemctl reload ciuicd' has it read the"
                " configuration again.",
            )
        if scope is not None:
            schedule = self._services.schedule_of(scope) or None
            scope = scope if schedule is None else None
        return Job(
            base=request.base, tags=request.tags, scope=scope, origin=COMMAND, schedule=schedule
        )

    def _is_master(self, client: socket.socket) -> bool:
        return _user_of(client) in self._masters

    def _is_member(self, client: socket.socket) -> bool:
        gid = self._services.control_group()
        return gid is not None and gid in _groups_of(client)

    def _check_master(self, client: socket.socket) -> None:
        if not self._is_master(client):
            more = " and for snapshots" if self._is_member(client) else ""
            raise StoreError(
                f"user {_user_of(client)} may only ask this daemon for its status{more}",
                hint="Run the command as root, or as the user the daemon runs as.",
            )


def _user_of(client: socket.socket) -> int:
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)


def _groups_of(client: socket.socket) -> set[int]:
    """Return the groups that the client had when it connected."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found = {int(_CREDENTIALS.unpack(raw)[2])}
    with contextlib.suppress(OSError):
        raw = client.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        found.update(gid for (gid,) in _GID.iter_unpack(raw))
    return found


def _release(places: Iterable[threading.Semaphore]) -> None:
    for semaphore in places:
        semaphore.release()


def _reply(client: socket.socket, document: Document) -> bool:
    """Send the document; return False if the client has gone or does not read."""
    try:
        client.sendall(encode_line(document))
    except OSError:
        return False
    return True

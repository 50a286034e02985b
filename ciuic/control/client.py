"""The client of the control socket.

A client does not trust replies: a reply of a wrong form is a ``StoreError``, never a crash.
"""

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, Literal

from ciuic.control.address import existing_socket_address
from ciuic.control.messages import encode_line, error_from_document
from ciuic.documents import Document
from ciuic.errors import ResourceError, StoreError, UnresponsiveError
from ciuic.model import ExcludeRules
from ciuic.store.directory.files import read_regular
from ciuic.store.records.layout import DAEMON_LOCK
from ciuic.system import nofollow
from ciuic.system.clock import SystemClock
from ciuic.system.workers.processes import is_stopped

__all__ = ["request_done", "request_snapshot", "request_status"]

# A report names paths with warnings. Each has up to 4 KiB, and JSON may use six characters a byte.
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
# During a snapshot, a running daemon reports progress every second.
_SILENCE_S: Final = 60.0
_ANSWER_S: Final = 10.0
# How often a waiting client checks whether the daemon is stopped.
_LOOK_S: Final = 1.0
_PIECE_BYTES: Final = 256 * 1024
_LOCK_BYTES_MAX: Final = 64
_CREDENTIALS: Final = struct.Struct("iII")


def request_snapshot(
    store_path: str,
    *,
    base: bool = False,
    tags: tuple[str, ...] = (),
    roots: tuple[bytes, ...] | None = None,
    exclude: ExcludeRules | None = None,
    schedule: str | None = None,
    progress: Callable[[Document], None] | None = None,
) -> Document | None:
    """Have the daemon of this store take a snapshot; return its report, as JSON has it.

    Return None if no daemon serves the store. The daemon finishes the snapshot even if this client
    goes away.

    Args:
        store_path: The store.
        base: Take a full snapshot.
        tags: The tags of the snapshot.
        roots: What to capture; None: the roots of the configuration that the daemon last read.
        exclude: Rules for ``roots``.
        schedule: The schedule whose snapshot it is, instead of ``roots``; None: the first one.
        progress: Called about once a second with the daemon's progress.

    Raises:
        CiuicError: The error that the daemon met, or StoreError if it gives no valid reply.
    """
    request: Document = {"do": "snapshot", "base": base, "tags": list(tags)}
    if schedule is not None:
        request["schedule"] = schedule
    if roots is not None:
        request["roots"] = [text.decode("latin-1") for text in roots]
        rules = exclude or ExcludeRules()
        request["exclude"] = [os.fsencode(text).decode("latin-1") for text in rules.patterns]
        request["exclude_larger_than"] = rules.larger_than_bytes
        request["exclude_caches"] = rules.caches
        request["exclude_if_present"] = [
            os.fsencode(text).decode("latin-1") for text in rules.if_present
        ]
    return _ask(store_path, request, "report", wait_s=_SILENCE_S, progress=progress)


def request_status(store_path: str) -> Document | None:
    """Return the status of the store's daemon; None if no daemon serves the store.

    Raises:
        StoreError: The daemon gives no valid reply.
    """
    return _ask(store_path, {"do": "status"}, "status", wait_s=_ANSWER_S)


def request_done(store_path: str, do: Literal["pause", "resume", "reload"]) -> Document | None:
    """Have the store's daemon do something; return its status, or None without a daemon.

    Raises:
        CiuicError: The error that the daemon met, or StoreError if it gives no valid reply.
    """
    return _ask(store_path, {"do": do}, "done", wait_s=_ANSWER_S)


def _ask(
    store_path: str,
    request: Document,
    wanted: str,
    *,
    wait_s: float,
    progress: Callable[[Document], None] | None = None,
) -> Document | None:
    connection = _connect(store_path, wait_s)
    if connection is None:
        return None
    with connection:
        replies = _Replies(connection, store_path)
        replies.check_running()
        # A daemon that refuses without reading closes its end; its reply can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(encode_line(request))
        patience_s = min(wait_s, _ANSWER_S)
        while True:
            reply = _decode_reply(replies.line(patience_s), store_path)
            patience_s = wait_s
            if "error" in reply:
                raise error_from_document(reply["error"])
            found = reply.get(wanted)
            if isinstance(found, dict):
                return found
            update = reply.get("progress")
            if not isinstance(update, dict):
                raise _invalid_reply(store_path)
            if progress is not None:
                progress(update)


def _connect(store_path: str, wait_s: float) -> socket.socket | None:
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise _not_connected(store_path, error) from error
    connection.settimeout(wait_s)
    try:
        with existing_socket_address(store_path) as address:
            connection.connect(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        return None
    except PermissionError as error:
        connection.close()
        raise StoreError(
            f"cannot connect to the daemon of {store_path}: permission denied",
            hint="Run ciuic as root, as the user the daemon runs as, or as a member of the"
            " configuration's control_group.",
        ) from error
    except (TimeoutError, BlockingIOError) as error:
        # The daemon accepts no connections, and the queue of waiting ones is full.
        connection.close()
        raise _silent(store_path, _lock_holder(store_path)) from error
    except OSError as error:
        connection.close()
        raise _not_connected(store_path, error) from error
    return connection


def _not_connected(store_path: str, error: OSError) -> StoreError:
    is_own_limit = error.errno in {errno.EMFILE, errno.ENFILE}
    return StoreError(
        f"cannot connect to the daemon of {store_path}: {error.strerror}",
        hint=ResourceError.default_hint if is_own_limit else None,
    )


class _Replies:
    """The lines that a daemon sends. A stopped daemon (SIGSTOP) raises an error of its own."""

    def __init__(self, connection: socket.socket, store_path: str) -> None:
        self._connection = connection
        self._store_path = store_path
        self._received = bytearray()
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        # 0 for a daemon in another container.
        self._process_id: int = _CREDENTIALS.unpack(raw)[0]

    def check_running(self) -> None:
        """Raise UnresponsiveError if the daemon is stopped: it would never answer."""
        if self._process_id and is_stopped(self._process_id):
            raise _stopped(self._store_path, self._process_id)

    def line(self, wait_s: float) -> bytes:
        """Return the next line; wait for it for ``wait_s`` at most."""
        clock = SystemClock()
        end_s = clock.monotonic_s() + wait_s
        while b"\n" not in self._received:
            left_s = end_s - clock.monotonic_s()
            if left_s <= 0:
                raise _silent(self._store_path, self._process_id)
            self._connection.settimeout(min(left_s, _LOOK_S))
            try:
                piece = self._connection.recv(_PIECE_BYTES)
            except TimeoutError:
                self.check_running()
                continue
            except OSError:
                piece = b""
            self._received += piece
            if not piece or len(self._received) > _REPLY_BYTES_MAX:
                raise StoreError(
                    f"the daemon of {self._store_path} closed the connection before it replied",
                    hint="Its log says why; under systemd, 'journalctl -u ciuicd' shows it.",
                )
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return line


def _lock_holder(store_path: str) -> int:
    """Return the process that serves the store, from its lock file; 0: not known."""
    with contextlib.suppress(OSError, StoreError):
        text = read_regular(
            os.path.join(nofollow.resolved(store_path), DAEMON_LOCK), _LOCK_BYTES_MAX
        ).strip()
        return int(text) if text.isdigit() else 0
    return 0


def _decode_reply(line: bytes, store_path: str) -> Document:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _invalid_reply(store_path) from error
    if not isinstance(reply, dict):
        raise _invalid_reply(store_path)
    return reply


def _stopped(store_path: str, process_id: int) -> UnresponsiveError:
    return UnresponsiveError(
        f"the daemon of {store_path} is stopped, process {process_id}, and cannot answer",
        hint=f"Resume it with 'kill -CONT {process_id}', or run 'systemctl restart ciuicd'.",
    )


def _silent(store_path: str, process_id: int) -> UnresponsiveError:
    if process_id and is_stopped(process_id):
        return _stopped(store_path, process_id)
    who = f", process {process_id}," if process_id else ""
    return UnresponsiveError(f"the daemon of {store_path}{who} does not answer")


def _invalid_reply(store_path: str) -> StoreError:
    return StoreError(
        f"the daemon of {store_path} sent an invalid reply",
        hint="Use the same version of ciuic as the daemon.",
    )

"""The control socket: what may be said over it, and the client that says it.

The daemon listens on ``control.sock`` in its store. A client connects, sends one request, and
gets replies; each message is a JSON document on a line of its own, a request 64 KiB at most.

    {"do": "snapshot", "base": false, "tags": ["x"],
     "roots": ["/a"], "exclude": ["*.pyc"]}             {"progress": {}} some times, {"report": {}}
    {"do": "status"}                                    {"status": {}}
    {"do": "pause"}, "resume", "reload"                 {"done": {}}
    anything that fails                                 {"error": {"kind", "message", "hint"}}

A client trusts no reply either: whatever is not one of these is a ``StoreError``, never a crash.
pydantic is imported when a request is parsed, which only the daemon does.
"""

import contextlib
import functools
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from ciuic.errors import CiuicError, StoreError, UsageError
from ciuic.store.layout import CONTROL_SOCKET

__all__ = [
    "LINE_BYTES_MAX",
    "Request",
    "SimpleRequest",
    "SnapshotRequest",
    "encode_line",
    "error_document",
    "error_from_document",
    "parse_request",
    "request_done",
    "request_snapshot",
    "request_status",
    "socket_address",
]

LINE_BYTES_MAX: Final = 64 * 1024
# A report names paths in trouble, each up to 4 KiB of bytes that JSON spells with six characters.
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
_SUN_PATH_BYTES_MAX: Final = 107
# A daemon that lives says something about a running snapshot every second.
_SILENCE_S: Final = 60.0
_ANSWER_S: Final = 10.0

# pydantic quotes what it refuses.
_QUOTED_MAX: Final = 200

_STRICT: Final = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class SnapshotRequest:
    """Take a snapshot now.

    Attributes:
        base: Read everything.
        tags: Words to find the snapshot by.
        roots: What of, instead of what the daemon's configuration says. A string here stands
            for bytes, one character a byte: JSON has no other way to carry every path.
        exclude: Patterns that go with ``roots``, spelled the same way.
    """

    __pydantic_config__: ClassVar = _STRICT

    do: Literal["snapshot"] = "snapshot"
    base: bool = False
    tags: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    def scope(self) -> tuple[tuple[bytes, ...], tuple[str, ...]] | None:
        """Roots and patterns as ``TakeRequest`` has them; None: the daemon's own.

        Raises:
            UsageError: One of them does not stand for bytes.
        """
        if self.roots is None:
            return None
        try:
            roots = tuple(one.encode("latin-1") for one in self.roots)
            return roots, tuple(os.fsdecode(one.encode("latin-1")) for one in self.exclude)
        except UnicodeEncodeError as error:
            raise UsageError("the daemon does not understand the request: a path") from error


@dataclass(frozen=True)
class SimpleRequest:
    """Anything that needs no more than its name."""

    __pydantic_config__: ClassVar = _STRICT

    do: Literal["status", "pause", "resume", "reload"]


Request = SnapshotRequest | SimpleRequest


def parse_request(line: bytes) -> Request:
    """What a line from a client asks for.

    Raises:
        UsageError: It asks for nothing that the daemon knows.
    """
    from pydantic import ValidationError

    try:
        request: Request = _adapter().validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(
            f"the daemon does not understand the request: {what[:_QUOTED_MAX]}",
            hint="Use the ciuic of the same version as the daemon.",
        ) from error
    return request


@functools.cache
def _adapter() -> Any:  # a TypeAdapter[Request], whose name would cost the import of pydantic
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[Request, Field(discriminator="do")])


def encode_line(document: dict[str, Any]) -> bytes:
    """A message as it goes over the socket."""
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def error_document(error: CiuicError) -> dict[str, Any]:
    """An error as a reply."""
    return {"error": {"kind": error.kind, "message": error.message, "hint": error.hint}}


def error_from_document(document: object) -> CiuicError:
    """The error that a reply stands for, of the class that was raised in the daemon."""
    fields = document if isinstance(document, dict) else {}
    message, hint = fields.get("message"), fields.get("hint")
    kinds = {one("").kind: one for one in _error_classes(CiuicError)}
    found = kinds.get(str(fields.get("kind")), CiuicError)
    return found(
        message if isinstance(message, str) else "the daemon failed without saying how",
        hint=hint if isinstance(hint, str) else None,
    )


def _error_classes(top: type[CiuicError]) -> Iterator[type[CiuicError]]:
    yield top
    for below in top.__subclasses__():
        yield from _error_classes(below)


@contextlib.contextmanager
def socket_address(store_path: str) -> Iterator[str]:
    """Where the control socket of this store is bound and reached, for the duration of the block.

    An address holds 107 bytes. The socket of a store that lies deeper is reached through a
    descriptor of its directory.

    Raises:
        OSError: There is no such directory.
    """
    address = os.path.join(store_path, CONTROL_SOCKET)
    fd = os.open(store_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        long = len(os.fsencode(address)) > _SUN_PATH_BYTES_MAX
        yield f"/proc/self/fd/{fd}/{CONTROL_SOCKET}" if long else address
    finally:
        os.close(fd)


def request_snapshot(
    store_path: str,
    *,
    base: bool = False,
    tags: tuple[str, ...] = (),
    roots: tuple[bytes, ...] | None = None,
    exclude: tuple[str, ...] = (),
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """Have the daemon of this store take a snapshot; returns its report, as JSON has it.

    Returns None if no daemon serves the store: then nothing has happened. Without ``roots`` the
    snapshot is of what the daemon's configuration named when the daemon last read it.
    ``progress`` is called with what the daemon says meanwhile, about once a second. The daemon
    goes on with a snapshot whose client has gone.

    Raises:
        CiuicError: What the daemon ran into, or StoreError if it does not answer as it should.
    """
    request: dict[str, Any] = {"do": "snapshot", "base": base, "tags": list(tags)}
    if roots is not None:
        request["roots"] = [one.decode("latin-1") for one in roots]
        request["exclude"] = [os.fsencode(one).decode("latin-1") for one in exclude]
    return _ask(store_path, request, "report", wait_s=_SILENCE_S, progress=progress)


def request_status(store_path: str) -> dict[str, Any] | None:
    """What the daemon of this store is doing; None if none serves it.

    Raises:
        StoreError: There is one, and it does not answer as it should.
    """
    return _ask(store_path, {"do": "status"}, "status", wait_s=_ANSWER_S)


def request_done(
    store_path: str, do: Literal["pause", "resume", "reload"]
) -> dict[str, Any] | None:
    """Have the daemon of this store do something at once; None if none serves it.

    Raises:
        CiuicError: What the daemon ran into, or StoreError if it does not answer as it should.
    """
    return _ask(store_path, {"do": do}, "done", wait_s=_ANSWER_S)


def _ask(
    store_path: str,
    request: dict[str, Any],
    wanted: str,
    *,
    wait_s: float,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    connection = _connect(store_path, wait_s)
    if connection is None:
        return None
    with connection, connection.makefile("rb") as replies:
        # A daemon that refuses without reading closes its end; its reply is still there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(encode_line(request))
        while True:
            reply = _decode_reply(_read_line(replies, store_path), store_path)
            if "error" in reply:
                raise error_from_document(reply["error"])
            found = reply.get(wanted)
            if isinstance(found, dict):
                return found
            news = reply.get("progress")
            if not isinstance(news, dict):
                raise _senseless(store_path)
            if progress is not None:
                progress(news)


def _connect(store_path: str, wait_s: float) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(wait_s)
    try:
        with socket_address(store_path) as address:
            connection.connect(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        return None
    except PermissionError as error:
        connection.close()
        raise StoreError(
            f"the daemon of {store_path} may not be spoken to: permission denied",
            hint="Run ciuic as root, or as the user the daemon runs as.",
        ) from error
    except TimeoutError as error:
        connection.close()
        raise _silent(store_path) from error
    except OSError as error:
        connection.close()
        raise StoreError(f"the daemon of {store_path} can't be asked: {error.strerror}") from error
    return connection


def _read_line(replies: Any, store_path: str) -> bytes:
    try:
        line: bytes = replies.readline(_REPLY_BYTES_MAX)
    except TimeoutError as error:
        raise _silent(store_path) from error
    except OSError:
        line = b""
    if not line.endswith(b"\n"):
        raise StoreError(
            f"the daemon of {store_path} hung up before it was done",
            hint="Its log says why: journalctl -u ciuicd.",
        )
    return line


def _decode_reply(line: bytes, store_path: str) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _senseless(store_path) from error
    if not isinstance(reply, dict):
        raise _senseless(store_path)
    return reply


def _silent(store_path: str) -> StoreError:
    return StoreError(
        f"the daemon of {store_path} does not answer",
        hint="Its log may say why: journalctl -u ciuicd.",
    )


def _senseless(store_path: str) -> StoreError:
    return StoreError(
        f"the daemon of {store_path} answered something that makes no sense",
        hint="Use the ciuic of the same version as the daemon.",
    )

"""Listens on loopback, on a UNIX socket, or with TLS elsewhere, until a signal ends it."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final, NamedTuple

import uvicorn

from ciuic.copy.read_through import CopySource
from ciuic.errors import CiuicError, UsageError
from ciuic.report.doctor.findings import Subject
from ciuic.store.place.location import PlaceOptions
from ciuic.system.clock import Clock
from ciuic.web.admission import TOKEN
from ciuic.web.app import make_app

__all__ = ["Address", "Tls", "parse_address", "serve"]

_LOOPBACK: Final = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "[::1]": "::1"}
_HOST_AND_PORT: Final = re.compile(r"([^:]+|\[[^\]]+\]):(\d{1,5})", re.ASCII)
_SOCKET_PATH_MAX: Final = 107
_PORT_MAX: Final = 65535
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Address(NamedTuple):
    """Where to listen: on a path, or on a host and a port; port 0 is any free one."""

    path: str
    host: str
    port: int


class Tls(NamedTuple):
    """What a page needs that other machines may reach.

    Attributes:
        certificate: The file with the certificate and its intermediate certificates.
        key: The file with its private key.
        names: Host names and addresses under which browsers reach the page.
    """

    certificate: str
    key: str
    names: tuple[str, ...]


def parse_address(text: str, tls: Tls | None = None) -> Address:
    """Parse ``127.0.0.1:8080``, ``[::1]:8080``, ``localhost:8080`` or ``/run/ciuic-web.sock``.

    With TLS, the host may be any address of this machine.

    Raises:
        UsageError: The text is not such an address.
    """
    if text.startswith("/"):
        if len(os.fsencode(text)) > _SOCKET_PATH_MAX:
            raise UsageError(
                f"{text} is too long for a socket",
                hint=f"A socket's path has at most {_SOCKET_PATH_MAX} bytes.",
            )
        return Address(text, "", 0)
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise UsageError(
            f"'{text}' is not an address to listen on",
            hint="Give 127.0.0.1:PORT, [::1]:PORT, or the absolute path of a socket.",
        )
    if tls is None and match[1] not in _LOOPBACK:
        raise UsageError(
            f"{match[1]} is not this machine's loopback, and the page has no encryption",
            hint="Listen on 127.0.0.1, and reach it with 'ssh -L PORT:127.0.0.1:PORT HOST'; or give"
            " --certificate, --key and --name.",
        )
    return Address("", match[1], int(match[2]))


def serve(
    store_path: str,
    subject: Callable[[], Subject],
    address: Address,
    *,
    logs: Sequence[bytes] = (),
    words: Callable[[], Sequence[bytes]] = tuple,
    clock: Clock,
    options: PlaceOptions | None = None,
    copies: Callable[[], Sequence[CopySource]] = tuple,
    tls: Tls | None = None,
    ready: Callable[[str], None],
    ending: Callable[[int], None],
) -> None:
    """Serve the page and the API of a store, until SIGINT or SIGTERM.

    Args:
        store_path: The store's directory, or the URL of its bucket.
        subject: Returns what ``doctor`` examines.
        address: Where to listen.
        logs: Logs of training programs, or patterns that name several.
        words: Returns what a command needs before its name to find the store and its configuration.
        clock: Tells the time.
        options: How to reach the bucket.
        copies: Returns the copies, which have what is lost here.
        tls: Encrypt all connections with this; None: none.
        ready: Called with the URL, which has the token, when the server listens.
        ending: Called with the number of running jobs when the server ends and has to stop them.

    Raises:
        CiuicError: It cannot listen there.
    """
    server: _Server | None = None

    def is_ending() -> bool:
        return server is None or server.should_exit

    app = make_app(
        store_path,
        subject,
        logs=logs,
        words=words,
        clock=clock,
        is_ending=is_ending,
        options=options,
        copies=copies,
        names=() if tls is None else tls.names,
        is_encrypted=tls is not None,
    )
    if tls is not None:
        _check(tls)
    with _listening(address) as listener:
        settings = uvicorn.Config(
            app.admission,
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        server = _Server(settings)
        with _ended_by_signals(server):
            # Not before: the mask of a socket's mode is that of all threads.
            app.prepare()
            ready(_url(address, listener, app.admission.token, tls))
            asyncio.run(server.serve(sockets=[listener]))
            # The caller's handlers are not back yet: they would not wait for the jobs.
            running = sum(job.state == "running" for job in app.jobs.all())
            if running:
                ending(running)
            app.jobs.stop_all()


class _Server(uvicorn.Server):
    """uvicorn would raise a signal again when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers of signals as they are."""
        yield


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out of uvicorn's log that the end of the server cuts requests off: it was asked for."""
    error = record.exc_info[1] if record.exc_info else None
    is_count = str(record.msg).startswith("Cancel %s running task")
    return not (is_count or isinstance(error, asyncio.CancelledError))


@contextlib.contextmanager
def _ended_by_signals(server: _Server) -> Iterator[None]:
    """Let a signal end the server, which looks ten times a second."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    logging.getLogger("uvicorn.error").addFilter(_is_news)
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def _listening(address: Address) -> Iterator[socket.socket]:
    """Listen; remove the socket's path afterwards."""
    if address.path:
        with contextlib.closing(_on_path(address.path)) as listener:
            yield listener
        with contextlib.suppress(OSError):
            os.unlink(address.path)
        return
    host = _LOOPBACK.get(address.host, address.host.strip("[]"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, address.port), family=family)
    except OSError as error:
        raise CiuicError(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror}",
            hint="Give another port with --listen; port 0 means any free one.",
        ) from error
    # Its connections inherit it, and asyncio does not set it: each answer is two writes, and the
    # second one would wait up to 40 ms until the browser has acknowledged the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.closing(listener):
        yield listener


def _on_path(path: str) -> socket.socket:
    """Listen on a path that only this user can reach."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen()
    except OSError as error:
        listener.close()
        is_file = os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode)
        raise CiuicError(
            f"{path} cannot be listened on: {error.strerror}",
            hint="Give another path: this one is not a socket."
            if is_file
            else "If 'ciuic web' was killed, remove the old socket, or give another path.",
        ) from error
    finally:
        os.umask(before)
    return listener


def _check(tls: Tls) -> None:
    """Refuse a certificate and a key that cannot be used, before anything listens.

    Raises:
        CiuicError: They cannot be read, or don't belong together.
    """

    def no_password() -> str:
        raise CiuicError(
            f"{tls.key} is locked with a password", hint="Give a key without one, readable by you."
        )

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key, password=no_password)
    except OSError as error:  # ssl.SSLError is one
        raise CiuicError(
            f"{tls.certificate} and {tls.key} cannot be used: {error.strerror or error}",
            hint="Give the certificate and its private key as two files in PEM form.",
        ) from error
    # A group may read it: Debian's group ssl-cert does.
    if os.stat(tls.key).st_mode & stat.S_IROTH:
        raise CiuicError(
            f"every user can read the private key {tls.key}", hint=f"Run 'chmod o= {tls.key}'."
        )


def _url(address: Address, listener: socket.socket, token: str, tls: Tls | None) -> str:
    scheme = "http" if tls is None else "https"
    if address.path:
        return f"{scheme}://localhost/?{TOKEN}={token}"
    host = address.host if tls is None else tls.names[0]
    return f"{scheme}://{host}:{listener.getsockname()[1]}/?{TOKEN}={token}"

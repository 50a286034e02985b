"""A proxy in front of an S3 server: on request, it loses, cuts, delays and repeats messages."""

import contextlib
import http.client
import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

__all__ = [
    "Answer",
    "FaultyProxy",
    "Held",
    "Request",
    "StaleListings",
    "cut",
    "drop",
    "fail_after",
    "faulty_proxy",
    "ignore_conditions",
    "lose_answer",
    "refuse_each_key",
    "repeat",
    "status",
]

_PER_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request of the client."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_listing(self) -> bool:
        return "list-type=2" in self.path


@dataclass(frozen=True)
class Answer:
    """An answer to the client.

    Attributes:
        cut_bytes: Where the body is cut and the connection reset; None: the body is complete.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    cut_bytes: int | None = None


Forward = Callable[[Request], Answer]
Fault = Callable[[Request, Forward], Answer | None]
"""Answers a request, with or without asking the server; None: the connection is reset."""


class FaultyProxy:
    """A running proxy.

    Attributes:
        endpoint: Its URL.
        requests: The requests that reached it, as "METHOD path".
    """

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._faults: list[Fault] = []
        self._lasting: Fault | None = None
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.endpoint = ""

    def inject(self, *faults: Fault) -> None:
        """Apply each of these faults to one of the next requests, in turn."""
        with self._lock:
            self._faults.extend(faults)

    def always(self, fault: Fault | None) -> None:
        """Apply a fault to every request; None: to none."""
        self._lasting = fault

    def heal(self) -> int:
        """Forget the faults that have not happened yet; returns their number."""
        with self._lock:
            left = len(self._faults)
            self._faults.clear()
        return left

    def answer(self, request: Request) -> Answer | None:
        """Answer a request of the client."""
        with self._lock:
            self.requests.append(f"{request.method} {request.path}")
            fault = self._faults.pop(0) if self._faults else self._lasting
        return self.forward(request) if fault is None else fault(request, self.forward)

    def forward(self, request: Request) -> Answer:
        """Ask the server."""
        assert self._server.hostname is not None
        connection = http.client.HTTPConnection(self._server.hostname, self._server.port)
        with contextlib.closing(connection):
            connection.request(request.method, request.path, request.body, request.headers)
            answer = connection.getresponse()
            body = answer.read()
            headers = [pair for pair in answer.getheaders() if pair[0].lower() not in _PER_HOP]
            if request.method == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        return Answer(answer.status, headers, body)


def status(code: int, name: str = "Fault") -> Fault:
    """The server answers with an error, and does nothing."""
    return lambda _request, _forward: Answer(code, [], _error(name))


def refuse_each_key(code: str) -> Fault:
    """The server deletes nothing: it answers each deletion of several objects with 200, and each
    key with an error, as for a policy that denies ``s3:DeleteObject``.
    """

    def fault(request: Request, forward: Forward) -> Answer:
        if not (request.method == "POST" and urlsplit(request.path).query == "delete"):
            return forward(request)
        keys = re.findall(rb"<Key>.*?</Key>", request.body)
        error = f"<Code>{code}</Code><Message>on request</Message>".encode()
        errors = b"".join(b"<Error>" + key + error + b"</Error>" for key in keys)
        return Answer(200, [], b"<DeleteResult>" + errors + b"</DeleteResult>")

    return fault


def drop(_request: Request, _forward: Forward) -> None:
    """The request is lost on its way."""


def lose_answer(request: Request, forward: Forward) -> None:
    """The server handles the request, and the answer is lost."""
    forward(request)


def fail_after(code: int) -> Fault:
    """The server handles the request, but answers with an error."""

    def fault(request: Request, forward: Forward) -> Answer:
        forward(request)
        return Answer(code, [], _error("InternalError"))

    return fault


def repeat(request: Request, forward: Forward) -> Answer:
    """The request arrives twice, and the client gets the second answer."""
    forward(request)
    return forward(request)


def cut(request: Request, forward: Forward) -> Answer:
    """The answer ends in the middle of its body."""
    answer = forward(request)
    return Answer(answer.status, answer.headers, answer.body, len(answer.body) // 2)


def ignore_conditions(sign: Callable[[str, str], str]) -> Fault:
    """The server silently ignores the conditions of conditional writes.

    Args:
        sign: Returns a signed URL for a method and a path: conditions are signed, too, so a request
            without them needs another signature.
    """

    def fault(request: Request, forward: Forward) -> Answer:
        if not {"if-match", "if-none-match"} & {name.lower() for name in request.headers}:
            return forward(request)
        url = urlsplit(sign(request.method, urlsplit(request.path).path))
        headers = {"Host": url.netloc, "Content-Length": str(len(request.body))}
        return forward(Request(request.method, f"{url.path}?{url.query}", headers, request.body))

    return fault


class Held:
    """A fault: the request arrives when ``release`` is called, and the answer is lost."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._arrived = threading.Event()
        self.late_status = 0

    def __call__(self, request: Request, forward: Forward) -> None:
        self._released.wait(60)
        self.late_status = forward(request).status
        self._arrived.set()

    def release(self) -> None:
        """Let it arrive."""
        self._released.set()
        assert self._arrived.wait(60)


class StaleListings:
    """A fault: listings are answered as the first one was."""

    def __init__(self) -> None:
        self._first: dict[str, Answer] = {}

    def __call__(self, request: Request, forward: Forward) -> Answer:
        if not request.is_listing:
            return forward(request)
        return self._first.setdefault(request.path, forward(request))


def _error(name: str) -> bytes:
    return f"<Error><Code>{name}</Code><Message>on request</Message></Error>".encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        answer = self.proxy.answer(request)
        if answer is None:
            self._reset()
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
        elif not answer.headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(answer.body[: answer.cut_bytes])
        if answer.cut_bytes is not None:
            self._reset()

    def _reset(self) -> None:
        self.wfile.flush()
        # Closing with a linger time of 0 sends a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def faulty_proxy(server: str) -> Iterator[FaultyProxy]:
    """Run a proxy to a server for the duration of the block."""
    proxy = FaultyProxy(server)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        proxy.endpoint = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            listening.shutdown()
            thread.join()

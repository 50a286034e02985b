"""Serves the file with the metrics over HTTP, on loopback: a process without other rights."""

import os
import stat
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

__all__ = ["MetricsServer", "split_address"]

_PATH: Final = "/metrics"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BYTES_MAX: Final = 4 * 1024**2
_REQUEST_S: Final = 10.0


def split_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[HOST]:PORT``."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


class MetricsServer(ThreadingHTTPServer):
    """Answers ``GET /metrics`` with the file, as it is at that moment.

    Args:
        address: ``HOST:PORT``; port 0 is any free one.
        path: The file.
    """

    daemon_threads = True

    def __init__(self, address: str, path: str) -> None:
        host, port = split_address(address)
        if ":" in host:
            import socket

            self.address_family = socket.AF_INET6
        self.metrics_path = path
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "ciuicd"
    sys_version = ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        """Answer with the file."""
        if self.path.partition("?")[0] != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {_PATH} is here")
            return
        try:
            data = _read(self.server.metrics_path)
        except OSError:
            self.send_error(
                HTTPStatus.SERVICE_UNAVAILABLE, "the daemon has not written its metrics"
            )
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: a scrape every few seconds would fill the journal."""


def _read(path: str) -> bytes:
    """Return a regular file.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it is not a regular file")
        return file.read(_BYTES_MAX)

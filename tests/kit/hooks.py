"""A web server for alerts that answers as it is told: it hangs, redirects, fails or takes them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Hook"]


class Hook(ThreadingHTTPServer):
    """A web server that answers with the given statuses in turn, and keeps repeating the last."""

    daemon_threads = True

    def __init__(self, *statuses: int | str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses) or [200]
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.released = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?a=b"

    def close(self) -> None:
        """Stop, and let go of clients that hang."""
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        status = self.server.statuses[0]
        if len(self.server.statuses) > 1:
            del self.server.statuses[0]
        if status == "hangs":
            self.server.released.wait(60)
        elif status == "drips":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.server.released.wait(0.02):
                self.wfile.write(b"x")
        elif status == "rubbish":
            self.wfile.write(b"\x00\xff" * 100 + b"\r\n")
            self.close_connection = True
        else:
            assert isinstance(status, int)
            self.send_response(status)
            if status in {301, 307}:
                self.send_header("Location", f"{self.server.url}&moved")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

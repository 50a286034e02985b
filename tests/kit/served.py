"""A running ``ciuic web``, and requests to it."""

import contextlib
import errno
import http.client
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.kit.box import Box
from tests.kit.mounted import wait_for
from tests.kit.program import CIUIC, REPOSITORY, environment

__all__ = ["Answer", "Gate", "Served", "served"]

_LIMIT_S = 120
_GATE = """
import sys
is_job = "ciuic.web.jobs.work" in " ".join(sys.orig_argv)
def hold(event, arguments):
    global is_job
    if is_job and event == {event!r}:
        is_job = False
        open({there!r}, "x").close()
        open({fifo!r}, "rb").close()
sys.addaudithook(hold)
"""


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The JSON document of the body."""
        return json.loads(self.body)


class Gate:
    """Holds a job at its first call of one kind until it is opened.

    It is a FIFO that the process of the job opens for reading, which waits for a writer.
    """

    def __init__(self, directory: Path, event: str) -> None:
        self._fifo = directory / "gate.fifo"
        os.mkfifo(self._fifo)
        self._there = directory / "gate.there"
        self.path = directory / "gate"
        self.path.mkdir()
        text = _GATE.format(event=event, there=str(self._there), fifo=str(self._fifo))
        (self.path / "sitecustomize.py").write_text(text)

    def wait(self) -> None:
        """Return when a job is at the gate."""
        wait_for(self._there.exists, "no job came to the gate")

    def open(self) -> None:
        """Let the job go on."""
        os.close(os.open(self._fifo, os.O_WRONLY))

    def leave(self) -> None:
        """Let a job that may still be there go on."""
        try:
            os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            assert error.errno == errno.ENXIO


class Served:
    """A running server.

    Attributes:
        url: The address that it has printed.
        token: The token in it.
        errors: What it writes to stderr.
    """

    def __init__(
        self, process: "subprocess.Popen[str]", url: str, errors: Path, path: Path | None
    ) -> None:
        self.process = process
        self.url = url
        self.errors = errors
        self.token = url.partition("token=")[2]
        self._path = path

    @property
    def base(self) -> str:
        """The address without the token."""
        return self.url.partition("/?")[0]

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        host = urlsplit(self.url).netloc
        found = http.client.HTTPConnection(host, timeout=_LIMIT_S)
        if self._path is not None:
            found.sock = socket.socket(socket.AF_UNIX)
            found.sock.connect(str(self._path))
        return found

    def ask(
        self,
        address: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Answer:
        """Send a request; without ``headers``, with the token."""
        given = {"Authorization": f"Bearer {self.token}"} if headers is None else dict(headers)
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, address, sent, given)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, fields, answer.read())

    def start(self, **work: object) -> Answer:
        """Ask for a job."""
        return self.ask("/v1/jobs", method="POST", body=work)

    def ended(self, job_id: str) -> Any:
        """Return a job when it has ended."""
        found: list[Any] = []

        def has_ended() -> bool:
            found[:] = [self.ask(f"/v1/jobs/{job_id}").document]
            return bool(found[0]["state"] != "running")

        wait_for(has_ended, "the job did not end")
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_LIMIT_S)


@contextlib.contextmanager
def served(
    box: Box,
    *arguments: str | Path,
    gate: Gate | None = None,
    path: Path | None = None,
) -> Iterator[Served]:
    """Run ``ciuic web`` on the store of a box, on a socket's path or a free port."""
    errors = box.directory / "web.err"
    listen = "127.0.0.1:0" if path is None else str(path)
    search = f"{gate.path}:{REPOSITORY}" if gate else str(REPOSITORY)
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [*CIUIC, "--config", str(box.config), "web", "--listen", listen, *arguments],
            env=environment({"PYTHONPATH": search}),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], _LIMIT_S)[0]
        url = process.stdout.readline().strip()
        assert url, errors.read_text()
        yield Served(process, url, errors, path)
    finally:
        if gate is not None:
            gate.leave()
        process.terminate()
        process.wait(_LIMIT_S)
        process.stdout.close()
    said = errors.read_text(errors="surrogateescape")
    assert "Traceback" not in said, said
    assert url.partition("token=")[2] not in said

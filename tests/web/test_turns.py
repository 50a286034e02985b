"""Requests that take long leave threads to the others."""

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from starlette.responses import Response

from ciuic.web.history.turns import Turns, go_on
from ciuic.web.statics import Statics
from tests.kit.box import Box
from tests.kit.program import environment

MANY = 41
"""One more than the threads that the server has for requests."""
ANSWERS_WHEN_TOLD = """
import sys, threading
from ciuic.cli.entry import program
from ciuic.web.history.timelines import Timelines
from ciuic.web.models import SnapshotComparison

told = threading.Event()

def compare(self, names):
    print(names[0], flush=True)
    told.wait()
    return SnapshotComparison(snapshots=[])

Timelines.compare = compare
threading.Thread(target=lambda: [sys.stdin.readline(), told.set()], daemon=True).start()
sys.argv[0] = "ciuic"
program()
"""


class Server(contextlib.ExitStack):
    """A server whose comparisons end when it is told so, or another program with a server."""

    def __init__(self, box: Box, program: str = ANSWERS_WHEN_TOLD) -> None:
        super().__init__()
        command = [sys.executable, "-c", program, "--config", str(box.config), "web"]
        self.process = self.enter_context(
            subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        self.callback(self.process.kill)
        url = urlsplit(self.said())
        self._address = url.netloc
        self._token = {"Authorization": f"Bearer {url.query.partition('=')[2]}"}

    def said(self) -> str:
        """Return the next line of the output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        """End all comparisons."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ask(self, path: str) -> http.client.HTTPConnection:
        """Send a request, and do not wait for the answer."""
        client = http.client.HTTPConnection(self._address, timeout=120)
        self.callback(client.close)
        client.request("GET", path, headers=self._token)
        return client


@pytest.fixture
def server(box: Box) -> Iterator[Server]:
    (box.source / "file").write_bytes(b"content")
    box.take()
    with Server(box) as found:
        yield found


def test_comparisons_that_were_given_up_do_not_keep_the_page_from_answering(server: Server) -> None:
    given_up = [server.ask(f"/v1/compare?id=given-up-{number}") for number in range(MANY)]
    begun = {server.said(), server.said()}
    page = json.load(server.ask("/v1/overview").getresponse())
    for client in given_up:
        client.close()
    last = server.ask("/v1/compare?id=last")
    # The server has seen the ends of the connections before it answers this.
    assert server.ask("/v1/overview").getresponse().status == 200
    server.tell()

    assert last.getresponse().status == 200
    assert page["store"]
    assert len(begun) == 2
    assert server.said() == "last", "a request that was given up has begun nevertheless"


WAITS_FOR_ITS_CLIENT = """
import functools, sys
from ciuic.cli.entry import program
from ciuic.errors import CancelledError
from ciuic.timeline import compare, run_compare
from ciuic.web.history import turns
from ciuic.web.history.runs import Runs
from ciuic.web.history.timelines import Timelines

def waiting(step):
    def wait(*arguments):
        print("begun", flush=True)
        assert turns._gone.get().wait(60)
        return step(*arguments)
    return wait

def ending(method):
    @functools.wraps(method)
    def end(*arguments, **more):
        try:
            found = method(*arguments, **more)
        except CancelledError:
            print("ended early", flush=True)
            raise
        print("ended", flush=True)
        return found
    return end

compare.metrics_of = waiting(compare.metrics_of)
run_compare._last = waiting(run_compare._last)
Timelines.compare = ending(Timelines.compare)
Runs.compare = ending(Runs.compare)
sys.argv[0] = "ciuic"
program()
"""
"""A server whose comparisons go on when their clients are gone."""


@pytest.mark.parametrize(
    "path", ["/v1/compare?id={0}&id={1}", "/compare?id={0}&id={1}", "/v1/runs/compare?run=a&run=b"]
)
def test_a_comparison_ends_when_its_client_is_gone(box: Box, path: str) -> None:
    ids = []
    for tag in ("a", "b"):
        (box.source / "file").write_text(tag)
        ids.append(box.take(tags=(tag,)).id)
    with Server(box, WAITS_FOR_ITS_CLIENT) as server:
        client = server.ask(path.format(*ids))
        assert server.said() == "begun"
        client.close()
        said = server.said()
        while said == "begun":  # with the next run
            said = server.said()
    assert said == "ended early"


def test_a_request_that_is_cancelled_keeps_its_turn_until_its_thread_has_ended() -> None:
    said: list[str] = []
    may_end = threading.Event()

    def work(name: str) -> Response:
        said.append(f"{name} begins")
        if name != "last":
            assert may_end.wait(60)
        try:
            go_on()
        finally:
            said.append(f"{name} ends")
        return Response()

    async def is_disconnected() -> bool:
        return False

    async def serve() -> list[Response | BaseException]:
        answer = Turns().taking(lambda request: work(request.name))

        def ask(name: str) -> asyncio.Task[Response]:
            request = SimpleNamespace(name=name, is_disconnected=is_disconnected)
            return asyncio.ensure_future(answer(request))

        first = [ask("a"), ask("b")]
        while len(said) < 2:
            await asyncio.sleep(0.01)
        for one in first:
            one.cancel()
        last = ask("last")
        await asyncio.wait({last}, timeout=1)
        may_end.set()
        return await asyncio.gather(*first, last, return_exceptions=True)

    *first, last = asyncio.run(serve())
    ended = [at for at, event in enumerate(said) if event in {"a ends", "b ends"}]
    assert ended, "three worked"
    assert said.index("last begins") > ended[0], "three worked"
    assert all(isinstance(one, asyncio.CancelledError) for one in first)
    assert isinstance(last, Response)


def test_other_files_beside_those_of_the_page_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text("let x = 1;")
    (tmp_path / "page.js~").write_text("an editor's copy")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "__pycache__").mkdir()

    found = Statics(tmp_path)

    assert found.address("page.js").startswith("/static/page.js?v=")
    with pytest.raises(KeyError):
        found.address("page.js~")

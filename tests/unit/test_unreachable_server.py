"""An upload ends soon when the server stops answering, and may take long while it answers."""

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ciuic.errors import OfflineError
from ciuic.store.place import objects
from ciuic.store.place.address import open_place
from ciuic.store.place.location import PlaceOptions
from ciuic.store.place.place import Place
from ciuic.store.place.uploads.body import FileBody
from tests.kit.clock import ManualClock

MIB = 1024 * 1024
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


class Server(ThreadingHTTPServer):
    """Takes uploads, and answers each when it is told to.

    Attributes:
        answers: It answers whether an object is there.
        status: Its answer to that.
        looks: How often that was asked.
        goes_on: Uploads are answered from now on.
        unanswered: The first looks that have no answer. With each of them, an upload comes a bit
            further.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.answers = True
        self.status = 404
        self.looks = 0
        self.goes_on = threading.Event()
        self.unanswered = 0
        self.asked = threading.Semaphore(0)
        self.taken = threading.Semaphore(0)
        super().__init__(("127.0.0.1", 0), Handler)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_PUT(self) -> None:
        left = int(self.headers["content-length"])
        left -= len(self.rfile.read1(left))
        for _ in range(self.server.unanswered):
            self.server.asked.acquire(timeout=60)
            while select.select([self.connection], [], [], 0.5)[0]:
                left -= len(self.rfile.read1(left))
            self.server.taken.release()
        self.rfile.read(left)
        self.server.goes_on.wait(60)
        self._end(200)

    def do_HEAD(self) -> None:
        self.server.looks += 1
        if self.server.looks <= self.server.unanswered:
            self.server.asked.release()
            self.server.taken.acquire(timeout=60)
            return
        if self.server.looks == 4:
            self.server.goes_on.set()
        if not self.server.answers:
            self.server.goes_on.wait(60)
        self._end(self.server.status)

    def _end(self, status: int) -> None:
        self.send_response(status)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.goes_on.set()
        running.shutdown()
        thread.join()


@pytest.fixture(params=["memory", "disk"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Place], None]:
    """Uploads 2 MiB, from the memory or from the disk."""

    def from_memory(place: Place) -> None:
        place.put("packs/a", bytes(2 * MIB))

    def from_disk(place: Place) -> None:
        path = tmp_path / "pack"
        path.write_bytes(bytes(2 * MIB))
        with path.open("rb", buffering=0) as file:
            place.put_file("packs/a", FileBody(file, 2 * MIB))

    return from_memory if request.param == "memory" else from_disk


def place_at(port: int, **options: float) -> Place:
    at = PlaceOptions(endpoint=f"http://127.0.0.1:{port}", region="r", **options)
    return open_place("s3://bucket/a", ENVIRONMENT, at, clock=ManualClock())


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_LOOK_S", 0.1)


def test_an_upload_to_a_server_that_stops_answering_is_given_up(
    server: Server, put: Callable[[Place], None]
) -> None:
    server.answers = False
    place = place_at(server.server_port, quick_s=0.2, patience_s=0)
    with pytest.raises(OfflineError, match="the server has stopped answering"):
        put(place)
    assert server.looks == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_upload_goes_on_while_the_server_has_no_time_for_looks(
    server: Server, status: int, put: Callable[[Place], None]
) -> None:
    server.status = status
    put(place_at(server.server_port, patience_s=0))
    assert server.looks >= 4


def test_an_upload_may_take_long_while_the_server_answers(
    server: Server, put: Callable[[Place], None]
) -> None:
    put(place_at(server.server_port, patience_s=0))
    assert server.looks >= 4


def test_looks_without_an_answer_do_not_end_an_upload_that_goes_on(
    server: Server, tmp_path: Path
) -> None:
    server.unanswered = 3
    server.goes_on.set()
    path = tmp_path / "pack"
    path.write_bytes(bytes(64 * MIB))
    with path.open("rb", buffering=0) as file:
        place = place_at(server.server_port, quick_s=60, patience_s=0)
        place.put_file("packs/a", FileBody(file, 64 * MIB))

    assert server.looks >= 3


def test_a_program_whose_event_loop_runs_uploads_too(server: Server) -> None:
    server.goes_on.set()

    async def save() -> None:
        place_at(server.server_port, patience_s=0).put("packs/a", bytes(2 * MIB))

    asyncio.run(save())


def test_after_one_request_was_given_up_the_others_are_tried_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    place = place_at(port)
    with pytest.raises(OfflineError, match=r"\(\d+ attempts in"):
        place.put("packs/a", b"")
    with pytest.raises(OfflineError, match=r"\(1 attempt in"):
        place.delete(["leases/a"])

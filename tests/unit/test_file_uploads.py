"""A file goes to an object store from the disk, in one request, and never in part."""

import contextlib
import hashlib
import os
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import pytest
from obstore.store import MemoryStore

from ciuic.errors import StoreError
from ciuic.ids import PackId, SessionId
from ciuic.store.packs.pack_writer import PackFile
from ciuic.store.place import objects, pack_objects
from ciuic.store.place.address import open_place
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.location import PlaceOptions
from ciuic.store.place.objects import Clients, ObjectPlace
from ciuic.store.place.pack_objects import PackObjects
from ciuic.store.place.place import Place
from ciuic.store.place.segments.segments import Segments
from ciuic.store.place.uploads import s3
from ciuic.store.place.uploads.body import FileBody
from tests.guard.test_alerts_tls import Authority
from tests.kit.clock import ManualClock

T = TypeVar("T")

MIB = 1024 * 1024
NO_TLS = 0
"""An answer that is no message of TLS."""
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


class Server(ThreadingHTTPServer):
    """Takes objects.

    Attributes:
        before: Called when a request has begun, before its body is read.
        answers: The statuses of the next answers, or ``NO_TLS``; 200 after them.
        by_client: For each request, whether the client of the object store has sent it.
        headers: Of each request, with lower-case names.
        stored: The hash of each object.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.answers: list[int] = []
        self.by_client: list[bool] = []
        self.headers: list[dict[str, str]] = []
        self.stored: dict[str, str] = {}
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_PUT(self) -> None:
        self.server.by_client.append("user-agent" in self.headers)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.before()
        left = int(self.headers["content-length"])
        content = hashlib.sha256()
        while left and (piece := self.rfile.read(min(left, 64 * 1024))):
            content.update(piece)
            left -= len(piece)
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == NO_TLS:
            os.write(self.connection.fileno(), bytes(100))
            return
        path, _, query = self.path.partition("?")
        claimed = self.headers.get("x-amz-content-sha256", "")
        is_signed = claimed == content.hexdigest() or "X-Amz-Signature=" in query
        if status == 200 and not left and is_signed:
            self.server.stored[path] = content.hexdigest()
        self.send_response(status)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    context = getattr(request, "param", None) and request.getfixturevalue("context")
    with Server() as running:
        if context:
            running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def place_at(
    server: Server, environment: dict[str, str] = KEYS, *, credentials_file: str = ""
) -> Place:
    options = PlaceOptions(
        f"http://127.0.0.1:{server.server_port}",
        region="r",
        credentials_file=credentials_file,
        patience_s=60,
    )
    return open_place("s3://bucket/a", environment, options, clock=ManualClock())


@contextlib.contextmanager
def body_of(path: Path, size_bytes: int) -> Iterator[FileBody]:
    path.write_bytes(os.urandom(size_bytes))
    with path.open("rb", buffering=0) as file:
        yield FileBody(file, size_bytes)


def test_a_file_is_sent_without_being_in_memory(server: Server, tmp_path: Path) -> None:
    place = place_at(server)
    with body_of(tmp_path / "pack", 20 * MIB + 1) as body:
        place.put_file("packs/a", body)  # imports what it needs
        tracemalloc.start()
        try:
            place.put_file("packs/b", body)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    content = hashlib.sha256((tmp_path / "pack").read_bytes()).hexdigest()
    assert server.by_client == [False, False]
    assert server.stored == {"/bucket/a/packs/a": content, "/bucket/a/packs/b": content}
    assert peak_bytes < 4 * MIB


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server whose certificate this machine trusts."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return authority.server("good")


@pytest.mark.parametrize("server", ["with TLS"], indirect=True)
@pytest.mark.parametrize("environment", [KEYS, {}], ids=["a key", "credentials of the machine"])
def test_a_server_with_tls_that_takes_its_time_gets_all_of_a_file(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
) -> None:
    looks = []
    goes_on = threading.Event()

    def look(*_: object) -> None:
        looks.append(None)
        if len(looks) == 3:
            goes_on.set()

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)  # the client looks there, too
    monkeypatch.setattr(objects, "_LOOK_S", 0.1)
    monkeypatch.setattr(objects._Looks, "look", look)
    server.before = lambda: goes_on.wait(60)
    options = PlaceOptions(f"https://127.0.0.1:{server.server_port}", region="r", patience_s=0)
    place = open_place("s3://bucket/a", environment, options, clock=ManualClock())
    with body_of(tmp_path / "pack", 32 * MIB) as body:
        place.put_file("packs/a", body)

    content = hashlib.sha256((tmp_path / "pack").read_bytes()).hexdigest()
    assert server.by_client == [False]
    assert server.stored == {"/bucket/a/packs/a": content}
    assert len(looks) >= 3


@pytest.mark.parametrize("server", ["with TLS"], indirect=True)
def test_a_server_that_is_not_trusted_gets_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    options = PlaceOptions(f"https://127.0.0.1:{server.server_port}", region="r", patience_s=0)
    place = open_place("s3://bucket/a", KEYS, options, clock=ManualClock())
    with (
        body_of(tmp_path / "pack", 2 * MIB) as body,
        pytest.raises(StoreError, match="does not trust the server's certificate"),
    ):
        place.put_file("packs/a", body)

    assert server.by_client == []


@pytest.mark.parametrize("server", ["with TLS"], indirect=True)
def test_after_an_error_of_tls_files_are_still_sent_from_the_disk(
    server: Server, tmp_path: Path
) -> None:
    options = PlaceOptions(f"https://127.0.0.1:{server.server_port}", region="r", patience_s=0)
    place = open_place("s3://bucket/a", KEYS, options, clock=ManualClock())
    server.answers = [NO_TLS]
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)
        place.put_file("packs/b", body)

    assert server.by_client == [False, True, False]
    assert list(server.stored) == ["/bucket/a/packs/a", "/bucket/a/packs/b"]


@pytest.mark.parametrize("status", [400, 403, 307])
def test_what_the_server_refuses_the_client_sends_from_then_on(
    server: Server, tmp_path: Path, status: int
) -> None:
    place = place_at(server)
    server.answers = [status]
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)
        place.put_file("packs/b", body)

    assert server.by_client == [False, True, True]
    assert list(server.stored) == ["/bucket/a/packs/a", "/bucket/a/packs/b"]


def test_what_the_server_cannot_do_now_is_sent_again_from_the_disk(
    server: Server, tmp_path: Path
) -> None:
    server.answers = [503, 429]
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place_at(server).put_file("packs/a", body)

    assert server.by_client == [False, False, False]
    assert list(server.stored) == ["/bucket/a/packs/a"]


def test_the_client_which_knows_proxies_sends_what_goes_through_one(
    server: Server, tmp_path: Path
) -> None:
    place = place_at(server, {**KEYS, "HTTP_PROXY": "http://127.0.0.1:1"})
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)

    assert server.by_client == [True]


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms", "AWS_SSE_KMS_KEY_ID": "mine"},
        {"AWS_SERVER_SIDE_ENCRYPTION": "sse-c", "AWS_SSE_CUSTOMER_KEY_BASE64": "A" * 43 + "="},
        {"AWS_CHECKSUM_ALGORITHM": "sha256"},
        {"AWS_REQUEST_PAYER": "true"},
        {"AWS_DEFAULT_CONTENT_TYPE": "application/x-pack"},
        {"AWS_server_side_encryption": "AES256"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_the_client_sends_what_a_variable_may_add_something_to(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)  # the client looks there
    place = place_at(server, {**KEYS, **variables})
    place.put("packs/a", bytes(2 * MIB))
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)

    assert server.by_client == [True, True]
    assert server.headers[1].keys() == server.headers[0].keys()


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_the_configured_server_counts_and_not_that_of_a_variable(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    place_at(server, {**KEYS, name: "http://127.0.0.1:1"}).put("a", b"1")

    assert list(server.stored) == ["/bucket/a/a"]


def test_what_is_sent_from_the_disk_has_the_headers_of_the_client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ["AWS_CA_BUNDLE", "AWS_MAX_ATTEMPTS", "AWS_PAGER", "AWS_PROFILE"]
    values = dict.fromkeys([*s3.NEUTRAL, *others], "true") | dict.fromkeys(
        [name for name in s3.NEUTRAL if "ENDPOINT" in name or "URI" in name], "http://127.0.0.1:1"
    )
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    place = place_at(server, values)
    place.put("packs/a", bytes(2 * MIB))
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)

    from_memory, from_disk = server.headers
    assert server.by_client == [True, False]
    assert from_memory.keys() - from_disk.keys() == {"accept", "user-agent"}
    assert from_disk.keys() < from_memory.keys()
    assert from_disk["x-amz-security-token"] == from_memory["x-amz-security-token"] == "true"


def write_key(path: Path, key_id: str, token: str = "") -> None:
    path.touch(0o600)
    lines = ["[default]", f"aws_access_key_id = {key_id}", "aws_secret_access_key = b"]
    path.write_text("\n".join([*lines, f"aws_session_token = {token}" if token else ""]))


def test_a_key_of_a_file_is_not_sent_with_the_token_of_another_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**KEYS, "AWS_SESSION_TOKEN": "of the other key"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    write_key(tmp_path / "key", "mine")
    place = place_at(server, environment, credentials_file=str(tmp_path / "key"))
    place.put("small", b"1")
    place.put("large", bytes(2 * MIB))
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)

    assert server.by_client == [True, True, False]
    for headers in server.headers:
        assert "Credential=mine/" in headers["authorization"]
        assert "x-amz-security-token" not in headers


def test_a_file_is_sent_with_the_key_that_has_replaced_the_refused_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another key")
    write_key(tmp_path / "key", "old")
    place = place_at(server, {}, credentials_file=str(tmp_path / "key"))
    server.before = lambda: write_key(tmp_path / "key", "new", "its token")
    server.answers = [403, 403]
    with body_of(tmp_path / "pack", 2 * MIB) as body:
        place.put_file("packs/a", body)
    place.put("small", b"1")

    assert server.by_client == [False, True, False, True]
    assert [
        ("Credential=new/" in headers["authorization"], headers.get("x-amz-security-token"))
        for headers in server.headers
    ] == [(False, None), (False, None), (True, "its token"), (True, "its token")]
    assert list(server.stored) == ["/bucket/a/packs/a", "/bucket/a/small"]


def test_a_file_that_is_cut_while_it_is_sent_is_one_error_and_no_object(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "pack"
    server.before = lambda: os.truncate(path, MIB)
    with body_of(path, 32 * MIB) as body, pytest.raises(StoreError, match="pack was cut before"):
        place_at(server).put_file("packs/a", body)

    assert server.by_client == [False]
    assert server.stored == {}


@pytest.mark.parametrize("kind", ["directory", "memory", "server"])
def test_a_file_that_was_cut_is_one_error_and_no_object(
    server: Server, tmp_path: Path, kind: str
) -> None:
    store = MemoryStore()
    (tmp_path / "place").mkdir()
    places: dict[str, Place] = {
        "directory": DirectoryPlace(str(tmp_path / "place")),
        "memory": ObjectPlace("test://", Clients(store, store, store), patience_s=0),
        "server": place_at(server),
    }
    with body_of(tmp_path / "pack", 3 * MIB) as body:
        os.truncate(tmp_path / "pack", 2 * MIB)
        with pytest.raises(StoreError, match="pack was cut before it was uploaded"):
            places[kind].put_file("packs/a", body)

    if kind != "server":
        assert list(places[kind].list()) == []
    assert server.stored == {}


class Later(Executor):
    """A pool whose tasks wait until the test runs them."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], object]] = []

    def submit(self, act: Callable[..., T], /, *args: object, **named: object) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(act(*args, **named))
            except StoreError as error:
                future.set_exception(error)

        self.tasks.append(run)
        return future


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    pool = Later()
    monkeypatch.setattr(pack_objects, "ThreadPoolExecutor", lambda *_, **__: pool)
    return pool


@pytest.fixture
def packs(tmp_path: Path, later: Later) -> PackObjects:
    """Of a store in the directory "place", with uploads that wait for the test."""
    (tmp_path / "place").mkdir()
    place = DirectoryPlace(str(tmp_path / "place"))
    return PackObjects(place, Segments(place, str(tmp_path)), str(tmp_path))


def completed_pack(directory: Path) -> tuple[str, PackId]:
    """Write an empty pack, and return its path."""
    pack = PackFile(str(directory), SessionId(bytes(8)))
    pack_id = pack.complete()
    pack.close()
    return pack.path, pack_id


def test_after_a_failure_the_other_packs_are_closed_and_not_uploaded(
    tmp_path: Path, packs: PackObjects, later: Later
) -> None:
    for _ in range(2):
        packs.publish(*completed_pack(tmp_path), is_direct=True)
    (tmp_path / "place").rmdir()
    (tmp_path / "place").touch()
    for run in later.tasks:
        run()

    with pytest.raises(StoreError):
        packs.sync()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in opened if path.startswith(str(tmp_path))]


def test_what_the_kernel_loses_of_a_pack_before_it_is_on_the_disk_is_uploaded(
    tmp_path: Path, packs: PackObjects, later: Later
) -> None:
    path, pack_id = completed_pack(tmp_path)
    content = Path(path).read_bytes()
    with open(path, "r+b") as file:
        packs.publish(path, pack_id, is_direct=False)
        file.write(bytes(len(content)))
    later.tasks[0]()
    packs.sync()

    (key,) = packs.names()
    assert (tmp_path / "place/packs" / key).read_bytes() == content


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("size", [0, 100, 3 * MIB])
def test_a_pack_without_its_end_is_not_uploaded(
    tmp_path: Path, packs: PackObjects, size: int, *, is_direct: bool
) -> None:
    path = tmp_path / "pack"
    path.write_bytes(os.urandom(size))

    with pytest.raises(StoreError, match="pack was changed or cut before it was uploaded"):
        packs.publish(str(path), PackId(bytes(32)), is_direct=is_direct)

    assert list((tmp_path / "place").iterdir()) == []

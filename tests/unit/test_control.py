"""The control socket: its messages, and hostile clients and servers."""

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.control import (
    LINE_BYTES_MAX,
    SimpleRequest,
    SnapshotRequest,
    encode_line,
    error_document,
    error_from_document,
    parse_request,
    request_done,
    request_snapshot,
    request_status,
)
from ciuic.errors import (
    BusyError,
    CiuicError,
    ConfigError,
    CorruptionError,
    StoreError,
    StoreFullError,
    UsageError,
)
from ciuic.model import ExcludeRules, PathWarning
from ciuic.snapshot.report import TakeReport
from ciuic.store.packs.failures import ChainTooLongError
from ciuic.system.clock import SystemClock
from ciuicd.control import Server
from ciuicd.jobs.job import Job
from tests.kit.program import ciuic

REPORT = TakeReport(
    id="cs-38a2b1",
    kind="delta",
    parent=None,
    taken_ns=1_781_000_000 * 10**9,
    files=3,
    logical_bytes=4,
    read_bytes=5,
    new_bytes=6,
    stored_bytes=7,
    freeze_s=0.5,
    total_s=0.75,
    trouble=(PathWarning(b"/a\xff\n", "unreadable"),),
    trouble_count=1,
)


class Recorder:
    """Services that record their requests. Jobs wait for ``outcome``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.jobs: list[Job] = []
        self.outcome: TakeReport | CiuicError | None = REPORT
        self.reload_error: CiuicError | None = None

    def status(self):
        return {"state": "idle", "asked": list(self.asked)}

    def pause(self):
        self.asked.append("pause")

    def resume(self):
        self.asked.append("resume")

    def reload(self):
        self.asked.append("reload")
        if self.reload_error is not None:
            raise self.reload_error

    def control_group(self):
        return None

    def schedule_of(self, scope):
        return ""

    def schedule_names(self):
        return ("default",)

    def submit(self, job):
        self.jobs.append(job)
        if self.outcome is not None:
            job.finish(self.outcome)


@pytest.fixture
def services():
    return Recorder()


@pytest.fixture
def store(tmp_path, services):
    server = Server(str(tmp_path), services, SystemClock())
    yield str(tmp_path)
    server.close()


def connect(store):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(os.path.join(store, "control.sock"))
    return client


def answer(client):
    with client, client.makefile("rb") as replies:
        return json.loads(replies.readline())


def test_a_request_is_parsed_back_to_itself():
    line = encode_line({"do": "snapshot", "base": True, "tags": ["a", "b"]})
    assert parse_request(line) == SnapshotRequest(base=True, tags=("a", "b"))
    assert parse_request(b'{"do": "reload"}') == SimpleRequest("reload")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"do": "shutdown"}',
        b'{"do": ["status"]}',
        b'{"do": "status", "extra": 1}',
        b'{"do": "snapshot", "base": 1}',
        b'{"do": "snapshot", "base": "yes"}',
        b'{"do": "snapshot", "tags": "x"}',
        b'{"do": "snapshot", "tags": [1]}',
        b'{"do": "snapshot", "tags": ["\\udcff"]}',
        b'{"do": "snapshot", "roots": "/"}',
        b'{"do": "snapshot", "roots": [null]}',
        b"[" * 60_000,
        b'{"do": "' + b"x" * 60_000 + b'"}',
        b"\xff\xfe",
    ],
)
def test_an_invalid_request_is_a_usage_error_of_bounded_length(line):
    with pytest.raises(UsageError) as caught:
        parse_request(line)
    assert len(caught.value.message) < 400


@given(st.binary(max_size=200))
def test_any_bytes_make_the_parser_raise_only_a_usage_error(line):
    try:
        parse_request(line)
    except UsageError as error:
        assert error.message


@pytest.mark.parametrize(
    "kind", [BusyError, StoreFullError, ConfigError, CorruptionError, ChainTooLongError]
)
def test_an_error_keeps_its_class(kind):
    sent = kind("it went wrong", hint="Do this.")
    got = error_from_document(error_document(sent)["error"])
    assert type(got) is kind
    assert (got.message, got.hint) == ("it went wrong", "Do this.")


def test_a_private_error_class_becomes_its_public_base():
    class _InnerError(CorruptionError):
        def __init__(self) -> None:
            super().__init__("inner")

    got = error_from_document(error_document(_InnerError())["error"])

    assert type(got) is CorruptionError
    assert got.message == "inner"


@pytest.mark.parametrize(
    "document", [None, [], {}, {"kind": "exception"}, {"kind": 3, "message": 4}]
)
def test_an_error_of_unknown_kind_is_still_an_error(document):
    assert type(error_from_document(document)) is CiuicError


def test_the_answer_to_a_snapshot_is_the_document_that_the_command_prints(store, services):
    assert request_snapshot(store, base=True, tags=("x", "y")) == json.loads(
        json.dumps(REPORT.as_json())
    )
    assert services.jobs[0].base
    assert services.jobs[0].tags == ("x", "y")


def test_roots_of_any_bytes_arrive_unchanged(store, services):
    every = bytes(range(1, 256))
    rules = ExcludeRules(
        ("*.pyc", "/\udcff\u20ac"), 1 << 40, caches=True, if_present=(".no\udcff",)
    )
    request_snapshot(store, roots=(b"/" + every, b"/b"), exclude=rules)
    request_snapshot(store)
    assert services.jobs[0].scope == ((b"/" + every, b"/b"), rules)
    assert services.jobs[1].scope is None


def test_a_root_with_characters_that_no_path_has_is_refused(store, services):
    with connect(store) as client:
        client.sendall(encode_line({"do": "snapshot", "roots": ["/\u20ac"]}))
        assert answer(client)["error"]["kind"] == "usage"
    assert services.jobs == []


def test_progress_is_reported_while_a_snapshot_is_taken(store, services):
    services.outcome = None
    heard = []

    def progress(news):
        heard.append(news)
        job = services.jobs[0]
        if news["state"] == "waiting":
            job.update(10, 2000, b"/data/\xff")
        else:
            job.finish(REPORT)

    assert request_snapshot(store, progress=progress)["id"] == REPORT.id
    assert heard[0] == {"state": "waiting"}
    # Every second one that has not begun is said to wait again.
    first = next(news for news in heard if news["state"] != "waiting")
    assert first == {"state": "taking", "files": 10, "bytes": 2000, "path": "/data/\udcff"}


def test_a_failed_snapshot_raises_the_error_of_the_daemon(store, services):
    services.outcome = StoreFullError("no room")
    with pytest.raises(StoreFullError, match="no room"):
        request_snapshot(store)


def test_pause_resume_and_reload_answer_with_the_status(store, services):
    for do in ("pause", "resume", "reload"):
        assert request_done(store, do)["asked"][-1] == do
    assert request_status(store) == {
        "state": "idle",
        "asked": ["pause", "resume", "reload"],
        "may_take": True,
    }
    services.reload_error = ConfigError("/c:3: wrong")
    with pytest.raises(ConfigError, match="/c:3: wrong"):
        request_done(store, "reload")


def test_without_a_listening_daemon_the_answer_is_none(tmp_path):
    assert request_status(str(tmp_path)) is None
    assert request_status(str(tmp_path / "missing")) is None
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "control.sock"))
    stale.close()
    assert request_status(str(tmp_path)) is None
    (tmp_path / "control.sock").unlink()
    (tmp_path / "control.sock").write_text("a plain file")
    assert request_snapshot(str(tmp_path)) is None


def test_a_moment_without_free_threads_costs_one_client(store, monkeypatch):
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "client":
            raise RuntimeError("can\x27t start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with connect(store) as client:
            assert client.recv(1) == b""
    assert request_status(store) is not None


def test_a_socket_left_by_a_killed_daemon_is_replaced(tmp_path, services):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()
    server = Server(str(tmp_path), services, SystemClock())
    assert request_status(str(tmp_path)) is not None
    server.close()
    assert not (tmp_path / "control.sock").exists()


def test_a_store_with_a_path_longer_than_an_address_is_served_too(tmp_path, services):
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    server = Server(str(deep), services, SystemClock())
    assert request_status(str(deep)) is not None
    server.close()


def test_the_socket_is_for_owner_and_group_only_whatever_the_umask(tmp_path, services):
    before = os.umask(0)
    try:
        server = Server(str(tmp_path), services, SystemClock())
    finally:
        os.umask(before)
    assert (tmp_path / "control.sock").stat().st_mode & 0o777 == 0o660
    server.close()


def test_a_server_does_not_remove_a_socket_that_is_not_its_own(tmp_path, services):
    first = Server(str(tmp_path), services, SystemClock())
    second = Server(str(tmp_path), services, SystemClock())
    assert not first.intact
    first.close()
    assert second.intact
    assert request_status(str(tmp_path)) is not None
    second.close()


def test_a_missing_store_cannot_be_served(tmp_path, services):
    with pytest.raises(StoreError, match="cannot listen"):
        Server(str(tmp_path / "missing"), services, SystemClock())


def test_a_request_that_is_too_long_is_refused(store):
    with connect(store) as client:
        client.sendall(b"x" * (2 * LINE_BYTES_MAX))
        assert "longer than" in answer(client)["error"]["message"]


def test_clients_that_disconnect_early_or_send_nonsense_do_no_harm(store):
    for line in (b"", b"half a line", b"\n", b"\x00\n", b"GET / HTTP/1.1\r\n\r\n", b"{}\n{}\n"):
        with connect(store) as client:
            client.sendall(line)
    assert request_status(store)["state"] == "idle"


def test_a_request_that_trickles_in_has_one_deadline_as_a_whole(store, monkeypatch):
    monkeypatch.setattr("ciuicd.control._REQUEST_S", 0.3)
    began = time.monotonic()
    with connect(store) as client, pytest.raises(OSError):
        while time.monotonic() < began + 60:
            client.sendall(b" ")
            time.sleep(0.02)


def test_clients_beyond_the_limit_are_refused_and_places_become_free_again(store, services):
    services.outcome = None
    waiting = [connect(store) for _ in range(16)]
    for client in waiting:
        client.sendall(encode_line({"do": "snapshot"}))
    # The first message to each client says that it has a place.
    assert all(client.recv(1000) for client in waiting)
    with pytest.raises(BusyError, match="too many clients"):
        request_status(store)

    for job in services.jobs:
        job.finish(REPORT)
    for client in waiting:
        client.close()
    end = time.monotonic() + 120
    while True:
        try:
            assert request_status(store) is not None
            return
        except BusyError:
            assert time.monotonic() < end


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to speak as another user")
def test_a_stranger_may_ask_for_the_status_and_nothing_else(store, services):
    os.chmod(os.path.join(store, "control.sock"), 0o666)
    parents = [store, *[str(one) for one in Path(store).parents if one.stat().st_mode & 0o1 == 0]]
    modes = [os.stat(path).st_mode for path in parents]
    for path in parents:
        os.chmod(path, 0o755)
    os.seteuid(65534)
    try:
        assert request_status(store)["state"] == "idle"
        with pytest.raises(StoreError, match="user 65534 may only ask"):
            request_snapshot(store)
        with pytest.raises(StoreError, match="user 65534 may only ask"):
            request_done(store, "pause")
    finally:
        os.seteuid(0)
        for path, mode in zip(parents, modes, strict=True):
            os.chmod(path, mode)
    assert services.asked == []
    assert services.jobs == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to speak as another user")
def test_idle_clients_of_another_user_do_not_block_root(store):
    os.chmod(os.path.join(store, "control.sock"), 0o666)
    parents = [store, *[str(one) for one in Path(store).parents if one.stat().st_mode & 0o1 == 0]]
    modes = [os.stat(path).st_mode for path in parents]
    for path in parents:
        os.chmod(path, 0o755)
    os.seteuid(65534)
    try:
        idle = [connect(store) for _ in range(12)]
        with pytest.raises(BusyError, match="too many clients"):
            request_status(store)
    finally:
        os.seteuid(0)
        for path, mode in zip(parents, modes, strict=True):
            os.chmod(path, mode)
    assert request_status(store)["state"] == "idle"
    assert request_done(store, "pause")
    for client in idle:
        client.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to speak as another user")
def test_a_user_without_access_to_the_socket_gets_an_error(store):
    os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match="permission denied"):
            request_snapshot(store)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"", "closed the connection"),
        (b'{"status": {}}', "closed the connection"),
        (b"nonsense\n", "invalid reply"),
        (b"[]\n", "invalid reply"),
        (b'{"status": 3}\n', "invalid reply"),
        (b'{"report": {}}\n', "invalid reply"),
        (b"[" * 100_000 + b"\n", "invalid reply"),
        (b"\xff\n", "invalid reply"),
    ],
)
def test_an_invalid_reply_is_a_store_error(tmp_path, reply, said):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def serve():
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StoreError, match=said):
            request_status(str(tmp_path))
        thread.join()


@pytest.mark.parametrize("do", ["pause", "resume"])
def test_pause_and_resume_believe_no_answer_but_their_own(tmp_path, do):
    answers = [b"{}", b'{"paused": NaN}', b'{"paused": 1}', b'{"paused": null}', b"[]"]
    answers.append(b'{"paused": %s}' % json.dumps(do == "resume").encode())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def serve():
            for answer in answers:
                client, _ = listener.accept()
                with client:
                    client.recv(1000)
                    client.sendall(b'{"done": %s}\n' % answer)

        thread = threading.Thread(target=serve)
        thread.start()
        outcomes = [ciuic("--store", tmp_path, do) for _ in answers]
        thread.join()

    assert [(outcome.code, outcome.out) for outcome in outcomes] == [(1, "")] * len(answers)
    assert sum(f"did not confirm '{do}'" in one.err for one in outcomes) == len(answers) - 1


def test_a_silent_server_is_an_error_after_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("ciuic.control.client._ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        with pytest.raises(StoreError, match="does not answer"):
            request_status(str(tmp_path))


def test_a_failing_disk_is_not_reported_as_a_silent_daemon(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "open", broken)
    store = tmp_path / ("long" * 40)
    with pytest.raises(StoreError, match=r"cannot connect to the daemon of .*: Input/output error"):
        request_status(str(store))

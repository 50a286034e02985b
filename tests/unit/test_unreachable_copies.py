"""A copy whose server cannot be reached costs a reader a few seconds, once a process."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ciuic.copy.read_through import CopySource, ReadThrough
from ciuic.store import addressed
from ciuic.store.place.location import PlaceOptions
from ciuic.store.records.kinds import TREE
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.damage import packs

ADDRESS = "s3://bucket/copy"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
FIRST_PATIENCE_S = 90


class Mute:
    """A server that takes connections, and never answers.

    Attributes:
        endpoint: Its URL.
        taken: The connections.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.taken: list[socket.socket] = []

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                self.taken.append(self._listener.accept()[0])


@pytest.fixture
def mute() -> Iterator[Mute]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Mute(listener)
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in made.taken:
        connection.close()


@pytest.fixture
def lost(box: Box) -> Box:
    """A store that has lost all packs."""
    (box.source / "a").write_text("a")
    box.take()
    for pack in packs(box.store):
        pack.unlink()
    return box


def test_a_command_goes_on_without_a_copy_whose_server_does_not_answer(
    lost: Box, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    section = f"[copy far]\nto = {ADDRESS}\nstore_endpoint = {mute.endpoint}\n"
    lost.config.write_text(f"{lost.config.read_text()}{section}store_allow_http = yes\n")
    began_s = time.monotonic()
    done = lost.ciuic("cat", "latest", lost.source / "a")
    assert time.monotonic() - began_s < FIRST_PATIENCE_S / 2
    assert done.code == 4
    (line,) = [line for line in done.err.splitlines() if "the copy" in line]
    assert line.startswith(f"ciuic: the copy {ADDRESS}: cannot look at {ADDRESS}/")
    assert f"the server {mute.endpoint} did not answer in time" in line
    before = len(mute.taken)
    assert "the copy" not in lost.ciuic("cat", "latest", lost.source / "a", "--no-copies").err
    assert len(mute.taken) == before


def test_such_a_server_is_asked_once_a_process(
    lost: Box, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(addressed, "_QUICK_S", 0.2)
    monkeypatch.setattr(addressed, "_PATIENCE_S", 0.0)
    source = CopySource("far", ADDRESS, PlaceOptions(endpoint=mute.endpoint))
    problems = []
    with open_store(str(lost.store)) as store:
        tree = store.manifest(lost.snapshots()[0].id).roots[0].tree
        for _ in range(3):
            through = ReadThrough(store, lambda: [source])
            assert through.chunk(tree, TREE) is None
            problems += [(one.is_away, one.problem) for one in through.taken()]
            through.close()
    assert problems == [(True, problems[0][1])] * 3
    assert len(mute.taken) == 1

"""Packs are filled by many threads at once, and written while they are filled."""

import os
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ciuic.ids import SessionId
from ciuic.store.adding import new_writer
from ciuic.store.directory.create import create_store
from ciuic.store.format.frame import encode_frame
from ciuic.store.packs import pack_writer
from ciuic.store.packs.pack_writer import BUFFER_BYTES, PackFile
from ciuic.store.records.kinds import DATA
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id
from tests.kit.clock import ManualClock

MIB = 1024 * 1024
THREADS = 8


def test_chunks_that_threads_store_at_once_are_read_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_writer, "PACK_BYTES", 3 * MIB)
    path = str(tmp_path / "store")
    create_store(path, ManualClock())
    rng = random.Random(18)
    sizes = (300, 70_000, 200_000, 700_000)
    chunks = [rng.randbytes(rng.choice(sizes) + number) for number in range(THREADS * 20)]

    with open_store(path, write=True) as store:
        writer = new_writer(store)
        with ThreadPoolExecutor(THREADS) as threads:
            done = [threads.submit(writer.add_data, [(data_id(chunk), chunk)]) for chunk in chunks]
        assert sum([one.result() for one in done]) == sum(map(len, chunks))
        assert writer.finish().packs > THREADS
    with open_store(path) as store:
        for chunk in chunks:
            assert store.reader.chunk(data_id(chunk), kind=DATA, repair=False) == chunk


class Slow(Executor):
    """A helper that writes only when somebody waits for it, as a slow disk does."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.most = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **_: Any) -> "Future[Any]":
        helper = self

        class Awaited(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                if not self.done():
                    helper.waiting.popleft()()
                return super().result(timeout)

        future = Awaited()
        self.waiting.append(lambda: future.set_result(work(*args)))
        self.most = max(self.most, len(self.waiting))
        return future


@pytest.mark.parametrize("waiting_max", [1, 2, 5])
def test_no_more_buffers_wait_for_a_slow_disk_than_are_allowed(
    tmp_path: Path, waiting_max: int
) -> None:
    helper = Slow()
    frame, payload = encode_frame(DATA, [(bytes(32), os.urandom(MIB))])
    pack = PackFile(
        str(tmp_path), SessionId(bytes(8)), parity=0.04, helper=helper, waiting_max=waiting_max
    )
    while pack.size_bytes < 10 * BUFFER_BYTES:
        pack.add(frame, payload)
    assert helper.most == waiting_max
    pack.complete()
    assert not helper.waiting
    pack.close()
    content = Path(pack.path).read_bytes()
    assert len(content) == pack.size_bytes
    for packed in pack.frames:
        begin = packed.offset_bytes + len(packed.header)
        assert content[begin : begin + len(payload)] == payload

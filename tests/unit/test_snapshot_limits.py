"""``threads`` and ``buffer_memory`` limit the threads and the memory of a snapshot."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ciuic.config.load import load_settings
from ciuic.snapshot.plan import TakeRequest
from ciuic.snapshot.take import take_snapshot
from ciuic.store.directory.create import create_store
from ciuic.store.packs import pack_filler
from ciuic.store.packs.pack_writer import BUFFER_BYTES, PackFile
from ciuic.store.store import open_store
from tests.kit.clock import ManualClock

MIB = 1024 * 1024


class EncodingThreads:
    """A progress display that records which threads encode."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        names = {thread.name for thread in threading.enumerate()}
        self.names |= {name for name in names if name.startswith("encode")}


def take(tmp_path: Path, request: TakeRequest) -> EncodingThreads:
    create_store(str(tmp_path / "store"), ManualClock())
    seen = EncodingThreads()
    with open_store(str(tmp_path / "store"), write=True) as store:
        take_snapshot(store, request, clock=ManualClock(), progress=seen)
    return seen


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    for number in range(6):
        (path / f"{number}.bin").write_bytes(os.urandom(2 * MIB))
    return path


def test_one_thread_encodes_if_one_is_configured(tmp_path: Path, source: Path) -> None:
    seen = take(tmp_path, TakeRequest(roots=(os.fsencode(source),), threads=1))
    assert len(seen.names) == 1


def test_what_waits_for_the_disk_has_half_of_what_the_readers_have(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: set[int] = set()

    class Noted(PackFile):
        def __init__(self, *args: Any, waiting_max: int, **named: Any) -> None:
            made.add(waiting_max)
            super().__init__(*args, waiting_max=waiting_max, **named)

    monkeypatch.setattr(pack_filler, "PackFile", Noted)
    request = TakeRequest(roots=(os.fsencode(source),), memory_bytes=6 * BUFFER_BYTES)
    take(tmp_path, request)
    assert made == {3}


def test_a_request_without_configuration_has_the_default_memory(tmp_path: Path) -> None:
    config = tmp_path / "ciuic.conf"
    config.write_text("")
    settings = load_settings(str(config))
    assert settings.buffer_memory_bytes * 2 // 3 == TakeRequest(roots=()).memory_bytes

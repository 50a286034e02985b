"""Journal entries, as a socket receives them. tests/daemon/test_systemd.py has the real journal."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciuicd.logs import journal
from ciuicd.logs.journal import MESSAGE_IDS, JournalHandler


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def log(tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setattr(journal, "_SOCKET", str(tmp_path / "socket"))
    logger = logging.Logger("test")
    handler = JournalHandler(otherwise=kept)
    handler.setFormatter(logging.Formatter("4\n%(message)s"))
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_an_entry_has_its_fields_and_the_id_of_its_event(
    tmp_path: Path, log: logging.Logger, kept: Kept
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        fields = {"event": "snapshot", "id": "cs-1", "store": "/a\nb\udcff"}
        log.warning("taken: %s", "\u00e9", extra={"fields": fields})
        entry = receiver.recv(10_000)

    assert entry == (
        b"MESSAGE=taken: \xc3\xa9\nPRIORITY=4\nSYSLOG_IDENTIFIER=ciuicd\n"
        b"MESSAGE_ID=" + MESSAGE_IDS["snapshot"].encode() + b"\n"
        b"EVENT=snapshot\nSNAPSHOT_ID=cs-1\nSTORE\n"
        b"\x0a\x00\x00\x00\x00\x00\x00\x00/a\nb\\udcff\n"
    )
    assert kept.messages == []


def test_a_line_that_the_journal_refuses_goes_to_standard_error(
    tmp_path: Path, log: logging.Logger, kept: Kept
) -> None:
    log.warning("no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        log.warning("x" * 10_000_000)
        log.warning("short")
        assert receiver.recv(10_000).startswith(b"MESSAGE=short\n")

    assert kept.messages == ["no socket", "x" * 10_000_000]

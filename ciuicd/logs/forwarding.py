"""The log of a child process goes through its parent, which outlives it.

Journald looks up the unit of a process when it receives an entry: too late for the last one of a
process that ends. A child that writes to standard error itself may also find its lock taken, by a
thread of the parent that was writing at the moment of the fork.
"""

import logging
import sys
from collections.abc import Callable
from typing import Final

from ciuic.documents import Document

__all__ = ["forward_log", "log_forwarded"]

_STDERR: Final = 2

Send = Callable[[Document], None]


def forward_log(send: Send) -> None:
    """Pass every record of this process to ``send``; also give it a standard error of its own."""
    # What others print there, such as the traceback of a thread, has no lock of the parent. The
    # parent's object stays, in sys.__stderr__: its end would flush it.
    sys.stderr = open(_STDERR, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    logging.getLogger().handlers[:] = [_Forwarding(send)]


def log_forwarded(document: Document) -> None:
    """Log a record that a child process has passed on."""
    record = logging.makeLogRecord(document)
    logging.getLogger(record.name).handle(record)


class _Forwarding(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        try:
            self._send(_document(record))
        except Exception:  # noqa: BLE001 - as other handlers: no line of the log ends the work
            self.handleError(record)


def _document(record: logging.LogRecord) -> Document:
    document: Document = {
        "name": record.name,
        "levelno": record.levelno,
        "levelname": record.levelname,
        "msg": record.getMessage(),
        "created": record.created,
    }
    if record.exc_info:
        document["exc_text"] = logging.Formatter().formatException(record.exc_info)
    if hasattr(record, "fields"):
        document["fields"] = record.fields
    return document

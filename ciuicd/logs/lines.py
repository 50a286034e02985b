"""The daemon's log: a line for each record, as text for people or as JSON for programs.

If systemd connected standard error to its journal, a record in text becomes an entry with fields.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ciuic.documents import Document
from ciuic.hints import aimed
from ciuic.system.clock import Clock, rfc3339

__all__ = ["set_up_logging"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SYSLOG: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def set_up_logging(
    environ: Mapping[str, str],
    clock: Clock,
    *,
    as_json: bool,
    typed: Sequence[str],
    configured: str = "",
) -> None:
    """Send all records to stderr.

    Args:
        environ: The environment: says whether stderr is the journal.
        clock: The time of a line of JSON.
        as_json: A JSON object per line, instead of text.
        typed: The options that the commands in messages need.
        configured: The address of the daemon's store; empty: not known.
    """
    # Standard error may be a pipe to a program that has ended; then there is no place to complain.
    logging.raiseExceptions = False
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    is_journal = _is_journal(environ)
    handler.setFormatter(_JsonLines(clock) if as_json else _OneLine(with_level=is_journal))
    if is_journal and not as_json:
        # Imported here because few processes log to the journal.
        from ciuicd.logs.journal import JournalHandler

        handler = JournalHandler(otherwise=handler)
        handler.setFormatter(_Entry())
    handler.addFilter(_Aiming(typed, configured))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Aiming(logging.Filter):
    """Gives the commands in messages the options with which they reach the daemon's store."""

    def __init__(self, typed: Sequence[str], configured: str) -> None:
        super().__init__()
        self._reach = typed, configured

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = aimed(record.getMessage(), *self._reach), ()
        return True


class _OneLine(logging.Formatter):
    """One line for each record, even if a path has line breaks; with its level for the journal."""

    def __init__(self, *, with_level: bool) -> None:
        super().__init__("%(message)s")
        self._with_level = with_level

    def format(self, record: logging.LogRecord) -> str:
        lines = _lines_of(record, self)
        prefix = f"<{_SYSLOG.get(record.levelno, 6)}>" if self._with_level else "ciuicd: "
        return "\n".join(prefix + line for line in lines)


class _Entry(logging.Formatter):
    """The syslog level of a record in a line of its own, and the text."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join([str(_SYSLOG.get(record.levelno, 6)), *_lines_of(record, self)])


def _lines_of(record: logging.LogRecord, formatter: logging.Formatter) -> list[str]:
    lines = [_CONTROL.sub(_escaped, record.getMessage())]
    return [*lines, *_traceback(record, formatter).splitlines()]


def _traceback(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """Return the traceback of a record; empty without one. A child process passes it on as text."""
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


class _JsonLines(logging.Formatter):
    """An object with ``time``, ``level``, ``message``, and what the record has in ``fields``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("%(message)s")
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        document: Document = {
            "time": rfc3339(self._clock.now_ns()),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if traceback := _traceback(record, self):
            document["exception"] = traceback
        return json.dumps(document)


def _escaped(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def _is_journal(environ: Mapping[str, str]) -> bool:
    """Return whether standard error is the stream that systemd connected to its journal."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"

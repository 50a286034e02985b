"""The process of a job: it restores or verifies, and reports on stdout, a JSON document a line.

A process of its own keeps the server small. SIGTERM stops it as it stops the command. If the server
is killed, the process goes on to its end.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from ciuic.catalog import find_snapshot
from ciuic.copy.read_through import CopySource, reading_through
from ciuic.documents import Document
from ciuic.errors import CancelledError, CiuicError, shortage
from ciuic.model import path_text
from ciuic.store.addressed import open_at_address
from ciuic.store.place.location import PlaceOptions
from ciuic.store.store import Store
from ciuic.system.clock import SystemClock

__all__ = ["main"]

_PERIOD_S: Final = 0.2


def main() -> None:
    """Do the job whose document is on stdin."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server
    wanted = json.load(sys.stdin)
    try:
        copies = [
            CopySource(name, address, _options(how)) for name, address, how in wanted["copies"]
        ]
        how = _options(wanted["options"])
        with open_at_address(wanted["store"], os.environ, how) as store:
            report = _do(store, wanted["work"], copies, lambda: bool(asked))
        _say({"report": report})
    except CiuicError as error:
        _say_error(error)
    except (MemoryError, ImportError, RuntimeError) as error:
        short = shortage(error)
        if short is None:
            raise
        _say_error(short)
    except OSError as error:
        where = f" {os.fspath(error.filename)!r}" if error.filename else ""
        _say_error(CiuicError(f"the operating system refused{where}: {error.strerror}"))


def _options(document: Document | None) -> PlaceOptions | None:
    return None if document is None else PlaceOptions(**document)


def _do(
    store: Store, work: Document, copies: list[CopySource], cancelled: Callable[[], bool]
) -> Document:
    summary = find_snapshot(store, work["snapshot"], tagged=True)
    told = _Told(cancelled)
    # Each kind of work loads only what it needs.
    if work["do"] == "verify":
        from ciuic.verify.alternatives import with_alternatives
        from ciuic.verify.verify import verify_snapshots

        found = verify_snapshots(
            store, [summary], {}, checksum=work["checksum"], clock=SystemClock(), progress=told.read
        )
        return with_alternatives(store, found).as_json()
    from ciuic.restore.restore import restore
    from ciuic.restore.targets import RestoreRequest

    destination = work["destination"]
    request = RestoreRequest(
        tuple(os.fsencode(path) for path in work["paths"]),
        destination=None if destination is None else os.fsencode(destination),
        overwrite=work["overwrite"],
        delete=work["delete"],
        dry_run=work["dry_run"],
        fallback=work["fallback"],
        refuses_being_written=work["overwrite"],
        is_noted=True,
    )
    manifest = store.manifest(summary.id)
    with reading_through(store, lambda: copies) as through:
        report = restore(
            store, manifest, request, clock=SystemClock(), cancelled=cancelled, progress=told
        )
        report.copies = [one.as_json() for one in through.taken()]
    return report.as_json()


class _Told:
    """Reports progress a few times a second."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._clock = SystemClock()
        self._next_s = 0.0

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """See ``ciuic.progress.Progress``."""
        self._tell(files, size_bytes, 0, path)

    def read(self, done_bytes: int, total_bytes: int) -> None:
        """Report the progress of a verification, and end it if that was asked for."""
        if self._cancelled():
            raise CancelledError("the verification was stopped")
        self._tell(0, done_bytes, total_bytes, b"")

    def _tell(self, files: int, done_bytes: int, total_bytes: int, path: bytes) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _PERIOD_S
        amount = {"files": files, "done_bytes": done_bytes, "total_bytes": total_bytes}
        _say({"progress": {**amount, "path": path_text(path)}})


def _say_error(error: CiuicError) -> None:
    body = {"kind": error.kind, "message": error.message, "hint": error.hint}
    _say({"report": dict(error.done) or None, "error": body})


def _say(document: Document) -> None:
    # The server may be gone. The work goes on.
    with contextlib.suppress(OSError, ValueError):
        os.write(1, json.dumps(document, ensure_ascii=True).encode() + b"\n")


if __name__ == "__main__":
    main()

"""The writer: a process that stores states from shared memory, one request at a time.

It lives in a session of its own, so that Ctrl-C and the end of the training program don't stop it:
it finishes the save that it has begun. It never loads torch.

A request and its answer are one line of JSON each. Requests, by ``do``:

    save    files (name and parts in the shared memory), taken_ns, tags, channel, keep_count
    verify  id, or null for all snapshots of the library
    pin     id, pinned
    end     nothing, and no answer: the process ends
"""

import json
import mmap
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

from ciuic.catalog import list_snapshots
from ciuic.errors import CiuicError, shortage
from ciuic.ids import SnapshotId
from ciuic.maintain.label import set_pinned
from ciuic.snapshot.memory import STATE_ROOT, MemoryRequest, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.store import open_store
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.clock import SystemClock
from ciuic.system.priority import lower_priority
from ciuic.training.keeping import Keeper
from ciuic.verify.verify import verify_snapshots

__all__ = ["main"]

Request = dict[str, Any]
"""A request or an answer: values of JSON."""

_POLL_S: Final = 5.0
_LOCK_WAIT_S: Final = 600.0
_READ_BYTES: Final = 65_536


def main(store_path: str, memory_fd: int, requests_fd: int, answers_fd: int) -> None:
    """Answer requests until the training program closes the pipe, or is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    lower_priority("best-effort")
    prepare_for_bulk()
    worker = _Worker(store_path, memory_fd)
    actions: dict[str, Callable[[Request], Request]] = {
        "save": worker.save,
        "verify": worker.verify,
        "pin": worker.pin,
    }
    for line in _lines(requests_fd):
        request: Request = json.loads(line)
        if request["do"] == "end":
            return
        try:
            answer = actions[request["do"]](request)
        except Exception as error:  # noqa: BLE001 - it is raised again in the training program
            answer = {"error": _written(error)}
        try:
            os.write(answers_fd, json.dumps(answer).encode() + b"\n")
        except BrokenPipeError:
            return


class _Worker:
    """Carries out requests on one store.

    Args:
        store_path: The store.
        memory_fd: The shared memory.
    """

    def __init__(self, store_path: str, memory_fd: int) -> None:
        self._store_path = store_path
        self._memory_fd = memory_fd
        self._clock = SystemClock()
        self._keeper = Keeper(self._clock)

    def save(self, request: Request) -> Request:
        """Store the files of a state and commit; then forget what is too old."""
        size_bytes = os.fstat(self._memory_fd).st_size
        memory = memoryview(mmap.mmap(self._memory_fd, size_bytes, access=mmap.ACCESS_READ))
        files = tuple(
            MemoryFile(
                os.fsencode(name),
                tuple([memory[begin : begin + length] for begin, length in parts]),
            )
            for name, parts in request["files"]
        )
        asked = MemoryRequest(files, request["taken_ns"], tuple(request["tags"]))
        with open_store(self._store_path, write=True, wait_s=_LOCK_WAIT_S) as store:
            report = take_from_memory(store, asked, clock=self._clock)
            notes = [note.what for note in report.notes]
            try:
                self._keeper.keep(store, request["channel"], request["keep_count"])
            except (CiuicError, OSError, MemoryError) as error:
                notes.append(f"{report.id} was saved, but older ones could not be removed: {error}")
        return {"id": report.id, "notes": notes, "stored_bytes": report.stored_bytes}

    def verify(self, request: Request) -> Request:
        """Read and check every byte of a snapshot."""
        with open_store(self._store_path) as store:
            chosen = [
                summary
                for summary in list_snapshots(store)
                if request["id"] == summary.id
                or (request["id"] is None and STATE_ROOT in summary.roots)
            ]
            report = verify_snapshots(store, chosen, {}, checksum=True, clock=self._clock)
            return {"report": report.as_json()}

    def pin(self, request: Request) -> Request:
        """Pin a snapshot, or remove its pin."""
        with open_store(self._store_path, write=True, wait_s=_LOCK_WAIT_S) as store:
            set_pinned(store, SnapshotId(request["id"]), pinned=request["pinned"])
        return {}


def _lines(fd: int) -> Iterator[bytes]:
    """Yield the lines of a pipe until it is closed or this process's parent is gone.

    The pipe alone does not tell: a process that the training program has forked may hold it.
    """
    parent = os.getppid()
    waiting = b""
    while True:
        readable, _, _ = select.select([fd], [], [], _POLL_S)
        if not readable:
            if os.getppid() != parent:
                return
            continue
        data = os.read(fd, _READ_BYTES)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        yield from lines


def _written(error: Exception) -> dict[str, str]:
    """Return the JSON of an error; a defect also leaves its traceback on stderr."""
    known = error if isinstance(error, CiuicError) else shortage(error)
    if known is not None:
        return {"kind": type(known).__name__, "message": known.message, "hint": known.hint}
    traceback.print_exception(error, file=sys.stderr)
    what = f"the process that stores snapshots failed: {type(error).__name__}: {error}"
    return {"kind": "StoreError", "message": what, "hint": "Please report the traceback above."}

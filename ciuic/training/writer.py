"""The writer: a process that stores states from shared memory, one request at a time.

It lives in a session of its own, so that Ctrl-C and the end of the training program don't stop it:
it finishes the save that it has begun. It never loads torch.

A request and its answer are one line of JSON each. Requests, by ``do``:

    save    files (name and parts in the shared memory), taken_ns, tags, channel, rules, layers,
            label (the step and the channel, for the other ranks), follows (the snapshot that was
            loaded since the save before, or null), copied_frozen (the files of frozen layers are
            as they are now, not as at an earlier save)
    give-up label, why: the state of this step cannot be saved
    publish number, message: what the other ranks get when they load for this time
    verify  id, or null for all snapshots of the library
    pin     id, pinned
    end     nothing, and no answer: the process ends
"""

import gc
import json
import mmap
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from ciuic.catalog import list_snapshots
from ciuic.errors import CiuicError, shortage
from ciuic.hints import aim, aimed
from ciuic.ids import SnapshotId
from ciuic.maintain.label import set_pinned
from ciuic.snapshot.memory import STATE_ROOT, MemoryRequest
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.store.addressed import open_at_address
from ciuic.store.place.keys import is_url
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.clock import Clock, SystemClock
from ciuic.system.priority import lower_priority
from ciuic.training.client import IGNORED_SIGNALS
from ciuic.training.layers.groups import as_layers
from ciuic.training.ranks.server import RankServer
from ciuic.training.retention.planning import Rules
from ciuic.training.saving import Saver
from ciuic.verify.verify import verify_snapshots

__all__ = ["main"]

Request = dict[str, Any]
"""A request or an answer: values of JSON."""

_POLL_S: Final = 5.0
_LOCK_WAIT_S: Final = 600.0
_READ_BYTES: Final = 65_536


def main(
    store_path: str,
    memory_fd: int,
    requests_fd: int,
    answers_fd: int,
    ranks: tuple[int, int, float] | None,
) -> None:
    """Answer requests until the training program asks to end, closes the pipe, or is gone."""
    for ignored in IGNORED_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    lower_priority("best-effort")
    prepare_for_bulk()
    clock = SystemClock()
    server = None
    if ranks is not None:
        listener_fd, count, timeout_s = ranks
        server = RankServer(socket.socket(fileno=listener_fd), count, timeout_s, clock)
    worker = _Worker(store_path, memory_fd, server, clock)
    actions: dict[str, Callable[[Request], Request]] = {
        "save": worker.save,
        "verify": worker.verify,
        "pin": worker.pin,
        "give-up": worker.give_up,
        "publish": worker.publish,
    }
    for line in _lines(requests_fd):
        try:
            request: Request = json.loads(line)
        except ValueError:
            continue  # the program was interrupted while it sent this; nothing waits for it
        if request["do"] == "end":
            break
        try:
            answer = actions[request["do"]](request)
        except Exception as error:  # noqa: BLE001 - it is raised again in the training program
            answer = {"error": _written(error, store_path)}
        try:
            os.write(answers_fd, json.dumps(answer).encode() + b"\n")
        except BrokenPipeError:
            break
        # Each save leaves objects in cycles, and the collector runs rarely after
        # ``prepare_for_bulk``: the process grew by 27 KB a save. This takes 14 ms, while the
        # program goes on.
        gc.collect()
    if server is not None:
        server.close()


class _Worker:
    """Carries out requests on one store.

    Args:
        store_path: The store.
        memory_fd: The shared memory.
        server: Collects the parts of the other ranks; None: there are none.
        clock: Gives the time.
    """

    def __init__(
        self, store_path: str, memory_fd: int, server: RankServer | None, clock: Clock
    ) -> None:
        self._store_path = store_path
        self._memory_fd = memory_fd
        self._server = server
        self._clock = clock
        self._saver = Saver(store_path, self._clock)

    def save(self, request: Request) -> Request:
        """Store the files of a state and commit; then remove old snapshots.

        The state includes the parts of the other ranks, which get the same answer.
        """
        if self._server is None:
            return self._save(request, ())
        parts = self._server.collect(request["label"])
        answer: Request = {"error": {"kind": "StoreError", "message": "", "hint": ""}}
        try:
            answer = self._save(request, parts)
        except Exception as error:
            answer = {"error": _written(error, self._store_path)}
            raise
        finally:
            # The notes are about snapshots that could not be removed: rank 0 alone warns of them.
            self._server.settle({**answer, "notes": []})
        return answer

    def give_up(self, request: Request) -> Request:
        """Tell the other ranks that the state of a step cannot be saved."""
        if self._server is not None:
            self._server.refuse(request["label"], request["why"])
        return {}

    def publish(self, request: Request) -> Request:
        """Tell the other ranks which snapshot to load."""
        if self._server is not None:
            self._server.publish(request["number"], request["message"])
        return {}

    def _save(self, request: Request, parts: Sequence[MemoryFile]) -> Request:
        size_bytes = os.fstat(self._memory_fd).st_size
        memory = memoryview(mmap.mmap(self._memory_fd, size_bytes, access=mmap.ACCESS_READ))
        directory = "" if self._server is None else self._server.directory
        files = tuple(
            MemoryFile(
                os.fsencode(directory + name),
                tuple([memory[begin : begin + length] for begin, length in parts]),
            )
            for name, parts in request["files"]
        )
        asked = MemoryRequest(
            (*files, *parts),
            request["taken_ns"],
            tuple(request["tags"]),
            follows=request.get("follows"),
        )
        rules, layers = Rules.of_json(request["rules"]), as_layers(request["layers"])
        saved = self._saver.save(
            asked, request["channel"], rules, layers, copied_frozen=request["copied_frozen"]
        )
        notes = [aimed(note, ["--store", self._store_path]) for note in saved.notes]
        return {**asdict(saved), "notes": notes}

    def verify(self, request: Request) -> Request:
        """Read and check every byte of one snapshot, or of all of the library."""
        with open_at_address(self._store_path, os.environ) as store:
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
        # In a bucket, marks need no lock.
        write = not is_url(self._store_path)
        with open_at_address(
            self._store_path, os.environ, write=write, wait_s=_LOCK_WAIT_S
        ) as store:
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


def _written(error: Exception, store_path: str) -> dict[str, str]:
    """Return the JSON of an error; a defect also leaves its traceback on stderr."""
    known = error if isinstance(error, CiuicError) else shortage(error)
    if known is not None:
        # Here, because the program may get it from a handle, which knows no store.
        aim(known, ["--store", store_path])
        return {"kind": type(known).__name__, "message": known.message, "hint": known.hint}
    traceback.print_exception(error, file=sys.stderr)
    what = f"the process that stores snapshots failed: {type(error).__name__}: {error}"
    return {"kind": "StoreError", "message": what, "hint": "Please report the traceback above."}

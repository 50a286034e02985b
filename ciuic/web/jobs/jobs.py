"""The jobs of the server: each runs in a process of its own, and has an ID."""

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from ciuic.copy.read_through import CopySource
from ciuic.documents import Document
from ciuic.errors import BusyError, CiuicError, UsageError
from ciuic.hints import aimed
from ciuic.model import path_text
from ciuic.store.place.keys import is_url
from ciuic.store.place.location import PlaceOptions
from ciuic.system.clock import Clock, rfc3339
from ciuic.web.jobs.commands import arguments, needs_configuration
from ciuic.web.models import Error, Job, Progress
from ciuic.web.shown import command_line
from ciuic.web.works import CommandWork, RestoreWork, VerifyWork

__all__ = ["JobNotFoundError", "Jobs"]

_RUNNING_MAX: Final = 4
_KEPT_MAX: Final = 200
_STOP_S: Final = 60.0
_PROGRAM: Final = "from ciuic.web.jobs.work import main; main()"
_COMMAND: Final = "from ciuic.cli import program; program()"
_REPORT_BYTES_MAX: Final = 16 * 1024 * 1024
_READING: Final = {"compare", "compare_runs"}
"""Commands that read from copies what the store has lost, unless the page must not."""
Work = RestoreWork | VerifyWork | CommandWork


class JobNotFoundError(CiuicError):
    """No job of this server has this ID."""

    default_hint = "The list of jobs is empty after each start of 'ciuic web'."


class _Running:
    """A job, and its process while it runs."""

    def __init__(self, job: Job, process: "subprocess.Popen[bytes]") -> None:
        self.job = job
        self.process = process
        self.thread: threading.Thread | None = None
        self.changes = 0
        self.is_cancelled = False


class Jobs:
    """Starts jobs and remembers them. Any thread may call it.

    Args:
        store_path: The store's directory, or the URL of its bucket.
        clock: Tells the time.
        options: How to reach the bucket.
        words: Returns what a command needs before its name to find the store and its configuration.
        ended: Called when a job has ended, before its state says so.
        copies: Returns the copies, which have what is lost in the store.
        logs: Logs of training programs, or patterns that name several.
    """

    def __init__(
        self,
        store_path: str,
        clock: Clock,
        options: PlaceOptions | None = None,
        words: Callable[[], Sequence[bytes]] = tuple,
        ended: Callable[[], object] = lambda: None,
        *,
        copies: Callable[[], Sequence[CopySource]] = tuple,
        logs: Sequence[bytes] = (),
    ) -> None:
        self._logs = tuple(logs)
        self._store_path = store_path
        self._copies = copies
        self._options = options
        self._before = words
        self._ended = ended
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Running] = {}

    def start(self, work: Work) -> Job:
        """Start a job.

        Raises:
            BusyError: Too many jobs run, or another one restores.
            UsageError: The destination is relative. The user does not know the server's directory.
        """
        if isinstance(work, RestoreWork) and not (work.destination or b"/").startswith(b"/"):
            raise UsageError(
                f"the destination {path_text(work.destination or b'')} is relative",
                hint="Give an absolute path.",
            )
        with self._lock:
            self._refuse(work)
            job = Job(
                id=secrets.token_hex(8),
                state="running",
                began=rfc3339(self._clock.now_ns()),
                ended=None,
                work=work,
                command=self.command(work),
                progress=Progress(),
                report=None,
                error=None,
            )
            # A session of its own: Ctrl-C in the terminal of the server must not reach it.
            process = subprocess.Popen(
                self._program(work),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What a command says there is in its document too.
                stderr=subprocess.DEVNULL if isinstance(work, CommandWork) else None,
                start_new_session=True,
            )
            running = _Running(job, process)
            self._forget_old()
            self._jobs[job.id] = running
            running.thread = threading.Thread(target=self._follow, args=(running,), daemon=True)
            running.thread.start()
            return job

    def get(self, job_id: str) -> tuple[int, Job]:
        """Return a job, and a number that grows with each change of it."""
        with self._lock:
            running = self._found(job_id)
            return running.changes, running.job

    def all(self) -> list[Job]:
        """Return all jobs, newest first."""
        with self._lock:
            return [running.job for running in reversed(self._jobs.values())]

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop; return it. A job that has ended stays as it is."""
        with self._lock:
            running = self._found(job_id)
            self._stop(running)
            return running.job

    def stop_all(self) -> None:
        """Ask all jobs to stop, and wait until they have."""
        with self._lock:
            left = [one for one in self._jobs.values() if one.job.state == "running"]
            for running in left:
                self._stop(running)
        for running in left:
            if running.thread is not None:
                running.thread.join(_STOP_S)

    def command(self, work: Work) -> str:
        """Return the command line that does the same as a job."""
        return command_line([b"ciuic", *self._words(work), *arguments(work, logs=self._logs)])

    def reading(self, *arguments: bytes) -> str:
        """Return the command line of a command that reads nothing but the store."""
        return command_line([b"ciuic", *self._store_words(), *arguments])

    def options(self) -> list[str]:
        """Return what the commands in messages need to reach the store."""
        try:
            words = self._store_words(is_configured=True)
        except CiuicError:  # the configuration is wrong, or about another store by now
            words = [b"--store", os.fsencode(self._store_path)]
        return list(map(os.fsdecode, words))

    def _words(self, work: Work) -> list[bytes]:
        """Return the options before the command."""
        if isinstance(work, CommandWork):
            return self._store_words(is_configured=needs_configuration(work))
        return [b"--store", os.fsencode(self._store_path)]

    def _store_words(self, *, is_configured: bool = False) -> list[bytes]:
        # A bucket may be reached as the configuration says.
        if (is_configured or is_url(self._store_path)) and (before := self._before()):
            return list(before)
        return [b"--store", os.fsencode(self._store_path)]

    def _program(self, work: Work) -> list[str | bytes]:
        """Return the program of a job."""
        if not isinstance(work, CommandWork):
            return [sys.executable, "-c", _PROGRAM]
        name, *rest = arguments(work, logs=self._logs, json=True)
        if work.do in _READING and not self._copies():
            rest.insert(0, b"--no-copies")
        return [sys.executable, "-c", _COMMAND, *self._words(work), name, *rest]

    def _refuse(self, work: Work) -> None:
        running = [one.job for one in self._jobs.values() if one.job.state == "running"]
        if len(running) >= _RUNNING_MAX:
            raise BusyError(
                f"{_RUNNING_MAX} jobs run already", hint="Wait for one, or stop one of them."
            )
        if _writes(work) and any(_writes(job.work) for job in running):
            raise BusyError(
                "another restore is running", hint="Wait until it has ended, or stop it."
            )

    def _found(self, job_id: str) -> _Running:
        if job_id not in self._jobs:
            raise JobNotFoundError("there is no such job")
        return self._jobs[job_id]

    def _stop(self, running: _Running) -> None:
        if running.job.state == "running":
            running.is_cancelled = True
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()

    def _forget_old(self) -> None:
        ended = [job_id for job_id, one in self._jobs.items() if one.job.state != "running"]
        for job_id in ended[: max(0, len(ended) + 1 - _KEPT_MAX)]:
            del self._jobs[job_id]

    def _follow(self, running: _Running) -> None:
        """Hand the job over, and read what its process says until it ends."""
        last: Document = {}
        if isinstance(running.job.work, CommandWork):
            with running.process as process:
                last = _document_of(process)
            self._end(running, last, process.returncode)
            return
        with running.process as process:
            for document in self._said(running, process):
                if "progress" in document:
                    self._change(running, progress=Progress.model_validate(document["progress"]))
                else:
                    last = document
        self._end(running, last, process.returncode)

    def _said(self, running: _Running, process: "subprocess.Popen[bytes]") -> Iterator[Document]:
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101 - for the type checker
        work = running.job.work.model_dump()
        wanted = {
            "store": self._store_path,
            "options": _options_json(self._options),
            "copies": [
                (one.name, one.address, _options_json(one.options)) for one in self._copies()
            ],
            "work": work,
        }
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(wanted).encode())
            process.stdin.close()
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _end(self, running: _Running, last: Document, status: int) -> None:
        error = last.get("error")
        if not last:
            what = f"the process of the job ended with status {status} and no report"
            hint = "Run its command line in a shell: it says more."
            error = {"kind": "ciuic", "message": what, "hint": hint}
        if error is not None:
            options = self.options()
            error = {key: aimed(str(text), options) for key, text in error.items()}
        state: Literal["done", "failed", "cancelled"] = "done"
        if error is not None:
            state = "cancelled" if running.is_cancelled else "failed"
        self._ended()
        self._change(
            running,
            state=state,
            ended=rfc3339(self._clock.now_ns()),
            report=last.get("report"),
            error=None if error is None else Error.model_validate(error),
        )

    def _change(self, running: _Running, **fields: object) -> None:
        with self._lock:
            running.job = running.job.model_copy(update=fields)
            running.changes += 1


def _options_json(options: PlaceOptions | None) -> Document | None:
    return None if options is None else dataclasses.asdict(options)


def _writes(work: Work) -> bool:
    return isinstance(work, RestoreWork) and not work.dry_run


def _document_of(process: "subprocess.Popen[bytes]") -> Document:
    """Return the document that a command has printed; empty if it printed none.

    An answer that is too long is left unread: the command ends when the pipe is closed.
    """
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101 - for the type checker
    process.stdin.close()
    said = process.stdout.read(_REPORT_BYTES_MAX + 1)
    try:
        found = json.loads(said) if len(said) <= _REPORT_BYTES_MAX else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {}
    error = found.pop("error", None)
    return {"report": found or None} | ({} if error is None else {"error": error})

"""Worker processes, which run Python code in parallel because each has its own interpreter lock.

The first worker is a new interpreter. It imports one module and then forks the other workers, so
that they need not import it again. Each worker answers requests, bytes to bytes, one at a time. It
changes nothing, and the caller can do the same work itself. So a worker that cannot be started, is
killed or does not answer is not an error.

``multiprocessing`` does not fit: it imports the caller's ``__main__`` again or forks the caller,
which may be a training script with a GPU and threads of its own.
"""

import contextlib
import importlib
import os
import queue
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Final

from ciuic.system.lean_imports import load_msgspec

__all__ = ["Processes", "is_stopped", "serve"]

_PROCESSES_MAX: Final = 4
_PATIENCE_S: Final = 1.0
_LENGTH: Final = struct.Struct("<I")
_PROGRAM: Final = """\
import os, sys
sys.path[:] = {path!a}
from ciuic.system.workers.processes import serve
serve({module!a}, {arguments!a}, {pipes!a})
os._exit(0)
"""


def is_stopped(process_id: int) -> bool:
    """Return whether a process is stopped by a signal (SIGSTOP, Ctrl-Z) and waits for SIGCONT."""
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]  # proc(5), "stat"
    except OSError:
        return False


class Processes:
    """One worker for each available CPU, four at most; a context manager.

    The first worker is started at once and starts the others after ``begin``. The first request
    waits for that: a tenth of a second.

    Args:
        module: The module that the workers import. Its function ``answering`` is called once with
            ``arguments`` and the argument of ``begin``. It returns a function that turns a request
            into an answer.
        arguments: The first arguments of ``answering``.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        count = min(_PROCESSES_MAX, len(os.sched_getaffinity(0)))
        self._first, self._all = _start(module, arguments, count) if count > 1 else (None, [])
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, last: bytes) -> None:
        """Send the last argument of ``answering``; no worker answers before that."""
        if self._first is None or self._first.stdin is None:
            return
        with contextlib.suppress(OSError):
            _write_message(self._first.stdin, last)
        for child in self._all:
            self._idle.put(child)

    def close(self) -> None:
        """End the workers; no call of ``ask`` may be in progress."""
        for number, child in enumerate(self._all):
            child.close(kill=number > 0)
        if self._first is not None:
            if self._first.stdin is not None:
                with contextlib.suppress(OSError):
                    self._first.stdin.close()
            # The first worker is the parent of the others and waits for them. If it were killed at
            # once, they would be left to init.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._first.wait(_PATIENCE_S)
            self._first.kill()
            self._first.wait()

    def ask(self, request: bytes) -> bytes | None:
        """Send a request to an idle worker and return its answer; may be called from any thread.

        Returns:
            None if no worker is idle, or the worker failed.
        """
        try:
            child = self._idle.get_nowait()
        except queue.Empty:
            return None
        answer = child.ask(request)
        if child.is_alive:
            self._idle.put(child)
        return answer


class _Child:
    """One worker. After a failure it gets no further request.

    Args:
        requests: Pipe to the worker.
        answers: Pipe from the worker.

    Attributes:
        is_alive: The worker has not failed.
        pid: Its process ID; 0 before it is ready.
    """

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self.is_alive = True
        self.pid = 0
        self._requests = requests
        self._answers = answers
        self._handle = -1

    def ask(self, request: bytes) -> bytes | None:
        try:
            if not self.pid:
                self._get_ready()
            _write_message(self._requests, request)
            answer = _read_message(self._answers)
        except (OSError, ValueError):
            answer = None
        self.is_alive = answer is not None
        return answer

    def _get_ready(self) -> None:
        """Wait for the worker's process ID, which it sends when it has imported the module."""
        self.pid = int(_read_message(self._answers) or b"none")
        with contextlib.suppress(OSError):  # it has exited already, or the kernel is too old
            self._handle = os.pidfd_open(self.pid)

    def close(self, *, kill: bool) -> None:
        """Close the pipes, which ends the worker; with ``kill``, kill it: it changes nothing."""
        if self._handle >= 0:
            if kill:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = -1
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()


def _start(
    module: str, arguments: Sequence[str], count: int
) -> "tuple[subprocess.Popen[bytes] | None, list[_Child]]":
    """Start the first worker; None if that fails, or this program is not a Python interpreter."""
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None, []
    # Last: ciuic's directory is usually on the path, and must not precede the standard library.
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    children: list[_Child] = []
    pipes: list[tuple[int, int]] = []
    with contextlib.ExitStack() as theirs:
        try:
            for _ in range(count):
                child, pair = _connected(theirs)
                children.append(child)
                pipes.append(pair)
            program = _PROGRAM.format(
                path=[*sys.path, home], module=module, arguments=list(arguments), pipes=pipes
            )
            # -S skips the site module, which takes time: the path is passed to the worker.
            first = subprocess.Popen(
                [sys.executable, "-S", "-E", "-s", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[fd for pair in pipes for fd in pair],
            )
        except OSError:
            for child in children:
                child.close(kill=False)
            return None, []
    return first, children


def _connected(theirs: contextlib.ExitStack) -> tuple[_Child, tuple[int, int]]:
    """Make a worker's pipes; returns the worker and its ends, which ``theirs`` closes here."""
    their_requests, requests = os.pipe()
    theirs.callback(os.close, their_requests)
    ours = os.fdopen(requests, "wb")
    try:
        answers, their_answers = os.pipe()
    except OSError:
        ours.close()
        raise
    theirs.callback(os.close, their_answers)
    return _Child(ours, os.fdopen(answers, "rb")), (their_requests, their_answers)


def serve(module: str, arguments: Sequence[str], pipes: Sequence[tuple[int, int]]) -> None:
    """Run the first worker: fork the others, answer requests, and wait for the others to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller's process
    # numpy would start one thread per core for linear algebra, which the workers don't use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    load_msgspec()
    answering = importlib.import_module(module).answering
    last = _read_message(sys.stdin.buffer)
    if last is None:
        return
    answer = answering(*arguments, last)
    for number in range(1, len(pipes)):
        # This process has one thread, so a fork copies no lock that another thread holds.
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                try:
                    _answer_all(answer, pipes, number)
                finally:
                    os._exit(0)
    _answer_all(answer, pipes, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _answer_all(
    answer: Callable[[bytes], bytes], pipes: Sequence[tuple[int, int]], number: int
) -> None:
    """Answer the requests of one worker; close the pipes of the others so that they can end."""
    for other, pair in enumerate(pipes):
        for fd in pair if other != number else ():
            os.close(fd)
    with os.fdopen(pipes[number][0], "rb") as requests, os.fdopen(pipes[number][1], "wb") as out:
        _write_message(out, str(os.getpid()).encode())
        while (request := _read_message(requests)) is not None:
            _write_message(out, answer(request))


def _write_message(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def _read_message(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the stream, or if the message is cut short."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = stream.read(length)
    return message if len(message) == length else None

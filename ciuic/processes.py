"""Processes that do a share of the work, because the interpreter's lock ends where a process ends.

The first is another interpreter, which imports one module and then forks the others, so that they
need not import it again. Each answers requests, bytes to bytes, one after another. It changes
nothing, and whoever asks is able to do the same himself. So nothing about it is an error: what
can't be started, is killed, or does not answer is done without.

Not by ``multiprocessing``, which imports the caller's ``__main__`` anew or forks: the caller may be
a training script with a graphics card and threads of its own.
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

__all__ = ["Processes", "serve"]

_PROCESSES_MAX: Final = 4
_PATIENCE_S: Final = 1.0
_LENGTH: Final = struct.Struct("<I")
_PROGRAM: Final = """\
import os, sys
sys.path[:] = {path!a}
from ciuic.processes import serve
serve({module!a}, {arguments!a}, {pipes!a})
os._exit(0)
"""


class Processes:
    """One process for each processor that may be used, four at most; a context manager.

    The first is started at once, and the others by it after ``begin``. Whoever asks first waits for
    that: a tenth of a second.

    Args:
        module: What they import. Its function ``answering`` is called once with the arguments and
            with what ``begin`` is given, and returns what turns a request into an answer.
        arguments: See there.
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
        """Tell them the last thing that they have to know; before that nobody answers."""
        if self._first is None or self._first.stdin is None:
            return
        with contextlib.suppress(OSError):
            _write_message(self._first.stdin, last)
        for child in self._all:
            self._idle.put(child)

    def close(self) -> None:
        """End them; nobody may be asking any more."""
        for number, child in enumerate(self._all):
            child.close(kill=number > 0)
        if self._first is not None:
            if self._first.stdin is not None:
                with contextlib.suppress(OSError):
                    self._first.stdin.close()
            # Its end is that of the others, whose parent it is: killed, it would leave them to
            # whoever inherits them.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._first.wait(_PATIENCE_S)
            self._first.kill()
            self._first.wait()

    def ask(self, request: bytes) -> bytes | None:
        """The answer of one that nobody else asks; may be called from any thread.

        None if there is no such process, or no longer.
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
    """One of the processes. After a failure it is never asked again.

    Args:
        requests: Where it is asked.
        answers: Where it answers.

    Attributes:
        is_alive: It has not failed.
        pid: Its number, once it is ready; before that 0.
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
        """Wait until it has imported what it needs, of which it tells by its number."""
        self.pid = int(_read_message(self._answers) or b"none")
        with contextlib.suppress(OSError):  # has gone already, or an old system
            self._handle = os.pidfd_open(self.pid)

    def close(self, *, kill: bool) -> None:
        """Its requests end; or it is killed, as it has nothing that it could leave half done."""
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
    """None where no interpreter can be started, or the program that we run in is not one."""
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None, []
    # Last: our own place is on the path as a rule, and must not come before the standard library.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
            # Without what a site adds: its path is handed over, and finding it again takes time.
            first = subprocess.Popen(
                [sys.executable, "-S", "-E", "-s", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[one for pair in pipes for one in pair],
            )
        except OSError:
            for child in children:
                child.close(kill=False)
            return None, []
    return first, children


def _connected(theirs: contextlib.ExitStack) -> tuple[_Child, tuple[int, int]]:
    """A process to come, and the ends of its pipes that it gets; ``theirs`` closes them here."""
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
    """What the first process does until its requests end; it ends last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    # numpy would start a thread a core for linear algebra, which nobody here does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    answering = importlib.import_module(module).answering
    last = _read_message(sys.stdin.buffer)
    if last is None:
        return
    answer = answering(*arguments, last)
    for number in range(1, len(pipes)):
        # This process has one thread: nothing can be half done in it.
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
    """Answer what comes through one of the pipes. The others are closed: an end is to be seen."""
    for other, pair in enumerate(pipes):
        for one in pair if other != number else ():
            os.close(one)
    with os.fdopen(pipes[number][0], "rb") as requests, os.fdopen(pipes[number][1], "wb") as out:
        _write_message(out, str(os.getpid()).encode())
        while (request := _read_message(requests)) is not None:
            _write_message(out, answer(request))


def _write_message(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def _read_message(stream: IO[bytes]) -> bytes | None:
    """None at the end, and for what is cut short."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = stream.read(length)
    return message if len(message) == length else None

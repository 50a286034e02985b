"""Processes that do a share of the work, because the interpreter's lock ends where a process ends.

Each is another interpreter that imports one module and answers requests, bytes to bytes, one after
another. It changes nothing, and whoever asks is able to do the same himself. So nothing about it is
an error: what can't be started, is killed, or does not answer is done without.

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
from collections.abc import Sequence
from typing import IO, Final

__all__ = ["Processes", "serve"]

_PROCESSES_MAX: Final = 4
_LENGTH: Final = struct.Struct("<I")
_PROGRAM: Final = """\
import sys
sys.path[:] = {path!a}
from ciuic.processes import serve
serve({module!a}, {arguments!a})
"""


class Processes:
    """One process for each processor that may be used, four at most; a context manager.

    They are started at once; the first that is asked of each waits until it is ready, which takes a
    tenth of a second.

    Args:
        module: What they import. Its function ``answering`` is called with the arguments, and
            returns what turns a request into an answer.
        arguments: See there.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        count = min(_PROCESSES_MAX, len(os.sched_getaffinity(0)))
        started = [_start(module, arguments) for _ in range(count if count > 1 else 0)]
        self._all = [one for one in started if one is not None]
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in self._all:
            self._idle.put(child)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End them; nobody may be asking any more."""
        for child in self._all:
            child.close()

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

    Attributes:
        is_alive: It has not failed.
    """

    def __init__(self, command: list[str]) -> None:
        self.is_alive = True
        self._is_ready = False  # it has imported what it needs, and tells so by an empty answer
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, request: bytes) -> bytes | None:
        requests = self._process.stdin
        if requests is None:
            return None
        if not self._is_ready:
            self._is_ready = self._read() == b""
            if not self._is_ready:
                return None
        try:
            _write_message(requests, request)
        except OSError:
            self.is_alive = False
            return None
        return self._read()

    def _read(self) -> bytes | None:
        answers = self._process.stdout
        answer = _read_message(answers) if answers is not None else None
        self.is_alive = answer is not None
        return answer

    def close(self) -> None:
        """Killed: it has nothing that it could leave half done."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


def _start(module: str, arguments: Sequence[str]) -> _Child | None:
    """None where no interpreter can be started, or the program that we run in is not one."""
    if not os.path.basename(sys.executable or "").startswith("python"):
        return None
    # Last: our own place is on the path as a rule, and must not come before the standard library.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = _PROGRAM.format(path=[*sys.path, home], module=module, arguments=list(arguments))
    with contextlib.suppress(OSError):
        # Without what a site adds: its path is handed over, and finding it again takes time.
        return _Child([sys.executable, "-S", "-E", "-s", "-c", program])
    return None


def serve(module: str, arguments: Sequence[str]) -> None:
    """What such a process does until its requests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    # numpy would start a thread a core for linear algebra, which nobody here does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    answer = importlib.import_module(module).answering(*arguments)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _write_message(answers, b"")
    while (request := _read_message(requests)) is not None:
        _write_message(answers, answer(request))


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

"""The training program's side of the writer's process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from ciuic import errors
from ciuic.errors import CiuicError, ResourceError, StoreError, shortage
from ciuic.system.priority import set_session_nice
from ciuic.system.workers.threads import start

__all__ = ["IGNORED_SIGNALS", "WriterProcess", "error_of", "settle"]

Message = dict[str, Any]
"""A request or an answer: values of JSON. See ``ciuic.training.writer``."""

IGNORED_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What a terminal or a scheduler sends to every process of a job; the writer finishes its save."""

_NICE: Final = 10
_NOT_STARTED: Final = "the process that stores snapshots cannot be started"
_PROGRAM: Final = """\
import sys
sys.path[:] = {path!a}
from ciuic.training.writer import main
main({store!a}, {memory}, {requests}, {answers}, {ranks!r})
"""


class WriterProcess:
    """A running writer. Requests are answered in their order.

    Args:
        store_path: The store.
        memory_fd: The shared memory.
        ranks: The descriptor on which the other ranks connect, the number of ranks, and how many
            seconds to wait for one; None: there are no other ranks.

    Attributes:
        is_loose: A request may be half sent, or the process works on one that its sender has no
            future of, because an exception came meanwhile. ``ask`` sets this, and its caller takes
            it back. If it stays, close this writer.

    Raises:
        StoreError: The process cannot be started.
        ResourceError: Too many files are open, or no thread can be started to listen to it.
    """

    def __init__(
        self, store_path: str, memory_fd: int, ranks: tuple[int, int, float] | None = None
    ) -> None:
        # No lock: an exception between two lines could leave it locked. Each call is atomic.
        self._waiting: deque[Future[Message]] = deque()
        self.is_loose = False
        their_requests, self._requests, answers, their_answers = _two_pipes()
        # Last: ciuic's directory is usually on the path, and must not precede the standard library.
        home = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
        program = _PROGRAM.format(
            path=[*_absolute(sys.path), home],
            store=store_path,
            memory=memory_fd,
            requests=their_requests,
            answers=their_answers,
            ranks=ranks,
        )
        inherited = [memory_fd, their_requests, their_answers, *(ranks[:1] if ranks else ())]
        # The new process blocks these until it ignores them: a scheduler signals every process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            # A session of its own: neither Ctrl-C nor the end of the terminal reaches it.
            self._process = subprocess.Popen(
                [sys.executable or "python3", "-S", "-E", "-s", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,
                cwd="/",
            )
        except BaseException as error:
            # A process that runs already ends when it finds its pipe closed.
            os.close(self._requests)
            os.close(answers)
            if not isinstance(error, OSError):
                raise
            limit = shortage(error)
            if limit is not None:
                raise ResourceError(f"{_NOT_STARTED}: {limit.message}", hint=limit.hint) from error
            raise StoreError(
                f"{_NOT_STARTED}: {error}",
                hint="It runs this program's Python: check sys.executable.",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(their_requests)
            os.close(their_answers)
        self._listener = threading.Thread(
            target=self._listen, args=(answers,), name="ciuic-writer", daemon=True
        )
        try:
            start(self._listener)
        except ResourceError:
            # The process ends when it finds its pipe closed.
            os.close(self._requests)
            os.close(answers)
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """The process can take requests."""
        return self._requests >= 0 and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """The process reads no shared memory any more."""
        return self._process.poll() is not None

    def stand_back(self) -> None:
        """Make the process yield the processors to this program, until ``hurry``."""
        set_session_nice(self.pid, _NICE)

    def hurry(self) -> bool:
        """Give the process this program's priority; False: the kernel refuses now, try again."""
        return set_session_nice(self.pid, 0)

    def ask(self, request: Message) -> "Future[Message]":
        """Send a request; the future gets its answer, or its error. See ``is_loose``."""
        # First: answers come in order, so a future must not wait for a request that fails here.
        data = json.dumps(request).encode() + b"\n"
        future: Future[Message] = Future()
        self.is_loose = True
        self._waiting.append(future)
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except OSError:
            self._fail_all()
        return future

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the answers of all requests, and end the process; harmless twice.

        Args:
            timeout_s: The longest wait in seconds; None: no limit.
        """
        if self._requests >= 0:
            # Closing the pipe is not enough: a process that this one has forked may hold it. The
            # first line end is for a request that was half sent.
            with contextlib.suppress(OSError):
                os.write(self._requests, b'\n{"do": "end"}\n')
            requests, self._requests = self._requests, -1
            os.close(requests)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            # Not before: it listens until the process ends, and the time is up.
            self._listener.join(timeout_s)

    def _listen(self, fd: int) -> None:
        try:
            # ValueError: the process was killed while it wrote an answer.
            with os.fdopen(fd, "rb") as answers, contextlib.suppress(ValueError):
                for line in answers:
                    answer: Message = json.loads(line)
                    settle(self._waiting.popleft(), answer)
        finally:
            self._fail_all()

    def _fail_all(self) -> None:
        """Fail the requests that will get no answer, because the process has ended."""
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        while self._waiting:
            try:
                future = self._waiting.popleft()
            except IndexError:  # the other thread has taken it
                break
            future.set_exception(
                StoreError(
                    f"the process that stores snapshots {how}; this save is lost",
                    hint="Earlier snapshots are intact. The next save starts a new process; if"
                    " memory is short, the kernel's log says so.",
                )
            )


def _two_pipes() -> tuple[int, int, int, int]:
    """Return two pipes.

    Raises:
        ResourceError: Too many files are open.
    """
    made: list[int] = []
    try:
        made += os.pipe()
        made += os.pipe()
    except OSError as error:
        for fd in made:
            os.close(fd)
        limit = shortage(error) or error
        if isinstance(limit, ResourceError):
            limit = ResourceError(f"{_NOT_STARTED}: {limit.message}", hint=limit.hint)
        raise limit from error
    one, two, three, four = made
    return one, two, three, four


def _absolute(directories: Sequence[str]) -> list[str]:
    """Return directories that another process finds; none of a directory that was removed."""
    try:
        return list(map(os.path.abspath, directories))
    except FileNotFoundError:  # the current directory: notebooks have it on their path
        return list(filter(os.path.isabs, directories))


def settle(future: "Future[Message]", answer: Message) -> None:
    """Give a request its answer: a result, or the error that it names."""
    if "error" in answer:
        future.set_exception(error_of(answer["error"]))
    else:
        future.set_result(answer)


def error_of(written: dict[str, str]) -> CiuicError:
    """Return the error that another process has written as JSON."""
    kind = getattr(errors, written["kind"], StoreError)
    error: CiuicError = kind(written["message"], hint=written["hint"])
    return error

"""Work in a child process, whose memory and modules go when it ends.

A daemon waits for an hour between two snapshots. A snapshot of many files leaves free memory in
pieces that malloc cannot return, and modules that the wait does not need.

The child is a fork, so it has the daemon's modules and memory without any start. Only the thread
that forks goes on in it. Work that needs a library with threads, such as the client of an object
store, gets a child that is started instead, which takes some tenths of a second: see ``starting``.
Both have the daemon's environment and priorities.

Guarantees:
    - The child ends when the daemon is killed.
    - It keeps none of the daemon's descriptors but the standard ones (0 to 2): the lock of a
      killed daemon is free at once, and a client sees the end of its connection.
    - It waits for no lock that another thread of the daemon held at the fork: see ``forking``.
    - A child that is killed is an error of the work, and the daemon goes on.
    - What it has logged is in the log, in order, even if it is killed.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, TypeVar, cast

from ciuic.documents import Document
from ciuic.errors import ChildDiedError, CiuicError, ResourceError, StoreError
from ciuic.system.clock import Clock
from ciuicd.jobs.forking import fork
from ciuicd.jobs.pipe import ReadEnd, WriteEnd
from ciuicd.jobs.starting import SHORTAGE_HINT, Started, start
from ciuicd.jobs.steps import Steps
from ciuicd.jobs.watching import (
    BEAT,
    BEGUN,
    DONE,
    END,
    FAILED,
    HURRY,
    LOGGED,
    NEEDS,
    SIGNALED,
    STOP,
    TOLD,
    Watched,
)
from ciuicd.logs.forwarding import forward_log

__all__ = ["Child", "do_work", "end_with", "in_child", "let_go_of_descriptors"]

_PR_SET_PDEATHSIG: Final = 1
_STDERR: Final = 2

Result = TypeVar("Result")


class Child:
    """What the work in the child uses to talk to its parent; any thread of it may."""

    def __init__(self, shared: mmap.mmap, answers: WriteEnd) -> None:
        self._shared = shared
        self._answers = answers

    def is_cancelled(self) -> bool:
        """Return whether the parent wants the work to end, and show it that the work goes on."""
        return self._looks_at(STOP)

    def is_ending(self) -> bool:
        """Return whether the parent ends, and show it that the work goes on."""
        return self._looks_at(END)

    def must_hurry(self) -> bool:
        """Return whether somebody waits for the end of the work."""
        return bool(self._shared[HURRY])

    def _looks_at(self, place: int) -> bool:
        # Two threads may count one call: the parent only looks for changes.
        self._shared[BEAT] = (self._shared[BEAT] + 1) % 256
        return bool(self._shared[place])

    def tell(self, document: Document) -> None:
        """Send the parent a document."""
        self._answers.send(TOLD, document)

    def needs(self, duration_s: float) -> None:
        """Tell the parent that the work may take so long from now, even if the daemon ends.

        The last call counts; 0 takes it back.
        """
        self._answers.send(NEEDS, duration_s)


def in_child(
    work: Callable[[Child], Result],
    *,
    clock: Clock,
    is_cancelled: Callable[[], bool],
    note_progress: Callable[[], None] = lambda: None,
    is_ending: Callable[[], bool] = lambda: False,
    must_hurry: Callable[[], bool] = lambda: False,
    told: Callable[[Document], None] = lambda _document: None,
    counts_processor_time: bool = False,
    starts: bool = False,
) -> Steps[Result]:
    """Do work in a child process and return what it returned.

    The first step starts the child, and each further one waits for it for a moment. If the steps
    are closed before the end, the child is killed.

    Args:
        work: What to do. It changes nothing in this process, and returns what can be pickled.
        clock: Tells the time.
        is_cancelled: Asked about twenty times a second: whether the work should end.
        note_progress: Called about as often, as long as the work asks whether it should end.
        is_ending: Asked as often: whether this process ends. Soon after, the child is killed.
        must_hurry: Asked as often: whether somebody waits for the end of the work.
        told: Receives each document that the work tells.
        counts_processor_time: Work that computes makes progress, even if it asks nothing.
        starts: The child is started, and is no fork. The work can be pickled.

    Raises:
        ChildDiedError: The child was killed. What it had done by then stays.
        ResourceError: There can be no further process, or it meets a limit while it starts.
        StoreError: A child cannot be started any more: this program is gone from the disk.
        Exception: What the work raised.
    """
    with contextlib.ExitStack() as until_watched:
        try:
            read_fd, write_fd = os.pipe()
            until_watched.callback(os.close, write_fd)
            on_failure = until_watched.enter_context(contextlib.ExitStack())
            on_failure.callback(os.close, read_fd)
            begun = start(work, write_fd) if starts else _forked(work, write_fd)
            on_failure.pop_all()
        except OSError as error:
            raise ResourceError(
                f"no process can be started for the work: {error.strerror}",
                hint=SHORTAGE_HINT,
            ) from error
    watched = Watched(
        begun.pid,
        ReadEnd(read_fd),
        begun.shared,
        clock,
        counts_processor_time=counts_processor_time,
    )
    try:
        outcome = yield from watched.outcome(
            is_cancelled=is_cancelled,
            is_ending=is_ending,
            must_hurry=must_hurry,
            note_progress=note_progress,
            told=told,
        )
    except ChildDiedError as error:
        has_begun = begun.shared[BEGUN] or error.exit_status > SIGNALED
        if isinstance(begun, Started) and not has_begun:
            raise begun.why_not_begun() from error
        raise
    finally:
        if isinstance(begun, Started):
            begun.close()
    return cast("Result", outcome)


class _Forked(NamedTuple):
    """A process that is a fork: see ``Started``."""

    pid: int
    shared: mmap.mmap


def _forked(work: Callable[[Child], Result], answers_fd: int) -> _Forked:
    parent = os.getpid()
    # Closed by the garbage collector: the child may have its copy.
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    pid = fork()
    if pid == 0:
        _be_child(work, shared, answers_fd, parent)
    return _Forked(pid, shared)


def _be_child(
    work: Callable[[Child], Result], shared: mmap.mmap, answers_fd: int, parent: int
) -> NoReturn:
    def alone(child: Child) -> Result:
        let_go_of_descriptors({answers_fd})
        # What is garbage of the parent is not finalized here.
        gc.freeze()
        return work(child)

    try:
        if end_with(parent):
            do_work(alone, shared, WriteEnd(answers_fd))
    finally:
        # No cleaning up: what the frames below hold is the parent's.
        os._exit(0)


def end_with(parent: int) -> bool:
    """Have this process end when its parent is killed; return whether that is still there."""
    # The signal comes when the thread ends that made this process: the daemon's main thread.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def do_work(work: Callable[[Child], object], shared: mmap.mmap, answers: WriteEnd) -> None:
    """Do the work of this child process, and send the parent what came of it."""
    try:
        forward_log(lambda record: answers.send(LOGGED, record))
        answers.send(DONE, work(Child(shared, answers)))
    except BaseException as error:  # noqa: BLE001 - the parent raises it again
        _send_error(answers, error)


def let_go_of_descriptors(kept: set[int]) -> None:
    """Replace every descriptor of the parent with /dev/null, but those that are kept.

    They stay taken: an object of the parent that closes its descriptor later would otherwise close
    a file of the work that has the same number. No program that this process starts gets one: a
    hook may give up its rights, and the parent trusts what it reads from the pipe.
    """
    for fd in kept:
        os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > _STDERR and fd not in kept | {null}:
            os.dup2(null, fd, inheritable=False)


def _send_error(answers: WriteEnd, error: BaseException) -> None:
    try:
        if not isinstance(error, (CiuicError, OSError)):
            # Unexpected: the parent logs the traceback with it.
            error.add_note("".join(traceback.format_exception(error)))
        # Some exceptions can be pickled, but not read again.
        pickle.loads(pickle.dumps(error))  # noqa: S301 - written here
        answers.send(FAILED, error)
    except Exception:  # noqa: BLE001 - pickle raises many kinds
        answers.send(FAILED, StoreError(f"{type(error).__name__}: {error}", hint=""))

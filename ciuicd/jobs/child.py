"""Work in a child process, whose memory and modules go when it ends.

A daemon waits for an hour between two snapshots. A snapshot of many files leaves free memory in
pieces that malloc cannot return, and modules that the wait does not need. The child is a fork, so
it has the daemon's configuration and priorities without any start.

Guarantees:
    - The child ends when the daemon is killed.
    - It keeps none of the daemon's descriptors but the standard ones (0 to 2): the lock of a
      killed daemon is free at once, and a client sees the end of its connection.
    - A child that is killed is an error of the work, and the daemon goes on.

Only the thread that forks goes on in the child. The caller makes sure that no library has threads
which the work needs: the clients of object stores have.
"""

import ctypes
import mmap
import os
import pickle
import select
import signal
import struct
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar, cast

from ciuic.documents import Document
from ciuic.errors import ChildDiedError, CiuicError, ResourceError, StoreError

__all__ = ["Child", "in_child"]

_POLL_S: Final = 0.05
_LENGTH: Final = struct.Struct("<Q")
_TOLD, _DONE, _FAILED, _ENDED, _NOTHING = "told", "done", "failed", "ended", "nothing"
_STOP, _END, _BEAT = 0, 1, 2
"""Places in the shared memory."""
_PR_SET_PDEATHSIG: Final = 1
_STDERR: Final = 2

Result = TypeVar("Result")


class Child:
    """What the work in the child uses to talk to its parent; any thread of it may."""

    def __init__(self, shared: mmap.mmap, answers_fd: int) -> None:
        self._shared = shared
        self._answers_fd = answers_fd
        self._telling = threading.Lock()

    def is_cancelled(self) -> bool:
        """Return whether the parent wants the work to end, and show it that the work goes on."""
        return self._looks_at(_STOP)

    def is_ending(self) -> bool:
        """Return whether the parent ends, and show it that the work goes on."""
        return self._looks_at(_END)

    def _looks_at(self, place: int) -> bool:
        # Two threads may count one call: the parent only looks for changes.
        self._shared[_BEAT] = (self._shared[_BEAT] + 1) % 256
        return bool(self._shared[place])

    def tell(self, document: Document) -> None:
        """Send the parent a document."""
        with self._telling:
            _send(self._answers_fd, _TOLD, document)


def in_child(
    work: Callable[[Child], Result],
    *,
    is_cancelled: Callable[[], bool],
    note_progress: Callable[[], None] = lambda: None,
    is_ending: Callable[[], bool] = lambda: False,
    told: Callable[[Document], None] = lambda _document: None,
) -> Result:
    """Do work in a child process and return what it returned.

    Args:
        work: What to do. It changes nothing in this process, and returns what can be pickled.
        is_cancelled: Asked about twenty times a second: whether the work should end.
        note_progress: Called about as often, as long as the work asks whether it should end.
        is_ending: Asked as often: whether this process ends.
        told: Receives each document that the work tells.

    Raises:
        ChildDiedError: The child was killed. What it had done by then stays.
        ResourceError: There can be no further process.
        Exception: What the work raised.
    """
    parent = os.getpid()
    opened: tuple[int, ...] = ()
    try:
        opened = answers_fd, write_fd = os.pipe()
        # Closed by the garbage collector: the child may have its copy.
        shared = mmap.mmap(-1, mmap.PAGESIZE)
        pid = os.fork()
        if pid == 0:
            _be_child(work, shared, write_fd, parent)
    except OSError as error:
        for fd in opened[:1]:
            os.close(fd)
        raise ResourceError(
            f"no process can be started for the work: {error.strerror}",
            hint="Free memory, or raise the limit (ulimit -u and -n, or TasksMax= and"
            " LimitNOFILE= in the unit).",
        ) from error
    finally:
        for fd in opened[1:]:
            os.close(fd)
    kind, value = "", None
    beat = shared[_BEAT]
    try:
        while kind not in {_DONE, _FAILED, _ENDED}:
            kind, value = _next(answers_fd)
            if kind == _TOLD:
                told(cast("Document", value))
            if shared[_BEAT] != beat:
                beat = shared[_BEAT]
                note_progress()
            shared[_STOP] |= is_cancelled()
            shared[_END] |= is_ending()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(answers_fd)
        _, status = os.waitpid(pid, 0)
    if isinstance(value, BaseException):
        raise value
    if kind != _DONE:
        raise _died(status)
    return cast("Result", value)


def _next(answers_fd: int) -> tuple[str, object]:
    """Return the next message of the child, or that there is none within a moment."""
    readable, _, _ = select.select([answers_fd], [], [], _POLL_S)
    return _receive(answers_fd) if readable else (_NOTHING, None)


def _be_child(
    work: Callable[[Child], Result], shared: mmap.mmap, answers_fd: int, parent: int
) -> NoReturn:
    try:
        # The signal comes when the thread ends that forked: the daemon's main thread.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            try:
                _let_go_of_descriptors(answers_fd)
                _send(answers_fd, _DONE, work(Child(shared, answers_fd)))
            except BaseException as error:  # noqa: BLE001 - the parent raises it again
                _send_error(answers_fd, error)
    finally:
        # No cleaning up: what the frames below hold is the parent's.
        os._exit(0)


def _let_go_of_descriptors(kept: int) -> None:
    """Replace every descriptor of the parent with /dev/null.

    They stay taken: an object of the parent that closes its descriptor later would otherwise close
    a file of the work that has the same number.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > _STDERR and fd not in {kept, null}:
            os.dup2(null, fd, inheritable=False)


def _send_error(fd: int, error: BaseException) -> None:
    try:
        if not isinstance(error, (CiuicError, OSError)):
            # Unexpected: the parent logs the traceback with it.
            error.add_note("".join(traceback.format_exception(error)))
        # Some exceptions can be pickled, but not read again.
        pickle.loads(pickle.dumps(error))  # noqa: S301 - written here
        _send(fd, _FAILED, error)
    except Exception:  # noqa: BLE001 - pickle raises many kinds
        _send(fd, _FAILED, StoreError(f"{type(error).__name__}: {error}", hint=""))


def _send(fd: int, kind: str, value: object) -> None:
    data = pickle.dumps((kind, value))
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _receive(fd: int) -> tuple[str, object]:
    """Return a message, or that the child has ended."""
    head = _read(fd, _LENGTH.size)
    data = None if head is None else _read(fd, _LENGTH.unpack(head)[0])
    if data is None:
        return _ENDED, None
    received: tuple[str, object] = pickle.loads(data)  # noqa: S301 - a fork of this process wrote it
    return received


def _read(fd: int, length: int) -> bytes | None:
    found = bytearray()
    while len(found) < length:
        piece = os.read(fd, length - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _died(status: int) -> ChildDiedError:
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    return ChildDiedError(
        f"the daemon's process that did the work {how}",
        hint="If the machine ran out of memory, the kernel's log says so (journalctl -k); free some"
        " or lower buffer_memory.",
    )

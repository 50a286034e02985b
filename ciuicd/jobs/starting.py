"""Starts a process of the daemon that is no fork: it executes the interpreter of this program.

The threads of an object store's client do not survive a fork, so work that needs them gets a
process without the memory of this one. It imports the modules from where this one has found them,
and not from where an interpreter would look: so it does not matter how this program was started.

The work travels in memory that both have, behind the page in which they tell each other how it
goes. The command line has none of it, and the process gets its credentials as this one did: it has
the same environment and user.
"""

import contextlib
import errno
import logging
import mmap
import os
import pickle
import re
import sys
from typing import Final, NamedTuple

from ciuic.errors import ResourceError, StoreError
from ciuicd.program import AT_START, last_line

__all__ = ["SHORTAGE_HINT", "Started", "start"]

_STDERR: Final = 2
_SHORTAGES: Final = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
_SAID_BYTES: Final = 64 * 1024
_HINT: Final = "Install ciuic again, and restart the daemon ('systemctl restart ciuicd')."
SHORTAGE_HINT: Final = (
    "Free memory, or raise the limit (ulimit -u and -n, or TasksMax= and LimitNOFILE= in the unit)."
)
_SHORTAGE: Final = re.compile(
    # The third is of a descriptor that was inherited, and is above the limit. The loader of
    # libraries gives numbers alone, or words.
    r"MemoryError|Too many open files|Bad file descriptor|annot allocate|failed to map segment"
    r"|\b(Errno|Error) (9|12|23|24)\b"
)
"""What a process says last that has met a limit: the messages are those of Python and the loader.
"""
_PROGRAM: Final = """\
import sys
sys.path[:] = {path!a}
import ciuicd.program
from ciuicd.jobs.started import begin
begin({parent}, {memory}, {answers}, {stderr})
"""
"""Imports ``program`` first: it notes the files of the program before the others are imported."""


class Started(NamedTuple):
    """A process that was started.

    Attributes:
        pid: The process.
        shared: The memory that both have.
        said_fd: A file with what it writes to standard error until its work begins.
    """

    pid: int
    shared: mmap.mmap
    said_fd: int

    def why_not_begun(self) -> ResourceError | StoreError:
        """Return the error of a process that has ended before its work began."""
        size = os.fstat(self.said_fd).st_size
        said = last_line(os.pread(self.said_fd, _SAID_BYTES, max(size - _SAID_BYTES, 0)))
        what = f"the daemon's process for the work did not start{f': {said}' if said else ''}"
        if _SHORTAGE.search(said):
            return ResourceError(what, hint=SHORTAGE_HINT)
        return StoreError(what, hint=_HINT)

    def close(self) -> None:
        """Close what both have: an error that somebody keeps would keep it."""
        self.shared.close()
        os.close(self.said_fd)


def start(work: object, answers_fd: int) -> Started:
    """Start a process that does some work, and return at once.

    Args:
        work: Can be pickled, and is called with a ``Child``.
        answers_fd: The end of a pipe that the process writes to.

    Raises:
        StoreError: There is no interpreter any more.
        OSError: There can be no further process.
    """
    data = pickle.dumps((AT_START, logging.getLogger().level)) + pickle.dumps(work)
    with contextlib.ExitStack() as ours:
        memory_fd = _closed_by(ours, os.memfd_create("ciuicd-work"))
        os.truncate(memory_fd, mmap.PAGESIZE + len(data))
        shared = mmap.mmap(memory_fd, mmap.PAGESIZE)
        rest, place = memoryview(data), mmap.PAGESIZE
        while rest:
            written = os.pwrite(memory_fd, rest, place)
            rest, place = rest[written:], place + written
        stderr_fd = _closed_by(ours, os.dup(_STDERR))
        with contextlib.ExitStack() as until_started:
            said_fd = _closed_by(until_started, os.memfd_create("ciuicd-said"))
            program = _PROGRAM.format(
                path=_path(),
                parent=os.getpid(),
                memory=memory_fd,
                answers=answers_fd,
                stderr=stderr_fd,
            )
            pid = _spawn(program, [memory_fd, answers_fd, stderr_fd], said_fd)
            until_started.pop_all()
    return Started(pid, shared, said_fd)


def _closed_by(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _path() -> list[str]:
    """Return where this process finds modules, for a process that has another program's path."""
    # Last: ciuic's directory is usually on the path, and must not precede the standard library.
    home = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir)
    return [os.path.abspath(one) for one in (*sys.path, home)]


def _spawn(program: str, inherited: list[int], stderr_fd: int) -> int:
    # -S and -s skip modules that look for packages: the path is passed on.
    flags = ["-S", "-s"]
    if sys.flags.ignore_environment:
        flags.append("-E")
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    # No Python code runs between the fork and the execution: of a fork, only one thread goes on.
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *flags, "-c", program],
            os.environ,
            # Onto itself: the descriptor stays open. All others of this program close.
            file_actions=[
                *[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherited],
                (os.POSIX_SPAWN_DUP2, stderr_fd, _STDERR),
            ],
        )
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        raise StoreError(
            f"the daemon's process for the work cannot be started: {sys.executable}:"
            f" {error.strerror}",
            hint=_HINT,
        ) from error

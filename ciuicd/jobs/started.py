"""The process that ``starting`` starts: reads its work from the memory, and does it.

What goes wrong before that ends the interpreter with a traceback, whose last line the parent tells.
"""

import logging
import mmap
import os
import pickle
import sys
from typing import Final, NoReturn

from ciuicd.jobs.child import Child, do_work, end_with, let_go_of_descriptors
from ciuicd.jobs.pipe import WriteEnd
from ciuicd.jobs.watching import BEGUN
from ciuicd.program import AT_START, replaced

__all__ = ["begin"]

_STDERR: Final = 2


def begin(parent: int, memory_fd: int, answers_fd: int, stderr_fd: int) -> NoReturn:
    """Do the work and end.

    Args:
        parent: The process that has started this one.
        memory_fd: The memory that both have, with the work behind its first page.
        answers_fd: The pipe to the parent.
        stderr_fd: The standard error of the parent.
    """
    if not end_with(parent):
        sys.exit()
    let_go_of_descriptors({memory_fd, answers_fd, stderr_fd})
    shared = mmap.mmap(memory_fd, mmap.PAGESIZE)
    with os.fdopen(memory_fd, "rb") as memory:
        memory.seek(mmap.PAGESIZE)
        program, level = pickle.load(memory)  # noqa: S301 - from the parent
        # Of another version, it may name what is not there.
        is_other = None not in {program, AT_START} and program != AT_START
        work = _refuse if is_other else pickle.load(memory)  # noqa: S301
    try:
        logging.raiseExceptions = False
        logging.getLogger().setLevel(level)
        os.dup2(stderr_fd, _STDERR, inheritable=True)
        os.close(stderr_fd)
        shared[BEGUN] = True
        do_work(work, shared, WriteEnd(answers_fd))
    finally:
        # No cleaning up, as in a fork: the threads of an object store's client may hang.
        os._exit(0)


def _refuse(_child: Child) -> NoReturn:
    raise replaced()

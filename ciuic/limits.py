"""What the system lets this process have: so many open files, which everybody shares."""

import contextlib
import os
import resource
from typing import Final

__all__ = ["raise_open_files_limit"]

_WANTED: Final = 65_536


def raise_open_files_limit() -> int:
    """Let this process open as many files as it may and can use; returns how many are left.

    1024 is the usual limit, and a walk holds a descriptor for each level, a batch of files one
    for each directory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    obtained = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < obtained:
        resource.setrlimit(resource.RLIMIT_NOFILE, (obtained, hard))
    # A training process, whose snapshots these may be, has its own.
    with contextlib.suppress(OSError):
        obtained -= len(os.listdir("/proc/self/fd"))
    return max(obtained, 0)

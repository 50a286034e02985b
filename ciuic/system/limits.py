"""The limit on open files of this process."""

import contextlib
import os
import resource
from typing import Final

__all__ = ["raise_open_files_limit"]

_WANTED: Final = 65_536


def raise_open_files_limit() -> int:
    """Raise the soft limit on open files as far as is useful; returns how many can still be opened.

    The usual limit is 1024. A walk holds one descriptor for each level of directories, and a batch
    of files one for each directory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    obtained = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < obtained:
        resource.setrlimit(resource.RLIMIT_NOFILE, (obtained, hard))
    # The snapshot may run in a training process, which has open files of its own.
    with contextlib.suppress(OSError):
        obtained -= len(os.listdir("/proc/self/fd"))
    return max(obtained, 0)

"""Forks of the daemon's process, while no other thread is in code that holds locks.

Only the thread that forks goes on in the child. A lock that another thread holds at that moment
stays locked there for good: of a module that is being imported, of the C library while it looks a
group up, of a cached property. So threads that do such work do it in ``without_forks``, and let go
before they wait for a client. Threads that only wait and wake the main thread need not.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["fork", "without_forks"]

_PATIENCE_S: Final = 2.0
"""A name service that hangs must not keep snapshots from being taken, nor other clients out."""

_changed = threading.Condition(threading.Lock())
_busy = 0
_is_forking = False


@contextlib.contextmanager
def without_forks() -> Iterator[None]:
    """Keep the main thread from forking while the block runs, in any number of threads."""
    global _busy  # noqa: PLW0603 - the process forks as a whole
    with _changed:
        # Without an end of new ones, the main thread would never find all of them out.
        _changed.wait_for(lambda: not _is_forking)
        _busy += 1
    try:
        yield
    finally:
        with _changed:
            _busy -= 1
            _changed.notify_all()


def fork() -> int:
    """Fork as soon as no other thread is ``without_forks``; see ``os.fork``.

    Raises:
        OSError: There can be no further process.
    """
    global _is_forking  # noqa: PLW0603 - as above
    with _changed:
        _is_forking = True
        try:
            _changed.wait_for(lambda: not _busy, _PATIENCE_S)
            # The child holds the lock of ``_changed`` as well, and releases it.
            return os.fork()
        finally:
            _is_forking = False
            _changed.notify_all()

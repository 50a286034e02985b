"""The processes below a process, from /proc; stopping and continuing them.

Workers may lead sessions and process groups of their own, so neither finds them all. A process
whose parent has ended belongs to the nearest subreaper above, which ``ciuic run`` is.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

__all__ = ["ancestors", "become_subreaper", "descendants", "is_running", "send", "stop_all"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_ROUNDS_MAX: Final = 100
_GONE: Final = frozenset("ZX")
_STILL: Final = frozenset("TtZX")


class _Status(NamedTuple):
    parent: int
    state: str


def become_subreaper() -> bool:
    """Become the parent of all orphans below this process; returns whether that worked."""
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def descendants(top: int, *, without: Collection[int] = ()) -> list[int]:
    """Return the processes below ``top`` that have not ended, parents first.

    Args:
        top: A process; it is not part of the result.
        without: Leave these out, with everything below them.
    """
    children: dict[int, list[int]] = {}
    ended = set()
    for name in os.listdir("/proc"):
        status = _status(int(name)) if name.isdigit() else None
        if status is not None:
            children.setdefault(status.parent, []).append(int(name))
            if status.state in _GONE:
                ended.add(int(name))
    found: list[int] = []
    waiting = [top]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in without:
                waiting.append(child)
                found.append(child)
    return [pid for pid in found if pid not in ended]


def ancestors() -> list[int]:
    """Return this process and the processes above it."""
    found = [os.getpid()]
    while (status := _status(found[-1])) is not None and status.parent > 0:
        found.append(status.parent)
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    status = _status(pid)
    return status is not None and status.state not in _GONE


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; one that has ended meanwhile is left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def stop_all(members: Callable[[], Iterable[int]]) -> bool:
    """Stop processes until all of them stand still, also those that start meanwhile.

    Returns:
        False if some still run: they belong to another user, or are busy in the kernel.
    """
    for _ in range(_ROUNDS_MAX):
        running = [
            pid
            for pid in members()
            if (status := _status(pid)) is not None and status.state not in _STILL
        ]
        if not running:
            return True
        send(running, signal.SIGSTOP)
        os.sched_yield()
    return False


def _status(pid: int) -> _Status | None:
    """Return the parent and the state of a process; None if it is gone. See proc(5), "stat"."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        return _Status(int(fields[1]), fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None

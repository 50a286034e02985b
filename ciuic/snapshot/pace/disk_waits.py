"""How long the processes of trainings have waited for the disk.

Pressure-stall information says how long any process of a cgroup waited. A training may share its
cgroup with programs that always wait, and then its own waits do not show. The kernel also counts
how long each thread waited for its reads (Documentation/accounting/delay-accounting.rst), if
``kernel.task_delayacct`` is 1: for the threads that start after that.
"""

import contextlib
import os
import threading
from typing import Final

from ciuic.source.trainings import training_processes
from ciuic.system.clock import Clock

__all__ = ["DiskWaits", "are_disk_waits_counted"]

_SWITCH: Final = "/proc/sys/kernel/task_delayacct"
_LOOK_S: Final = 30.0
"""How often to look for trainings: that reads files of every process."""
_THREADS_MAX: Final = 256
"""How many threads to read, four times a second; the first thread of each process comes first."""
_WAITED_FIELD: Final = 39
"""Of the fields after the name: ``delayacct_blkio_ticks`` in proc(5)."""
_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")


def are_disk_waits_counted() -> bool:
    """Return whether the kernel counts for how long each thread waits for the disk."""
    with contextlib.suppress(OSError), open(_SWITCH, "rb") as file:
        return file.read(8).strip() == b"1"
    return False


class DiskWaits:
    """Reads the waits of trainings; see ``Waits``.

    Args:
        clock: Says when to look for trainings again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pids: list[int] = []
        self._look_s: float | None = None
        self._search: threading.Thread | None = None

    @property
    def is_known(self) -> bool:
        """The kernel counts."""
        return are_disk_waits_counted()

    def waited_us(self) -> dict[tuple[str, str], int]:
        """Return how long each thread has waited, named "process/thread".

        The first call returns nothing: a short snapshot need not look for trainings. The calls
        after it return what the last search has found, and never wait for a search.
        """
        now_s = self._clock.monotonic_s()
        if self._look_s is None:
            self._look_s = now_s
        elif now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            self._look()
        pids = self._pids
        threads = [f"{pid}/{pid}" for pid in pids[:_THREADS_MAX]]
        for pid in pids:
            if len(threads) >= _THREADS_MAX:
                break
            with contextlib.suppress(OSError):
                names = (name for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
                threads += [f"{pid}/{name}" for name in names]
        found: dict[tuple[str, str], int] = {}
        for thread in threads[:_THREADS_MAX]:
            process, _, name = thread.partition("/")
            with contextlib.suppress(OSError, IndexError):  # it has ended
                with open(f"/proc/{process}/task/{name}/stat", "rb") as file:
                    ticks = int(file.read().rpartition(b")")[2].split()[_WAITED_FIELD])
                found["io", thread] = ticks * _TICK_US
        return found

    def _look(self) -> None:
        """Search for trainings in a thread, unless one still does.

        The kernel makes a reader of ``maps`` wait as long as the process changes its memory map.
        """
        if self._search is None or not self._search.is_alive():
            self._search = threading.Thread(target=self._find, daemon=True)
            self._search.start()

    def _find(self) -> None:
        self._pids = training_processes()

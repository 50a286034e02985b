"""Whether a GPU works for a job, by NVIDIA's management library: the home of nvidia-ml-py."""

import os
import threading
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["Gpus"]

_PROC: Final = "/proc"
_ANSWER_S: Final = 5.0


class Gpus:
    """The NVIDIA GPUs of this machine; none if the package or the driver is missing.

    Each question is asked on a thread of its own: a driver whose GPU has failed may never answer,
    and the guard must go on. Until an answer comes, nothing else is asked.

    Args:
        answer_s: How long to wait for an answer.
    """

    def __init__(self, answer_s: float = _ANSWER_S) -> None:
        self._answer_s = answer_s
        self._asked: threading.Thread | None = None
        self._devices: list[object] = []
        self._ask(self._find)

    @property
    def hangs(self) -> bool:
        """Whether the driver has not answered a question."""
        return self._asked is not None and self._asked.is_alive()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._devices)

    def work_for(self, pids: Collection[int]) -> bool:
        """Return whether a GPU that one of these processes uses is busy; False without an answer.

        In a container the library names processes that /proc does not have: a GPU of such a process
        counts too, since it may belong to the job.
        """
        found: list[bool] = []
        # A copy: a late answer must not reach this caller.
        of = frozenset(pids)
        self._ask(lambda: found.append(self._work_for(of)))
        return any(found)

    def _ask(self, question: Callable[[], None]) -> None:
        if self.hangs:
            return
        self._asked = threading.Thread(target=question, name="gpus", daemon=True)
        self._asked.start()
        self._asked.join(self._answer_s)

    def _find(self) -> None:
        try:
            # Optional, and only a running job needs it.
            import pynvml
        except ImportError:
            return
        self._library = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        except pynvml.NVMLError:
            return

    def _work_for(self, pids: Collection[int]) -> bool:
        for device in self._devices:
            try:
                users = self._library.nvmlDeviceGetComputeRunningProcesses(device)
                is_used = any(
                    one.pid in pids or not os.path.exists(f"{_PROC}/{one.pid}") for one in users
                )
                if is_used and self._library.nvmlDeviceGetUtilizationRates(device).gpu > 0:
                    return True
            except self._library.NVMLError:  # a GPU that was lost, or does not tell
                continue
        return False

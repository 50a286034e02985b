"""Whether a GPU works for a job, by NVIDIA's management library: the home of nvidia-ml-py."""

import os
from collections.abc import Collection
from typing import Final

__all__ = ["Gpus"]

_PROC: Final = "/proc"


class Gpus:
    """The NVIDIA GPUs of this machine; none if the package or the driver is missing."""

    def __init__(self) -> None:
        self._devices: list[object] = []
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

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._devices)

    def work_for(self, pids: Collection[int]) -> bool:
        """Return whether a GPU that one of these processes uses is busy.

        In a container the library names processes that /proc does not have: a GPU of such a process
        counts too, since it may belong to the job.
        """
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

"""Copies arrays of this machine's memory into the shared memory, with the compiled core."""

import os
import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from ciuic.system.core import core
from ciuic.system.workers.threads import share

__all__ = ["address_of", "copy_bytes"]

_THREADS_MAX: Final = 8
_TASK_BYTES: Final = 8 * 1024 * 1024


def address_of(value: Any) -> int:
    """Return the address of an array whose bytes are in order in this machine's memory; else 0.

    Args:
        value: A tensor or an array that ``describe`` has accepted.
    """
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data) if value.flags.c_contiguous else 0
    if value.device.type != "cpu" or not value.is_contiguous():
        return 0
    return 0 if value.is_conj() or value.is_neg() else int(value.data_ptr())


def copy_bytes(arrays: Iterable[tuple[int, int, int]], memory: np.ndarray) -> bool:
    """Copy bytes with several threads; returns False, and copies nothing, without the core.

    Args:
        arrays: For each array its place in the memory, its address, and its length in bytes. The
            caller keeps them alive.
        memory: The shared memory.
    """
    compiled = core()
    if compiled is None:
        return False
    tasks, left = [array("Q")], _TASK_BYTES
    for place, address, length in arrays:
        begin = 0
        while begin < length:
            if not left:
                tasks.append(array("Q"))
                left = _TASK_BYTES
            count = min(length - begin, left)
            tasks[-1].extend((place + begin, address + begin, count))
            begin += count
            left -= count
    share(lambda task: compiled.functions.copy_arrays(memory.data, task), tasks, _threads(), "copy")
    return True


def _threads() -> int:
    """Return how many threads copy: at most as many as the program gives to torch."""
    torch = sys.modules.get("torch")
    wanted = torch.get_num_threads() if torch is not None else _THREADS_MAX
    return min(int(wanted), len(os.sched_getaffinity(0)), _THREADS_MAX)

"""Find the processes of trainings.

A process belongs to a training if ``ciuic run`` started it or a program above it, or if it has a
library mapped that trains models. Workers that load data are among them: they inherit both.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["JOB_VARIABLE", "has_library", "mapped_files", "training_processes"]

JOB_VARIABLE: Final = "CIUIC_JOB"
"""The variable that ``ciuic run`` adds to the environment of a job."""
_LIBRARIES: Final = (b"libtorch", b"libtensorflow", b"libjax", b"jaxlib", b"libcuda.so")
"""A program that has one of these mapped trains a model, or uses one."""
_PATH_FIELD: Final = 5
_WRITES: Final = re.compile(rb".w.s")
"""Permissions of a mapping: it is writable, and shared with the file."""


def training_processes() -> list[int]:
    """Return the processes of trainings, but not this one.

    Only root sees those of other users.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            # It may end at any time, or belong to another user.
            with contextlib.suppress(OSError):
                if _is_in_job(int(name)) or has_library([_maps(int(name))]):
                    found.append(int(name))
    return sorted(found)


def has_library(maps: Iterable[bytes]) -> bool:
    """Return whether a library that trains models is among paths, or lines of mapped files."""
    return any(name in text for text in maps for name in _LIBRARIES)


def mapped_files(pid: int, *, to_write: bool = False) -> set[bytes]:
    """Return the paths of the files that a process has mapped.

    Args:
        pid: The process.
        to_write: Only the mappings through which it can write to the file.

    Raises:
        OSError: The process has ended, or belongs to another user.
    """
    # Not psutil's memory_maps: it reads smaps, for which the kernel walks all pages.
    with open(f"/proc/{pid}/maps", "rb") as file:
        fields = [line.split(None, _PATH_FIELD) for line in file]
    paths = {
        line[_PATH_FIELD].rstrip(b"\n")
        for line in fields
        if len(line) > _PATH_FIELD and (not to_write or _WRITES.fullmatch(line[1]))
    }
    return {path for path in paths if path.startswith(b"/")}


def _is_in_job(pid: int) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return b"\0%s=" % JOB_VARIABLE.encode() in b"\0" + file.read()


def _maps(pid: int) -> bytes:
    with open(f"/proc/{pid}/maps", "rb") as file:
        return file.read()

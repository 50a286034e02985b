"""A control group with little memory, of version 1 or 2, for the programs of a test."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kit.mounted import wait_for

__all__ = ["small_memory"]


@contextlib.contextmanager
def small_memory(size_bytes: int) -> Iterator[Path]:
    """Make a group with so much memory; gives the file that takes the numbers of processes."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        limit = "memory.max" if kind == "cgroup2" else "memory.limit_in_bytes"
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
            place = Path(fields[4], f"ciuic-test-memory-{os.getpid()}")
            try:
                place.mkdir()
            except OSError:
                continue
            if (place / limit).exists():
                (place / limit).write_text(str(size_bytes))
                procs = place / "cgroup.procs"
                yield procs
                wait_for(partial(_is_empty, procs), "a process stayed in the group")
                place.rmdir()
                return
            place.rmdir()
    pytest.skip("no cgroup with a memory limit can be made here")


def _is_empty(procs: Path) -> bool:
    return not procs.read_text()

"""Programs that wait for the disk, and a kernel that counts for how long."""

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.program import environment

__all__ = ["JOB", "WAITING", "counted_waits", "start_waiting"]

SWITCH = Path("/proc/sys/kernel/task_delayacct")
JOB = {"CIUIC_JOB": "seven"}
WAITING = """
import os, sys, threading, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
{condition}
def wait():
    while True:
        if is_on():
            os.pwrite(fd, os.urandom(4096), 0)
            os.fdatasync(fd)
        else:
            time.sleep(0.002)
print(flush=True)
{begin}
"""
"""Waits for its writes to reach the disk while ``is_on`` says so."""


def counted_waits() -> Iterator[None]:
    """Have the kernel count disk waits during a test; skip the test if it cannot."""
    with contextlib.ExitStack() as until_the_end:
        try:
            turn = until_the_end.enter_context(SWITCH.open("rb"))
            # Tests run at the same time, also those of another checkout: they share the switch.
            fcntl.flock(turn, fcntl.LOCK_EX)
            before = SWITCH.read_text()
            SWITCH.write_text("1\n")
        except OSError:
            pytest.skip("the kernel cannot be told to count disk waits")
        try:
            yield
        finally:
            SWITCH.write_text(before)


def start_waiting(
    file: Path,
    *,
    variables: dict[str, str],
    condition: str = "is_on = lambda: True",
    begin: str = "wait()",
) -> subprocess.Popen[bytes]:
    """Start a program that waits for the disk, and return once it runs."""
    program = WAITING.format(condition=condition, begin=begin)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(file)],
        env=environment() | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process

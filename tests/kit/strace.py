"""Programs under strace: their system calls are traced, fail, or are the last."""

import functools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Call", "calls_in", "need_strace", "strace"]

_LINE = re.compile(r"^(\d+) +(\w+)\(")


class Call(NamedTuple):
    """A system call: its name, and its number among calls of that name in its thread."""

    name: str
    number: int


def need_strace() -> None:
    """Skip the test unless strace can trace programs."""
    if reason := _missing():
        pytest.skip(reason)


@functools.cache
def _missing() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(strace("write", program=("true",)), capture_output=True, check=False)
    return "this machine does not let strace trace" if done.returncode else ""


def strace(
    calls: str,
    *options: str,
    inject: str = "",
    to: str | Path = os.devnull,
    program: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return a command line that traces a program with its threads and children.

    Args:
        calls: The calls to trace.
        options: More options.
        inject: What happens at each of the calls, such as ``error=EIO:when=3``.
        to: The file for the trace.
        program: The program; empty for a wrapper of ``tests.kit.program.ciuic``.
    """
    # With this, no other call stops the program. But the kernel drops the signals that strace then
    # wants to deliver: a program that should be killed would end well.
    fast = () if "signal=" in inject else ("--seccomp-bpf",)
    what = ("-e", f"trace={calls}")
    if inject:
        what += ("-e", f"inject={calls}:{inject}")
    return ("strace", "-f", "-qq", *fast, "-o", str(to), *options, *what, *program)


def calls_in(trace: Path) -> Iterator[tuple[str, Call, str]]:
    """Yield the thread of each traced call, the call, and its line."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is not None:
            counts[match[1], match[2]] += 1
            yield match[1], Call(match[2], counts[match[1], match[2]]), line

"""Snapshots that ``ciuic mount`` shows, mounted for real by the kernel."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.box import Box
from tests.kit.program import command_of, environment

__all__ = ["LIMIT_S", "Mounted", "is_mounted", "mounted", "needs_fuse", "wait_for"]

LIMIT_S = 120


def needs_fuse() -> None:
    """Skip the test where nothing can be mounted."""
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None:
        pytest.skip("needs /dev/fuse and fusermount3")


def is_mounted(point: Path) -> bool:
    """Return whether something is mounted there, dead or alive."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(point) for line in lines)


def wait_for(condition, what: str) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


class Mounted:
    """A running ``ciuic mount``.

    Attributes:
        point: The mount point.
        process: The process that answers the kernel.
    """

    def __init__(self, point: Path, process: "subprocess.Popen[bytes]", errors: Path) -> None:
        self.point = point
        self.process = process
        self._errors = errors

    def said(self) -> str:
        """Return what it has written to stderr."""
        return self._errors.read_text(errors="surrogateescape")

    def at(self, path: Path | bytes | str, snapshot: str = "latest") -> Path:
        """Return where a path of a snapshot is."""
        where = "latest" if snapshot == "latest" else f"by-id/{snapshot}"
        return self.point / where / os.fsdecode(path).lstrip("/")


@contextlib.contextmanager
def mounted(box: Box, *arguments: str, user: int | None = None) -> Iterator[Mounted]:
    """Mount a box's snapshots for the duration of a ``with`` block."""
    needs_fuse()
    if user is not None:
        os.chmod("/dev/fuse", 0o666)  # as udev makes it; a container may have no udev
    point, errors = box.directory / "mounted", box.directory / "mount-errors"
    point.mkdir(exist_ok=True)
    if user is not None:
        os.chown(point, user, user)
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command_of(user), "--config", str(box.config), "mount", str(point), *arguments],
            stderr=stderr,
            env=environment(),
            cwd="/",
        )
    found = Mounted(point, process, errors)
    try:
        wait_for(
            lambda: "mounted at" in found.said() or process.poll() is not None, "it never mounted"
        )
        assert process.poll() is None, found.said()
        yield found
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(LIMIT_S)
        wait_for(lambda: not is_mounted(point), "it is still mounted")
        assert "Traceback" not in found.said()

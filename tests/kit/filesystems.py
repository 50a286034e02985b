"""Real file systems in files: made, mounted through a loop device, and gone after the test."""

import contextlib
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

__all__ = ["Disk", "disk", "need_root", "tmpfs"]

_MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


def need_root() -> None:
    """Skip unless this is root, who alone may mount."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr}")


class Disk:
    """A file system in a file.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, kind: str, directory: Path, size_mib: int, mkfs: Sequence[str] = ()) -> None:
        self.kind = kind
        directory.mkdir(exist_ok=True)
        self.path = directory / f"{kind}-mount"
        self._image = directory / f"{kind}.img"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_mib * 1024 * 1024)
        _run(*_MKFS[kind], *mkfs, self._image)

    def mount(self, *options: str) -> None:
        """Mount it; with ``ro`` among the options read-only."""
        _run("mount", "-o", ",".join(("loop", *options)), self._image, self.path)

    def remount(self, *options: str) -> None:
        """Change how it is mounted."""
        _run("mount", "-o", ",".join(("remount", *options)), self.path)

    def unmount(self) -> None:
        """Take it away; harmless twice."""
        # Not os.path.ismount: after a power cut XFS answers every question with an error.
        if f" {self.path} " in Path("/proc/self/mountinfo").read_text():
            gc.collect()  # what a failed test has left open must not hide why it failed
            _run("umount", self.path)

    def lose_inodes(self, *paths: Path) -> None:
        """Files of an ext4 keep their names and nothing else: asked for, they are EUCLEAN."""
        numbers = [path.stat().st_ino for path in paths]
        self.unmount()
        for number in numbers:
            _run("debugfs", "-w", "-R", f"clri <{number}>", self._image)
        self.mount("errors=continue")

    def cut_power(self) -> None:
        """What was not on the disk at this moment is lost: XFS_IOC_GOINGDOWN without a flush."""
        _run("xfs_io", "-x", "-c", "shutdown", self.path)

    def free_bytes(self) -> int:
        """What an ordinary user could still write."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def leave_free(self, size_bytes: int) -> None:
        """Fill it up with a file ``ballast`` until so much is left; 0: not one byte."""
        # XFS gives back what it has set aside for a file that grows once that is closed: again.
        for _ in range(3):
            self._fill(size_bytes)
            _run("sync", "-f", self.path)

    def _fill(self, size_bytes: int) -> None:
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                most_bytes = self.free_bytes() - size_bytes - 4 * 1024 * 1024
                os.posix_fallocate(ballast.fileno(), ballast.tell(), max(most_bytes, 1))
            ballast.seek(0, os.SEEK_END)
            for block_bytes in (1024 * 1024, 4096):
                with contextlib.suppress(OSError):
                    while self.free_bytes() - size_bytes >= block_bytes or not size_bytes:
                        ballast.write(os.urandom(block_bytes))
                        os.fdatasync(ballast.fileno())


@contextlib.contextmanager
def disk(
    kind: str, directory: Path, *, size_mib: int = 320, mkfs: Sequence[str] = ()
) -> Iterator[Disk]:
    """A mounted file system for the duration of a ``with`` block, made with further options."""
    need_root()
    if shutil.which(_MKFS[kind][0]) is None:
        pytest.skip(f"{_MKFS[kind][0]} is not installed")
    made = Disk(kind, directory, size_mib, mkfs)
    try:
        made.mount()
    except RuntimeError as error:
        pytest.skip(f"this machine can't mount {kind}: {error}")
    try:
        yield made
    finally:
        made.unmount()
        made._image.unlink()


@contextlib.contextmanager
def tmpfs(path: Path, *, size_mib: int) -> Iterator[Path]:
    """A small file system in memory."""
    need_root()
    path.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", path)
    try:
        yield path
    finally:
        gc.collect()
        _run("umount", path)

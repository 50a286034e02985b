"""Real file systems in files: made, mounted through a loop device, and removed after the test."""

import contextlib
import fcntl
import gc
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit.daemon import wait_until

__all__ = ["Disk", "clone_range", "disk", "need_root", "tmpfs"]

_MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


_FICLONERANGE = 0x4020_940D
_CLONE_RANGE = struct.Struct("=qQQQ")


def clone_range(
    source_fd: int, source_offset: int, length_bytes: int, target_fd: int, target_offset: int
) -> None:
    """Make a range of the target share the source's blocks: ioctl_ficlonerange(2).

    Offsets and length are multiples of the file system's block size, except that the range may
    end where the source does.
    """
    arguments = _CLONE_RANGE.pack(source_fd, source_offset, length_bytes, target_offset)
    fcntl.ioctl(target_fd, _FICLONERANGE, arguments)


def need_root() -> None:
    """Skip the test unless it runs as root, which may mount."""
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
        self._is_cut = False
        self._options: tuple[str, ...] = ()
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_mib * 1024 * 1024)
        _run(*_MKFS[kind], *mkfs, self._image)

    def mount(self, *options: str) -> None:
        """Mount it with these options."""
        _run("mount", "-o", ",".join(("loop", *self._options, *options)), self._image, self.path)

    def remount(self, *options: str) -> None:
        """Change its mount options."""
        _run("mount", "-o", ",".join(("remount", *options)), self.path)

    def unmount(self) -> None:
        """Unmount it, so that it can be mounted again; harmless twice."""
        self.leave()
        # Tests that run beside this one make mount namespaces, and each holds a copy of every mount
        # of that moment. Until the last of them has ended, a new mount of the same file would get
        # the file system that is still in memory. After a power cut, that one only answers EIO and
        # writes nothing, so a copy of its file has what was durable, and needs no wait.
        if self._is_cut and not self._is_released():
            copy = self._image.with_suffix(".copy")
            _run("cp", "--sparse=always", self._image, copy)
            copy.replace(self._image)
            if self.kind == "xfs":  # it mounts no second file system of the same ID
                self._options = ("nouuid",)
        else:
            wait_until("the loop device is released", self._is_released, deadline_s=240)
        self._is_cut = False

    def leave(self) -> None:
        """Unmount it for good: the kernel may let go of its file later; harmless twice."""
        # Not os.path.ismount: after the power cut, XFS answers every call with an error.
        if f" {self.path} " in Path("/proc/self/mountinfo").read_text():
            gc.collect()  # files left open by a failed test would hide why it failed
            _run("umount", self.path)

    def _is_released(self) -> bool:
        devices = ("losetup", "--noheadings", "--output", "NAME", "--associated", self._image)
        done = subprocess.run(devices, capture_output=True, text=True, check=True, timeout=60)
        return not done.stdout.strip()

    def lose_inodes(self, *paths: Path) -> None:
        """Break inodes of an ext4: names stay, and the files give EUCLEAN."""
        numbers = [path.stat().st_ino for path in paths]
        self.unmount()
        for number in numbers:
            _run("debugfs", "-w", "-R", f"clri <{number}>", self._image)
        self.mount("errors=continue")

    def cut_power(self) -> None:
        """Lose everything that is not durable: XFS_IOC_GOINGDOWN without a flush."""
        _run("xfs_io", "-x", "-c", "shutdown", self.path)
        self._is_cut = True

    def free_bytes(self) -> int:
        """Return the free space for an ordinary user."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def leave_free(self, size_bytes: int) -> None:
        """Fill it with a file ``ballast`` until this much is free; 0: not a single byte."""
        # XFS frees its reservation for a growing file when the file is closed, so fill again.
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
    """A mounted file system, made with further options, inside a ``with`` block."""
    need_root()
    if shutil.which(_MKFS[kind][0]) is None:
        pytest.skip(f"{_MKFS[kind][0]} is not installed")
    made = Disk(kind, directory, size_mib, mkfs)
    try:
        made.mount()
    except RuntimeError as error:
        pytest.skip(f"this machine cannot mount {kind}: {error}")
    try:
        yield made
    finally:
        made.leave()
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

"""A disk that records every write and every flush, so that the power can go at each of them.

A file system needs a block device, a loop device needs a file, and this module serves the file by
FUSE: the kernel then hands over each block that reaches the "disk", in order, and each flush.
Device mapper has a target for that (dm-log-writes), but few machines have device mapper; a served
file needs only /dev/fuse and root. One file needs only nine messages of the FUSE protocol, which
are implemented here. Source: include/uapi/linux/fuse.h.
"""

import contextlib
import ctypes
import errno
import gc
import os
import shutil
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Flushed", "LoggedDisk", "Put", "can_make", "copy_sparse", "logged_disk", "mounted"]

_IN: Final = struct.Struct("<IIQQIIIHH")
_OUT: Final = struct.Struct("<IiQ")
_ATTRIBUTES: Final = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHI28x")
_OPEN_OUT: Final = struct.Struct("<QIi")
_READ_WRITE_IN: Final = struct.Struct("<QQIIQII")
_WRITE_OUT: Final = struct.Struct("<II")
_VERSION: Final = (7, 31)
_LARGE_WRITES: Final = 1 << 5 | 1 << 22
"""FUSE_BIG_WRITES and FUSE_MAX_PAGES: writes of up to a MiB arrive in one piece."""
_WRITE_MAX: Final = 1 << 20
_ROOT_INODE: Final = 1
_GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 3, 4, 14, 15, 16
_RELEASE, _FSYNC, _FLUSH, _INIT, _DESTROY = 18, 20, 25, 26, 38
_NO_ANSWER: Final = {2, 36, 42}
"""FORGET, INTERRUPT and BATCH_FORGET."""
_MOUNT_LIMIT_S: Final = 60

MKFS: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m0", "-Elazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
SIZE_BYTES: Final = {"ext4": 96 << 20, "xfs": 320 << 20, "btrfs": 256 << 20}


class Put(NamedTuple):
    """Bytes that reached the disk, and may still be in its cache."""

    offset: int
    data: bytes


class Flushed(NamedTuple):
    """All earlier writes are durable."""


class LoggedDisk:
    """A file system on a disk that is logged.

    Attributes:
        path: Where it is mounted.
        first: The image before the first write that was logged.
        log: The writes and flushes since.
    """

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.path = directory / "mount"
        self.first = directory / "first.img"
        self.log: list[Put | Flushed] = []
        self._served = directory / "served"
        self._image = directory / "live.img"
        self._thread: threading.Thread | None = None
        self._fd = self._image_fd = -1
        self.path.mkdir()
        self._served.touch()
        with self._image.open("xb") as file:
            file.truncate(SIZE_BYTES[kind])
        run(*MKFS[kind], self._image)
        copy_sparse(self._image, self.first)

    def start(self) -> None:
        """Serve the image, and mount the file system in it."""
        self._image_fd = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode={stat.S_IFREG:o},user_id=0,group_id=0"
        self._thread = threading.Thread(target=self._serve, name="disk", daemon=True)
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.mount(b"ciuic", os.fsencode(self._served), b"fuse", 0, options.encode())
        if made != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "mount of a FUSE file")
        self._thread.start()
        run("mount", "-t", self.kind, "-o", "loop", self._served, self.path)

    def stop(self) -> None:
        """Unmount everything; the writes of that are logged too."""
        for place in (self.path, self._served):
            if is_mounted(place):
                run("umount", place)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_MOUNT_LIMIT_S)
        for fd in (self._fd, self._image_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._image_fd = -1

    def _serve(self) -> None:
        """Answer the kernel until the file is unmounted."""
        while True:
            try:
                message = os.read(self._fd, _WRITE_MAX + 65536)
            except OSError as error:
                if error.errno in {errno.EINTR, errno.ENOENT, errno.EAGAIN}:
                    continue  # the request was taken back
                return  # ENODEV: unmounted
            _, kind, unique, _, _, _, _, _, _ = _IN.unpack_from(message)
            if kind in _NO_ANSWER:
                continue
            try:
                number, answer = 0, self._answer(kind, memoryview(message)[_IN.size :])
            except OSError as error:
                number, answer = -(error.errno or errno.EIO), b""
            with contextlib.suppress(FileNotFoundError):
                os.write(self._fd, _OUT.pack(_OUT.size + len(answer), number, unique) + answer)
            if kind == _DESTROY:
                return

    def _answer(self, kind: int, body: memoryview) -> bytes:
        match kind:
            case 26:  # INIT
                return _INIT_OUT.pack(*_VERSION, 0, _LARGE_WRITES, 0, 0, _WRITE_MAX, 1, 256, 0, 0)
            case 3 | 4:  # GETATTR, SETATTR
                return self._attributes()
            case 14:  # OPEN
                return _OPEN_OUT.pack(0, 0, 0)
            case 15:  # READ
                _, offset, length, *_ = _READ_WRITE_IN.unpack_from(body)
                return os.pread(self._image_fd, length, offset)
            case 16:  # WRITE
                _, offset, length, *_ = _READ_WRITE_IN.unpack_from(body)
                data = bytes(body[_READ_WRITE_IN.size :][:length])
                os.pwrite(self._image_fd, data, offset)
                self.log.append(Put(offset, data))
                return _WRITE_OUT.pack(length, 0)
            case 20:  # FSYNC
                self.log.append(Flushed())
                return b""
            case 18 | 25 | 38:  # RELEASE, FLUSH, DESTROY
                return b""
        raise OSError(errno.ENOSYS, "not needed for one file")

    def _attributes(self) -> bytes:
        size = os.fstat(self._image_fd).st_size
        mode = stat.S_IFREG | 0o600
        head = (3600, 0, 0, _ROOT_INODE, size, size // 512, 0, 0, 0, 0, 0, 0)
        return _ATTRIBUTES.pack(*head, mode, 1, 0, 0, 0, 4096, 0)


@contextlib.contextmanager
def logged_disk(kind: str, directory: Path) -> Iterator[LoggedDisk]:
    """A mounted and logged file system; the log can be read after the block too."""
    directory.mkdir(parents=True)
    disk = LoggedDisk(kind, directory)
    try:
        disk.start()
        yield disk
    finally:
        disk.stop()


@contextlib.contextmanager
def mounted(kind: str, image: Path, place: Path) -> Iterator[Path]:
    """Mount an image as after a power cut; fails if the file system does not recover."""
    place.mkdir(exist_ok=True)
    if kind == "btrfs":
        # btrfs identifies file systems by an ID that all our images share: forget removed ones.
        run("btrfs", "device", "scan", "--forget")
    run("mount", "-t", kind, "-o", "loop", image, place)
    try:
        yield place
    except BaseException:
        # The traceback still holds files open, so only a lazy unmount works.
        run("umount", "--lazy", place)
        raise
    gc.collect()
    run("umount", place)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy an image; holes stay holes."""
    run("cp", "--sparse=always", source, target)


def is_mounted(place: Path) -> bool:
    """Return whether a file system is mounted at this place."""
    return f" {place} " in Path("/proc/self/mountinfo").read_text()


def can_make(kind: str) -> bool:
    """Return whether this machine can make a logged disk of this kind."""
    return os.geteuid() == 0 and Path("/dev/fuse").exists() and bool(shutil.which(MKFS[kind][0]))


def run(*command: str | Path) -> None:
    """Run a program; raise RuntimeError with its message if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_MOUNT_LIMIT_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")

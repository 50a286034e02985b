"""Temporary file systems for one row: made in a sparse file, mounted, and removed afterwards.

Guarantees: after the row, also after a failure, nothing stays mounted, no loop device stays in use
and the file is deleted. An interrupted command gets ten seconds to end first. Needs root.
"""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import RunFailedError

KINDS = ("ext4", "xfs", "btrfs")
UNMOUNT_S = 10.0
BUSY_S = 0.1
MKFS = {
    # Write the tables now: in the background, they would be written during a measurement.
    "ext4": (
        "mkfs.ext4",
        "-q",
        "-F",
        "-m0",
        "-N100000",
        "-Elazy_itable_init=0,lazy_journal_init=0",
    ),
    "xfs": ("mkfs.xfs", "-q", "-f", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


def can_make(kind: str) -> bool:
    """Return whether the mkfs program of this kind is installed."""
    return shutil.which(MKFS[kind][0]) is not None


@contextlib.contextmanager
def file_system(kind: str, directory: Path, size_bytes: int) -> Iterator[Path]:
    """The mount point of an empty file system of this kind; its image is in the directory."""
    image, place = directory / f"{kind}.img", directory / kind
    with contextlib.ExitStack() as after:
        with image.open("xb") as file:
            after.callback(image.unlink)
            file.truncate(size_bytes)
        _run(*MKFS[kind], str(image))
        device = _run("losetup", "--find", "--show", str(image)).strip()
        after.callback(_run, "losetup", "--detach", device)
        # Without direct I/O, every page would be cached twice, for the image and the file system
        # in it. Not every file system supports it for the image.
        subprocess.run(["losetup", "--direct-io=on", device], capture_output=True, check=False)
        place.mkdir()
        after.callback(place.rmdir)
        _run("mount", "-t", kind, device, str(place))
        after.callback(_unmount, place)
        yield place


def trim(place: Path) -> None:
    """Return the blocks of deleted files to the file system of the image."""
    subprocess.run(["fstrim", str(place)], capture_output=True, check=False)


def _unmount(place: Path) -> None:
    until_s = time.monotonic() + UNMOUNT_S
    while time.monotonic() < until_s:
        done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(BUSY_S)
    # No new process can use it; it disappears once the last process has closed its files.
    _run("umount", "--lazy", str(place))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

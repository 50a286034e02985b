"""File systems that live for one row: made in a sparse file, mounted, and gone afterwards.

Guarantees: however the row ends, nothing stays mounted, no loop device stays taken and the file is
deleted; a command that was interrupted is given a moment to let go first. Needs root.
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
    # Tables are written now: in the background they would be written while somebody is timed.
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
    """Whether the program that makes such a file system is here."""
    return shutil.which(MKFS[kind][0]) is not None


@contextlib.contextmanager
def file_system(kind: str, directory: Path, size_bytes: int) -> Iterator[Path]:
    """The mount point of an empty file system of this kind; its file lies in the directory."""
    image, place = directory / f"{kind}.img", directory / kind
    with contextlib.ExitStack() as after:
        with image.open("xb") as file:
            after.callback(image.unlink)
            file.truncate(size_bytes)
        _run(*MKFS[kind], str(image))
        device = _run("losetup", "--find", "--show", str(image)).strip()
        after.callback(_run, "losetup", "--detach", device)
        # Without, every page would be cached twice, in the file and in the file system in it; where
        # the file can't be read past the cache, that is how it is.
        subprocess.run(["losetup", "--direct-io=on", device], capture_output=True, check=False)
        place.mkdir()
        after.callback(place.rmdir)
        _run("mount", "-t", kind, device, str(place))
        after.callback(_unmount, place)
        yield place


def trim(place: Path) -> None:
    """Gives the blocks of deleted files back to the file system that the image lies on."""
    subprocess.run(["fstrim", str(place)], capture_output=True, check=False)


def _unmount(place: Path) -> None:
    until_s = time.monotonic() + UNMOUNT_S
    while time.monotonic() < until_s:
        done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(BUSY_S)
    # It is gone for everybody who asks now, and for good when the last one has closed his files.
    _run("umount", "--lazy", str(place))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

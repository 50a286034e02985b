"""Which programs have a file open for writing: the home of psutil in capture.

A lease tells that there is somebody, exactly; this looks for a name, and may come too late.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator

import psutil

__all__ = ["find_holders"]


def find_holders(inodes: Collection[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Name and number of a process that has a file open for writing, or maps it for writing.

    Args:
        inodes: ``(st_dev, st_ino)`` of the files.

    Returns:
        Those that could be found, as "python3 (pid 12)". Processes of other users are seen by
        root only.
    """
    wanted = set(inodes)
    found: dict[tuple[int, int], str] = {}
    for process in psutil.process_iter():
        if wanted <= found.keys():
            break
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            for key in _written_by(process):
                if key in wanted and key not in found:
                    # It is any bytes, perhaps cut by the kernel within a character.
                    name = os.fsencode(process.name()).decode("utf-8", "backslashreplace")
                    found[key] = f"{name} (pid {process.pid})"
    return found


def _written_by(process: psutil.Process) -> Iterator[tuple[int, int]]:
    """The regular files that a process can write to at this moment."""
    for one in process.open_files():
        # Only Linux has the mode; "a" and "w" and their "+" forms can write.
        if one.mode.strip("rb") == "":
            continue
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{process.pid}/fd/{one.fd}")
            if stat.S_ISREG(status.st_mode):
                yield status.st_dev, status.st_ino
    for mapped in process.memory_maps(grouped=False):
        if "w" in mapped.perms and "s" in mapped.perms and mapped.path.startswith("/"):
            with contextlib.suppress(OSError):
                status = os.stat(mapped.path)
                yield status.st_dev, status.st_ino

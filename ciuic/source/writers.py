"""Find the programs that have a file open, with psutil.

A lease shows reliably that a program has the file open; this module looks for the program's name,
and may find none if the program has closed the file by then.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator

import psutil

from ciuic.source.trainings import has_library, mapped_files

__all__ = ["find_checkpoints", "find_holders"]


def find_holders(inodes: Collection[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Find a process for each file that has it open for writing or mapped for writing.

    Args:
        inodes: ``(st_dev, st_ino)`` of the files.

    Returns:
        The processes that were found, as "python3 (pid 12)". Only root sees processes of other
        users.
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
                    # A process name may be any bytes, and the kernel may cut it within a character.
                    name = os.fsencode(process.name()).decode("utf-8", "backslashreplace")
                    found[key] = f"{name} (pid {process.pid})"
    return found


def _written_by(process: psutil.Process) -> Iterator[tuple[int, int]]:
    """Yield the regular files that a process can write to at this moment."""
    for opened in process.open_files():
        # "r" and "rb" cannot write; "a", "w" and the "+" modes can.
        if opened.mode.strip("rb") == "":
            continue
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{process.pid}/fd/{opened.fd}")
            if stat.S_ISREG(status.st_mode):
                yield status.st_dev, status.st_ino
    for mapped in process.memory_maps(grouped=False):
        if "w" in mapped.perms and "s" in mapped.perms and mapped.path.startswith("/"):
            with contextlib.suppress(OSError):
                status = os.stat(mapped.path)
                yield status.st_dev, status.st_ino


def find_checkpoints(suffixes: tuple[bytes, ...]) -> dict[bytes, str]:
    """Find files with such names that a program is writing, or that a training program has open.

    A training program has a library of its trade mapped: other programs read files of any name.

    Args:
        suffixes: How the names of checkpoints end, in lower case.

    Returns:
        The paths, each with its process, as "python3 (pid 12)". Only root sees processes of other
        users. A file that has another path here, as those of containers do, is left out.
    """
    found: dict[bytes, str] = {}
    here = _mount_namespace(os.getpid())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            # A service with a mount namespace of its own, as systemd makes them, has most paths.
            is_here = _mount_namespace(process.pid) == here
            mapped = mapped_files(process.pid)
            trains = has_library(mapped)
            opened = {
                os.fsencode(file.path)
                for file in process.open_files()
                if trains or file.mode.strip("rb")
            }
            for path in opened | (mapped if trains else set()):
                if (
                    path.lower().endswith(suffixes)
                    and path not in found
                    and (is_here or _is_same_file(process.pid, path))
                ):
                    name = os.fsencode(process.name()).decode("utf-8", "backslashreplace")
                    found[path] = f"{name} (pid {process.pid})"
    return found


def _is_same_file(pid: int, path: bytes) -> bool:
    """Return whether a path is the same file for a process as it is here."""
    with contextlib.suppress(OSError):
        return os.path.samefile(b"/proc/%d/root%s" % (pid, path), path)
    return False


def _mount_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")

"""Find the programs that have a file open, with psutil.

A lease shows reliably that a program has the file open; this module looks for the program's name,
and may find none if the program has closed the file by then.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

import psutil

from ciuic.source.trainings import has_library, mapped_files

__all__ = ["Writing", "files_being_written", "find_checkpoints", "find_holders"]


class Writing(NamedTuple):
    """A regular file that a program can write to at this moment.

    Attributes:
        path: Its path for the program.
        status: Its status.
        holder: The process, as "python3 (pid 12)".
    """

    path: bytes
    status: os.stat_result
    holder: str


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
    for writing in files_being_written():
        key = (writing.status.st_dev, writing.status.st_ino)
        if key in wanted and found.setdefault(key, writing.holder) and wanted <= found.keys():
            break
    return found


def files_being_written() -> Iterator[Writing]:
    """Yield the regular files that other programs have open for writing or mapped for writing.

    Only root sees processes of other users.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            files = [*_opened_by(process), *_mapped_by(process)]
            if files:
                # A process name may be any bytes, and the kernel may cut it within a character.
                name = os.fsencode(process.name()).decode("utf-8", "backslashreplace")
                for path, status in files:
                    yield Writing(path, status, f"{name} (pid {process.pid})")


def _opened_by(process: psutil.Process) -> Iterator[tuple[bytes, os.stat_result]]:
    for opened in process.open_files():
        # "r" and "rb" cannot write; "a", "w" and the "+" modes can.
        if opened.mode.strip("rb") == "":
            continue
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{process.pid}/fd/{opened.fd}")
            if stat.S_ISREG(status.st_mode):
                yield os.fsencode(opened.path), status


def _mapped_by(process: psutil.Process) -> Iterator[tuple[bytes, os.stat_result]]:
    for path in mapped_files(process.pid, to_write=True):
        with contextlib.suppress(OSError):
            yield path, os.stat(path)


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

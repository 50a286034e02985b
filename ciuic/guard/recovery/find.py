"""Finds broken checkpoints among the files that changed within a period."""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ciuic.errors import CancelledError
from ciuic.formats.soundness import checksum_fault, fault, is_judged, was_of_torch
from ciuic.guard.recovery.report import BrokenFile
from ciuic.model import PathWarning
from ciuic.source.exclusions import Exclusions
from ciuic.source.mounts import PseudoMounts
from ciuic.system.kernel import has_writer

__all__ = ["Finder", "Window", "aside_name", "identity_of"]

_ASIDE: Final = re.compile(rb"\..*\.broken-[0-9]+", re.DOTALL)
_NAME_BYTES_MAX: Final = 255
_NO_LONGER: Final = "an older version is a sound checkpoint, and this one is in no known format"
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def aside_name(name: bytes, number: int) -> bytes:
    """Return a name for a broken file: hidden, so that no pattern for checkpoints matches it."""
    end = b".broken-%d" % number
    return b"." + name[: _NAME_BYTES_MAX - len(end) - 1] + end


def identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes if a file is replaced or written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Window:
    """When the training ran: only files that changed then are looked at.

    Attributes:
        since_ns: The beginning.
        until_ns: The end. A file that changed later is another program's; None: no end.
        saved_ns: When the last snapshot before the failure was taken. Checksums of files that have
            not changed since then are not computed: they are as they were while the training ran.
        are_named: A user named the paths. A file among them is looked at whenever it changed, with
            its checksums: otherwise, a broken file would be called whole.
    """

    since_ns: int
    until_ns: int | None
    saved_ns: int
    are_named: bool = False


class Finder:
    """Walks through directories for broken files.

    Args:
        window: Which files.
        exclusions: Paths to pass over: snapshots exclude them, so they have no versions.
        store_path: The store, which is passed over.
        seen: Paths to pass over. The files that were checked are added.
        cancelled: Called for every file.

    Attributes:
        checked: How many files were checked.
        unjudged: How many of them are in no known format, and have not been yielded.
        left_alone: Broken files that another program is writing.
    """

    def __init__(
        self,
        window: Window,
        exclusions: Exclusions,
        store_path: str,
        seen: set[bytes],
        cancelled: Callable[[], bool],
    ) -> None:
        self.checked = 0
        self.unjudged = 0
        self.left_alone: list[PathWarning] = []
        self._window = window
        self._exclusions = exclusions
        self._store = os.fsencode(os.path.realpath(store_path))
        self._seen = seen
        self._cancelled = cancelled
        self._pseudo = PseudoMounts()

    def find(self, roots: Sequence[bytes]) -> Iterator[BrokenFile]:
        """Yield the broken files at and below paths, and those that are suspected to be.

        What cannot be read is passed over.
        """
        for root in roots:
            if root in self._seen:
                continue
            with contextlib.suppress(OSError):
                status = os.stat(root)
                if stat.S_ISREG(status.st_mode):
                    yield from self._file(root, status, is_named=self._window.are_named)
                elif stat.S_ISDIR(status.st_mode):
                    yield from self._walk(root)

    def _walk(self, root: bytes) -> Iterator[BrokenFile]:
        waiting = [root]
        while waiting:
            directory = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(directory) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    if self._cancelled():
                        raise CancelledError("the search was interrupted")
                    if entry.path in self._seen:
                        continue
                    if self._exclusions.match_path(directory, entry.name):
                        continue
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode) and self._is_walked(entry.path, status):
                            waiting.append(entry.path)
                        elif stat.S_ISREG(status.st_mode):
                            yield from self._file(entry.path, status)

    def _is_walked(self, path: bytes, status: os.stat_result) -> bool:
        return os.path.realpath(path) != self._store and not self._pseudo.holds(status)

    def _file(
        self, path: bytes, status: os.stat_result, *, is_named: bool = False
    ) -> Iterator[BrokenFile]:
        name = os.path.basename(path)
        is_early = status.st_ctime_ns < self._window.since_ns and not is_named
        if is_early or _ASIDE.fullmatch(name):
            return
        with open(os.open(path, _OPEN), "rb", buffering=0) as file:
            fd = file.fileno()
            status = os.fstat(fd)
            self.checked += 1
            self._seen.add(path)

            def read(offset_bytes: int, length_bytes: int) -> bytes:
                return os.pread(fd, length_bytes, offset_bytes)

            what = fault(read, status.st_size, name)
            if not what and (is_named or status.st_ctime_ns >= self._window.saved_ns):
                what = checksum_fault(read, status.st_size)
            is_suspected = False
            if not what and not is_judged(read, status.st_size, name):
                is_suspected = was_of_torch(read, name) and not self._is_written(fd, status)
                self.unjudged += not is_suspected
            if is_suspected:
                what = _NO_LONGER
            elif what and self._is_written(fd, status):
                self.left_alone.append(PathWarning(path, f"{what}; another program writes it"))
                return
        if what:
            yield BrokenFile(path, what, identity_of(status), is_suspected=is_suspected)

    def _is_written(self, fd: int, status: os.stat_result) -> bool:
        until_ns = self._window.until_ns
        is_late = until_ns is not None and status.st_ctime_ns > until_ns
        return bool(has_writer(fd)) or is_late

"""The lines that a program adds to a file, as it adds them.

A file may not exist yet. It may be renamed and created again (rotation), or cut and written from
its start (truncation). A line counts when its line end is there. Memory is bounded: a line of more
than 1 MiB is left out, and the file is read in blocks.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final

__all__ = ["LINE_BYTES_MAX", "Tail"]

LINE_BYTES_MAX: Final = 1024 * 1024
_BLOCK_BYTES: Final = 1024 * 1024
_SEAM_BYTES: Final = 64


class Tail:
    """Follows one file.

    Args:
        path: The file.
        from_end: Leave out what the file has now; a file that appears later is read from its start.

    Attributes:
        path: The file.
        too_long: Lines that were left out because of their length.
        resets: How often the file was truncated or replaced.
    """

    def __init__(self, path: bytes, *, from_end: bool) -> None:
        self.path = path
        self.too_long = 0
        self.resets = 0
        self._current: _File | None = self._opened(from_end=from_end)
        self._previous: _File | None = None

    def close(self) -> None:
        """Close the files."""
        for file in (self._current, self._previous):
            if file is not None:
                file.close()
        self._current = self._previous = None

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file that is followed; None: it was not there yet."""
        return None if self._current is None else self._current.identity

    def read(self) -> Iterator[list[bytes]]:
        """Yield the complete lines that were added since the last call, without line ends.

        Each list is from one block. A file that was renamed is read on until it is replaced again:
        its writer may have it open still.
        """
        if self._previous is not None:
            yield from self._lines_of(self._previous)
        if self._current is not None:
            yield from self._lines_of(self._current)
        if self._current is not None and self._current.identity == _identity(self.path):
            return
        replacement = self._opened(from_end=False)
        if replacement is None:
            return
        if self._current is not None:
            self.resets += 1
            # What was written between the last read and the opening.
            yield from self._lines_of(self._current)
            if self._previous is not None:
                self._previous.close()
            self._previous = self._current
        self._current = replacement
        yield from self._lines_of(replacement)

    def rest(self) -> list[bytes]:
        """Return the last line of the file if it has no line end: a program may still write it."""
        return [] if self._current is None else self._current.take_rest()

    def _lines_of(self, file: "_File") -> Iterator[list[bytes]]:
        if file.was_truncated():
            self.resets += 1
            file.restart()
        while lines := file.read_lines():
            self.too_long += lines.too_long
            if lines.complete:
                yield lines.complete

    def _opened(self, *, from_end: bool) -> "_File | None":
        with contextlib.suppress(OSError):
            # O_NONBLOCK: opening a named pipe must not wait for its writer.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                return _File(fd, status, status.st_size if from_end else 0)
            os.close(fd)
        return None


class _Lines:
    """What one block of a file held."""

    __slots__ = ("complete", "too_long")

    def __init__(self, complete: list[bytes], too_long: int) -> None:
        self.complete = complete
        self.too_long = too_long


class _File:
    """One open file, and how far it was read."""

    def __init__(self, fd: int, status: os.stat_result, offset: int) -> None:
        self.identity = (status.st_dev, status.st_ino)
        self._fd = fd
        self._offset = offset
        self._rest = b""
        self._skipping = False
        self._seam = self._before(offset)

    def close(self) -> None:
        os.close(self._fd)

    def restart(self) -> None:
        """Read from the start of the file."""
        self._offset = 0
        self._rest = self._seam = b""
        self._skipping = False

    def was_truncated(self) -> bool:
        """Return whether the file is shorter, or has other bytes where the last block ended.

        A file that was cut and has grown past the old end since has other bytes there.
        """
        try:
            is_shorter = os.fstat(self._fd).st_size < self._offset
            return is_shorter or self._before(self._offset) != self._seam
        except OSError:
            return False

    def read_lines(self) -> _Lines | None:
        """Read one block; None at the end of the file."""
        try:
            block = os.pread(self._fd, _BLOCK_BYTES, self._offset)
        except OSError:  # as on a network file system that is away; the next call tries again
            return None
        if not block:
            return None
        self._offset += len(block)
        self._seam = (self._seam + block[-_SEAM_BYTES:])[-_SEAM_BYTES:]
        lines = block.split(b"\n")
        too_long = 0
        if self._skipping and len(lines) > 1:
            self._skipping = False
            del lines[0]
        elif self._skipping:
            return _Lines([], 0)
        else:
            lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest, self._skipping, too_long = b"", True, 1
        elif lines and len(lines[0]) > LINE_BYTES_MAX:
            del lines[0]
            too_long = 1
        return _Lines(lines, too_long)

    def take_rest(self) -> list[bytes]:
        """Return the last line, which has no line end, and forget it."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _before(self, offset: int) -> bytes:
        start = max(0, offset - _SEAM_BYTES)
        return os.pread(self._fd, offset - start, start)


def _identity(path: bytes) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino

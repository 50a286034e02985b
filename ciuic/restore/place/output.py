"""Writing a large file, past the page cache where the file system allows it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from ciuic.system.buffers import BufferPool

__all__ = ["Output", "open_direct", "write_all"]

_ALIGNMENT: Final = 4096
_BUFFER_BYTES: Final = 1024 * 1024

_LENT_BYTES: Final = 2 * _BUFFER_BYTES
"""A chunk of a checkpoint has 1 MiB; a longer one takes the way of ``write`` with a copy."""

_DIRECT_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smaller files stay in the page cache: the user reads them next."""
_OPEN_DIRECT: Final = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
_buffers: Final = BufferPool(_BUFFER_BYTES)
_lent: Final = BufferPool(_LENT_BYTES)


class Output:
    """A large file that is being written. Several threads may write to different ranges.

    Args:
        fd: The open file.
        direct_fd: The same file with O_DIRECT; -1 if the file system refuses that.
    """

    def __init__(self, fd: int, direct_fd: int) -> None:
        self._fd = fd
        self._direct_fd = direct_fd
        self._edges: list[tuple[int, bytes]] = []

    def close(self) -> None:
        """Close ``direct_fd``. The caller closes ``fd``."""
        if self._direct_fd >= 0:
            os.close(self._direct_fd)

    def copy(self, source_fd: int, offset: int, length: int) -> None:
        """Copy a range from another file, in the kernel; less if that file has become shorter."""
        while length:
            copied = os.copy_file_range(source_fd, self._fd, length, offset, offset)
            if copied == 0:
                # Some file systems return 0 before the end of the file.
                data = os.pread(source_fd, min(length, _BUFFER_BYTES), offset)
                if not data:
                    return
                write_all(self._fd, data, offset)
                copied = len(data)
            offset += copied
            length -= copied

    @contextlib.contextmanager
    def memory(self, length: int, offset: int) -> Iterator[memoryview | None]:
        """Lend memory for bytes that ``write`` can write at this offset without a copy.

        None if they are too many. The memory is reused: fresh memory costs page faults.
        """
        begin = offset % _ALIGNMENT
        if begin + length > _LENT_BYTES:
            yield None
            return
        buffer = _lent.take()
        try:
            yield memoryview(buffer)[begin : begin + length]
        finally:
            _lent.give_back(buffer)

    def write(self, data: bytes | memoryview, offset: int, *, is_lent: bool = False) -> None:
        """Write at an offset of the file; ``is_lent``: bytes in the memory for this offset."""
        view = memoryview(data)
        if self._direct_fd >= 0:
            begin = min(-offset % _ALIGNMENT, len(view))
            end = begin + (len(view) - begin) // _ALIGNMENT * _ALIGNMENT
            if is_lent:
                self._write_block(view[begin:end], offset + begin)
            else:
                self._write_direct(view[begin:end], offset + begin)
            # Tensors begin and end anywhere. The unaligned ends go through the page cache, and
            # later: buffered and direct writes to one file wait for each other.
            self._edges += [(offset, bytes(view[:begin])), (offset + end, bytes(view[end:]))]
            return
        write_all(self._fd, view, offset)

    def write_edges(self) -> None:
        """Write the unaligned ends that ``write`` has left. No thread may write meanwhile."""
        edges, self._edges = sorted(self._edges), []
        block, at = bytearray(), 0
        for offset, data in edges:
            if block and offset != at + len(block):
                write_all(self._fd, block, at)
                block = bytearray()
            if not block:
                at = offset
            block += data
        write_all(self._fd, block, at)

    def _write_direct(self, view: memoryview, offset: int) -> None:
        buffer = _buffers.take()
        try:
            for at in range(0, len(view), _BUFFER_BYTES):
                part = view[at : at + _BUFFER_BYTES]
                buffer[: len(part)] = part
                with memoryview(buffer) as aligned, aligned[: len(part)] as block:
                    self._write_block(block, offset + at)
        finally:
            _buffers.give_back(buffer)

    def _write_block(self, block: memoryview, offset: int) -> None:
        try:
            write_all(self._direct_fd, block, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Some file systems accept the flag and refuse the write.
            write_all(self._fd, block, offset)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes of ``data`` at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def open_direct(fd: int, size_bytes: int) -> int:
    """Return a second descriptor of a temporary file, with O_DIRECT; -1 if that is refused.

    Args:
        fd: The open file.
        size_bytes: The length that it will have.
    """
    if size_bytes < _DIRECT_BYTES_MIN:
        return -1
    try:
        # Not by its name: the owner of the directory may have put another file there.
        return os.open(b"/proc/self/fd/%d" % fd, _OPEN_DIRECT)
    except OSError:
        return -1

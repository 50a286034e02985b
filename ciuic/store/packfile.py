"""A pack while it is being written: a temporary file, filled past the page cache.

Written with O_DIRECT from one buffer that is used again and again. A buffered write would fill
the page cache with packs that nobody reads soon, push the training's data out of it, and take
three times as long (decision 0004). File systems that refuse O_DIRECT get ordinary writes. The
pack's parity is computed from the same buffer, as reading the pack back would take longer still.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Container
from concurrent.futures import Executor, Future
from typing import Final

from ciuic import durable
from ciuic.hashing import ID_BYTES, data_id
from ciuic.memory import BufferPool
from ciuic.store.frame import DATA, Frame, encode_frame
from ciuic.store.pack import MAGIC, PackedFrame, encode_footer
from ciuic.store.parity import ParityMaker, make_parity, shape_while_writing

__all__ = ["PACK_BYTES", "PackFile"]

PACK_BYTES: Final = 64 * 1024 * 1024
"""A pack that has reached this length gets no further frame."""
_PACK_CHUNKS: Final = 200_000
"""A footer is read as a whole: a pack of a million tiny chunks would take 200 MB to look into."""
_READ_BACK_BYTES: Final = 8 * 1024 * 1024
"""Reading back what is shorter takes a moment, and its parity then fits it to the byte."""
_SHORTER: Final = 0.95
"""A pack may be that much shorter than was expected; its parity then takes a little more of it."""

_BUFFER_BYTES: Final = 4 * 1024 * 1024
_ALIGNMENT: Final = 4096
"""A multiple of every logical block size in use; see "O_DIRECT" in open(2)."""
_buffers: Final = BufferPool(_BUFFER_BYTES)


class PackFile:
    """A pack that is being filled, under a temporary name in ``directory``.

    Args:
        directory: For temporary files.
        parity: The share of the pack that its parity takes; 0: it gets none.
        expected_bytes: About how long it becomes, as far as is known.
        helper: A thread that writes what is full while the next is filled; None: the caller's own.

    Attributes:
        path: The temporary name.
        fd: The open file.
        frames: What it holds so far.
        size_bytes: How long it is so far.
        is_full: It should take no more.

    Raises:
        OSError: The file can't be made or written; the caller then discards it.
        StoreError: This machine can't compute parity.
    """

    def __init__(
        self,
        directory: str,
        *,
        parity: float = 0.0,
        expected_bytes: int = PACK_BYTES,
        helper: Executor | None = None,
    ) -> None:
        self._parity_share = parity
        self._parity: ParityMaker | None = None
        self._expected_bytes = expected_bytes
        if parity and expected_bytes >= _READ_BACK_BYTES:
            self._parity = ParityMaker(shape_while_writing(expected_bytes, parity))
        self.path = os.path.join(directory, durable.temporary_name("pack-"))
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.frames: list[PackedFrame] = []
        self.size_bytes = 0
        self._chunks = 0
        self._helper = helper
        self._writing: Future[None] | None = None
        self._buffer = _buffers.take()
        self._other = _buffers.take() if helper is not None else None
        self._filled = 0
        self._flushed_bytes = 0
        self._is_direct = _set_direct(self.fd, on=True)
        self._append(MAGIC)

    def add(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Append one frame; ``payload`` may change once this returns."""
        header = frame.encode_header()
        self._chunks += len(frame.chunks)
        self.frames.append(PackedFrame(self.size_bytes, frame, header))
        self._append(header)
        self._append(payload)

    @property
    def is_full(self) -> bool:
        """See the class."""
        return self.size_bytes >= PACK_BYTES or self._chunks >= _PACK_CHUNKS

    def complete(self, avoided: Container[bytes] = ()) -> bytes:
        """Append the footer; returns the pack's ID. Nothing is durable yet.

        Args:
            avoided: Names that it can't have: a chunk that nobody needs gives it another one.
        """
        name, end = encode_footer(self.frames, self.size_bytes)
        if name in avoided:
            noise = os.urandom(ID_BYTES)
            self.add(*encode_frame(DATA, [(data_id(noise), noise)]))
            name, end = encode_footer(self.frames, self.size_bytes)
        self._append(end)
        self._flush_tail()
        return name

    def parity(self) -> ParityMaker | None:
        """The parity of the completed pack; None if it is to have none.

        Raises:
            OSError: The pack can't be read back. That is done only where it is much shorter than
                it was expected to be, or longer: its parity is then cut to its own length.
        """
        if not self._parity_share:
            return None
        made = self._parity
        enough_bytes = min(PACK_BYTES, self._expected_bytes) * _SHORTER
        if made is not None and made.fits and self.size_bytes >= enough_bytes:
            return made
        # Not every file system that writes past the page cache reads past it, too.
        self._is_direct = _set_direct(self.fd, on=False)
        made = make_parity(self.fd, self._parity_share)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return made

    def close(self) -> None:
        """Close the file and let its buffer be used again; harmless twice."""
        if self.fd >= 0:
            if self._writing is not None:
                self._writing.exception()  # whoever closes before the end does not care
            os.close(self.fd)
            self.fd = -1
            _buffers.give_back(self._buffer)
            if self._other is not None:
                _buffers.give_back(self._other)

    def discard(self) -> None:
        """Remove the unfinished file."""
        self.close()
        durable.remove_file(self.path)

    def _append(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.size_bytes += len(view)
        while view:
            count = min(len(view), _BUFFER_BYTES - self._filled)
            self._buffer[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def _flush_tail(self) -> None:
        """Write what is left, padded to whole blocks, and cut the padding off again."""
        if self._filled:
            self._flush()
        self._settle()
        os.ftruncate(self.fd, self.size_bytes)

    def _flush(self) -> None:
        """Write what is in the buffer, which may be filled again when this returns."""
        self._settle()
        length, self._filled = self._filled, 0
        if self._helper is None or self._other is None:
            self._write_out(self._buffer, length)
            return
        self._writing = self._helper.submit(self._write_out, self._buffer, length)
        self._buffer, self._other = self._other, self._buffer

    def _settle(self) -> None:
        """What was flushed is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_out(self, buffer: mmap.mmap, length: int) -> None:
        if self._parity is not None:
            self._parity.add(buffer, length)
        self._write(buffer, -(-length // _ALIGNMENT) * _ALIGNMENT)

    def _write(self, buffer: mmap.mmap, length: int) -> None:
        view = memoryview(buffer)[:length]
        try:
            while view:
                written = self._write_some(view)
                self._flushed_bytes += written
                view = view[written:]
        finally:
            view.release()

    def _write_some(self, view: memoryview) -> int:
        try:
            return os.pwrite(self.fd, view, self._flushed_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        # Some file systems take the flag and refuse the write.
        self._is_direct = _set_direct(self.fd, on=False)
        return os.pwrite(self.fd, view, self._flushed_bytes)


def _set_direct(fd: int, *, on: bool) -> bool:
    """Switch O_DIRECT; returns whether it is on now."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        return on
    return False

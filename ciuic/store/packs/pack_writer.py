"""Writes a pack to a temporary file, past the page cache.

The file is written with O_DIRECT from buffers that are reused. Buffered writes would fill the
page cache with packs that are not read soon, evict the training's data, and take three times as
long (decision 0004). File systems that refuse O_DIRECT get ordinary writes. The pack's parity is
computed from the same buffer, as reading the pack back would take longer.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections import deque
from concurrent.futures import Executor, Future
from typing import Final

from ciuic.ids import PackId, SessionId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import Frame
from ciuic.store.format.pack import MAGIC, PackedFrame, encode_footer, new_label
from ciuic.store.parity.parity_writer import ParityMaker, make_parity, write_parity
from ciuic.store.parity.shape import shape_while_writing
from ciuic.store.records import layout
from ciuic.system import durable, nofollow
from ciuic.system.buffers import BufferPool
from ciuic.system.core import core

__all__ = ["BUFFER_BYTES", "PACK_BYTES", "TOGETHER_BYTES", "PackFile", "publish_pack"]

PACK_BYTES: Final = 64 * 1024 * 1024
"""A pack that has reached this length gets no further frame."""
TOGETHER_BYTES: Final = 256 * 1024
"""Data and nodes that are at most this long together share a pack, if it gets parity."""
_PACK_CHUNKS: Final = 200_000
"""A footer is read as a whole: with a million tiny chunks it would take 200 MB of memory."""
_READ_BACK_BYTES: Final = 8 * 1024 * 1024
"""A shorter pack is read back quickly, and its parity then has exactly the right shape."""
_SHORTER: Final = 0.95
"""A pack may be as short as this share of the expected length; its parity then takes a little more
of the pack."""

BUFFER_BYTES: Final = 4 * 1024 * 1024
_UNLOCKED_BYTES: Final = 64 * 1024
"""From this length on, bytes are copied without the interpreter's lock, so that other threads run;
for fewer, giving the lock away and taking it again takes longer than the copy."""
_ALIGNMENT: Final = 4096
"""A multiple of every logical block size in use; see "O_DIRECT" in open(2)."""
_buffers: Final = BufferPool(BUFFER_BYTES)


class PackFile:
    """A pack that is being filled, under a temporary name in ``directory``.

    Args:
        directory: The directory for temporary files.
        session_id: The session that writes the pack.
        parity: The share of the pack that its parity takes; 0: no parity.
        expected_bytes: The expected length of the pack, if known.
        helper: A thread that writes full buffers while the next one is filled; None: the caller's
            thread writes.
        waiting_max: How many full buffers may wait for the helper.

    Attributes:
        path: The temporary name.
        fd: The open file.
        frames: The frames so far.
        size_bytes: The length so far.
        is_direct: It is written past the page cache.
        is_full: No further frame should be added.

    Raises:
        OSError: The file cannot be created or written; the caller then discards it.
    """

    def __init__(
        self,
        directory: str,
        session_id: SessionId,
        *,
        parity: float = 0.0,
        expected_bytes: int = PACK_BYTES,
        helper: Executor | None = None,
        waiting_max: int = 1,
    ) -> None:
        self._session_id = session_id
        self._parity_share = parity
        self._parity: ParityMaker | None = None
        self._expected_bytes = expected_bytes
        if parity and expected_bytes >= _READ_BACK_BYTES:
            self._parity = ParityMaker(shape_while_writing(expected_bytes, parity), core())
        self.path = os.path.join(directory, durable.temporary_name("pack-"))
        self.fd = nofollow.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.frames: list[PackedFrame] = []
        self.size_bytes = 0
        self._chunks = 0
        self._helper = helper
        self._waiting_max = waiting_max
        self._waiting: deque[Future[None]] = deque()
        self._buffer = _buffers.take()
        self._filled = 0
        self._flushed_bytes = 0
        self.is_direct = _set_direct(self.fd, on=True)
        self._append(MAGIC)

    def add(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Append one frame; ``payload`` may change once this returns."""
        header = frame.encode_header()
        self._chunks += len(frame.chunks)
        self.frames.append(PackedFrame(self.size_bytes, frame, header))
        self._append(header)
        self._append(payload)

    def absorb(self, other: "PackFile") -> None:
        """Append all frames of another pack, and discard that pack.

        The other pack must not be longer than ``TOGETHER_BYTES``, so that it is in its buffer.
        """
        with memoryview(other._buffer) as view:
            for packed in other.frames:
                begin = packed.offset_bytes + packed.frame.header_bytes
                self.add(packed.frame, view[begin : begin + packed.frame.stored_bytes])
        other.discard()

    @property
    def is_full(self) -> bool:
        """No further frame should be added."""
        return self.size_bytes >= PACK_BYTES or self._chunks >= _PACK_CHUNKS

    def complete(self) -> PackId:
        """Append the footer; returns the pack's ID. Nothing is durable yet."""
        label = new_label(self._session_id)
        pack_id, end = encode_footer(self.frames, self.size_bytes, label)
        self._append(end)
        self._flush_tail()
        return pack_id

    def parity(self) -> ParityMaker | None:
        """Return the parity of the completed pack; None if it gets none.

        If the pack is much shorter than expected, or too long, it is read back to compute parity
        for its actual length.

        Raises:
            OSError: The pack cannot be read back.
        """
        if not self._parity_share:
            return None
        made = self._parity
        enough_bytes = min(PACK_BYTES, self._expected_bytes) * _SHORTER
        if made is not None and made.fits and self.size_bytes >= enough_bytes:
            return made
        # Some file systems support direct writes and no direct reads.
        self.is_direct = _set_direct(self.fd, on=False)
        made = make_parity(self.fd, self._parity_share)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return made

    def close(self) -> None:
        """Close the file and return its buffers; harmless twice."""
        if self.fd >= 0:
            for waiting in self._waiting:
                waiting.exception()  # an error no longer matters
            os.close(self.fd)
            self.fd = -1
            _buffers.give_back(self._buffer)

    def discard(self) -> None:
        """Remove the unfinished file."""
        self.close()
        durable.remove_file(self.path)

    def _append(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.size_bytes += len(view)
        while view:
            count = min(len(view), BUFFER_BYTES - self._filled)
            self._copy(view[:count])
            self._filled += count
            view = view[count:]
            if self._filled == BUFFER_BYTES:
                self._flush()

    def _copy(self, data: memoryview) -> None:
        """Copy bytes into the buffer, which has room for them."""
        compiled = core() if len(data) >= _UNLOCKED_BYTES else None
        if compiled is not None:
            compiled.functions.copy(self._buffer, self._filled, data)
        else:
            self._buffer[self._filled : self._filled + len(data)] = data

    def _flush_tail(self) -> None:
        """Write the rest, padded to whole blocks, and truncate the padding."""
        self._settle(0)
        if self._filled:
            self._write_out(self._buffer, self._filled)
            self._filled = 0
        os.ftruncate(self.fd, self.size_bytes)

    def _flush(self) -> None:
        """Write the buffer, now or soon, and go on with an empty one."""
        if self._helper is None:
            self._write_out(self._buffer, self._filled)
            self._filled = 0
        else:
            self._settle(self._waiting_max - 1)
            # First the new buffer: an interrupt between two lines may lose a buffer, and must not
            # leave one to two users.
            full, self._buffer = self._buffer, _buffers.take()
            length, self._filled = self._filled, 0
            self._waiting.append(self._helper.submit(self._write_and_give_back, full, length))

    def _settle(self, left: int) -> None:
        """Wait until at most ``left`` full buffers are not written yet.

        A write that failed stays at the front, so that this pack never becomes complete.
        """
        while len(self._waiting) > left:
            self._waiting[0].result()
            self._waiting.popleft()

    def _write_and_give_back(self, buffer: mmap.mmap, length: int) -> None:
        try:
            self._write_out(buffer, length)
        finally:
            _buffers.give_back(buffer)

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
            if error.errno != errno.EINVAL or not self.is_direct:
                raise
        # Some file systems accept the flag and refuse the write.
        self.is_direct = _set_direct(self.fd, on=False)
        return os.pwrite(self.fd, view, self._flushed_bytes)


def publish_pack(store_path: str, pack: PackFile, pack_id: PackId) -> None:
    """Give a completed pack, and its parity, their names.

    Both are durable after ``sync_packs``. The parity comes first: a writer that is killed between
    the two leaves parity that the next prune removes. In the other order it would leave a pack
    that the next snapshot uses and that no parity protects.

    Raises:
        StoreError: The pack or its parity cannot be written.
    """
    place = os.path.join(store_path, layout.PACKS)
    final = os.path.join(place, layout.pack_name(pack_id))
    with store_faults("write to", place):
        parity = pack.parity()
    if parity is not None:
        write_parity(store_path, pack_id, parity)
    with store_faults("write to", place):
        durable.publish(pack.fd, pack.path, final)


def _set_direct(fd: int, *, on: bool) -> bool:
    """Switch O_DIRECT; returns whether it is on now."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        return on
    return False

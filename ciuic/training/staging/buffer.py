"""Memory that the training program and the writer's process share; every save uses it again."""

import mmap
import os
from typing import Final

import numpy as np

from ciuic.errors import ResourceError, shortage
from ciuic.system.limits import memory_room_bytes

__all__ = ["StagingBuffer"]

_STEP_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 512
"""The unit of ``st_blocks``."""


class StagingBuffer:
    """Anonymous shared memory that grows; a second process opens it by its descriptor.

    Attributes:
        fd: Its descriptor.

    Raises:
        ResourceError: Too many files are open.
    """

    def __init__(self) -> None:
        try:
            self.fd = os.memfd_create("ciuic-state", os.MFD_CLOEXEC)
        except OSError as error:
            raise shortage(error) or error from error
        self._size_bytes = 0
        self._memory = np.empty(0, np.uint8)

    def reserve(self, size_bytes: int) -> np.ndarray:
        """Return the memory, with a length of at least ``size_bytes``.

        The other process must not be reading it. While the memory does not grow, this returns the
        same array.

        Raises:
            ResourceError: There is not enough memory, or a limit on files is reached.
        """
        if size_bytes > self._size_bytes:
            # In steps: a state that grows by a few bytes does not cost a new mapping each time.
            size_bytes = (size_bytes // _STEP_BYTES + 1) * _STEP_BYTES
            # Forget the old mapping first: after a failure, its length must not count.
            self._memory, self._size_bytes = np.empty(0, np.uint8), 0
            try:
                _refuse_beyond_room(size_bytes - os.fstat(self.fd).st_blocks * _BLOCK_BYTES)
                # Now, because a page that a limit refuses kills the process at its first write.
                os.posix_fallocate(self.fd, 0, size_bytes)
                # All pages at once: a fault for each would take longer than the copy itself.
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                mapped = mmap.mmap(self.fd, size_bytes, flags)
            except (OSError, MemoryError) as error:
                # The kernel counts shared memory as a file, and a mapping needs a descriptor.
                limit = shortage(error) if isinstance(error, OSError) else None
                if limit is not None:
                    raise ResourceError(
                        f"a state of {size_bytes:,} bytes cannot be copied: {limit.message}",
                        hint=limit.hint,
                    ) from error
                raise ResourceError(
                    f"there is not enough memory to copy a state of {size_bytes:,} bytes",
                    hint="Free memory, or raise the limit of the container or job: a save needs as"
                    " much as the state itself.",
                ) from error
            self._memory = np.frombuffer(mapped, np.uint8)
            self._size_bytes = size_bytes
        return self._memory

    def close(self) -> None:
        """Give the memory back; harmless twice."""
        self._memory = np.empty(0, np.uint8)
        self._size_bytes = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _refuse_beyond_room(new_bytes: int) -> None:
    """Refuse to take more memory than there is: the kernel would kill the training, or others.

    Raises:
        MemoryError: It is more.
    """
    room_bytes = memory_room_bytes()
    if room_bytes is not None and new_bytes > room_bytes:
        raise MemoryError(f"there is room for {room_bytes:,} bytes")

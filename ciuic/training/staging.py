"""Memory that the training program and the writer's process share, used again by every save."""

import mmap
import os

import numpy as np

from ciuic.errors import ResourceError

__all__ = ["StagingBuffer"]


class StagingBuffer:
    """Anonymous shared memory that grows; a second process opens it by its descriptor.

    Attributes:
        fd: Its descriptor.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("ciuic-state", os.MFD_CLOEXEC)
        self._size_bytes = 0
        self._memory = np.empty(0, np.uint8)

    def reserve(self, size_bytes: int) -> np.ndarray:
        """Return the first ``size_bytes`` of the memory.

        The other process must not be reading it.

        Raises:
            ResourceError: There is not enough memory.
        """
        if size_bytes > self._size_bytes:
            self._memory = np.empty(0, np.uint8)
            try:
                # Without this, a machine without memory would kill the process at the first write.
                os.posix_fallocate(self.fd, 0, size_bytes)
                mapped = mmap.mmap(self.fd, size_bytes)
            except (OSError, MemoryError) as error:
                raise ResourceError(
                    f"there is no memory to copy a state of {size_bytes:,} bytes",
                    hint="Free memory: a save needs as much as the state itself.",
                ) from error
            self._memory = np.frombuffer(mapped, np.uint8)
            self._size_bytes = size_bytes
        return self._memory[:size_bytes]

    def close(self) -> None:
        """Give the memory back; harmless twice."""
        self._memory = np.empty(0, np.uint8)
        self._size_bytes = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

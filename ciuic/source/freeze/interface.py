"""What others need to know of reflink copies, without the code that makes and opens them."""

from typing import Final, Protocol

from ciuic.model import Entry
from ciuic.source.directory import DirectoryHandle

__all__ = ["AREA_NAME", "IN_PLACE", "REFLINK_BYTES_MIN", "OpensCopies"]

AREA_NAME: Final = b".ciuic-frozen"
"""A directory of this name is never part of a snapshot."""
IN_PLACE: Final = "in place"
"""The capture of a root whose files were read directly: it has no reflink copies."""
REFLINK_BYTES_MIN: Final = 16 * 1024 + 1
"""Smaller files are written from the store: one write takes less time than finding a copy."""


class OpensCopies(Protocol):
    """The reflink copies of one snapshot, as ``ReflinkCopies`` in ``view/reflinks.py`` has them."""

    def open(self, path: bytes, entry: Entry) -> int | None:
        """Open a file's reflink copy for reading; None if there is none that can be trusted."""
        ...

    def shares_blocks(self, copy_fd: int, directory: DirectoryHandle) -> bool:
        """Return whether files in a directory can share the blocks of a copy."""
        ...

    def close(self) -> None:
        """Close all descriptors."""
        ...

"""Reads the list of frames of an open pack."""

import functools
import os
from collections.abc import Iterator

from ciuic.ids import PackId
from ciuic.store.directory.files import read_at
from ciuic.store.format import pack
from ciuic.store.format.pack import PackedFrame

__all__ = ["read_footer", "walk_frames"]


def read_footer(fd: int, pack_id: PackId, *, strict: bool = True) -> list[PackedFrame]:
    """Return the frames that the footer of a pack lists: see ``footer_frames``.

    Raises:
        UnknownFormatError: ``strict``, and it lists a frame that this version does not know.
        CorruptionError: The footer is missing, damaged, or that of another pack.
        OSError: The file cannot be read.
    """
    read = functools.partial(read_at, fd)
    return pack.footer_frames(read, os.fstat(fd).st_size, pack_id, strict=strict)


def walk_frames(fd: int) -> Iterator[PackedFrame]:
    """Iterate over the frames of a pack without a footer, up to the first damaged frame."""
    return pack.walk_frames(functools.partial(read_at, fd), os.fstat(fd).st_size)

"""Reads the list of frames of an open pack."""

import contextlib
import functools
import os
from collections.abc import Iterator

from ciuic.errors import StoreError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at
from ciuic.store.format import pack
from ciuic.store.format.pack import PackedFrame
from ciuic.store.records import layout

__all__ = ["listed_frames", "read_footer", "walk_frames"]


def read_footer(fd: int, pack_id: PackId, *, strict: bool = True) -> list[PackedFrame]:
    """Return the frames that the footer of a pack lists: see ``footer_frames``.

    Raises:
        UnknownFormatError: ``strict``, and it lists a frame that this version does not know.
        CorruptionError: The footer is missing, damaged, or that of another pack.
        OSError: The file can't be read.
    """
    read = functools.partial(read_at, fd)
    return pack.footer_frames(read, os.fstat(fd).st_size, pack_id, strict=strict)


def walk_frames(fd: int) -> Iterator[PackedFrame]:
    """Iterate over the frames of a pack without a footer, up to the first damaged frame."""
    return pack.walk_frames(functools.partial(read_at, fd), os.fstat(fd).st_size)


def listed_frames(store_path: str, pack_id: PackId) -> list[PackedFrame]:
    """Return the frames that the footer of a pack lists, without those of a later version.

    The list is empty if the pack is gone or its footer is damaged.
    """
    path = os.path.join(store_path, layout.PACKS, layout.pack_name(pack_id))
    with contextlib.suppress(StoreError, FileNotFoundError), store_faults("read", path):
        fd = open_regular(path)
        try:
            return read_footer(fd, pack_id, strict=False)
        finally:
            os.close(fd)
    return []

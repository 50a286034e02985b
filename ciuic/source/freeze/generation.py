"""Prove that a root has not changed since a snapshot, by the generation of its btrfs subvolume.

btrfs gives every transaction a number, and a subvolume has the number of the last one that changed
it: by a write of data (also in place, direct, or through a memory map), by one of metadata, or by
an extended attribute. Freezing a subvolume changes it too, as the last step of a transaction. So if
its number is still the one of the frozen subvolume, nothing has changed since.

The number moves when a transaction is committed. So the caller syncs the file system first: that
writes the dirty pages and commits. The proof is about the moment of that sync, and a change during
or after the look belongs to the next snapshot.

The number of a subvolume says nothing about another subvolume or a file system that is mounted in
it. A new subvolume in it changes it. A snapshot that met an older one has a warning, and its
followers scan; mounts are looked up here.
"""

import os
from typing import Final

from ciuic.source.freeze.interface import AREA_NAME
from ciuic.source.freeze.methods import subvolume_top
from ciuic.source.freeze.trust import FrozenRoot
from ciuic.source.mounts import mounts
from ciuic.system import kernel

__all__ = ["is_unchanged_since"]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_unchanged_since(frozen: FrozenRoot, root: bytes, store_path: bytes) -> bool:
    """Return whether a root is proven to be as it was frozen; call it right after a sync.

    Args:
        frozen: The root as an earlier snapshot froze it.
        root: Its path.
        store_path: The store, which is in no snapshot.

    Returns:
        False if it has changed or nothing is proven.
    """
    real = os.path.realpath(root)
    try:
        then, top = frozen.subvolume(), subvolume_top(real)
        if then is None or top is None or real[len(top) :].strip(b"/") != frozen.record.inside:
            return False
        fd = os.open(top, _OPEN_DIRECTORY)
        try:
            now = kernel.subvolume_info(fd)
        finally:
            os.close(fd)
    except OSError:
        return False
    # A subvolume that was put in the place of the frozen one has a UUID of its own.
    is_same = (now.uuid, now.generation) == (then.parent_uuid, then.generation)
    return is_same and not _has_mounts(real, os.path.realpath(store_path))


def _has_mounts(real: bytes, store_path: bytes) -> bool:
    """Return whether a file system is mounted where a walk would meet it.

    The sandbox of the daemon mounts the store and the reflink copies once more at their places.
    """
    below = real.rstrip(b"/") + b"/"
    points = [mount.point for mount in mounts() if mount.point.startswith(below)]
    return any(
        AREA_NAME not in point.split(b"/") and not (point + b"/").startswith(store_path + b"/")
        for point in points
    )

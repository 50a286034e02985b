"""Compares a restored file with the snapshot, from the disk and not from the page cache."""

import os
import stat
from typing import Final

from ciuic.model import Entry
from ciuic.store.store import Store
from ciuic.system import nofollow
from ciuic.view.content import read_file

__all__ = ["difference"]

_PERMISSIONS: Final = 0o7777


def difference(store: Store, entry: Entry, place: bytes) -> str:
    """Say how a restored file differs from the snapshot; empty if it does not.

    The content is read from the disk again. The restore has synced it, so the kernel can drop its
    pages first; a disk that returns other bytes than it was given is noticed.

    Raises:
        OSError: The restored file cannot be read.
        CorruptionError: The store can no longer return the content.
    """
    fd = nofollow.open_file(os.fsdecode(place), os.O_RDONLY)
    with open(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "it is no longer a regular file"
        if status.st_size != entry.size_bytes:
            return f"it has {status.st_size:,} bytes instead of {entry.size_bytes:,}"
        if status.st_mtime_ns != entry.mtime_ns:
            return "its time of modification differs"
        # Only root may keep the set-user-ID bit of another user's file.
        if os.geteuid() == 0 and (status.st_mode ^ entry.mode) & _PERMISSIONS:
            return "its permissions differ"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        at = 0
        for part in read_file(store, entry):
            if file.read(len(part)) != part:
                return f"its bytes differ after byte {at:,}"
            at += len(part)
    return ""

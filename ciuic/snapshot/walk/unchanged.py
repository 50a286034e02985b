"""Decide which files are unchanged since the parent snapshot, and so need not be read."""

import os

from ciuic.model import CONSISTENT, Entry
from ciuic.source.stability import is_settled

__all__ = ["has_same_inode", "is_unchanged"]


def is_unchanged(old: Entry, status: os.stat_result, old_taken_ns: int) -> bool:
    """Return whether a file is unchanged since the parent snapshot.

    Args:
        old: The parent's entry at the same path.
        status: The file's status now.
        old_taken_ns: When the parent snapshot began.
    """
    return (
        old.ctime_ns == status.st_ctime_ns
        and old.mtime_ns == status.st_mtime_ns
        and old.size_bytes == status.st_size
        and old.ino == status.st_ino
        and old.mode == status.st_mode
        and old.state == CONSISTENT
        and not (old.size_bytes and not old.content)  # damaged
        and is_settled(old.mtime_ns, old.ctime_ns, old_taken_ns)
    )


def has_same_inode(old: Entry, status: os.stat_result) -> bool:
    """Return whether the inode, with its extended attributes, is unchanged since the parent."""
    return old.ino == status.st_ino and old.ctime_ns == status.st_ctime_ns

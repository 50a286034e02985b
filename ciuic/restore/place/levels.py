"""Places in the target, and the directories on the way down."""

import os
import stat
from typing import NamedTuple

from ciuic.model import Entry
from ciuic.restore.selection import Verdict
from ciuic.source.directory import DirectoryHandle
from ciuic.view.tree_walk import Cursor

__all__ = ["Level", "Place", "is_directory", "status_of"]


class Place(NamedTuple):
    """The place of one entry in the target.

    Attributes:
        directory: The open directory; None in a dry run if it does not exist.
        name: Name in that directory.
        path: Path of the entry in the snapshot, for messages.
        may_exist: The name may exist. False: a listing did not have it, so it is not looked up.
        is_made: This restore has just created it: no metadata was there before.
        is_kept: A directory does not replace what has the name.
    """

    directory: DirectoryHandle | None
    name: bytes
    path: bytes
    may_exist: bool
    is_made: bool = False
    is_kept: bool = False

    def where(self) -> bytes:
        """Return the path in the target; in a dry run without a directory, that in the snapshot."""
        return self.path if self.directory is None else self.directory.join(self.name)

    def status(self) -> os.stat_result | None:
        """Return the status of what has the name now; None if the name is free."""
        return status_of(self.directory, self.name) if self.may_exist else None


class Level:
    """A directory of the target whose content is being placed.

    Attributes:
        handle: The open directory; None in a dry run if it does not exist, and for a passage until
            a path below it is placed.
        verdict: A passage is not restored itself.
        present: Names in the target that the walk has not met yet.
        is_found: A passage that existed before: it keeps its own metadata.
        is_awaited: A passage that is created when the first path below it is placed.
        is_corrected: The directory existed before, with other metadata than in the snapshot.
        is_cut: Not all of its names can be read from the store, so nothing may be deleted.
        extra: Names that the snapshot does not have; filled if ``delete`` was asked for.
    """

    def __init__(
        self,
        handle: DirectoryHandle | None,
        place: Place,
        entry: Entry,
        entries: Cursor | None,
        verdict: Verdict,
    ) -> None:
        self.handle = handle
        self.place = place
        self.entry = entry
        self.path = place.path
        self.entries = entries
        self.present = set() if handle is None else set(handle.names())
        self.verdict = verdict
        self.is_found = verdict is Verdict.PASSAGE and handle is not None
        self.is_awaited = verdict is Verdict.PASSAGE and handle is None
        self.is_corrected = False
        self.is_cut = False
        self.extra: list[bytes] = []


def status_of(directory: DirectoryHandle | None, name: bytes) -> os.stat_result | None:
    """Return the status of a name, not following a symlink; None if it does not exist."""
    if directory is None:
        return None
    try:
        return directory.status(name)
    except FileNotFoundError:
        return None


def is_directory(status: os.stat_result | None) -> bool:
    """Return whether the name exists and is a directory."""
    return status is not None and stat.S_ISDIR(status.st_mode)

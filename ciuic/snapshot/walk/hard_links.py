"""Find the names of hard-linked files in bounded memory, so that each content is stored once."""

import os
from typing import Final, NamedTuple

from ciuic.model import Entry
from ciuic.snapshot.walk.pending import PendingEntry
from ciuic.snapshot.walk.walked_directory import FoundEntry
from ciuic.source.directory import storable_ns
from ciuic.store.records.layout import TEMPORARY
from ciuic.system.link_table import LinkTable

__all__ = ["HardLinks"]

_LINKS_MAX: Final = 20_000
"""Number of files that wait in memory for their other names; the rest wait in a file."""


class _First(NamedTuple):
    """The entry of the first name of a file, and the number of its names still to come."""

    found: FoundEntry
    names_left: int


class HardLinks:
    """The files of this run that have more than one name.

    Args:
        store_path: The store; records beyond a limit go to a temporary file there.
    """

    def __init__(self, store_path: str) -> None:
        self._waiting: dict[tuple[int, int], _First] = {}
        self._waiting_max = _LINKS_MAX
        self._aside: LinkTable[Entry] = LinkTable(Entry, (os.path.join(store_path, TEMPORARY),))

    def close(self) -> None:
        """Remove the temporary file."""
        self._aside.close()

    def add(self, status: os.stat_result, found: FoundEntry) -> None:
        """Remember the first name of a file that has several."""
        self._waiting[status.st_dev, status.st_ino] = _First(found, status.st_nlink - 1)
        if len(self._waiting) > self._waiting_max:
            self._set_aside()

    def first(self, status: os.stat_result) -> FoundEntry | None:
        """Return the entry of the first name of this file; None if this is the first name."""
        key = (status.st_dev, status.st_ino)
        known = self._waiting.get(key)
        if known is None:
            return self._first_aside(key, status)
        if known.names_left <= 1:
            del self._waiting[key]
        else:
            self._waiting[key] = known._replace(names_left=known.names_left - 1)
        return known.found

    def _set_aside(self) -> None:
        """Move files whose content is stored to the temporary file."""
        stored = {}
        for key, (found, _) in self._waiting.items():
            if not isinstance(found, PendingEntry):
                stored[key] = found
            elif found.ready(wait=False) and found.entry is not None:
                stored[key] = found.entry
        if self._aside.put(stored):
            for key in stored:
                del self._waiting[key]
        # The number of files that must wait is bounded elsewhere; searching all of them again for
        # every new file would take long.
        self._waiting_max = max(_LINKS_MAX, 2 * len(self._waiting))

    def _first_aside(self, key: tuple[int, int], status: os.stat_result) -> Entry | None:
        entry = self._aside.get(key)
        # Records are never removed, and the inode number may belong to another file by now.
        is_same = entry is not None and entry.ctime_ns == storable_ns(status.st_ctime_ns)
        return entry if is_same else None

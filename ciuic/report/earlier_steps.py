"""Finds the file to compare a new checkpoint with: that of an earlier step, in the same place."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.spans import MAGIC_BYTES, is_recognized
from ciuic.model import SKIPPED, UNREADABLE, Entry
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.diff import Change
from ciuic.view.file import StoredFile
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry

__all__ = ["EarlierSteps", "has_content"]

_ADDED_MAX: Final = 10_000
"""The number of new files for which an earlier step is searched."""
_NUMBER: Final = re.compile(rb"[0-9]+")


class EarlierSteps:
    """Finds the counterpart of a new file: its path differs in one number, the step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self._alike: set[bytes] = set()
        # Keyed by the next wanted step: between two wanted steps, only the last one counts.
        self._nearest: dict[bytes, dict[int, tuple[int, Located]]] = defaultdict(dict)
        self._places: dict[bytes, list[int]] = {}
        self._first: dict[bytes, tuple[int, Located]] = {}
        self._count = 0

    def add(self, change: Change) -> None:
        """Look for the counterpart of a new file, if it holds tensors."""
        entry = change.after
        if entry is None or self._count >= _ADDED_MAX or not _NUMBER.search(change.path):
            return
        if has_content(entry) and _is_recognized(StoredFile(self._store, entry)):
            self._count += 1
            self._alike.add(_NUMBER.sub(b"0", change.path))
            for key, number in _masked(change.path):
                self._wanted[key].append((number, change.path))

    def search(self, manifest: Manifest) -> None:
        """Search a whole snapshot for counterparts, if any are wanted."""
        if not self._wanted:
            return
        for wanted in self._wanted.values():
            wanted.sort()
        for root in manifest.roots:
            if root.tree:
                for file in walk(self._store, Located(root.path, root_entry(self._store, root))):
                    if has_content(file.entry):
                        self._offer(file)
        self._places = {key: sorted(nearest) for key, nearest in self._nearest.items()}

    def before(self, path: bytes) -> Located | None:
        """Return the nearest earlier step of a file; if there is none, the first later step."""
        for key, number in _masked(path):
            place = bisect_right(self._wanted.get(key, []), (number, path)) - 1
            places = self._places.get(key, [])
            at = bisect_right(places, place)
            if at:
                return self._nearest[key][places[at - 1]][1]
            if key in self._first:
                return self._first[key][1]
        return None

    def _offer(self, found: Located) -> None:
        if _NUMBER.sub(b"0", found.path) not in self._alike:
            return
        for key, number in _masked(found.path):
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            at = bisect_right(wanted, (number, b"\xff"))
            last = self._nearest[key].get(at)
            if at < len(wanted) and (last is None or last[0] < number):
                self._nearest[key][at] = (number, found)
            if key not in self._first or number < self._first[key][0]:
                self._first[key] = (number, found)


def _masked(path: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield a path without one of its numbers, and that number; the largest number first.

    A number may occur in several places: in ``/data6/step6/r6.pt``, the first 6 is not a step.
    """
    runs = [(match.start(), match.end(), int(match[0])) for match in _NUMBER.finditer(path)]
    for number in sorted({value for _, _, value in runs}, reverse=True):
        places = [(start, end) for start, end, value in runs if value == number]
        chosen = [places[first:] for first in range(len(places))]
        for masked in [*chosen, *[[place] for place in places[:-1]]]:
            yield _without(path, masked), number


def _without(path: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    for start, end in reversed(places):
        path = path[:start] + b"\0" + path[end:]
    return path


def has_content(entry: Entry) -> bool:
    """Return whether an entry is a regular file whose content the snapshot has."""
    return entry.is_file and entry.size_bytes > 0 and entry.state not in {UNREADABLE, SKIPPED}


def _is_recognized(file: StoredFile) -> bool:
    try:
        return is_recognized(file.read(0, MAGIC_BYTES))
    except (CorruptionError, UnknownFormatError):
        return False

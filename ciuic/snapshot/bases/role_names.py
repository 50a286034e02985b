"""Match file names that differ only in numbers, such as ``step_500`` and ``step_600``."""

import re
from collections.abc import Iterator
from typing import Final

from ciuic.model import Entry

__all__ = ["RoleNames"]

_DIGITS: Final = re.compile(rb"\d+")
_NEAR_SHARE: Final = 64
"""The length of a renamed file differs by at most one part in this many."""
_NUMBERS_MAX: Final = 8
_RENAMED_MAX: Final = 32
_OTHERS_MAX: Final = 8
"""Number of files whose headers are read to find tensors of the same names."""


class RoleNames:
    """Entries by role, the part of a name that is not a number; the newest entry of each role.

    Attributes:
        count: Number of entries that were added.
        metadata: The file that lists the content of the files of a distributed checkpoint.
    """

    def __init__(self) -> None:
        self.count = 0
        self.metadata: Entry | None = None
        self._newest: dict[tuple[object, ...], Entry] = {}
        self._by_suffix: dict[bytes, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self.count += 1
        for key in _keys(entry.name, is_directory=entry.is_directory):
            known = self._newest.get(key)
            if known is None or known.mtime_ns <= entry.mtime_ns:
                self._newest[key] = entry
        if entry.is_file:
            found = self._by_suffix.setdefault(_suffix(entry.name), [])
            found.append(entry)
            if len(found) > 2 * _RENAMED_MAX:
                found.sort(key=lambda entry: entry.mtime_ns)
                del found[:_RENAMED_MAX]

    def of_role(self, name: bytes, *, is_directory: bool) -> Entry | None:
        """Return the entry whose name matches best: the same, or with one or more other numbers."""
        keys = _keys(name, is_directory=is_directory)
        return next((self._newest[key] for key in keys if key in self._newest), None)

    def renamed(self, name: bytes, size_bytes: int) -> Entry | None:
        """Return the newest file with the same suffix and about the same length."""
        near = [
            entry
            for entry in self._by_suffix.get(_suffix(name), ())
            if abs(entry.size_bytes - size_bytes) <= size_bytes // _NEAR_SHARE
        ]
        return max(near, key=lambda entry: entry.mtime_ns, default=None)

    def others(self, name: bytes) -> list[Entry]:
        """Return the newest files, same suffix first, to search for tensors of the same names."""
        suffix = _suffix(name)
        found = [
            (ending == suffix, entry.mtime_ns, entry.name, entry)
            for ending, entries in self._by_suffix.items()
            for entry in entries
        ]
        return [entry for *_, entry in sorted(found, reverse=True)[:_OTHERS_MAX]]


def _keys(name: bytes, *, is_directory: bool) -> Iterator[tuple[object, ...]]:
    """Yield the keys that a name shares with other names of its role, the closest match first."""
    yield is_directory, name
    role = _DIGITS.sub(b"0", name)
    numbers = _DIGITS.findall(name)
    if 1 < len(numbers) <= _NUMBERS_MAX:
        for at in range(len(numbers)):
            yield is_directory, role, at, *numbers[:at], *numbers[at + 1 :]
    if numbers:
        yield is_directory, role, b""


def _suffix(name: bytes) -> bytes:
    return name[name.rfind(b".") :] if b"." in name else b""

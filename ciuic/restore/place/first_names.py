"""A record for each file with several names, in bounded memory.

Other names of a file may be outside the restored paths and never come. So records beyond a limit
are moved to an anonymous file.
"""

import threading
from typing import Any, Final, Generic, TypeVar

from ciuic.system.link_table import LinkTable

__all__ = ["FirstNames"]

Record = TypeVar("Record")

_RECORDS_MAX: Final = 20_000
"""Records that are kept in memory."""
_DIRECTORIES: Final = ("/var/tmp", "/tmp")  # noqa: S108 - the file has no name


class FirstNames(Generic[Record]):
    """Records by device and inode. Several threads may use it.

    Args:
        kind: Type of the records, for msgspec.
    """

    def __init__(self, kind: Any) -> None:  # Any: a type for msgspec, such as tuple[int, bytes]
        self._lock = threading.Lock()
        self._records: dict[tuple[int, int], Record] = {}
        self._records_max = _RECORDS_MAX
        self._table: LinkTable[Record] = LinkTable(kind, _DIRECTORIES)

    def get(self, key: tuple[int, int]) -> Record | None:
        """Return the record of an inode; None if there is none."""
        with self._lock:
            found = self._records.get(key)
            return self._table.get(key) if found is None else found

    def put(self, key: tuple[int, int], record: Record) -> None:
        """Add the record of an inode, or replace it."""
        with self._lock:
            self._records[key] = record
            if len(self._records) <= self._records_max:
                return
            if self._table.put(self._records):
                self._records = {}
            else:
                self._records_max *= 2  # no free space for the file: keep the records in memory

    def close(self) -> None:
        """Drop all records, and close the file."""
        with self._lock:
            self._records = {}
            self._table.close()

"""The IDs of snapshots that are gone for good: no new snapshot gets one of them.

    retired/<session>-<number>.json   some IDs

Each record is written once. Of two processes that ask for one name, the second takes the next
number. When there are many records, a writer creates one with all their IDs, and then removes them:
no ID is missing in between.
"""

import contextlib
import re
from collections.abc import Collection
from typing import Final

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError, UnreachableError
from ciuic.ids import SessionId, SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.reserve import with_reserve
from ciuic.store.place.packs import Bucket, RecordFolder
from ciuic.store.records import layout
from ciuic.store.records.retired import RETIRED_BYTES_MAX, decode_retired, encode_retired

__all__ = ["Retired"]

_RECORDS_MAX: Final = 32
_TRIES: Final = 100
_QUOTED_ID: Final = '"(cs-[0-9a-f]{6,64})"'


class Retired:
    """The records of one store.

    Args:
        store_path: The store's directory, or the cache directory of a store in a bucket.
        session_id: The session of the process that opened the store.
        bucket: Has the records; None: the directory has them.
    """

    def __init__(
        self, store_path: str, session_id: SessionId, bucket: Bucket | None = None
    ) -> None:
        self._store_path = store_path
        self._session_id = session_id
        self._folder: RecordFolder = (
            Folder(store_path, layout.RETIRED) if bucket is None else bucket.records(layout.RETIRED)
        )
        # A record never changes, so this machine keeps copies of those in a bucket.
        self._copies = None if bucket is None else Folder(store_path, layout.RETIRED)

    def ids(self) -> frozenset[SnapshotId]:
        """Return the IDs in all records that can be read.

        No snapshot may fail because of records that only keep a random number of 64 bits from being
        drawn again.
        """
        with contextlib.suppress(StoreError):
            return frozenset().union(*self._read(strict=False).values())
        return frozenset()

    def check(self) -> frozenset[SnapshotId]:
        """Check every record; returns their IDs.

        Raises:
            CorruptionError: A record is damaged.
            UnknownFormatError: A later version wrote a record.
            StoreError: A record cannot be read.
        """
        return frozenset[SnapshotId]().union(*self._read(strict=True).values())

    def damage(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the damaged records and those of a later version, each with what is wrong."""
        damaged: dict[str, str] = {}
        unread: dict[str, str] = {}
        for name in sorted(self._names()):
            try:
                self._record(name, is_fresh=True)
            except CorruptionError as error:
                damaged[name] = error.message
            except UnknownFormatError as error:
                unread[name] = error.message
        return damaged, unread

    def add(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Durably retire IDs.

        Raises:
            CorruptionError: A record is damaged; what it says about these IDs is not known.
            UnknownFormatError: A later version wrote a record.
            StoreError: They are not retired.
        """
        found = self._read(strict=True)
        known = frozenset[SnapshotId]().union(*found.values())
        if known.issuperset(snapshot_ids):
            return
        is_merged = len(found) >= _RECORDS_MAX
        ids = known.union(snapshot_ids) if is_merged else set(snapshot_ids) - known
        data = encode_retired(ids)
        with_reserve(self._store_path, lambda: self._create(data))
        if is_merged:
            # An error does no harm: the new record has all their IDs.
            with contextlib.suppress(StoreError):
                self._folder.remove_durably(found)

    def renew(self, name: str, there: Collection[SnapshotId]) -> None:
        """Create a record with the IDs that can still be read in a damaged one.

        An ID that is no longer retired would make a snapshot seem lost.

        Args:
            name: The damaged record.
            there: Snapshots that have a manifest: none of them is gone, whatever the record says.

        Raises:
            StoreError: The new record cannot be written.
        """
        try:
            text = self._folder.read(name, RETIRED_BYTES_MAX).decode("ascii", "replace")
        except StoreError:
            return
        ids = set(map(SnapshotId, re.findall(_QUOTED_ID, text))) - set(there) - self.ids()
        if ids:
            data = encode_retired(ids)
            with_reserve(self._store_path, lambda: self._create(data))

    def _create(self, data: bytes) -> None:
        self._folder.make()
        number = 1
        while not self._folder.create(layout.retired_name(self._session_id, number), data):
            number += 1

    def _names(self) -> set[str]:
        return self._folder.names(layout.parse_retired_name)

    def _read(self, *, strict: bool) -> dict[str, frozenset[SnapshotId]]:
        """Read all records; if one is gone, another process has merged it, so list them again."""
        for _ in range(_TRIES):
            with contextlib.suppress(_MergedError):
                return self._read_once(strict=strict)
        raise StoreError(
            f"the records in {self._folder.path} change all the time",
            hint="Find out which process changes them.",
        )

    def _read_once(self, *, strict: bool) -> dict[str, frozenset[SnapshotId]]:
        found = {}
        names = self._names()
        for name in sorted(names):
            try:
                found[name] = self._record(name)
            except (CorruptionError, UnknownFormatError):
                if strict:
                    raise
        if self._copies is not None:
            with contextlib.suppress(StoreError):
                self._copies.remove_all(self._copies.names(layout.parse_retired_name) - names)
        return found

    def _record(self, name: str, *, is_fresh: bool = False) -> frozenset[SnapshotId]:
        """Read a record; ``is_fresh`` reads it in the bucket, even if there is a copy here."""
        copies = self._copies
        if copies is not None and not is_fresh and copies.has(name):
            with contextlib.suppress(StoreError):
                return decode_retired(copies.read(name, RETIRED_BYTES_MAX))
        try:
            data = self._folder.read(name, RETIRED_BYTES_MAX)
            ids = decode_retired(data)
        except CorruptionError as error:
            message = f"{self._folder.path_of(name)}: {error.message}"
            if isinstance(error, UnreachableError):
                raise UnreachableError(message) from error
            raise CorruptionError(
                message,
                hint="'ciuic repair --apply' sets it aside; ciuic then goes on without it.",
            ) from error
        except UnknownFormatError:
            raise
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _MergedError from error
            raise
        if copies is not None:
            with contextlib.suppress(StoreError):  # the next run reads it again
                copies.make_and_replace(name, data)
        return ids


class _MergedError(Exception):
    """A record that was listed is gone."""

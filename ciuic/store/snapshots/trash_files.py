"""Forgotten snapshots that can still be brought back, and IDs that are never used again.

    trash/<id>.json   the exact content of a manifest, and when the snapshot was forgotten
    retired.json      the IDs of snapshots that are deleted for good

Order of durable writes, so that a snapshot is listed or in the trash at every moment
(docs/format.md, "Trash"):

    forget       write all files in the trash;  then remove the manifests
    bring back   write the manifest;  then remove the file in the trash
    expire       retire the ID;  then remove the file in the trash

After a crash in between, a snapshot may be in both places. Then it is listed, and the file in the
trash does not count. No file is renamed, so an object store could hold all of them.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import CorruptionError, StoreError, UnreachableError
from ciuic.ids import SnapshotId
from ciuic.store.directory.folder import Folder
from ciuic.store.records import layout
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX, Manifest, decode_manifest
from ciuic.store.records.sealed import seal, unseal_version
from ciuic.system.clock import rfc3339

__all__ = ["Forgotten", "TrashFiles", "decode_forgotten", "decode_retired"]

FORMAT: Final = 1
_ENTRY_BYTES_MAX: Final = 3 * MANIFEST_BYTES_MAX
"""In a JSON string, each quote and line end of the manifest has a backslash."""
_RETIRED_BYTES_MAX: Final = 64 * 1024 * 1024
_TIME_NS_MAX: Final = 1 << 63


class Forgotten(NamedTuple):
    """A snapshot in the trash.

    Attributes:
        id: The snapshot.
        forgotten_ns: When it was forgotten.
        manifest: Its manifest.
        data: The content of the manifest's file.
    """

    id: SnapshotId
    forgotten_ns: int
    manifest: Manifest
    data: bytes


class _Entry(msgspec.Struct):
    """A file in the trash."""

    format: int
    id: str
    forgotten: str
    forgotten_ns: int
    manifest: str
    checksum: str = ""


class _Retired(msgspec.Struct):
    """The list of retired IDs."""

    format: int
    ids: list[str]
    checksum: str = ""


class TrashFiles:
    """The files of one store's trash. The caller of a change holds the write lock."""

    def __init__(self, store_path: str) -> None:
        self._folder = Folder(store_path, layout.TRASH)
        self._store = Folder(store_path)

    def ids(self) -> list[SnapshotId]:
        """Return the snapshots in the trash, from file names alone."""
        return sorted(self._folder.names(layout.parse_manifest_name))

    def read(self, snapshot_id: SnapshotId, copy: bytes | None) -> Forgotten:
        """Read a snapshot in the trash.

        Args:
            snapshot_id: The snapshot.
            copy: A copy of its manifest, used if the file in the trash is damaged. The time of
                forgetting is then the mtime of the damaged file.

        Raises:
            UnreachableError: The status of the file can't be read.
            CorruptionError: The file is damaged, and there is no copy.
            UnknownFormatError: A later version wrote it.
        """
        name = layout.manifest_name(snapshot_id)
        forgotten_ns = self._folder.mtime_ns(name)
        try:
            return decode_forgotten(self._folder.read(name, _ENTRY_BYTES_MAX), snapshot_id)
        except CorruptionError as error:
            if copy is not None:
                manifest = decode_manifest(copy, snapshot_id)
                return Forgotten(snapshot_id, forgotten_ns, manifest, copy)
            message = f"{snapshot_id} in the trash: {error.message}"
            if isinstance(error, UnreachableError):
                raise UnreachableError(message) from error
            raise CorruptionError(
                message, hint="'ciuic repair --apply' sets aside what can't be repaired."
            ) from error

    def put(self, files: Mapping[SnapshotId, bytes], now_ns: int) -> None:
        """Durably write manifests to the trash.

        Args:
            files: The content of each snapshot's manifest.
            now_ns: The time of forgetting.

        Raises:
            StoreError: They can't be written. A file that was written does not count while its
                snapshot is listed.
        """
        now_ns = max(0, now_ns)  # readers refuse a time before 1970
        self._folder.put_all(
            (
                layout.manifest_name(snapshot_id),
                seal(_Entry(FORMAT, snapshot_id, rfc3339(now_ns), now_ns, data.decode())),
            )
            for snapshot_id, data in files.items()
        )

    def remove(self, snapshot_ids: Iterable[SnapshotId]) -> None:
        """Durably remove snapshots from the trash; missing ones are skipped."""
        self._folder.remove_durably(map(layout.manifest_name, snapshot_ids))

    def retired(self) -> frozenset[SnapshotId]:
        """Return the IDs that no new snapshot may get; none if the list is damaged.

        No snapshot may fail because of a list that only keeps a random number of 64 bits from being
        drawn again.
        """
        with contextlib.suppress(StoreError):
            return self._read_retired()
        return frozenset()

    def check_retired(self) -> None:
        """Check the list of retired IDs, if it exists.

        Raises:
            CorruptionError: The list is damaged.
            UnknownFormatError: A later version wrote it.
            StoreError: It can't be read.
        """
        self._read_retired()

    def retire(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Durably add IDs to the list of retired IDs.

        Raises:
            CorruptionError: The list is damaged; it is not overwritten.
            UnknownFormatError: A later version wrote it.
            StoreError: It can't be read or written.
        """
        known = self._read_retired()
        if not known.issuperset(snapshot_ids):
            retired = _Retired(FORMAT, sorted(known.union(snapshot_ids)))
            self._store.replace(layout.RETIRED, seal(retired))

    def _read_retired(self) -> frozenset[SnapshotId]:
        if not self._store.has(layout.RETIRED):
            return frozenset()
        try:
            return decode_retired(self._store.read(layout.RETIRED, _RETIRED_BYTES_MAX))
        except CorruptionError as error:
            raise CorruptionError(
                f"{self._store.path_of(layout.RETIRED)}: {error.message}",
                hint="'ciuic repair --apply' sets it aside; ciuic then starts a new list.",
            ) from error


def decode_forgotten(data: bytes, snapshot_id: SnapshotId) -> Forgotten:
    """Check and decode the file of ``snapshot_id`` in the trash.

    Raises:
        CorruptionError: The file is damaged, or that of another snapshot.
        UnknownFormatError: A later version wrote it.
    """
    entry = unseal_version(data, _Entry, FORMAT, f"{snapshot_id} in the trash")
    if entry.id != snapshot_id:
        raise CorruptionError(f"it says that it is {entry.id!r}")
    if not 0 <= entry.forgotten_ns < _TIME_NS_MAX:
        raise CorruptionError("the time at which it was forgotten is out of range")
    try:
        inner = entry.manifest.encode()
    except UnicodeEncodeError as error:
        raise CorruptionError("its manifest is not text") from error
    return Forgotten(snapshot_id, entry.forgotten_ns, decode_manifest(inner, snapshot_id), inner)


def decode_retired(data: bytes) -> frozenset[SnapshotId]:
    """Decode the list of retired IDs.

    Raises:
        CorruptionError: The list is damaged.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Retired, FORMAT, "the list of retired IDs")
    if not all(layout.is_snapshot_id(text) for text in record.ids):
        raise CorruptionError("the list of retired IDs has an entry that is not a snapshot ID")
    return frozenset(map(SnapshotId, record.ids))

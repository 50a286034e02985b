"""Forgotten snapshots that can still be brought back, and IDs that are never used again.

    trash/<id>.json   a manifest's file word for word, and when it was forgotten
    retired.json      the IDs of snapshots that are gone for good

Order of durable writes, so that a snapshot is listed or in the trash at every moment, and never
in neither (docs/format.md, "Trash"):

    forget       the trash has all of them, durably;  then their manifests go
    bring back   its manifest is there, durably;  then the trash lets go
    expire       its ID is retired, durably;  then the trash lets go

A crash in between leaves it in both: then it is listed, and the trash does not count. Nothing is
renamed, so that an object store could hold all of it.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from ciuic import durable
from ciuic.clock import rfc3339
from ciuic.errors import CorruptionError, StoreError, UnreachableError
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import read_regular, status_of
from ciuic.store.manifest import MANIFEST_BYTES_MAX, Manifest, decode_manifest
from ciuic.store.sealed import seal, unseal_version

__all__ = ["Forgotten", "Trash", "decode_forgotten", "decode_retired"]

FORMAT: Final = 1
_ENTRY_BYTES_MAX: Final = 3 * MANIFEST_BYTES_MAX
"""A manifest inside of a JSON string has a backslash before each quote and line's end."""
_RETIRED_BYTES_MAX: Final = 64 * 1024 * 1024
_TIME_NS_MAX: Final = 1 << 63
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class Forgotten(NamedTuple):
    """A snapshot in the trash.

    Attributes:
        id: The snapshot's.
        forgotten_ns: When it was forgotten.
        manifest: What it is.
        data: The manifest's file.
    """

    id: str
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


class Trash:
    """The trash of one store, whose write lock is held by whoever changes it."""

    def __init__(self, store_path: str) -> None:
        self._path = os.path.join(store_path, layout.TRASH)
        self._retired_path = os.path.join(store_path, layout.RETIRED)
        self._temporary = os.path.join(store_path, layout.TEMPORARY)

    def ids(self) -> list[str]:
        """What lies in it, by name alone."""
        if not os.path.isdir(self._path):
            return []
        with store_faults("list", self._path):
            names = [layout.parse_manifest_name(name) for name in os.listdir(self._path)]
        return sorted([name for name in names if name is not None])

    def read(self, snapshot_id: str, copy: bytes | None) -> Forgotten:
        """One snapshot of it.

        Args:
            snapshot_id: Which.
            copy: A copy of its manifest's file, for the case that the trash's is damaged. Then
                what the file system says of the damaged file tells when it was forgotten.

        Raises:
            UnreachableError: The file system can't even tell when it was written.
            CorruptionError: Its file is damaged.
            UnknownFormatError: A later version wrote it.
        """
        path = self._entry_path(snapshot_id)
        with store_faults("read", path):
            forgotten_ns = status_of(path).st_mtime_ns
        try:
            with store_faults("read", path):
                data = read_regular(path, _ENTRY_BYTES_MAX)
            return decode_forgotten(data, snapshot_id)
        except CorruptionError as error:
            if copy is not None:
                manifest = decode_manifest(copy, snapshot_id)
                return Forgotten(snapshot_id, forgotten_ns, manifest, copy)
            message = f"{snapshot_id} in the trash: {error.message}"
            if isinstance(error, UnreachableError):
                raise UnreachableError(message) from error
            raise CorruptionError(
                message, hint="'ciuic repair --apply' sets aside what can't be mended."
            ) from error

    def put(self, files: Mapping[str, bytes], now_ns: int) -> None:
        """Durably take in manifests' files, by their snapshots' IDs; that they are has been seen.

        Raises:
            StoreError: It can't be done; what is in already does not count beside a manifest.
        """
        now_ns = max(0, now_ns)  # a clock that is so wrong must not make it unreadable
        with store_faults("write to", self._path):
            if not os.path.isdir(self._path):
                durable.make_directory(self._path, _DIRECTORY_MODE)
            for snapshot_id, data in files.items():
                entry = _Entry(FORMAT, snapshot_id, rfc3339(now_ns), now_ns, data.decode())
                durable.write_named(
                    self._entry_path(snapshot_id),
                    seal(entry),
                    temporary_directory=self._temporary,
                    mode=_FILE_MODE,
                )
            durable.sync_directory(self._path)

    def remove(self, snapshot_ids: Iterable[str]) -> None:
        """Durably let go of snapshots; harmless for those that are not there."""
        if not os.path.isdir(self._path):
            return
        with store_faults("remove from", self._path):
            for name in snapshot_ids:
                durable.remove_file(self._entry_path(name))
            durable.sync_directory(self._path)

    def retired(self) -> frozenset[str]:
        """IDs that no snapshot may have again. Of a list that is damaged, nothing.

        No snapshot may fail because of a list that only keeps one random number in sixteen million
        from coming up a second time.
        """
        with contextlib.suppress(StoreError):
            return self._read_retired()
        return frozenset()

    def check_retired(self) -> None:
        """Make sure that the list of retired IDs says what was written, if there is one.

        Raises:
            CorruptionError: It is damaged.
            UnknownFormatError: A later version wrote it.
            StoreError: It can't be read.
        """
        self._read_retired()

    def retire(self, snapshot_ids: Collection[str]) -> None:
        """Durably add to the list of retired IDs.

        Raises:
            CorruptionError: The list is damaged; it is not overwritten with less.
            UnknownFormatError: A later version wrote it.
            StoreError: It can't be read or written.
        """
        known = self._read_retired()
        if not known.issuperset(snapshot_ids):
            with store_faults("write", self._retired_path):
                durable.write_whole(
                    self._retired_path,
                    seal(_Retired(FORMAT, sorted(known.union(snapshot_ids)))),
                    temporary_directory=self._temporary,
                    mode=_FILE_MODE,
                )

    def _read_retired(self) -> frozenset[str]:
        if not os.path.lexists(self._retired_path):
            return frozenset()
        try:
            with store_faults("read", self._retired_path):
                data = read_regular(self._retired_path, _RETIRED_BYTES_MAX)
            return decode_retired(data)
        except CorruptionError as error:
            raise CorruptionError(
                f"{self._retired_path}: {error.message}",
                hint="'ciuic repair --apply' sets it aside; a new one is begun then.",
            ) from error

    def _entry_path(self, snapshot_id: str) -> str:
        return os.path.join(self._path, layout.manifest_name(snapshot_id))


def decode_forgotten(data: bytes, snapshot_id: str) -> Forgotten:
    """A file of the trash that is named for ``snapshot_id``.

    Raises:
        CorruptionError: It is damaged, or another snapshot's.
        UnknownFormatError: A later version wrote it.
    """
    entry = unseal_version(data, _Entry, FORMAT, f"{snapshot_id} in the trash")
    if entry.id != snapshot_id:
        raise CorruptionError(f"it says that it is {entry.id!r}")
    if not 0 <= entry.forgotten_ns < _TIME_NS_MAX:
        raise CorruptionError("it was forgotten at a time that can't be")
    try:
        inner = entry.manifest.encode()
    except UnicodeEncodeError as error:
        raise CorruptionError("its manifest is not text") from error
    return Forgotten(entry.id, entry.forgotten_ns, decode_manifest(inner, snapshot_id), inner)


def decode_retired(data: bytes) -> frozenset[str]:
    """The IDs in the file of retired ones.

    Raises:
        CorruptionError: It is damaged.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Retired, FORMAT, "the list of retired IDs")
    if not all(layout.is_snapshot_id(one) for one in record.ids):
        raise CorruptionError("the list of retired IDs names what can't be one")
    return frozenset(record.ids)

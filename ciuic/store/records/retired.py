"""A record of snapshots that are gone for good. docs/format.md, "Trash, and retired/"."""

from collections.abc import Iterable
from typing import Final

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import SnapshotId
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal, unseal_version

__all__ = ["RETIRED_BYTES_MAX", "decode_retired", "encode_retired"]

FORMAT: Final = 1
RETIRED_BYTES_MAX: Final = 64 * 1024 * 1024


class _Record(msgspec.Struct):
    """The fields of the JSON document."""

    format: int
    ids: list[str]
    checksum: str = ""


def encode_retired(snapshot_ids: Iterable[SnapshotId]) -> bytes:
    """Encode a record."""
    return seal(_Record(FORMAT, sorted(snapshot_ids)))


def decode_retired(data: bytes) -> frozenset[SnapshotId]:
    """Decode a record.

    Raises:
        CorruptionError: It is damaged.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Record, FORMAT, "a record of retired IDs")
    if not all(layout.is_snapshot_id(text) for text in record.ids):
        raise CorruptionError("it has an entry that is not a snapshot ID")
    return frozenset(map(SnapshotId, record.ids))

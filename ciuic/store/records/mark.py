"""Marks: small sealed JSON documents with what has changed about a snapshot since its commit.

A manifest is written once. A new tag or pin is a new mark, under the next number. A mark has the
whole present state, so the mark with the greatest number is enough. docs/format.md, "Marks".
"""

from typing import Final, NamedTuple

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import SnapshotId
from ciuic.store.records.sealed import seal, unseal_version

__all__ = ["MARK_BYTES_MAX", "Mark", "decode_mark", "encode_mark"]

FORMAT: Final = 1
MARK_BYTES_MAX: Final = 1024 * 1024


class Mark(NamedTuple):
    """The tags and the pin of a snapshot."""

    tags: tuple[str, ...]
    pinned: bool


class _Record(msgspec.Struct):
    """The fields of the JSON document."""

    format: int
    id: str
    number: int
    tags: list[str]
    pinned: bool
    checksum: str = ""


def encode_mark(mark: Mark, snapshot_id: SnapshotId, number: int) -> bytes:
    """Encode a mark."""
    return seal(_Record(FORMAT, snapshot_id, number, list(mark.tags), mark.pinned))


def decode_mark(data: bytes, snapshot_id: SnapshotId, number: int) -> Mark:
    """Check and decode the mark of this number of a snapshot.

    Raises:
        CorruptionError: The mark is damaged, or that of another snapshot, or has another number.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Record, FORMAT, f"mark {number} of {snapshot_id}")
    if (record.id, record.number) != (snapshot_id, number):
        raise CorruptionError(f"it says that it is mark {record.number} of {record.id!r}")
    return Mark(tuple(record.tags), record.pinned)

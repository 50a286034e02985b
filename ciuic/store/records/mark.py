"""Marks: small sealed JSON documents with what has changed about a snapshot since its commit.

A manifest is written once. A new tag or pin is a new mark, under the next number; so is forgetting
a snapshot, bringing it back, and deleting it for good. A mark has the whole present state, so the
mark with the greatest number is enough. docs/format.md, "Marks".
"""

from typing import Final, NamedTuple

import msgspec

from ciuic.errors import CorruptionError
from ciuic.ids import SnapshotId
from ciuic.store.records.sealed import seal, unseal_version
from ciuic.system.clock import rfc3339

__all__ = ["MARK_BYTES_MAX", "Mark", "decode_mark", "encode_mark"]

FORMAT: Final = 1
MARK_BYTES_MAX: Final = 1024 * 1024
_TIME_NS_MAX: Final = 1 << 63


class Mark(NamedTuple):
    """The state of a snapshot.

    Attributes:
        tags: All its tags.
        pinned: It is pinned.
        forgotten_ns: When it was forgotten; None: it is listed.
        purged: It is being deleted for good, and cannot be brought back.
        note: What a person has written about it; empty: nothing.
    """

    tags: tuple[str, ...]
    pinned: bool
    forgotten_ns: int | None = None
    purged: bool = False
    note: str = ""


class _Record(msgspec.Struct):
    """The fields of the JSON document."""

    format: int
    id: str
    number: int
    tags: list[str]
    pinned: bool
    forgotten: str | None = None
    forgotten_ns: int | None = None
    purged: bool = False
    note: str | msgspec.UnsetType = msgspec.UNSET
    checksum: str = ""


def encode_mark(mark: Mark, snapshot_id: SnapshotId, number: int) -> bytes:
    """Encode a mark."""
    forgotten = None if mark.forgotten_ns is None else rfc3339(mark.forgotten_ns)
    return seal(
        _Record(
            FORMAT,
            snapshot_id,
            number,
            list(mark.tags),
            mark.pinned,
            forgotten,
            mark.forgotten_ns,
            mark.purged,
            mark.note or msgspec.UNSET,
        )
    )


def decode_mark(data: bytes, snapshot_id: SnapshotId, number: int) -> Mark:
    """Check and decode the mark of this number of a snapshot.

    Raises:
        CorruptionError: The mark is damaged, or that of another snapshot, or has another number.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Record, FORMAT, f"mark {number} of {snapshot_id}")
    if (record.id, record.number) != (snapshot_id, number):
        raise CorruptionError(f"it says that it is mark {record.number} of {record.id!r}")
    if record.forgotten_ns is None:
        if record.purged:
            raise CorruptionError("it says that its snapshot is purged, and not forgotten")
    elif not 0 <= record.forgotten_ns < _TIME_NS_MAX:
        raise CorruptionError("the time at which it was forgotten is out of range")
    return Mark(
        tuple(record.tags), record.pinned, record.forgotten_ns, record.purged, record.note or ""
    )

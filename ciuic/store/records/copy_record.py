"""The record of a copy of this store: what the copy is known to have. Not part of the format."""

from typing import Annotated, Final

import msgspec

from ciuic.ids import SnapshotId
from ciuic.store.records.sealed import seal, unseal_version

__all__ = ["CopyRecord", "decode_copy_record", "encode_copy_record"]

FORMAT: Final = 1
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class CopyRecord(msgspec.Struct):
    """What the last copies to a place have found.

    Attributes:
        address: The copy's directory or URL.
        store_id: The ID of the store there; empty: it was never opened.
        since_ns: When the first copy was tried, in nanoseconds since 1970.
        tried_ns: When the last one was.
        done_ns: When the last one that copied everything ended; None: none has.
        problem: Why the last one did not copy everything; empty: it did.
        marks: Each snapshot that is or was there, with the number of the mark here whose state was
            sent; 0 is the state in the manifest, -1 means that none was sent.
        followed: Snapshots that the copy has forgotten because they were forgotten here.
        damaged: How many snapshots of the copy stay damaged, as far as is known.
        differences: How the copy is ahead of the store, or has diverged from it, in sentences.
        endpoint: How its bucket was reached: these four are those of ``PlaceOptions``.
        region: See there.
        credentials_file: See there.
        path_style: See there.
    """

    format: int
    address: str
    store_id: str
    since_ns: _Time
    tried_ns: _Time
    done_ns: _Time | None = None
    problem: str = ""
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    followed: list[str] = msgspec.field(default_factory=list)
    damaged: int = 0
    differences: list[str] = msgspec.field(default_factory=list)
    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""
    path_style: bool = True
    checksum: str = ""

    @classmethod
    def new(cls, address: str, now_ns: int) -> "CopyRecord":
        """Return the record of a copy that is tried for the first time."""
        return cls(FORMAT, address, "", now_ns, now_ns)

    def sent(self) -> dict[SnapshotId, int]:
        """Return ``marks``, with its keys as IDs."""
        return {SnapshotId(name): number for name, number in self.marks.items()}


def encode_copy_record(record: CopyRecord) -> bytes:
    """Encode a record."""
    return seal(record)


def decode_copy_record(data: bytes) -> CopyRecord:
    """Check and decode a record.

    Raises:
        CorruptionError: It is damaged.
        UnknownFormatError: A later version wrote it.
    """
    return unseal_version(data, CopyRecord, FORMAT, "the record of a copy")

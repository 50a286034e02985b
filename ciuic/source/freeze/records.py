"""Records of the reflink copies of one snapshot: files with a checksum, mapped instead of read."""

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ciuic.source.freeze.copies import COPY_BYTES, SIGN, Copies
from ciuic.system.hashing import ID_BYTES, data_id

__all__ = ["Record", "RootRecord", "encode_record"]

_MAGIC: Final = b"ciuic frozen copies 1\n"
_HEAD: Final = struct.Struct(">I")
_U64_MAX: Final = 2**64 - 1
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RootRecord(NamedTuple):
    """The record of one root.

    Attributes:
        path: The root.
        how: "subvolume" or "reflink".
        tree: Name in ``trees/`` of the frozen subvolume that holds the root, or empty.
        inside: Path of the root within the frozen subvolume, without a leading slash.
        uuid: UUID of the frozen subvolume.
        generation: Generation of the frozen subvolume when it had been made.
        copies: The reflink copies of the root's files.
        doubtful: Inodes of files that the snapshot read from the live root, because the frozen
            subvolume may lack some of their bytes.
    """

    path: bytes
    how: str
    tree: bytes = b""
    inside: bytes = b""
    uuid: bytes = b""
    generation: int = 0
    copies: Copies = Copies()
    doubtful: frozenset[int] = frozenset()


class Record:
    """The record of one snapshot; the table of copies stays in the mapped file.

    Attributes:
        taken_ns: When the snapshot began.
        roots: The records of its roots.
    """

    def __init__(self, taken_ns: int, roots: list[RootRecord]) -> None:
        self.taken_ns = taken_ns
        self.roots = roots

    @classmethod
    def read(cls, path: bytes) -> "Record | None":
        """Read and check a record; None if it is missing or damaged."""
        try:
            fd = os.open(path, _OPEN)
            try:
                data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return None
        end = len(data) - ID_BYTES
        if end < len(_MAGIC) + _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            return None
        with memoryview(data) as view:
            if data_id(view[:end]) != data[end:]:
                return None
        try:
            return cls(*_decoded(data, end))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _decoded(data: mmap.mmap, end: int) -> tuple[int, list[RootRecord]]:
    """Return the time and the roots of a record whose checksum is right.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: The content is not a valid record.
    """
    # Imported here and below: most file systems freeze nothing, and a snapshot may be short.
    import json

    start = len(_MAGIC) + _HEAD.size
    (length,) = _HEAD.unpack_from(data, len(_MAGIC))
    at = start + length
    if at > end:
        raise ValueError("its head is cut short")
    # Any: the JSON of a file; each field is checked below.
    head: dict[str, Any] = json.loads(data[start:at])
    roots = []
    for fields in head["roots"]:
        count = _whole_number(fields["count"], 0, (end - at) // COPY_BYTES)
        roots.append(
            RootRecord(
                path=bytes.fromhex(fields["path"]),
                how=str(fields["how"]),
                tree=_relative(fields["tree"]),
                inside=_relative(fields["inside"]),
                uuid=bytes.fromhex(fields["uuid"]),
                generation=_whole_number(fields["generation"], 0, _U64_MAX),
                copies=Copies(data, at, count),
                doubtful=frozenset(
                    _whole_number(ino, 0, _U64_MAX) for ino in fields.get("doubtful", ())
                ),
            )
        )
        at += count * COPY_BYTES
    return _whole_number(head["taken_ns"], -SIGN, _U64_MAX), roots


def _whole_number(value: object, min_value: int, max_value: int) -> int:
    if type(value) is not int or not min_value <= value <= max_value:
        raise ValueError("a number is out of range")
    return value


def _relative(digits: str) -> bytes:
    """Decode a relative path from hex; it must not leave its directory."""
    path = bytes.fromhex(digits)
    if b"\0" in path or path.startswith(b"/") or b".." in path.split(b"/"):
        raise ValueError("a path leads elsewhere")
    return path


def encode_record(taken_ns: int, roots: Sequence[RootRecord]) -> bytes:
    """Encode a record."""
    import json

    head = {
        "taken_ns": taken_ns,
        "roots": [
            {
                "path": root.path.hex(),
                "how": root.how,
                "tree": root.tree.hex(),
                "inside": root.inside.hex(),
                "uuid": root.uuid.hex(),
                "generation": root.generation,
                "count": len(root.copies),
                "doubtful": sorted(root.doubtful),
            }
            for root in roots
        ],
    }
    text = json.dumps(head).encode()
    body = b"".join([root.copies.raw() for root in roots])
    data = _MAGIC + _HEAD.pack(len(text)) + text + body
    return data + data_id(data)

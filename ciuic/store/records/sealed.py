"""JSON documents that contain their own checksum, such as the header, manifests and marks.

The checksum is the BLAKE3 of the file with the checksum's own 64 digits replaced by zeros. The file
therefore stays one JSON document that any tool can read. docs/format.md, "Sealed documents".
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.system.hashing import data_id

__all__ = ["seal", "unseal", "unseal_version"]

_FIELD: Final = b'"checksum": "blake3:'
_ZEROS: Final = b"0" * 64
_END: Final = b'"\n}\n'

Document = TypeVar("Document")


class _Versioned(msgspec.Struct):
    format: int


def seal(document: object) -> bytes:
    """Encode a document whose last field is ``checksum``, and fill in that field."""
    raw = msgspec.to_builtins(document)
    raw["checksum"] = "blake3:" + _ZEROS.decode()
    data: bytes = msgspec.json.format(msgspec.json.encode(raw), indent=2) + b"\n"
    digest = data_id(data).hex().encode()
    return data[: -len(_END) - 64] + digest + _END


def unseal(data: bytes, kind: type[Document]) -> Document:
    """Check the checksum of a document, and decode it as ``kind``.

    Raises:
        CorruptionError: The bytes are not those that were written, or not a document of this kind.
    """
    _check(data)
    return _checked(data, kind)


def unseal_version(data: bytes, kind: type[Document], version: int, what: str) -> Document:
    """Like ``unseal``, for a document whose field ``format`` must be ``version``.

    That field is checked before the other fields: a later version may have changed them.

    Raises:
        UnknownFormatError: The document has another format; the message begins with ``what``.
        CorruptionError: As ``unseal``.
    """
    _check(data)
    found = _decoded(data, _Versioned).format
    if found != version:
        raise UnknownFormatError(f"{what} has format {found}")
    return _checked(data, kind)


def _check(data: bytes) -> None:
    start = len(data) - len(_END) - 64
    if start < len(_FIELD) or not data.endswith(_END) or data[:start][-len(_FIELD) :] != _FIELD:
        raise CorruptionError("the document is cut short or has no checksum")
    digest = data[start : start + 64]
    if data_id(data[:start] + _ZEROS + _END).hex().encode() != digest:
        raise CorruptionError("the document does not match its checksum")


def _decoded(data: bytes, kind: type[Document]) -> Document:
    try:
        data.decode()  # msgspec does not check the fields that it skips
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"the document cannot be decoded: {error}") from error


def _checked(data: bytes, kind: type[Document]) -> Document:
    """Decode a document whose checksum is right."""
    document = _decoded(data, kind)
    # What this version would write has no repeated key.
    if not _is_as_written(data, document):
        _check_keys(data)
    return document


def _is_as_written(data: bytes, document: object) -> bool:
    """Return whether ``seal`` writes these bytes: it then need not be parsed a second time."""
    try:
        return seal(document) == data
    except (ValueError, RecursionError):  # it holds a value that can be decoded but not encoded
        return False


def _check_keys(data: bytes) -> None:
    """Refuse a repeated key: msgspec takes the last value, and other programs take the first."""
    # Imported late: only a document of another version or program gets here.
    import json

    try:
        # Numbers stay text: Python refuses to convert very long ones.
        json.loads(data, object_pairs_hook=_refuse_repeated, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"the document cannot be decoded: {error}") from error


def _refuse_repeated(pairs: Sequence[tuple[str, object]]) -> None:
    counts = Counter([key for key, _ in pairs])
    if len(counts) != len(pairs):
        ((key, _),) = counts.most_common(1)
        raise CorruptionError(f"the document repeats the key {key!r}")

"""JSON documents that carry their own checksum: the header, manifests, what lies in the trash.

The checksum is the BLAKE3 of the file with the checksum's own 64 digits taken as zeros, so that
the file stays one JSON document that any tool reads. docs/format.md, "Sealed documents".
"""

from typing import Final, TypeVar

import msgspec

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.hashing import data_id

__all__ = ["seal", "unseal", "unseal_version"]

_FIELD: Final = b'"checksum": "blake3:'
_ZEROS: Final = b"0" * 64
_END: Final = b'"\n}\n'

Document = TypeVar("Document")


class _Versioned(msgspec.Struct):
    format: int


def seal(document: object) -> bytes:
    """The file for a document whose last field is ``checksum``; what it holds is replaced."""
    raw = msgspec.to_builtins(document)
    raw["checksum"] = "blake3:" + _ZEROS.decode()
    data: bytes = msgspec.json.format(msgspec.json.encode(raw), indent=2) + b"\n"
    digest = data_id(data).hex().encode()
    return data[: -len(_END) - 64] + digest + _END


def unseal(data: bytes, kind: type[Document]) -> Document:
    """The document in a file, checked against its checksum and its type.

    Raises:
        CorruptionError: It is not such a document, or not the bytes that were written.
    """
    _check(data)
    return _decoded(data, kind)


def unseal_version(data: bytes, kind: type[Document], version: int, what: str) -> Document:
    """As ``unseal``, of a document whose field ``format`` must be ``version``.

    That field is looked at first: what a later version has changed is no damage.

    Raises:
        UnknownFormatError: It has another format; the message names ``what`` it is.
        CorruptionError: As ``unseal``.
    """
    _check(data)
    found = _decoded(data, _Versioned).format
    if found != version:
        raise UnknownFormatError(f"{what} has format {found}")
    return _decoded(data, kind)


def _check(data: bytes) -> None:
    start = len(data) - len(_END) - 64
    if start < len(_FIELD) or not data.endswith(_END) or data[:start][-len(_FIELD) :] != _FIELD:
        raise CorruptionError("the document is cut short or has no checksum")
    digest = data[start : start + 64]
    if data_id(data[:start] + _ZEROS + _END).hex().encode() != digest:
        raise CorruptionError("the document does not match its checksum")


def _decoded(data: bytes, kind: type[Document]) -> Document:
    try:
        data.decode()  # msgspec does not look at fields that it passes over
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"the document can't be decoded: {error}") from error

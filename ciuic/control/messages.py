"""The messages of the control socket: requests and replies <-> lines of JSON."""

import json
import os
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from ciuic.documents import Document
from ciuic.errors import CiuicError, UsageError
from ciuic.model import ExcludeRules

__all__ = [
    "LINE_BYTES_MAX",
    "Request",
    "SimpleRequest",
    "SnapshotRequest",
    "encode_line",
    "error_document",
    "error_from_document",
    "parse_request",
]

LINE_BYTES_MAX: Final = 64 * 1024
# msgspec quotes what it refuses.
_QUOTED_MAX: Final = 200


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a snapshot now.

    Attributes:
        base: Take a full snapshot.
        tags: The tags of the snapshot.
        roots: The directories, instead of the configured ones. JSON cannot carry every path, so
            each character of a string here is one byte.
        exclude: Patterns for ``roots``, encoded in the same way.
        exclude_larger_than: Bytes; 0: no limit. This rule and the next two are for ``roots`` too.
        exclude_caches: Leave out the content of directories that CACHEDIR.TAG marks.
        exclude_if_present: Names of marker files, encoded as roots are.
        schedule: The schedule whose snapshot it is, instead of ``roots``; empty: the first one.
    """

    do: Literal["snapshot"] = "snapshot"
    base: bool = False
    tags: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    exclude_larger_than: int = 0
    exclude_caches: bool = False
    exclude_if_present: tuple[str, ...] = ()
    schedule: str = ""

    def scope(self) -> tuple[tuple[bytes, ...], ExcludeRules] | None:
        """Return roots and rules as ``TakeRequest`` has them; None: the daemon's own.

        Raises:
            UsageError: A string has a character that is not a byte.
        """
        if self.roots is None:
            return None
        try:
            roots = tuple(text.encode("latin-1") for text in self.roots)
            return roots, ExcludeRules(
                tuple(os.fsdecode(text.encode("latin-1")) for text in self.exclude),
                max(self.exclude_larger_than, 0),
                self.exclude_caches,
                tuple(os.fsdecode(text.encode("latin-1")) for text in self.exclude_if_present),
            )
        except UnicodeEncodeError as error:
            raise UsageError(
                "the daemon does not understand the request: a path has a character that is not a"
                " byte",
                hint="Use the same version of ciuic as the daemon.",
            ) from error


class SimpleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without parameters."""

    do: Literal["status", "pause", "resume", "reload"]


class _Kind(msgspec.Struct):
    """What every request has."""

    do: str


Request = SnapshotRequest | SimpleRequest


def parse_request(line: bytes) -> Request:
    """Return the request that a client's line holds.

    Raises:
        UsageError: The line is not a request that this version knows.
    """
    try:
        is_snapshot = msgspec.json.decode(line, type=_Kind).do == SnapshotRequest().do
        if is_snapshot:
            return msgspec.json.decode(line, type=SnapshotRequest)
        return msgspec.json.decode(line, type=SimpleRequest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the daemon does not understand the request: {str(error)[:_QUOTED_MAX]}",
            hint="Use the same version of ciuic as the daemon.",
        ) from error


def encode_line(document: Document) -> bytes:
    """Return the message as a line for the socket."""
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def error_document(error: CiuicError) -> Document:
    """Return the reply that reports an error."""
    fields = {"kind": error.kind, "message": error.message, "hint": error.hint}
    return {"error": {**fields, "done": dict(error.done)}}


def error_from_document(document: object) -> CiuicError:
    """Return the error of a reply, in the class that the daemon raised."""
    fields = document if isinstance(document, dict) else {}
    message, hint = fields.get("message"), fields.get("hint")
    kinds = {
        error_class("").kind: error_class
        for error_class in _error_classes(CiuicError)
        if not error_class.__name__.startswith("_")  # a private one has the kind of its public base
    }
    found = kinds.get(str(fields.get("kind")), CiuicError)
    error = found(
        message if isinstance(message, str) else "the daemon failed and gave no reason",
        hint=hint if isinstance(hint, str) else None,
    )
    done = fields.get("done")
    error.done = done if isinstance(done, dict) else {}
    return error


def _error_classes(top: type[CiuicError]) -> Iterator[type[CiuicError]]:
    yield top
    for below in top.__subclasses__():
        yield from _error_classes(below)

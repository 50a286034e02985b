"""Manifests: one small sealed JSON document a snapshot. docs/format.md, "Manifests".

A snapshot exists if and only if its manifest does.
"""

import os
import re
from typing import Final

import msgspec

from ciuic.clock import rfc3339
from ciuic.errors import CorruptionError
from ciuic.hashing import ID_BYTES
from ciuic.model import Root, SnapshotSummary, Trouble, path_text
from ciuic.store.layout import is_snapshot_id
from ciuic.store.sealed import seal, unseal_version

__all__ = ["MANIFEST_BYTES_MAX", "TROUBLE_MAX", "Manifest", "decode_manifest", "encode_manifest"]

FORMAT: Final = 1
TROUBLE_MAX: Final = 1000
"""A manifest names this many troubled paths; the trees mark all of them."""
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_NUMBER_MAX: Final = 1 << 63
_AFTER_ESCAPE: Final = re.compile(r"[0-9a-f]{2}[^\\]*", re.DOTALL)


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot: which trees, when, from what, and what went wrong."""

    summary: SnapshotSummary
    roots: tuple[Root, ...]
    host: str
    writer: str
    read_bytes: int
    capture_s: float
    exclude: tuple[str, ...]
    trouble: tuple[Trouble, ...]

    def with_summary(self, summary: SnapshotSummary) -> "Manifest":
        """The same with another summary."""
        return msgspec.structs.replace(self, summary=summary)


class _RootRecord(msgspec.Struct):
    path: str
    tree: str
    missing: str = ""
    capture: str = ""


class _TroubleRecord(msgspec.Struct):
    path: str
    what: str
    harmless: bool = False


class _Record(msgspec.Struct):
    """The manifest as it stands in the file."""

    format: int
    id: str
    kind: str
    parent: str | None
    taken: str
    taken_ns: int
    host: str
    writer: str
    roots: list[_RootRecord]
    files: int
    logical_bytes: int
    read_bytes: int
    new_bytes: int
    stored_bytes: int
    capture_s: float
    exclude: list[str]
    tags: list[str]
    trouble_count: int
    trouble: list[_TroubleRecord]
    flux_count: int = 0
    pinned: bool = False
    checksum: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's file."""
    summary = manifest.summary
    return seal(
        _Record(
            format=FORMAT,
            id=summary.id,
            kind=summary.kind,
            parent=summary.parent,
            taken=rfc3339(summary.taken_ns),
            taken_ns=summary.taken_ns,
            host=_words(manifest.host),
            writer=manifest.writer,
            roots=[
                _RootRecord(
                    _escaped(root.path), root.tree.hex(), _words(root.missing), root.capture
                )
                for root in manifest.roots
            ],
            files=summary.files,
            logical_bytes=summary.logical_bytes,
            read_bytes=manifest.read_bytes,
            new_bytes=summary.new_bytes,
            stored_bytes=summary.stored_bytes,
            capture_s=manifest.capture_s,
            exclude=[_escaped(os.fsencode(one)) for one in manifest.exclude],
            tags=list(summary.tags),
            trouble_count=summary.trouble_count,
            flux_count=summary.flux_count,
            pinned=summary.pinned,
            trouble=[
                _TroubleRecord(_escaped(one.path), _words(one.what), one.harmless)
                for one in manifest.trouble
            ],
        )
    )


def decode_manifest(data: bytes, snapshot_id: str) -> Manifest:
    """The manifest in a file that is named for ``snapshot_id``.

    Raises:
        CorruptionError: It is damaged, or another snapshot's.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Record, FORMAT, f"snapshot {snapshot_id}")
    if record.id != snapshot_id or not is_snapshot_id(record.id):
        raise CorruptionError(f"the manifest of {snapshot_id} says that it is {record.id!r}")
    _check_numbers(record)
    roots = tuple([_root(one) for one in record.roots])
    summary = SnapshotSummary(
        id=record.id,
        kind=record.kind,
        parent=record.parent,
        taken_ns=record.taken_ns,
        files=record.files,
        logical_bytes=record.logical_bytes,
        new_bytes=record.new_bytes,
        stored_bytes=record.stored_bytes,
        tags=tuple(record.tags),
        trouble_count=record.trouble_count,
        roots=tuple([root.path for root in roots]),
        flux_count=record.flux_count,
        pinned=record.pinned,
    )
    return Manifest(
        summary=summary,
        roots=roots,
        host=record.host,
        writer=record.writer,
        read_bytes=record.read_bytes,
        capture_s=record.capture_s,
        exclude=tuple([os.fsdecode(_unescaped(one)) for one in record.exclude]),
        trouble=tuple(
            [Trouble(_unescaped(one.path), one.what, one.harmless) for one in record.trouble]
        ),
    )


def _check_numbers(record: _Record) -> None:
    """JSON has numbers of any size, and neither a calendar nor the catalog has."""
    counts = (
        record.files,
        record.logical_bytes,
        record.read_bytes,
        record.new_bytes,
        record.stored_bytes,
        record.trouble_count,
        record.flux_count,
    )
    if not all(0 <= one < _NUMBER_MAX for one in counts):
        raise CorruptionError("it counts what can't be counted")
    if not -_NUMBER_MAX <= record.taken_ns < _NUMBER_MAX:
        raise CorruptionError("it was taken at a time that can't be")


def _root(record: _RootRecord) -> Root:
    path = _unescaped(record.path)
    try:
        tree = bytes.fromhex(record.tree)
    except ValueError as error:
        raise CorruptionError("a root's tree is not an ID") from error
    if not path.startswith(b"/") or len(tree) not in {0, ID_BYTES}:
        raise CorruptionError("a root is not an absolute path with a tree")
    return Root(path, tree, record.missing, record.capture)


def _words(text: str) -> str:
    """Text for people, in which other programs' names may stand: JSON can't have surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escaped(path: bytes) -> str:
    """A path as JSON text: the backslash, and bytes that are not UTF-8, as x and two hex digits.

    JSON proper has no lone surrogates: strict readers in other languages refuse them.
    """
    text = path_text(path)
    if text.isascii() and "\\" not in text:
        return text
    return "".join([_escaped_character(one) for one in text])


def _escaped_character(one: str) -> str:
    if one == "\\":
        return "\\x5c"
    if "\udc80" <= one <= "\udcff":
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one


def _unescaped(text: str) -> bytes:
    head, *rest = text.split("\\x")
    if "\\" in head or not all(_AFTER_ESCAPE.fullmatch(one) for one in rest):
        raise CorruptionError(f"{text!r} is not an escaped path")
    try:
        return head.encode() + b"".join([bytes.fromhex(one[:2]) + one[2:].encode() for one in rest])
    except (ValueError, UnicodeEncodeError) as error:
        raise CorruptionError(f"{text!r} is not an escaped path") from error

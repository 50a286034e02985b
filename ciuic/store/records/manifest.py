"""Manifests: one small sealed JSON document per snapshot. docs/format.md, "Manifests".

A snapshot exists if and only if its manifest does.
"""

import itertools
import os
import re
from typing import Final

import msgspec

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import DEFAULT_SCHEDULE, ChunkId, SnapshotId
from ciuic.model import (
    ExcludeRules,
    Follow,
    PathWarning,
    Root,
    SnapshotSummary,
    path_text,
)
from ciuic.store.records.header import KNOWN_FEATURES
from ciuic.store.records.layout import is_snapshot_id
from ciuic.store.records.sealed import seal, unseal_version
from ciuic.system.clock import rfc3339
from ciuic.system.hashing import ID_BYTES

__all__ = ["MANIFEST_BYTES_MAX", "TROUBLE_MAX", "Manifest", "decode_manifest", "encode_manifest"]

FORMAT: Final = 1
TROUBLE_MAX: Final = 1000
"""The most warnings in a manifest. The entries in the trees mark the other paths too."""
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_NUMBER_MAX: Final = 1 << 63
_NO_NAMES: Final = frozenset([b"", b".", b".."])
_AFTER_ESCAPE: Final = r"[0-9a-f]{2}[^\\]*"


class Manifest(msgspec.Struct, frozen=True):
    """The content of a manifest: the trees of a snapshot, its summary and its warnings."""

    summary: SnapshotSummary
    roots: tuple[Root, ...]
    host: str
    writer: str
    read_bytes: int
    capture_s: float
    exclude: ExcludeRules
    trouble: tuple[PathWarning, ...]

    def with_summary(self, summary: SnapshotSummary) -> "Manifest":
        """Return a copy with another summary."""
        return msgspec.structs.replace(self, summary=summary)

    def with_root(self, root: Root) -> "Manifest":
        """Return a copy with one root, and without rules."""
        return msgspec.structs.replace(self, roots=(root,), exclude=ExcludeRules())


class _RootRecord(msgspec.Struct):
    path: str
    tree: str
    missing: str = ""
    capture: str = ""


class _TroubleRecord(msgspec.Struct):
    path: str
    what: str
    harmless: bool = False


class _FollowRecord(msgspec.Struct):
    path: str
    snapshot: str


class _Record(msgspec.Struct):
    """The fields of the JSON document."""

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
    machine: str = ""
    origin: str = ""
    schedule: str = DEFAULT_SCHEDULE
    exclude_larger_than: int | msgspec.UnsetType = msgspec.UNSET
    exclude_caches: bool | msgspec.UnsetType = msgspec.UNSET
    exclude_if_present: list[str] | msgspec.UnsetType = msgspec.UNSET
    required: list[str] | msgspec.UnsetType = msgspec.UNSET
    complete: bool | msgspec.UnsetType = msgspec.UNSET
    follows: list[_FollowRecord] | msgspec.UnsetType = msgspec.UNSET
    store: str | msgspec.UnsetType = msgspec.UNSET
    checksum: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest.

    Raises:
        ValueError: A root's path is invalid, or inside another root.
    """
    summary, rules = manifest.summary, manifest.exclude
    wrong = _wrong_roots([root.path for root in manifest.roots])
    if wrong:
        raise ValueError(wrong)
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
            exclude=_escaped_all(rules.patterns),
            tags=list(summary.tags),
            trouble_count=summary.trouble_count,
            flux_count=summary.flux_count,
            pinned=summary.pinned,
            machine=summary.machine,
            origin=summary.origin,
            schedule=summary.schedule,
            complete=msgspec.UNSET if summary.is_complete else False,
            exclude_larger_than=rules.larger_than_bytes or msgspec.UNSET,
            exclude_caches=rules.caches or msgspec.UNSET,
            exclude_if_present=_escaped_all(rules.if_present) or msgspec.UNSET,
            follows=[
                _FollowRecord(_escaped(followed.path), followed.snapshot)
                for followed in summary.follows
            ]
            or msgspec.UNSET,
            store=summary.store or msgspec.UNSET,
            trouble=[
                _TroubleRecord(_escaped(warning.path), _words(warning.what), warning.harmless)
                for warning in manifest.trouble
            ],
        )
    )


def decode_manifest(data: bytes, snapshot_id: SnapshotId) -> Manifest:
    """Check and decode the manifest of ``snapshot_id``.

    Raises:
        CorruptionError: The manifest is damaged, or that of another snapshot.
        UnknownFormatError: A later version wrote it.
    """
    record = unseal_version(data, _Record, FORMAT, f"snapshot {snapshot_id}")
    if record.id != snapshot_id or not is_snapshot_id(record.id):
        raise CorruptionError(f"it says that it is {record.id!r}")
    unknown = sorted(set(record.required or []) - KNOWN_FEATURES)
    if unknown:
        raise UnknownFormatError(
            f"snapshot {snapshot_id} needs the feature {unknown[0]!r}, which the store's header"
            " does not name"
        )
    _check_numbers(record)
    roots = tuple([_root(root) for root in record.roots])
    wrong = _wrong_roots([root.path for root in roots])
    if wrong:
        raise CorruptionError(wrong)
    summary = SnapshotSummary(
        id=snapshot_id,
        kind=record.kind,
        parent=None if record.parent is None else SnapshotId(record.parent),
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
        host=record.host,
        machine=record.machine,
        origin=record.origin,
        schedule=record.schedule,
        is_complete=record.complete is not False,
        follows=tuple(
            [
                Follow(_unescaped(followed.path), SnapshotId(followed.snapshot))
                for followed in record.follows or []
            ]
        ),
        store=record.store or "",
    )
    return Manifest(
        summary=summary,
        roots=roots,
        host=record.host,
        writer=record.writer,
        read_bytes=record.read_bytes,
        capture_s=record.capture_s,
        exclude=_rules(record),
        trouble=tuple(
            [
                PathWarning(_unescaped(warning.path), warning.what, warning.harmless)
                for warning in record.trouble
            ]
        ),
    )


def _rules(record: _Record) -> ExcludeRules:
    return ExcludeRules(
        _unescaped_all(record.exclude),
        record.exclude_larger_than or 0,
        bool(record.exclude_caches),
        _unescaped_all(record.exclude_if_present or []),
    )


def _check_numbers(record: _Record) -> None:
    """Refuse numbers that no calendar and no column of the chunk index can hold."""
    counts = (
        record.files,
        record.logical_bytes,
        record.read_bytes,
        record.new_bytes,
        record.stored_bytes,
        record.trouble_count,
        record.flux_count,
        record.exclude_larger_than or 0,
    )
    if not all(0 <= count < _NUMBER_MAX for count in counts):
        raise CorruptionError("one of its counts is out of range")
    if not -_NUMBER_MAX <= record.taken_ns < _NUMBER_MAX:
        raise CorruptionError("its time is out of range")


def _root(record: _RootRecord) -> Root:
    path = _unescaped(record.path)
    try:
        tree = ChunkId(bytes.fromhex(record.tree))
    except ValueError as error:
        raise CorruptionError("a root's tree is not an ID") from error
    # The form is fixed: bytes.fromhex also accepts upper-case digits and blanks.
    if len(tree) not in {0, ID_BYTES} or tree.hex() != record.tree:
        raise CorruptionError("a root's tree is not an ID")
    return Root(path, tree, record.missing, record.capture)


def _wrong_roots(paths: list[bytes]) -> str:
    """Return why these paths cannot be the roots of a snapshot; empty if they can.

    A path in another form would lead a restore to another place, and a root inside another root
    would give one directory two trees.
    """
    for path in paths:
        names = path[1:].split(b"/") if path != b"/" else []
        if not path.startswith(b"/") or b"\0" in path or not _NO_NAMES.isdisjoint(names):
            return f"the root {path_text(path)!r} is not a normalized absolute path"
    # With a slash at the end, paths below a root sort directly after it.
    ordered = sorted([path.rstrip(b"/") + b"/" for path in paths])
    for outer, inner in itertools.pairwise(ordered):
        if inner.startswith(outer):
            return f"the root {path_text(inner)!r} is inside the root {path_text(outer)!r}"
    return ""


def _words(text: str) -> str:
    """Escape surrogates, which JSON cannot hold, in text that may contain names of programs."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escaped(path: bytes) -> str:
    """Encode a path as text, with two hex digits for a backslash or a byte that is not UTF-8.

    Lone surrogates are not used: strict JSON readers in other languages refuse them.
    """
    text = path_text(path)
    if text.isascii() and "\\" not in text:
        return text
    return "".join([_escaped_character(character) for character in text])


def _escaped_character(character: str) -> str:
    if character == "\\":
        return "\\x5c"
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character


def _escaped_all(paths: tuple[str, ...]) -> list[str]:
    return [_escaped(os.fsencode(path)) for path in paths]


def _unescaped_all(texts: list[str]) -> tuple[str, ...]:
    return tuple([os.fsdecode(_unescaped(text)) for text in texts])


def _unescaped(text: str) -> bytes:
    head, *rest = text.split("\\x")
    if "\\" in head or not all(re.fullmatch(_AFTER_ESCAPE, part, re.DOTALL) for part in rest):
        raise CorruptionError(f"{text!r} is not an escaped path")
    try:
        parts = [bytes.fromhex(part[:2]) + part[2:].encode() for part in rest]
        return head.encode() + b"".join(parts)
    except (ValueError, UnicodeEncodeError) as error:
        raise CorruptionError(f"{text!r} is not an escaped path") from error

"""Condemnations, verdicts and tombstones: what a prune of a store in a bucket writes.

They are sealed JSON documents. docs/format.md, "A store in a bucket"; docs/protocol.md says what
they are for.
"""

import os
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import PackId
from ciuic.store.records import layout
from ciuic.store.records.sealed import seal, unseal_version

__all__ = [
    "CONDEMNATION_BYTES_MAX",
    "TOMBSTONE_BYTES",
    "CondemnedPacks",
    "decode_condemnation",
    "decode_verdict",
    "encode_condemnation",
    "encode_verdict",
    "is_tombstone",
    "new_tombstone",
]

FORMAT: Final = 1
CONDEMNATION_BYTES_MAX: Final = 256 * 1024 * 1024
"""A name takes 73 bytes, so this is more than any store has packs."""
_NONCE_BYTES: Final = 16


class _Condemnation(msgspec.Struct):
    format: int
    packs: list[str]
    damaged: bool = False
    checksum: str = ""


class _Verdict(msgspec.Struct):
    format: int
    deleted: list[str]
    checksum: str = ""


class _Tombstone(msgspec.Struct):
    format: int
    revoked: str
    checksum: str = ""


class CondemnedPacks(NamedTuple):
    """What a condemnation says.

    Attributes:
        packs: The packs on which no session may rely from now on.
        damaged: They are damaged, and their sound chunks are in other packs: they are deleted even
            if a snapshot needs their chunks.
    """

    packs: frozenset[PackId]
    damaged: bool = False


def encode_condemnation(packs: Collection[PackId], *, damaged: bool = False) -> bytes:
    """Encode a condemnation: see ``CondemnedPacks``."""
    return seal(_Condemnation(FORMAT, sorted(map(layout.pack_name, packs)), damaged))


def decode_condemnation(data: bytes) -> CondemnedPacks:
    """Decode a condemnation; a tombstone in its place condemns nothing.

    Raises:
        CorruptionError: It is damaged.
        UnknownFormatError: A later version wrote it.
    """
    if is_tombstone(data):
        return CondemnedPacks(frozenset())
    found = unseal_version(data, _Condemnation, FORMAT, "a condemnation")
    return CondemnedPacks(_packs(found.packs), found.damaged)


def encode_verdict(deleted: Collection[PackId]) -> bytes:
    """Encode the condemned packs that are deleted; sessions may rely on the others again."""
    return seal(_Verdict(FORMAT, sorted(map(layout.pack_name, deleted))))


def decode_verdict(data: bytes) -> frozenset[PackId]:
    """Decode a verdict; raises as ``decode_condemnation``."""
    return _packs(unseal_version(data, _Verdict, FORMAT, "a verdict").deleted)


def new_tombstone() -> bytes:
    """Encode a tombstone, which keeps a revoked session from committing; no two are equal."""
    return seal(_Tombstone(FORMAT, os.urandom(_NONCE_BYTES).hex()))


TOMBSTONE_BYTES: Final = len(seal(_Tombstone(FORMAT, bytes(_NONCE_BYTES).hex())))
"""The length of every tombstone. Every manifest and every condemnation of packs is longer."""


def is_tombstone(data: bytes) -> bool:
    """Return whether these bytes are a tombstone."""
    if len(data) != TOMBSTONE_BYTES:
        return False
    try:
        unseal_version(data, _Tombstone, FORMAT, "a tombstone")
    except (CorruptionError, UnknownFormatError):
        return False
    return True


def _packs(names: list[str]) -> frozenset[PackId]:
    packs = [layout.parse_pack_name(name) for name in names]
    found = frozenset(pack for pack in packs if pack is not None)
    if len(found) < len(names):
        raise CorruptionError("it has an entry that is not the name of a pack, or one twice")
    return found

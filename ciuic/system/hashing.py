"""Content addresses and checksums: the home of blake3 and xxhash.

A content address decides whether two chunks are the same, so it must withstand an attacker who
searches for a collision: BLAKE3 with its full 256 bits. A checksum only has to detect bit rot
without decoding the data: XXH3 with 64 bits. docs/format.md, "Conventions".
"""

from array import array

from blake3 import blake3
from xxhash import xxh3_64_intdigest

from ciuic.ids import SESSION_BYTES, ChunkId, PackId
from ciuic.system.core import core

__all__ = [
    "ID_BYTES",
    "PACK_LABEL_BYTES",
    "checksum",
    "checksums",
    "data_id",
    "derived_hash",
    "node_id",
    "pack_id_of",
]

ID_BYTES = 32
PACK_LABEL_BYTES = 16
"""Length of what ends the footer of a pack: the session's ID, then random bytes."""
_SHORT_BYTES = 240
"""XXH3 has other rules for inputs up to this length; the compiled core does not know them."""

_NODE_CONTEXTS = {
    2: "ciuic store format 1 recipe node",
    3: "ciuic store format 1 tree node",
}
_PACK_CONTEXT = "ciuic store format 1 pack footer"


def data_id(plain: bytes | bytearray | memoryview) -> ChunkId:
    """Return the content address of file bytes: plain BLAKE3-256, as ``b3sum`` prints it."""
    return ChunkId(blake3(plain).digest())


def derived_hash(context: str, data: bytes) -> bytes:
    """Return the BLAKE3-256 of ``data`` in the hash domain of ``context``."""
    return blake3(data, derive_key_context=context).digest()


def node_id(kind: int, plain: bytes) -> ChunkId:
    """Return the content address of a recipe or tree node.

    Each kind has its own hash domain, so a file whose bytes look like a node never gets the ID of
    that node.
    """
    return ChunkId(blake3(plain, derive_key_context=_NODE_CONTEXTS[kind]).digest())


def pack_id_of(footer: bytes) -> PackId:
    """Return the ID of a pack: its session's ID, and a hash that binds every chunk ID and checksum.

    No two packs have the same ID, even if they hold the same frames, because the footer ends with
    random bytes. So a pack that is about to be removed is never mistaken for a new one.
    """
    at = len(footer) - PACK_LABEL_BYTES
    digest = blake3(footer, derive_key_context=_PACK_CONTEXT).digest(ID_BYTES - SESSION_BYTES)
    return PackId(footer[at : at + SESSION_BYTES] + digest)


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the XXH3-64 of ``data`` with seed 0."""
    return xxh3_64_intdigest(data)


def checksums(data: memoryview, step_bytes: int) -> "array[int]":
    """Return the checksum of each range of ``step_bytes``; the last range may be shorter."""
    compiled = core()
    sums = array("Q")
    if compiled is not None and step_bytes > _SHORT_BYTES:
        sums.frombytes(bytes(sums.itemsize * (len(data) // step_bytes)))
        compiled.functions.sector_sums(compiled.targets, data, step_bytes, sums)
    for at in range(len(sums) * step_bytes, len(data), step_bytes):
        sums.append(xxh3_64_intdigest(data[at : at + step_bytes]))
    return sums

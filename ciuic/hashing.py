"""Content addresses and checksums: the home of blake3 and xxhash.

A content address decides whether two chunks are one, so it must withstand somebody who looks
for a collision: BLAKE3 with its full 256 bits. A checksum only has to notice bit rot without
decoding anything: XXH3 with 64 bits. docs/format.md, "Conventions".
"""

from blake3 import blake3
from xxhash import xxh3_64_intdigest

__all__ = ["ID_BYTES", "checksum", "checksums", "data_id", "node_id", "pack_id"]

ID_BYTES = 32

_NODE_CONTEXTS = {
    2: "ciuic store format 1 recipe node",
    3: "ciuic store format 1 tree node",
}
_PACK_CONTEXT = "ciuic store format 1 pack footer"


def data_id(plain: bytes | bytearray | memoryview) -> bytes:
    """Content address of file bytes: plain BLAKE3-256, the one that ``b3sum`` prints."""
    return blake3(plain).digest()


def node_id(kind: int, plain: bytes) -> bytes:
    """Content address of a recipe or tree node.

    Each kind is hashed in a domain of its own, so that a file whose bytes look like a node can
    never be taken for one.
    """
    return blake3(plain, derive_key_context=_NODE_CONTEXTS[kind]).digest()


def pack_id(footer: bytes) -> bytes:
    """Name of a pack: its footer holds every chunk ID and payload checksum, so it binds all."""
    return blake3(footer, derive_key_context=_PACK_CONTEXT).digest()


def checksum(data: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of ``data``, seed 0."""
    return xxh3_64_intdigest(data)


def checksums(data: memoryview, step_bytes: int) -> list[int]:
    """``checksum`` of each stretch of ``step_bytes``; the last one may be shorter."""
    return [xxh3_64_intdigest(data[at : at + step_bytes]) for at in range(0, len(data), step_bytes)]

"""The kinds of chunks, and how a chunk gets its ID. docs/format.md, "Conventions"."""

from typing import Final

from ciuic.errors import DigestError
from ciuic.ids import ChunkId
from ciuic.system.hashing import data_id, node_id

__all__ = [
    "ALONE_BYTES",
    "CHAIN_MAX",
    "DATA",
    "KINDS",
    "RECIPE",
    "TREE",
    "check_chunk",
    "chunk_id_of",
]

DATA: Final = 1
RECIPE: Final = 2
TREE: Final = 3
KINDS: Final = {DATA: "data", RECIPE: "recipe", TREE: "tree"}

ALONE_BYTES: Final = 64 * 1024
"""A chunk of at least this length gets a frame of its own: after other chunks, its numbers would
not be aligned, and byte planes would not find them."""
CHAIN_MAX: Final = 64
"""The most deltas in a delta chain."""


def chunk_id_of(kind: int, plain: bytes | bytearray | memoryview) -> ChunkId:
    """Return the content address of a chunk of this kind."""
    return data_id(plain) if kind == DATA else node_id(kind, bytes(plain))


def check_chunk(kind: int, chunk_id: ChunkId, plain: bytes | memoryview) -> None:
    """Check that ``plain`` hashes to the chunk's ID.

    Raises:
        DigestError: It hashes to another ID.
    """
    actual = chunk_id_of(kind, plain)
    if actual != chunk_id:
        raise DigestError(f"chunk {chunk_id.hex()[:12]} decodes to {actual.hex()[:12]}")

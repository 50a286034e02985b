"""The store: the only package that knows the format on disk (docs/format.md).

layout    what every file is called
sealed    JSON documents with a checksum: header, manifest
frame     chunks that are encoded together
pack      frames in a file
nodes     directories and large files, spelled in chunks
index     where each chunk lies: a cache
writer    deduplicate, encode, fill packs, seal; the barrier
reader    locate, read, decode, check
store     opening, creating, the commit
"""

from ciuic.store.store import Store, create_store, open_store

__all__ = ["Store", "create_store", "open_store"]

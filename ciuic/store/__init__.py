"""The store: the only package that knows the format on disk (docs/format.md).

format     headers, frames, packs, nodes, manifests: bytes <-> values, no I/O
directory  the store's directory: creating it, its files, locks and owner
index      the chunk index: where each chunk is
parity     Reed-Solomon code, and reading through damage
packs      chunks -> packs and back: writer, reader, delta encoder
health     inspecting packs, and salvaging their frames
snapshots  manifests, their copies, the trash
gc         what is needed, how packs are used, rewriting, removal
store      opening a store, and the commit
adding     adding chunks to an open store
"""

"""The store: the only package that knows the format on disk (docs/format.md).

records    manifests, trees, recipes, marks, names of files: bytes <-> values, no I/O
format     frames and packs: bytes <-> values, no I/O
directory  the store's directory: creating it, its files, locks and owner
place      what holds objects: a directory or a bucket; a store in a bucket
index      the chunk index: where each chunk is
parity     Reed-Solomon code, and reading through damage
packs      chunks -> packs and back: writer, reader, delta encoder
health     inspecting packs, and salvaging their frames
snapshots  manifests, their copies, marks, the trash
gc         what is needed, how packs are used, rewriting, removal
transfer   sending frames of one store to another
index_keeper  opening, rebuilding and dropping the chunk index
store      opening a store, and the commit
adding     adding chunks to an open store
addressed  opening a store by its path or URL
"""

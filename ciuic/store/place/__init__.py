"""Places that hold a store's objects: a directory, or a bucket of an object store."""

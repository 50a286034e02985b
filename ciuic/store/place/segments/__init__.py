"""Index segments of a bucket: objects that list the frames of many packs."""

"""Index segments of a bucket: what lists the frames of many packs in one object."""

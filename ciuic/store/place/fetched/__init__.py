"""Packs of a bucket that are read: what was fetched of them is kept."""

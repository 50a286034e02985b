"""Maintenance of a store: forget, prune, scrub, repair, tags and pins."""

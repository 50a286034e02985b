"""Snapshots as files of a store: manifests, their copies, marks (tags, pins), and the trash."""

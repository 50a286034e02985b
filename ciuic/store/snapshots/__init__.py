"""Snapshots as files of a store: manifests, copies of manifests, and the trash."""

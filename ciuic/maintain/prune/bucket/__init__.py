"""Prune a store in a bucket, beside other writers: docs/protocol.md."""

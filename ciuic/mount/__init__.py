"""Snapshots as a read-only file system, through FUSE."""

"""Copying snapshots to another store."""

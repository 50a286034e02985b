"""Proving that snapshots can be restored."""

"""Requests for snapshots."""

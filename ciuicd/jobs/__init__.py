"""Requests for snapshots, and work in child processes and on threads beside the main thread."""

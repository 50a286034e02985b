"""Prune: find out what no snapshot needs, and remove it."""

"""Freezing the source: reflink copies of one moment, and the changes since the last snapshot."""

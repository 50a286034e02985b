"""Which snapshots of the library stay: ``planning`` decides, and ``keeping`` removes the others.

``claims`` notices another process that decides this for the same snapshots.
"""

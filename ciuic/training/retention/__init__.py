"""Which snapshots of the library stay: ``policies`` decides, ``keeping`` removes the others."""

"""Which snapshots of the library stay: ``planning`` decides, and ``keeping`` removes the others."""

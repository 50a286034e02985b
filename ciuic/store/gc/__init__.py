"""Finding and removing what no snapshot needs."""

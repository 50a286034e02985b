"""The chunk index: where each chunk is."""

"""Chunks -> packs, and back."""

"""Histories: of a path, of a tensor, of all snapshots, and a graph of where they branch."""

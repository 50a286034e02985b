"""Copies of the configuration, from a process of its own: the daemon has no network."""

"""The configured copies, from a process of its own: the daemon has no network."""

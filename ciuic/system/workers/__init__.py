"""Other threads and processes that do parts of some work."""

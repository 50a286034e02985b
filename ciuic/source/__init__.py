"""Reading the files that a snapshot captures."""

"""Reading a snapshot back: its paths, its files, its reflink copies."""

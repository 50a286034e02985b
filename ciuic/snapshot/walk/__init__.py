"""Walking the roots: directories -> tree nodes, with files for the readers."""

"""Files that are sent to an object store."""

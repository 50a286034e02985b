"""Reading a snapshot of the library back into memory."""

"""The log of the daemon: lines for people or programs, and entries of systemd's journal."""

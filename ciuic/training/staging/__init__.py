"""Copying a state into the memory that the writer's process reads."""

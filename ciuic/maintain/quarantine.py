"""Keeping a damaged file under another name before its place is taken."""

from ciuic.system import durable, nofollow

__all__ = ["keep_aside"]


def keep_aside(path: str, target: str) -> None:
    """Give the file at ``path`` the second name ``target``. A directory is moved there instead."""
    if nofollow.is_directory(path):
        durable.move_directory(path, target)
    else:
        durable.keep_as(path, target)

"""How far a long run has come: what take and restore tell whoever shows it."""

from typing import Protocol

__all__ = ["Progress"]


class Progress(Protocol):
    """Told how far a long run has come; must return quickly."""

    def update(self, files: int, size_bytes: int, path: bytes) -> None:
        """So many files and bytes have been looked at; ``path`` is the latest."""
        ...

"""What a reader does when it is asked again for a chunk that it could not read."""

from ciuic.ids import ChunkId

__all__ = ["RememberFailures", "RetryFailures"]


class RetryFailures:
    """Reads the chunk again each time."""

    is_empty = True

    def get(self, chunk_id: ChunkId) -> str | None:  # noqa: ARG002 - nothing is remembered
        """Return None: no chunk is known to fail."""
        return None

    def note(self, chunk_id: ChunkId, why: str) -> None:
        """Ignore that a chunk could not be read."""


class RememberFailures:
    """Raises the first error again, without reading."""

    def __init__(self) -> None:
        self._why: dict[ChunkId, str] = {}

    @property
    def is_empty(self) -> bool:
        """No chunk is known to fail."""
        return not self._why

    def get(self, chunk_id: ChunkId) -> str | None:
        """Return why a chunk could not be read; None if it is not known to fail."""
        return self._why.get(chunk_id)

    def note(self, chunk_id: ChunkId, why: str) -> None:
        """Remember that a chunk could not be read."""
        self._why[chunk_id] = why

"""How a read of a chunk fails, and what a reader does when it is asked for the chunk again."""

from typing import Protocol

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = [
    "ChainTooLongError",
    "Descent",
    "Elsewhere",
    "LostBaseError",
    "RememberFailures",
    "RetryFailures",
]


class Elsewhere(Protocol):
    """Other stores that may have a chunk which can't be read here. Used from any thread."""

    def chunk(self, chunk_id: ChunkId, kind: int) -> bytes | memoryview | None:
        """Return the plain bytes of a chunk; None if no other store has it.

        A fault of another store raises nothing: the error of this store stands.
        """


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


class ChainTooLongError(CorruptionError):
    """The delta chain is too long; another copy of the chunk would not help."""

    def __init__(
        self,
        message: str = f"its delta chain has more than {CHAIN_MAX} deltas",
        *,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)


class LostBaseError(CorruptionError):
    """A delta base can't be read. The message names the end of the delta chain, and why."""


class Descent:
    """The state of one read, from a chunk down its delta chain. No chunk is searched for twice.

    Attributes:
        depth: Deltas that were counted before the chunk that is being read: those above it, and
            those below the delta bases that were read before it.
        links: Deltas that the frame that was read last takes, itself included.
        lost: Chunks that could not be read.
        is_below: The delta base failed and not the frame, which may be sound.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.links = 0
        self.lost: set[ChunkId] = set()
        self.is_below = False

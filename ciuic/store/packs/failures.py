"""How a read of a chunk fails, and what a reader does when it is asked for the chunk again."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ciuic.errors import ChunkMissingError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.records.kinds import CHAIN_MAX

__all__ = [
    "ChainTooLongError",
    "ChunksWritten",
    "Descent",
    "Elsewhere",
    "LostBaseError",
    "RememberFailures",
    "RetryFailures",
]


class Elsewhere(Protocol):
    """Other stores that may have a chunk which cannot be read here. Used from any thread."""

    def chunk(self, chunk_id: ChunkId, kind: int) -> bytes | memoryview | None:
        """Return the plain bytes of a chunk; None if no other store has it.

        A fault of another store raises nothing: the error of this store stands.
        """


class ChunksWritten(Protocol):
    """Chunks that the caller of a reader has written to files. Used from any thread."""

    def lend(
        self, chunk_id: ChunkId, length_bytes: int
    ) -> AbstractContextManager[memoryview | None]:
        """Lend memory with the bytes of a chunk, which may be wrong; None if it is in no file."""


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

    # A client makes the error again from the reply of a daemon: ``error_from_document``.
    def __init__(
        self,
        message: str = f"its delta chain has more than {CHAIN_MAX} deltas",
        *,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)


class LostBaseError(CorruptionError):
    """A delta base cannot be read. The message names the end of the delta chain, and why."""


class Descent:
    """The state of one read, from a chunk down its delta chain. No chunk is searched for twice.

    Args:
        read: Reads a delta base, for this read.
        repair: See ``StoreReader.chunk``.

    Attributes:
        depth: Deltas that were counted before the chunk that is being read: those above it, and
            those below the delta bases that were read before it.
        links: Deltas that the frame that was read last takes, itself included.
        is_below: The delta base failed and not the frame, which may be sound.
    """

    __slots__ = ("_lost", "_read", "depth", "is_below", "links", "repair")

    def __init__(
        self, read: Callable[[ChunkId, "Descent"], bytes | memoryview], *, repair: bool
    ) -> None:
        self.repair = repair
        self.depth = 0
        self.links = 0
        self.is_below = False
        self._read = read
        self._lost: set[ChunkId] = set()

    def read_bases(self, chunk_ids: Sequence[ChunkId]) -> list[bytes | memoryview]:
        """Read the delta bases of a frame. Each delta below counts as often as it is reached."""
        found, links, depth = [], 1, self.depth
        try:
            for chunk_id in chunk_ids:
                self.depth = depth + links
                found.append(self._read_base(chunk_id))
                links += self.links
        finally:
            self.depth = depth
        self.links = links
        return found

    def _read_base(self, chunk_id: ChunkId) -> bytes | memoryview:
        try:
            if self.depth > CHAIN_MAX:
                raise ChainTooLongError
            if chunk_id in self._lost:
                raise ChunkMissingError(f"chunk {chunk_id.hex()[:12]} is lost")
            return self._read(chunk_id, self)
        except (ChainTooLongError, UnknownFormatError):
            self.is_below = True
            raise
        except CorruptionError as error:
            self._lost.add(chunk_id)
            self.is_below = True
            if isinstance(error, LostBaseError):
                raise
            raise LostBaseError(f"its delta base cannot be read: {error.message}") from error

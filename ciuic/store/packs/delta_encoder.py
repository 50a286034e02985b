"""Encodes chunks as deltas: offers older versions as delta bases, from which ``codec`` chooses.

The candidates are the chunk's previous version and that version's own delta chain. The nearest
version is the most similar one. If reading it is too costly, its own base may do: it is less
similar, and its chain is shorter.
"""

import contextlib
from typing import Final, Protocol

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.store.format.frame import Frame, encode_delta_frame
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA

__all__ = ["DeltaEncoder", "PreviousVersions"]

_DELTAS_MAX: Final = 12
"""The most deltas in a chain, however small they are: each is decoded in turn."""


class PreviousVersions(Protocol):
    """Knows the previous versions of chunks."""

    def of(self, chunk_id: ChunkId) -> ChunkId:
        """Return a chunk's previous version; empty if none is worth reading."""
        ...

    def tell(self, chunk_id: ChunkId, *, is_like: bool) -> None:
        """Receive the result of comparing a chunk with its previous version.

        Args:
            chunk_id: The chunk.
            is_like: It became a delta.
        """
        ...


class _Version:
    """One version in the previous version's delta chain. See ``codec.DeltaBase``.

    Args:
        reader: Reads it.
        chunk_id: The version.
        cost_bytes: Stored bytes that are read to decode it: its frame and all below it.
        worth_bytes: A longer delta against this version is useless.
        bytes_min: The expected minimum of a delta against this version.

    Attributes:
        was_read: It was read, or an attempt to read it failed.
    """

    def __init__(
        self,
        reader: StoreReader,
        chunk_id: ChunkId,
        cost_bytes: int,
        worth_bytes: int,
        bytes_min: int,
    ) -> None:
        self._reader = reader
        self.chunk_id = chunk_id
        self.cost_bytes = cost_bytes
        self.worth_bytes = worth_bytes
        self.bytes_min = bytes_min
        self.was_read = False

    def read(self) -> bytes | memoryview | None:
        """Return its bytes; None if it is damaged. A failing store ends the run."""
        self.was_read = True
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            return self._reader.chunk(self.chunk_id, kind=DATA)
        return None


class DeltaEncoder:
    """Encodes chunks of file content as deltas. May be called from any thread.

    Args:
        reader: Reads older versions.
        chain_cost: The limit on stored bytes that are read to decode a chunk, in multiples of
            what the chunk takes alone; up to 1: no deltas.
        index: Says whether a snapshot may rely on an older version.
    """

    def __init__(self, reader: StoreReader, chain_cost: float, index: ChunkIndex) -> None:
        self._reader = reader
        self._chain_cost = chain_cost
        self._index = index

    @property
    def is_enabled(self) -> bool:
        """A chunk may be stored as a delta."""
        return self._chain_cost > 1

    def encode(
        self, chunk: tuple[ChunkId, bytes | memoryview], previous: PreviousVersions, width: int
    ) -> tuple[Frame, bytes | memoryview] | None:
        """Encode a chunk as a delta; None if it is better stored without a base.

        Args:
            chunk: ID and plain bytes.
            previous: Names the chunk's previous version, and receives the result.
            width: Bytes of an element; 0: found by probing.

        Raises:
            StoreError: The store failed. A damaged older version is not an error.
        """
        chunk_id, plain = chunk
        previous_id = previous.of(chunk_id)
        chain = self._reader.chain(previous_id) if previous_id else None
        if chain is None or chain[0].length_bytes != len(plain):
            return None
        if self._index.has_unusable and not self._index.usable([previous_id]):
            return None
        if self._index.damage and self._index.is_damaged(chunk_id):
            return None  # only a copy without base becomes its place: see ``ChunkIndex.add_pack``
        versions = self._candidates(previous_id, chain)
        bases = [(version.chunk_id, version) for version in versions]
        encoded = encode_delta_frame(chunk, bases, self._chain_cost, width)
        was_read = any(version.was_read for version in versions)
        # A previous version that is a delta was similar to its own base, and is only too costly.
        if encoded is not None or (was_read and len(chain) == 1):
            previous.tell(chunk_id, is_like=encoded is not None)
        return encoded

    def _candidates(self, previous_id: ChunkId, chain: list[ChunkPlace]) -> list[_Version]:
        """Return the versions that may be the delta base, the most similar one first.

        If the chain has the most deltas allowed, only the version at its end is a candidate: it is
        no delta, so a new chain can begin there.
        """
        versions: list[_Version] = []
        # Most deltas in a chain are alike: a delta of half the shortest is not expected.
        bytes_min = min([place.frame_bytes for place in chain[:-1]], default=0) // 2
        chunk_id = previous_id
        cost_bytes = sum([place.frame_bytes for place in chain])
        for place in chain:
            worth = self._worth_bytes(chain) if versions else place.length_bytes
            versions.append(_Version(self._reader, chunk_id, cost_bytes, worth, bytes_min))
            chunk_id = place.delta_bases[0] if place.delta_bases else chunk_id
            cost_bytes -= place.frame_bytes
        return versions[-1:] if len(chain) > _DELTAS_MAX else versions

    def _worth_bytes(self, chain: list[ChunkPlace]) -> int:
        """Return the mean stored size of a version if a new chain begins when one is too costly.

        A delta against a distant version is worth storing if it takes less than that. Longer
        deltas would delay the new chain forever, and only a new chain makes deltas short again.
        """
        alone = chain[-1].frame_bytes
        delta = min([place.frame_bytes for place in chain])
        links = min(int((self._chain_cost - 1) * alone / delta), _DELTAS_MAX)
        return (alone + links * delta) // (links + 1)

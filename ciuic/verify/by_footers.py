"""Verifying with a list of all chunks from the footers, instead of one query for each chunk.

The list only confirms that chunks exist and are sound. For all other chunks the caller asks the
chunk index and the other packs, and reads a second time.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.index.footers import Listing
from ciuic.store.records.kinds import check_chunk
from ciuic.store.store import Store
from ciuic.verify.tasks import Task

__all__ = ["Found", "Listed"]

_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Decoded frames of nodes: a walk soon returns to the frames that it has just used."""


class Found(NamedTuple):
    """The result for some chunks of file content.

    Attributes:
        unlisted: The chunks that are not listed.
        shared: Frames of small files that must be checked now.
    """

    unlisted: list[ChunkId]
    shared: list[Task]


class Listed:
    """Lists the chunks of packs, and remembers which frames are needed.

    Args:
        store: The store.
        packs: The packs to list.

    Attributes:
        chunks: How many needed chunks the list had so far.
        node_bytes: Stored bytes of the frames of nodes that were read so far.
    """

    def __init__(self, store: Store, packs: Collection[PackId]) -> None:
        self.chunks = 0
        self.node_bytes = 0
        self._reader = store.reader
        self._listing = Listing(store.packs, packs)
        self._is_needed = bytearray(len(self._listing))
        self._kept: dict[int, bytes | memoryview] = {}
        self._kept_bytes = 0
        self._nodes_met: set[ChunkId] = set()

    @property
    def has_numbers(self) -> bool:
        """Some of the listed frames hold arrays of numbers."""
        return self._listing.has_numbers

    def need(self, chunk_ids: Sequence[ChunkId], lengths: dict[ChunkId, int]) -> Found:
        """Mark chunks of file content as needed; adds the length of each listed chunk."""
        unlisted, frames, fresh = self._listing.look_up(chunk_ids, lengths)
        self.chunks += fresh
        new = [number for number in sorted(frames) if not self._is_needed[number]]
        for number in new:
            self._is_needed[number] = True
        shared_new = [number for number in new if self._listing.is_shared(number)]
        shared = [self._task(number, keep=False) for number in shared_new]
        return Found(unlisted, shared)

    def node(self, kind: int, node_id: ChunkId) -> bytes | None:
        """Read, decode and hash a node; None if it is not listed, or not sound."""
        place = self._listing.node(kind, node_id)
        if place is None:
            return None
        number, start, length = place
        try:
            part = bytes(memoryview(self._frame(number))[start : start + length])
            check_chunk(kind, node_id, part)
        except (CorruptionError, UnknownFormatError):
            return None
        self.chunks += node_id not in self._nodes_met
        self._nodes_met.add(node_id)
        return part

    def _frame(self, number: int) -> bytes | memoryview:
        plain = self._kept.pop(number, None)
        if plain is None:
            task = self._task(number, keep=False)
            _, plain = self._reader.frame(task.place, repair=False, header_id=task.header_id)
            self._kept_bytes += len(plain)
            if not self._is_needed[number]:
                self._is_needed[number] = True
                self.node_bytes += task.place.frame_bytes
        self._kept[number] = plain
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
        return plain

    def left(self) -> tuple[Iterator[list[Task]], int]:
        """Return the needed frames that were not checked yet, in groups; and their bytes.

        They are in the order of the packs, each followed by the frames that are deltas from it, so
        that each is decoded once. Delta bases are included, whether or not snapshots need them.
        """
        listing, is_needed = self._listing, self._is_needed
        deltas: dict[int, list[int]] = {}
        behind: set[int] = set()
        for delta in listing.deltas():
            waiting = [delta]
            while waiting:
                number = waiting.pop()
                if not is_needed[number] or number in behind:
                    continue
                bases = [base for base in listing.bases(number) if listing.is_alone(base)]
                if bases:
                    behind.add(number)
                    deltas.setdefault(bases[0], []).append(number)
                for base in bases:
                    is_needed[base] = True
                waiting += bases
        alone = [
            number
            for number in range(len(listing))
            if is_needed[number] and listing.is_alone(number)
        ]
        firsts = [number for number in alone if number not in behind]
        size_bytes = sum([listing.place(number).frame_bytes for number in alone])
        return self._groups(firsts, deltas), size_bytes

    def _groups(self, firsts: list[int], deltas: dict[int, list[int]]) -> Iterator[list[Task]]:
        for first in firsts:
            group = [first]
            for number in group:
                group += deltas.pop(number, ())
            yield [self._task(number, keep=len(group) > 1) for number in group]

    def needed_in(self, frames: Collection[int]) -> list[ChunkId]:
        """Return the needed chunks in these frames."""
        return self._listing.needed_in(frames) if frames else []

    def repeated(self) -> set[ChunkId]:
        """Return the needed chunks of file content that may have several copies."""
        return self._listing.repeated()

    def _task(self, number: int, *, keep: bool) -> Task:
        listing = self._listing
        return Task(listing.place(number), (), keep, listing.header_id(number), number)

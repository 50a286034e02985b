"""Verifying by a listing of all chunks instead of by the catalog, of which it would ask each.

Only ever says that something is there and sound. For what it does not know, or finds otherwise,
whoever asks goes the way on which the catalog, the other packs and second reads are asked.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.store import Store
from ciuic.store.frame import check_chunk
from ciuic.store.listing import Listing
from ciuic.verbs.checking import Task

__all__ = ["Found", "Listed"]

_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of decoded frames of nodes: a walk comes back to those that it has left a moment ago."""


class Found(NamedTuple):
    """What is known of chunks of file content.

    Attributes:
        unlisted: Those that are not listed.
        shared: Frames of small files to be checked now.
    """

    unlisted: list[bytes]
    shared: list[Task]


class Listed:
    """The frames of a store of which chunks are needed.

    Args:
        store: The store.
        packs: Those to be listed.

    Attributes:
        chunks: How many that are needed were found in it so far.
        node_bytes: Stored bytes of frames of nodes that were read so far.
    """

    def __init__(self, store: Store, packs: Collection[bytes]) -> None:
        self.chunks = 0
        self.node_bytes = 0
        self._reader = store.reader
        self._listing = Listing(store.path, packs)
        self._is_needed = bytearray(len(self._listing))
        self._kept: dict[int, bytes | memoryview] = {}
        self._kept_bytes = 0
        self._nodes_met: set[bytes] = set()

    @property
    def has_numbers(self) -> bool:
        """Arrays of numbers are among what is listed."""
        return self._listing.has_numbers

    def need(self, names: Sequence[bytes], lengths: dict[bytes, int]) -> Found:
        """Chunks of file content are needed; the length of each that is listed is noted."""
        unlisted, frames, fresh = self._listing.look_up(names, lengths)
        self.chunks += fresh
        new = [number for number in sorted(frames) if not self._is_needed[number]]
        for number in new:
            self._is_needed[number] = True
        shared = [self._task(one, keep=False) for one in new if self._listing.is_shared(one)]
        return Found(unlisted, shared)

    def node(self, kind: int, name: bytes) -> bytes | None:
        """A node, read, decoded and hashed; None if it is not listed, or not sound."""
        place = self._listing.node(kind, name)
        if place is None:
            return None
        number, start, length = place
        try:
            part = bytes(memoryview(self._frame(number))[start : start + length])
            check_chunk(kind, name, part)
        except (CorruptionError, UnknownFormatError):
            return None
        self.chunks += name not in self._nodes_met
        self._nodes_met.add(name)
        return part

    def _frame(self, number: int) -> bytes | memoryview:
        plain = self._kept.pop(number, None)
        if plain is None:
            task = self._task(number, keep=False)
            _, plain = self._reader.frame(task.place, heal=False, header_id=task.header_id)
            self._kept_bytes += len(plain)
            if not self._is_needed[number]:
                self._is_needed[number] = True
                self.node_bytes += task.place.frame_bytes
        self._kept[number] = plain
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
        return plain

    def left(self) -> tuple[Iterator[list[Task]], int]:
        """All other frames that are needed, in groups as they are to be checked; and how many.

        In the order they lie on the disk, each followed by those that are differences from it, so
        that each is decoded once. What a difference is from is among them, needed or not.
        """
        listing, is_needed = self._listing, self._is_needed
        deltas: dict[int, list[int]] = {}
        behind: set[int] = set()
        for delta in listing.deltas():
            number = delta
            while is_needed[number] and number not in behind:
                base = listing.base(number)
                if base is None or not listing.is_alone(base):
                    break
                behind.add(number)
                deltas.setdefault(base, []).append(number)
                is_needed[base] = True
                number = base
        alone = [
            number
            for number in range(len(listing))
            if is_needed[number] and listing.is_alone(number)
        ]
        firsts = [number for number in alone if number not in behind]
        return self._groups(firsts, deltas), len(alone)

    def _groups(self, firsts: list[int], deltas: dict[int, list[int]]) -> Iterator[list[Task]]:
        for first in firsts:
            group = [first]
            for number in group:
                group += deltas.pop(number, ())
            yield [self._task(number, keep=len(group) > 1) for number in group]

    def needed_in(self, frames: Collection[int]) -> list[bytes]:
        """Chunks that are needed and lie in one of these frames."""
        return self._listing.needed_in(frames) if frames else []

    def _task(self, number: int, *, keep: bool) -> Task:
        listing = self._listing
        return Task(listing.place(number), (), keep, listing.header_id(number), number)

"""Marks the chunks that kept snapshots need, directly or through other chunks.

Nodes are identified by their full IDs, data chunks by the first 8 bytes. If two data chunks share
these bytes, both are kept if one is needed. A needed chunk is therefore never taken for garbage,
and garbage is taken for needed with a probability of one in 2^64.

Memory, in flat arrays: 11 bytes for each data chunk, 8 more for each delta, and 41 bytes for each
node. That is 120 to 200 MB for ten million chunks, 3% of them nodes, for any number of snapshots.
A node that many snapshots share is read once.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import ChunkId
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records.kinds import DATA, TREE
from ciuic.store.records.nodes import LEVEL_MAX, Node
from ciuic.store.records.references import references
from ciuic.system.hashing import ID_BYTES

__all__ = ["IdTable", "Marking", "Marks", "mark_tree"]

_PREFIX_BYTES: Final = 8
_PREFIX_BITS: Final = 8 * _PREFIX_BYTES
_BUCKET_BITS_MAX: Final = 16
_BUCKET_IDS_BITS: Final = 5
"""Smaller buckets do not make a search faster, so a small store gets fewer buckets."""
_UNLISTED_MAX: Final = 1_000_000
"""The most chunks that the chunk index lacks. They are damage, and only a badly damaged store has
more."""
_RECENT_MAX: Final = 100_000
_WAVE: Final = 256
"""The number of nodes that are looked up together."""
_NEEDED: Final = 1
_FOUND: Final = 2


class IdTable:
    """A set of IDs with a mark for each.

    It takes 10 bytes for each ID, where a dict takes 130. ``numpy.searchsorted`` finds a batch of
    IDs in about two thirds of the time, and a single ID in three times the time. The import of
    numpy costs more than that saves, unless a store has a million chunks.

    Args:
        full_ids: Compare all bytes of IDs; otherwise only the first 8.
    """

    def __init__(self, *, full_ids: bool) -> None:
        self._has_full_ids = full_ids
        self._prefixes = array("Q")
        self._ids: bytes | bytearray = bytearray()
        self._starts = array("Q")
        self._shift = _PREFIX_BITS
        self._unlisted: dict[ChunkId, int] = {}
        self.marks = bytearray()

    def extend(self, ids: list[ChunkId]) -> None:
        """Append IDs. They must be sorted, across all calls."""
        prefixes = array("Q", b"".join([chunk_id[:_PREFIX_BYTES] for chunk_id in ids]))
        if sys.byteorder == "little":
            prefixes.byteswap()
        if self._has_full_ids:
            self._ids += b"".join(ids)
        self._prefixes += prefixes

    def close(self) -> None:
        """Finish the sorted IDs. ``add`` can append a few more."""
        prefixes = self._prefixes
        bits = min(_BUCKET_BITS_MAX, max(0, len(prefixes).bit_length() - _BUCKET_IDS_BITS))
        self._shift = _PREFIX_BITS - bits
        # IDs are spread evenly: a search begins in a bucket of a few hundred of ten million IDs.
        firsts = (bucket << self._shift for bucket in range(1 << bits))
        self._starts = array("Q", [bisect_left(prefixes, first) for first in firsts])
        self._starts.append(len(prefixes))
        self.marks = bytearray(len(prefixes))

    def slot(self, chunk_id: ChunkId) -> int:
        """Return the index of an ID's mark; -1 if the ID is not in the set."""
        return self.slots((chunk_id,))[0]

    def slots(self, chunk_ids: Iterable[ChunkId]) -> list[int]:
        """Return ``slot`` of each ID."""
        # Every chunk of the store passes here, some chunks twice: avoid function calls.
        prefixes, starts, shift, is_whole = (
            self._prefixes,
            self._starts,
            self._shift,
            self._has_full_ids,
        )
        found = []
        for chunk_id in chunk_ids:
            prefix = int.from_bytes(chunk_id[:_PREFIX_BYTES])
            bucket = prefix >> shift
            end = starts[bucket + 1]
            at = bisect_left(prefixes, prefix, starts[bucket], end)
            if at == end or prefixes[at] != prefix:
                at = self._unlisted.get(chunk_id, -1)
            elif is_whole and self._ids[at * ID_BYTES : (at + 1) * ID_BYTES] != chunk_id:
                at = self._same_prefix(chunk_id, prefix, at + 1, end)
            found.append(at)
        return found

    def add(self, chunk_id: ChunkId) -> int:
        """Add an ID if it is not in the set; returns the index of its mark."""
        at = self.slot(chunk_id)
        if at < 0:
            if len(self._unlisted) >= _UNLISTED_MAX:
                raise StoreError(
                    f"more than {_UNLISTED_MAX:,} chunks of the store are not in its chunk index",
                    hint="Nothing was removed. Run 'ciuic repair --apply' first.",
                )
            at = self._unlisted[chunk_id] = len(self.marks)
            self.marks.append(0)
        return at

    def _same_prefix(self, chunk_id: ChunkId, prefix: int, at: int, end: int) -> int:
        """Return the slot of an ID among the IDs with the same prefix, from ``at`` on."""
        while at < end and self._prefixes[at] == prefix:
            if self._ids[at * ID_BYTES : (at + 1) * ID_BYTES] == chunk_id:
                return at
            at += 1
        return self._unlisted.get(chunk_id, -1)


class Marking(Protocol):
    """Receives the chunks of a tree."""

    def add_data(self, chunk_ids: list[ChunkId]) -> None:
        """Receive data chunks."""

    def add_node(self, node_id: ChunkId) -> bool:
        """Receive a node; returns whether to read it, because it was not received before."""


class Marks:
    """The chunks that a store's packs list, with a mark for each needed chunk.

    Args:
        index: The chunk index, up to date. Chunks that it lacks can be marked, less compactly.
    """

    def __init__(self, index: ChunkIndex) -> None:
        self._data = IdTable(full_ids=False)
        self._nodes = IdTable(full_ids=True)
        self._recent: set[ChunkId] = set()
        self._upper = array("I")
        self._lower = array("I")
        self._deltas = bytearray()
        for rows in index.chunk_ids():
            self._data.extend([chunk_id for chunk_id, kind in rows if kind == DATA])
            self._nodes.extend([chunk_id for chunk_id, kind in rows if kind != DATA])
        self._data.close()
        self._nodes.close()

    def add_data(self, chunk_ids: list[ChunkId]) -> None:
        """Mark data chunks as needed."""
        table = self._data
        new = list(set(chunk_ids) - self._recent)
        self._remember(new)
        for chunk_id, slot in zip(new, table.slots(new), strict=True):
            table.marks[slot if slot >= 0 else table.add(chunk_id)] = _NEEDED

    def add_node(self, node_id: ChunkId) -> bool:
        """Mark a node as needed; returns whether it was not marked before."""
        if node_id in self._recent:
            return False
        self._remember((node_id,))
        slot = self._nodes.add(node_id)
        is_new = not self._nodes.marks[slot]
        self._nodes.marks[slot] = _NEEDED
        return is_new

    def is_needed(self, kind: int, chunk_id: ChunkId) -> bool:
        """Return whether a chunk is needed."""
        return self.needed(kind, (chunk_id,))[0]

    def needed(self, kind: int, chunk_ids: Iterable[ChunkId]) -> list[bool]:
        """Return for each chunk whether it is needed."""
        table = self._data if kind == DATA else self._nodes
        marks = table.marks
        return [slot >= 0 and marks[slot] != 0 for slot in table.slots(chunk_ids)]

    def tick_off(self, kind: int, chunk_ids: Sequence[ChunkId]) -> tuple[list[bool], list[ChunkId]]:
        """Like ``needed`` for the chunks of a frame, and note that a pack has them.

        Returns:
            For each chunk whether it is needed; and the needed chunks that were ticked off before.
        """
        table = self._data if kind == DATA else self._nodes
        marks = table.marks
        needed = []
        repeated = []
        for chunk_id, slot in zip(chunk_ids, table.slots(chunk_ids), strict=True):
            mark = marks[slot] if slot >= 0 else 0
            needed.append(mark != 0)
            if mark == _FOUND:
                repeated.append(chunk_id)
            elif mark:
                marks[slot] = _FOUND
        return needed, repeated

    @property
    def lacks_some(self) -> bool:
        """Whether a needed chunk was not ticked off: no pack that was looked through has it."""
        return _NEEDED in self._data.marks or _NEEDED in self._nodes.marks

    def add_delta_base(self, delta: ChunkId, base: ChunkId) -> None:
        """Record that a pack has a data chunk as a delta against ``base``."""
        self._upper.append(self._data.add(delta))
        self._lower.append(self._data.add(base))

    def follow_delta_bases(self) -> None:
        """Mark the delta bases of needed chunks, and their bases, as needed.

        All chunks that are needed for other reasons must be marked, and all delta bases added.
        """
        marks = self._data.marks
        marked = bytes(marks)
        has_changed = True
        while has_changed:
            has_changed = False
            for delta, base in zip(self._upper, self._lower, strict=True):
                if marks[delta] and not marks[base]:
                    marks[base] = _NEEDED
                    has_changed = True
        self._count_deltas(marked)
        del self._upper[:], self._lower[:]

    def _count_deltas(self, marked: bytes) -> None:
        """For chunks that are needed only as delta bases, count the needed deltas, capped at 2."""
        self._deltas = bytearray(len(marked))
        for delta, base in zip(self._upper, self._lower, strict=True):
            if self._data.marks[delta] and not marked[base]:
                self._deltas[base] = min(self._deltas[base] + 1, 2)

    def has_one_use(self, chunk_id: ChunkId) -> bool:
        """Return whether a chunk is needed only as the base of a single delta."""
        slot = self._data.slot(chunk_id)
        return 0 <= slot < len(self._deltas) and self._deltas[slot] == 1

    def _remember(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Remember recent chunks: snapshots share most chunks, and marking one again is wasted."""
        if len(self._recent) > _RECENT_MAX:
            self._recent.clear()
        self._recent.update(chunk_ids)


def mark_tree(
    reader: StoreReader, marks: Marking, root: ChunkId, *, check: Callable[[], None]
) -> None:
    """Mark a root's tree and all chunks below it. Nodes that are marked already are not read.

    Args:
        reader: Reads the store.
        marks: Receives the marks.
        root: The root node.
        check: Called from time to time; raises to end the walk.

    Raises:
        CorruptionError: A node is missing or damaged, so the chunks that it needs are unknown.
    """
    # Blocks of nodes that are marked and not read yet. The deepest block is last, so at each depth
    # only the children of one wave wait. Blocks are flat bytes: a directory may have millions.
    blocks = [_packed([Node(TREE, 0, root)])] if marks.add_node(root) else []
    while blocks:
        check()
        block = blocks.pop()
        wave = list(_unpacked(block[-_WAVE * (ID_BYTES + 1) :]))
        rest = block[: -_WAVE * (ID_BYTES + 1)]
        if rest:
            blocks.append(rest)
        inner: list[Node] = []
        for node in _in_place_order(reader, wave):
            data = reader.node(node.kind, node.id)
            nodes, chunks = references(node.kind, data, node.level)
            if any(len(chunk_id) != ID_BYTES for chunk_id in chunks):
                raise CorruptionError("an entry's content is not an ID")
            marks.add_data(chunks)
            inner += [_checked(child) for child in nodes if marks.add_node(child.id)]
        if inner:
            blocks.append(_packed(inner))


def _in_place_order(reader: StoreReader, nodes: list[Node]) -> list[Node]:
    """Sort nodes by their places in the packs, so that each frame is decoded once."""
    places = reader.places([node.id for node in nodes])

    def key(node: Node) -> tuple[bytes, int]:
        place: ChunkPlace | None = places.get(node.id)
        return (place.pack_id, place.offset_bytes) if place is not None else (b"", 0)

    return sorted(nodes, key=key)


def _checked(node: Node) -> Node:
    if len(node.id) != ID_BYTES or not 0 <= node.level <= LEVEL_MAX:
        raise CorruptionError("an entry refers to a node with an impossible ID or level")
    return node


def _packed(nodes: list[Node]) -> bytes:
    return b"".join([bytes([kind << 4 | level]) + node_id for kind, level, node_id in nodes])


def _unpacked(block: bytes) -> Iterator[Node]:
    for at in range(0, len(block), ID_BYTES + 1):
        code = block[at]
        yield Node(code >> 4, code & 15, ChunkId(block[at + 1 : at + ID_BYTES + 1]))

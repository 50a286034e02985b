"""Which chunks are needed: every one that a kept snapshot refers to, directly or not.

Exact where it counts. A node that is needed is known by its whole ID, and what it refers to is
needed as well. A data chunk is known by the first 8 bytes of its ID: should two share them, both
are kept if one is needed. So nothing that is needed is ever taken for garbage, and garbage that
is taken for needed is a coincidence of one in 2^64.

Memory: 8 bytes, a mark and two more bytes for each data chunk, 8 more for each that is stored as a
difference, 40 and a mark for each node, in flat arrays. That is 120 to 200 MB for ten million
chunks of which 3 % are nodes, whatever the number of snapshots: each node is read once, however
many snapshots share it.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ciuic.errors import CorruptionError, StoreError
from ciuic.hashing import ID_BYTES
from ciuic.store.frame import DATA, TREE
from ciuic.store.index import ChunkPlace, Index
from ciuic.store.nodes import LEVEL_MAX, Node, references
from ciuic.store.reader import StoreReader

__all__ = ["Marks", "mark_tree"]

_PREFIX_BYTES: Final = 8
_PREFIX_BITS: Final = 8 * _PREFIX_BYTES
_BUCKET_BITS_MAX: Final = 16
_BUCKET_IDS_BITS: Final = 5
"""A search among 32 IDs takes no longer than any; of a small store fewer buckets are made."""
_UNLISTED_MAX: Final = 1_000_000
"""Chunks that the catalog does not list: damage, of which a store worth pruning has little."""
_RECENT_MAX: Final = 100_000
_WAVE: Final = 256
"""Nodes that are looked up together."""
_NEEDED: Final = 1
_FOUND: Final = 2


class _Table:
    """A set of IDs, with a mark for each.

    Args:
        whole: Tell IDs apart by all their bytes; otherwise by the first 8.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._prefixes = array("Q")
        self._ids = bytearray()
        self._starts = array("Q")
        self._shift = _PREFIX_BITS
        self._unlisted: dict[bytes, int] = {}
        self.marks = bytearray()

    def extend(self, ids: list[bytes]) -> None:
        """Append IDs; in the order of their bytes, over all calls."""
        prefixes = array("Q", b"".join([one[:_PREFIX_BYTES] for one in ids]))
        if sys.byteorder == "little":
            prefixes.byteswap()
        if self._whole:
            self._ids += b"".join(ids)
        self._prefixes += prefixes

    def close(self) -> None:
        """All IDs are there; ``add`` is for a few more."""
        prefixes = self._prefixes
        bits = min(_BUCKET_BITS_MAX, max(0, len(prefixes).bit_length() - _BUCKET_IDS_BITS))
        self._shift = _PREFIX_BITS - bits
        # IDs are spread evenly: a search begins with a few hundred of ten million.
        firsts = (one << self._shift for one in range(1 << bits))
        self._starts = array("Q", [bisect_left(prefixes, one) for one in firsts])
        self._starts.append(len(prefixes))
        self.marks = bytearray(len(prefixes))

    def slot(self, name: bytes) -> int:
        """Where the mark of an ID stands; -1 if it is not in the set."""
        return self.slots((name,))[0]

    def slots(self, names: Iterable[bytes]) -> list[int]:
        """``slot`` of each."""
        # Every chunk of the store comes here, some of them twice: so nothing is called that need
        # not be.
        prefixes, starts, shift, is_whole = self._prefixes, self._starts, self._shift, self._whole
        found = []
        for name in names:
            prefix = int.from_bytes(name[:_PREFIX_BYTES])
            bucket = prefix >> shift
            end = starts[bucket + 1]
            at = bisect_left(prefixes, prefix, starts[bucket], end)
            if at == end or prefixes[at] != prefix:
                at = self._unlisted.get(name, -1)
            elif is_whole and self._ids[at * ID_BYTES : (at + 1) * ID_BYTES] != name:
                at = self._alike(name, prefix, at + 1, end)
            found.append(at)
        return found

    def add(self, name: bytes) -> int:
        """Where the mark of an ID stands, which is in the set from now on."""
        at = self.slot(name)
        if at < 0:
            if len(self._unlisted) >= _UNLISTED_MAX:
                raise StoreError(
                    f"more than {_UNLISTED_MAX:,} chunks of the store are not in its catalog",
                    hint="Nothing was removed. Run 'ciuic repair' first.",
                )
            at = self._unlisted[name] = len(self.marks)
            self.marks.append(0)
        return at

    def _alike(self, name: bytes, prefix: int, at: int, end: int) -> int:
        """The slot of an ID that begins as the one before ``at`` does."""
        while at < end and self._prefixes[at] == prefix:
            if self._ids[at * ID_BYTES : (at + 1) * ID_BYTES] == name:
                return at
            at += 1
        return self._unlisted.get(name, -1)


class Marks:
    """The chunks that a store's packs list, and which of them are needed.

    Args:
        index: The catalog, up to date. What it fails to list is only less compact to mark.
    """

    def __init__(self, index: Index) -> None:
        self._data = _Table(whole=False)
        self._nodes = _Table(whole=True)
        self._recent: set[bytes] = set()
        self._upper = array("I")
        self._lower = array("I")
        self._deltas = bytearray()
        for rows in index.chunk_ids():
            self._data.extend([name for name, kind in rows if kind == DATA])
            self._nodes.extend([name for name, kind in rows if kind != DATA])
        self._data.close()
        self._nodes.close()

    def add_data(self, names: list[bytes]) -> None:
        """These data chunks are needed."""
        table = self._data
        new = list(set(names) - self._recent)
        self._remember(new)
        for name, slot in zip(new, table.slots(new), strict=True):
            table.marks[slot if slot >= 0 else table.add(name)] = _NEEDED

    def add_node(self, name: bytes) -> bool:
        """A node is needed; returns whether that is news."""
        if name in self._recent:
            return False
        self._remember((name,))
        slot = self._nodes.add(name)
        is_new = not self._nodes.marks[slot]
        self._nodes.marks[slot] = _NEEDED
        return is_new

    def is_needed(self, kind: int, name: bytes) -> bool:
        """Somebody needs this chunk."""
        return self.needed(kind, (name,))[0]

    def needed(self, kind: int, names: Iterable[bytes]) -> list[bool]:
        """For each of these chunks whether somebody needs it."""
        table = self._data if kind == DATA else self._nodes
        marks = table.marks
        return [slot >= 0 and marks[slot] != 0 for slot in table.slots(names)]

    def tick_off(self, kind: int, names: Sequence[bytes]) -> tuple[list[bool], list[bytes]]:
        """As ``needed``, for chunks that a pack lists.

        Returns:
            Besides, those that are needed and were ticked off before.
        """
        table = self._data if kind == DATA else self._nodes
        marks = table.marks
        needed = []
        repeated = []
        for name, slot in zip(names, table.slots(names), strict=True):
            mark = marks[slot] if slot >= 0 else 0
            needed.append(mark != 0)
            if mark == _FOUND:
                repeated.append(name)
            elif mark:
                marks[slot] = _FOUND
        return needed, repeated

    def add_reference(self, name: bytes, base: bytes) -> None:
        """A pack has a data chunk as a difference from another one."""
        self._upper.append(self._data.add(name))
        self._lower.append(self._data.add(base))

    def follow_references(self) -> None:
        """Whatever a needed chunk is stored as a difference from is needed too.

        All that is needed for another reason must have been marked before, and all references
        added.
        """
        marks = self._data.marks
        marked = bytes(marks)
        is_news = True
        while is_news:
            is_news = False
            for name, base in zip(self._upper, self._lower, strict=True):
                if marks[name] and not marks[base]:
                    marks[base] = _NEEDED
                    is_news = True
        self._count_deltas(marked)
        del self._upper[:], self._lower[:]

    def _count_deltas(self, marked: bytes) -> None:
        """How many needed deltas each chunk has that is needed for nothing else; 2 are many."""
        self._deltas = bytearray(len(marked))
        for name, base in zip(self._upper, self._lower, strict=True):
            if self._data.marks[name] and not marked[base]:
                self._deltas[base] = min(self._deltas[base] + 1, 2)

    def has_one_use(self, name: bytes) -> bool:
        """A chunk is needed for nothing but a single difference from it."""
        slot = self._data.slot(name)
        return 0 <= slot < len(self._deltas) and self._deltas[slot] == 1

    def _remember(self, names: Iterable[bytes]) -> None:
        """One directory after the other, most of what is needed was needed a moment ago."""
        if len(self._recent) > _RECENT_MAX:
            self._recent.clear()
        self._recent.update(names)


def mark_tree(reader: StoreReader, marks: Marks, root: bytes, *, check: Callable[[], None]) -> None:
    """Mark a root's tree and all below it; what is marked already is not read again.

    Args:
        reader: Of the store.
        marks: Added to.
        root: ID of the root node.
        check: Called now and then; raises to end the walk.

    Raises:
        CorruptionError: A node is missing or damaged: what it refers to can't be known.
    """
    # Blocks of nodes that are marked and not read yet, the deepest last, so that no more than a
    # wave's children at each depth wait. As flat bytes: a directory may have millions.
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
            if any(len(one) != ID_BYTES for one in chunks):
                raise CorruptionError("an entry's content is not an ID")
            marks.add_data(chunks)
            inner += [_checked(one) for one in nodes if marks.add_node(one.id)]
        if inner:
            blocks.append(_packed(inner))


def _in_place_order(reader: StoreReader, nodes: list[Node]) -> list[Node]:
    """As they lie in the packs, so that each frame is decoded once."""
    places = reader.places([node.id for node in nodes])

    def key(node: Node) -> tuple[bytes, int]:
        place: ChunkPlace | None = places.get(node.id)
        return (place.pack, place.offset_bytes) if place is not None else (b"", 0)

    return sorted(nodes, key=key)


def _checked(node: Node) -> Node:
    if len(node.id) != ID_BYTES or not 0 <= node.level <= LEVEL_MAX:
        raise CorruptionError("an entry refers to a node that can't be")
    return node


def _packed(nodes: list[Node]) -> bytes:
    return b"".join([bytes([kind << 4 | level]) + name for kind, level, name in nodes])


def _unpacked(block: bytes) -> Iterator[Node]:
    for at in range(0, len(block), ID_BYTES + 1):
        code = block[at]
        yield Node(code >> 4, code & 15, block[at + 1 : at + ID_BYTES + 1])

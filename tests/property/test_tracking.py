"""Recipes of changed files: for any changes, every byte is the new one."""

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ciuic.chunking import Chunker, FixedChunker
from ciuic.snapshot.read.changed_ranges import (
    ITEMS_MAX,
    Gap,
    Kept,
    plan_changes,
    unchanged_chunks,
    unchanged_whole_chunks,
)
from ciuic.source.byte_range import ByteRange
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.recipe_nodes import Piece
from ciuic.system.hashing import data_id

LEFT_MIN = 0.25
"""Less than this of a region is not worth keeping. See
ciuic/snapshot/read/changed_ranges.py."""

CHUNK_BYTES = st.sampled_from([8, 64, 400])


class Uneven(FixedChunker):
    """Cuts at multiples counted from each of some offsets to the next one."""

    def __init__(self, size_bytes: int, bounds: set[int]) -> None:
        super().__init__(size_bytes)
        self.bounds = sorted(bounds | {0})

    def before(self, offset_bytes: int) -> int:
        start = max(one for one in self.bounds if one <= offset_bytes)
        return offset_bytes - (offset_bytes - start) % self.size_bytes

    def after(self, offset_bytes: int) -> int:
        cut = self.before(offset_bytes) + self.size_bytes
        return min([cut, *[one for one in self.bounds if one > offset_bytes]])


@st.composite
def chunkers(draw: st.DrawFn, chunk_bytes: int) -> Chunker:
    """The fixed rule, or cuts anywhere between."""
    return Uneven(chunk_bytes, draw(st.sets(st.integers(1, 12 * chunk_bytes), max_size=12)))


class Chunks:
    """What a store would hold."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def add(self, data: bytes) -> bytes:
        """A chunk's ID."""
        name = data_id(data)
        self.data[name] = data
        return name

    def cut(self, piece: Piece) -> bytes:
        """A piece's bytes; those that no chunk has fail."""
        if not piece.id:
            assert piece.start_bytes == 0
            return bytes(piece.length_bytes)
        data = self.data[piece.id][piece.start_bytes :][: piece.length_bytes]
        assert len(data) == piece.length_bytes
        return data

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """A file's bytes."""
        return b"".join([self.cut(one) for one in pieces])


@st.composite
def recipes(draw: st.DrawFn, chunks: Chunks, chunk_bytes: int) -> list[Piece]:
    """Whole chunks, slices of some, short chunks and holes, in any order."""
    pieces = []
    noise = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["chunk", "slice", "short", "hole", "same"]))
        if kind == "hole":
            pieces.append(Piece(draw(st.integers(1, 3 * chunk_bytes)), b""))
            continue
        length = draw(st.integers(1, chunk_bytes)) if kind == "short" else chunk_bytes
        # Slices of one chunk are where neighbours could be joined by mistake.
        data = (bytes(range(256)) * 2)[:length] if kind == "same" else noise.randbytes(length)
        start = length_cut = 0
        if kind in {"slice", "same"}:
            start = draw(st.integers(0, length - 1))
            length_cut = draw(st.integers(0, length - 1 - start))
        pieces.append(Piece(length - start - length_cut, chunks.add(data), start))
    return pieces


@st.composite
def changes(draw: st.DrawFn, old_size: int) -> tuple[int, list[ByteRange]]:
    """A new length and what has changed: nothing, all, or ranges that may touch one another."""
    longer = st.integers(old_size, 2 * old_size + 40)
    new_size = draw(st.one_of(st.just(old_size), st.integers(0, old_size), longer))
    if draw(st.integers(0, 9)) == 0:
        return new_size, [ByteRange(0, new_size)] if new_size else []
    most = draw(st.sampled_from([0, 5, 5, 60]))
    ends = draw(st.lists(st.integers(0, new_size), max_size=2 * most, unique=True).map(sorted))
    found = [ByteRange(a, b - a) for a, b in zip(ends[::2], ends[1::2], strict=False)]
    if draw(st.booleans()):
        found = [ByteRange(a, b - a) for a, b in itertools.pairwise(ends)]
    return new_size, list(_with_growth(found, min(old_size, new_size), new_size))


def _with_growth(changed: Sequence[ByteRange], old_size: int, new_size: int) -> Iterator[ByteRange]:
    """All beyond the old end has changed."""
    for start, length in changed:
        end = min(start + length, old_size)
        if start < end:
            yield ByteRange(start, end - start)
    if old_size < new_size:
        yield ByteRange(old_size, new_size - old_size)


def changed_bytes(old: bytes, new_size: int, changed: Sequence[ByteRange]) -> bytes:
    """The new content: other bytes wherever something has changed, and nowhere else."""
    new = bytearray(old[:new_size].ljust(new_size, b"\xee"))
    for start, length in changed:
        for at in range(start, start + length):
            new[at] ^= 0x55
    return bytes(new)


def spelled(
    chunks: Chunks, plan: Sequence[Kept | Gap], new: bytes, chunker: Chunker
) -> list[Piece]:
    """The recipe that comes of a plan: gaps are read, and cut where any read cuts."""
    pieces = []
    for one in plan:
        if isinstance(one, Kept):
            pieces.append(one.piece)
            continue
        at, end = one.offset_bytes, one.offset_bytes + one.length_bytes
        while at < end:
            until = min(end, chunker.after(at))
            pieces.append(Piece(until - at, chunks.add(new[at:until])))
            at = until
    return pieces


def check_plan(plan: Sequence[Kept | Gap], new_size: int) -> None:
    """All of the file in order, and no two gaps that touch."""
    at = 0
    last_is_gap = False
    for one in plan:
        assert one.length_bytes > 0
        assert one.offset_bytes == at
        assert not (last_is_gap and isinstance(one, Gap))
        at += one.length_bytes
        last_is_gap = isinstance(one, Gap)
    assert at == new_size


def inside(ranges: Sequence[ByteRange | Gap | Kept], start: int, end: int) -> list[int]:
    """Of each range that reaches into a region, the bytes that are in it."""
    parts = [
        min(one.offset_bytes + one.length_bytes, end) - max(one.offset_bytes, start)
        for one in ranges
    ]
    return [one for one in parts if one > 0]


def check_regions(
    plan: Sequence[Kept | Gap], changed: Sequence[ByteRange], new_size: int, chunker: Chunker
) -> None:
    """A region is read as a whole, or exactly what has changed of it; then enough is kept."""
    gaps = [one for one in plan if isinstance(one, Gap)]
    end = 0
    while end < new_size:
        start, end = end, min(chunker.after(end), new_size)
        read = sum(inside(gaps, start, end))
        wanted = sum(inside(changed, start, end))
        if read == end - start:
            continue
        assert read == wanted
        if read:
            assert len(inside(plan, start, end)) <= ITEMS_MAX
            assert end - start - read >= LEFT_MIN * (end - start)


@given(st.data(), CHUNK_BYTES)
def test_what_is_kept_and_what_is_read_make_the_new_file(
    data: st.DataObject, chunk_bytes: int
) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)
    chunker = data.draw(chunkers(chunk_bytes))

    plan = list(plan_changes(pieces, changed, new_size, chunker=chunker))

    check_plan(plan, new_size)
    check_regions(plan, changed, new_size, chunker)
    assert chunks.whole(spelled(chunks, plan, new, chunker)) == new


@given(st.data(), CHUNK_BYTES)
def test_trusted_changes_equal_those_of_a_full_read(data: st.DataObject, chunk_bytes: int) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)
    chunker = data.draw(chunkers(chunk_bytes))

    found = list(
        unchanged_chunks(pieces, changed, new_size, chunker=chunker, chunk_bytes=chunk_bytes)
    )

    for one in found:
        assert chunker.before(one.offset_bytes) == one.offset_bytes
        assert chunker.after(one.offset_bytes) == one.offset_bytes + chunk_bytes
        assert one.piece.id == data_id(new[one.offset_bytes :][:chunk_bytes])


@given(st.data(), CHUNK_BYTES)
def test_reused_pieces_of_a_file_cut_by_content_are_whole_existing_chunks(
    data: st.DataObject, chunk_bytes: int
) -> None:
    chunks = Chunks()
    pieces = data.draw(recipes(chunks, chunk_bytes))
    old = chunks.whole(pieces)
    new_size, changed = data.draw(changes(len(old)))
    new = changed_bytes(old, new_size, changed)

    def places(ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        return {one: ChunkPlace(b"", 0, 0, 0, len(chunks.data[one]), 1) for one in ids}

    found = list(unchanged_whole_chunks(pieces, changed, new_size, places=places))

    for one in found:
        assert one.piece.id == data_id(new[one.offset_bytes :][: one.length_bytes])
    whole = [one for one in pieces if one.id and len(chunks.data[one.id]) == one.length_bytes]
    if not changed and new_size == len(old):
        assert [one.piece for one in found] == whole


@given(st.data(), CHUNK_BYTES, st.integers(1, 12))
def test_a_file_may_change_for_generations(
    data: st.DataObject, chunk_bytes: int, generations: int
) -> None:
    chunks = Chunks()
    noise = data.draw(st.randoms(use_true_random=False))
    new = noise.randbytes(data.draw(st.integers(0, 6 * chunk_bytes)))
    chunker = data.draw(chunkers(chunk_bytes))
    pieces = spelled(chunks, [Gap(0, len(new))] if new else [], new, chunker)
    for _ in range(generations):
        new_size, changed = data.draw(changes(len(new)))
        new = changed_bytes(new, new_size, changed)
        plan = list(plan_changes(pieces, changed, new_size, chunker=chunker))
        pieces = spelled(chunks, plan, new, chunker)
        assert chunks.whole(pieces) == new
        # Nothing that went before, read or kept, can make a recipe grow without end.
        at = 0
        counts: dict[int, int] = {}
        for one in pieces:
            end = at + one.length_bytes
            while at < end:
                region = chunker.before(at)
                counts[region] = counts.get(region, 0) + 1
                at = min(chunker.after(at), end)
        assert max(counts.values(), default=0) <= ITEMS_MAX


def test_what_has_not_changed_is_taken_over_as_it_is() -> None:
    chunks = Chunks()
    whole, tail = chunks.add(bytes(range(64))), chunks.add(b"tail")
    pieces = [Piece(64, whole), Piece(1000, b""), Piece(5, whole, 9), Piece(4, tail)]

    plan = list(plan_changes(pieces, [], 1073, chunker=FixedChunker(64)))

    assert [one.piece for one in plan if isinstance(one, Kept)] == pieces


def test_neighbours_are_joined_if_one_goes_on_where_the_other_ends() -> None:
    name = Chunks().add(bytes(range(64)))
    joined = [Piece(9, name, 1), Piece(20, name, 10), Piece(3, b""), Piece(4, b"")]
    apart = [Piece(5, name, 40), Piece(5, name, 50), Piece(5, name, 2), Piece(9, name, 7)]

    plan = list(plan_changes(joined + apart, [], 60, chunker=FixedChunker(64)))

    assert [one.piece for one in plan if isinstance(one, Kept)] == [
        Piece(29, name, 1),
        Piece(7, b""),
        *apart[:2],
        Piece(14, name, 2),
    ]


def test_a_region_that_has_changed_is_cut_like_any_read() -> None:
    chunks = Chunks()
    pieces = [Piece(64, chunks.add(bytes([number]) * 64)) for number in range(5)]

    plan = list(plan_changes(pieces, [ByteRange(60, 72)], 320, chunker=FixedChunker(64)))

    assert plan == [
        Kept(0, Piece(60, pieces[0].id)),
        Gap(60, 72),
        Kept(132, Piece(60, pieces[2].id, 4)),
        Kept(192, pieces[3]),
        Kept(256, pieces[4]),
    ]


def test_a_region_that_is_down_to_crumbs_is_read_as_a_whole() -> None:
    chunks = Chunks()
    pieces = [Piece(400, chunks.add(bytes([number]) * 400)) for number in range(3)]
    crumbs = [ByteRange(400 + 5 * number, 1) for number in range(ITEMS_MAX // 2 + 1)]
    mostly = [ByteRange(800, 301)]

    plan = list(plan_changes(pieces, [*crumbs, *mostly], 1200, chunker=FixedChunker(400)))
    assert plan == [Kept(0, pieces[0]), Gap(400, 800)]

    fewer = list(
        plan_changes(pieces, [*crumbs[1:-1], ByteRange(800, 300)], 1200, chunker=FixedChunker(400))
    )
    assert sum(one.length_bytes for one in fewer if isinstance(one, Gap)) == len(crumbs) - 2 + 300

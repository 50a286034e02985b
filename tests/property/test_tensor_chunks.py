"""Cuts by tensor have every byte once, and equal tensors have equal cuts, for any file."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ciuic.chunking import TensorChunker
from ciuic.chunking.by_tensor import SMALL_BYTES
from ciuic.formats.headers import NAME_BYTES_MAX, Span
from ciuic.formats.spans import layout
from tests.kit.tensors import npy, safetensors, saved, torch_zip

SIZE_BYTES = st.sampled_from([4096, 64 * 1024, 1024 * 1024])
FILES = [saved(name) for name in ("state.pt", "part.distcp", "state.npz", "state.gguf")]
FILES += [saved("state.h5"), saved("state.latest.h5")]
FILES += [saved("state.safetensors"), npy(bytes(100)), torch_zip([bytes(10)] * 3)]
FILES += [safetensors({"a": b"1" * 9, "b": b"2"})]


@st.composite
def layouts(draw: st.DrawFn) -> list[Span]:
    """Small and large tensors, close together and apart."""
    lengths = st.sampled_from([0, 1, 100, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 3_000_000])
    pairs = draw(st.lists(st.tuples(lengths, lengths.filter(bool)), min_size=1, max_size=12))
    ends = list(accumulate([gap + length for gap, length in pairs]))
    return [Span(end - length, length) for end, (_, length) in zip(ends, pairs, strict=True)]


def all_cuts(chunker: TensorChunker, end: int) -> list[int]:
    """Return every cut before ``end``, and ``end``."""
    found = [0]
    while found[-1] < end:
        found.append(min(chunker.after(found[-1]), end))
    return found


@given(layouts(), SIZE_BYTES, st.data())
def test_cuts_are_the_same_however_a_file_is_read(
    spans: list[Span], size_bytes: int, data: st.DataObject
) -> None:
    chunker = TensorChunker(spans, size_bytes)
    end = spans[-1].offset_bytes + spans[-1].length_bytes + data.draw(st.integers(0, 3_000_000))
    cuts = all_cuts(chunker, end)

    assert all(0 < other - one <= size_bytes for one, other in pairwise(cuts))
    # One draw serves all pieces, because there may be thousands.
    share = data.draw(st.integers(0, 2**16 - 1))
    for one, other in pairwise(cuts):
        for inside in (one, one + (share * (other - one) >> 16), other - 1):
            assert chunker.before(inside) == one
            assert chunker.after(inside) >= other
    block_bytes = data.draw(st.sampled_from([4096, 4 * 1024 * 1024]))
    content = memoryview(bytes(end))
    at, found = 0, [0]
    while at < end:
        until = min(chunker.block_end(at, block_bytes), end)
        assert at < until <= at + max(block_bytes, size_bytes)
        for offset, view in chunker.chunks([(at, content[at:until])]):
            assert offset == found[-1]
            found.append(offset + len(view))
        at = until
    assert found == cuts


@given(layouts(), SIZE_BYTES)
def test_a_large_tensor_is_cut_from_its_own_first_byte(spans: list[Span], size_bytes: int) -> None:
    chunker = TensorChunker(spans, size_bytes)
    cuts = set(all_cuts(chunker, spans[-1].offset_bytes + spans[-1].length_bytes))
    for start, length, *_ in spans:
        if length >= SMALL_BYTES:
            own = [*range(start, start + length, size_bytes), start + length]
            assert sorted(one for one in cuts if start <= one <= start + length) == own


@given(layouts(), SIZE_BYTES)
def test_chunks_are_not_tiny(spans: list[Span], size_bytes: int) -> None:
    end = spans[-1].offset_bytes + spans[-1].length_bytes
    count = len(all_cuts(TensorChunker(spans, size_bytes), end))
    # Each stretch is a tensor or a run of at least the small size, or is next to one.
    assert count <= 4 + 4 * (end // SMALL_BYTES) + end // size_bytes


@given(layouts(), SIZE_BYTES, st.integers(1, 1_000_000))
def test_a_longer_header_moves_all_cuts_by_the_same_distance(
    spans: list[Span], size_bytes: int, shift: int
) -> None:
    moved = [Span(start + shift, length) for start, length, *_ in spans]
    end = spans[-1].offset_bytes + spans[-1].length_bytes
    first = spans[0].offset_bytes
    before = [one for one in all_cuts(TensorChunker(spans, size_bytes), end) if one >= first]
    after = all_cuts(TensorChunker(moved, size_bytes), end + shift)
    assert [one - shift for one in after if one >= first + shift] == before


@given(st.sampled_from(FILES), st.data())
def test_any_file_has_a_sound_layout_or_none(file: bytes, data: st.DataObject) -> None:
    changed = bytearray(
        file[: data.draw(st.integers(0, len(file)))] if data.draw(st.booleans()) else file
    )
    # Headers are at both ends.
    places = st.integers(-2000, 2000).map(lambda one: one % max(1, len(changed)))
    for at, value in data.draw(
        st.lists(st.tuples(places, st.binary(min_size=1, max_size=8)), max_size=4)
    ):
        changed[at : at + len(value)] = value
    content = bytes(changed)

    found = layout(lambda offset, length: content[offset : offset + length], len(content))

    end = 0
    for start, length, width, *names in found or ():
        assert end <= start < start + length <= len(content)
        assert width in {0, 1, 2, 4, 8, 16}
        assert all(len(one.encode(errors="surrogateescape")) <= NAME_BYTES_MAX for one in names)
        end = start + length


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04", b"GGUF\3\0\0\0", b"\x93NUMPY"])
)
def test_any_bytes_have_a_layout_or_none(data: bytes, magic: bytes) -> None:
    content = magic + data
    layout(lambda offset, length: content[offset : offset + length], len(content) + 5)
    layout(lambda offset, length: content[offset : offset + length], len(content))


def width_at(spans: list[Span], offset_bytes: int) -> int:
    return TensorChunker(spans, 1024 * 1024).width_bytes(offset_bytes)


def test_each_piece_of_a_tensor_has_the_width_of_its_numbers() -> None:
    large = 3 * 1024 * 1024
    types = {"BF16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1, "C64": 4, "C128": 8, "Q4_K": 0, "": 0}
    for element, width in types.items():
        spans = [Span(1000, large, 16, "w", element)]
        found = [width_at(spans, at) for at in (0, 1000, 1000 + 1024 * 1024, 1000 + large)]
        assert found == [0, width, width, 0], element


def test_small_tensors_that_lie_together_have_a_width_if_all_have_the_same() -> None:
    half = SMALL_BYTES // 2
    same = [Span(0, half, 4, "a", "F32"), Span(half, half, 4, "b", "F32")]
    assert width_at(same, 0) == 4
    for other in (
        Span(half, half, 2, "b", "BF16"),
        Span(half, half, 0, "b", ""),
        Span(half + 2, half, 4, "b", "F32"),
    ):
        assert width_at([same[0], other], 0) == 0
        assert width_at([same[0]._replace(element=""), other], 0) == 0
    # The bytes after them are a stretch of their own.
    behind = Span(2 * half, SMALL_BYTES, 2, "c", "BF16")
    assert width_at([same[0], Span(half, half, 0, "b", ""), behind], 2 * half) == 2

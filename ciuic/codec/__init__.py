"""Plain bytes <-> stored bytes: the home of zstandard and numpy.

Codecs are numbered in docs/format.md, "Codecs". Which one a frame gets is decided on a sample.
Trained weights are noise to a general compressor: zstd at level 3 gets 8 % out of fp32 Adam
state at 330 MB/s a core, byte planes get 17 % at more than twice that speed (decision 0003).

Training moves its numbers a little at each step, so that a difference from their last version
takes less than they do alone. Reading it takes reading that version first, and what that one is a
difference from: what such a chain may cost to read is bounded, in bytes (decision 0015).

Neither package is imported before the first payload: ``ciuic list`` needs none.

Every encoding is decoded and compared before it is handed out: a fault in a compressor, a core
or a memory module then costs a raw frame instead of a snapshot.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.hashing import checksum

__all__ = [
    "DELTA",
    "DIFFERENCES",
    "PLANES",
    "RAW",
    "SPARSE",
    "ZSTD",
    "Difference",
    "Reference",
    "decode",
    "encode",
    "encode_delta",
    "get_ready",
    "looks_like_numbers",
]

RAW: Final = 0
ZSTD: Final = 1
PLANES: Final = 2
DELTA: Final = 3
SPARSE: Final = 4
DIFFERENCES: Final = frozenset((DELTA, SPARSE))
"""Those that have a reference."""

_PROBE_BYTES_MIN: Final = 64 * 1024
"""Below this a sample costs as much as the thing itself; small files are text more often."""
_SAMPLE_PARTS: Final = 4
_SAMPLE_PART_BYTES: Final = 2048
_SECOND_PARTS: Final = 29
"""Taken where the first sample may tell nothing; a prime, and so from other places."""
_MISLED: Final = 2
_TEXT_RATIO: Final = 0.65
"""A sample that zstd shrinks below this is text, code, a log, or mostly zeros."""
_CONTROL_SHARE: Final = 1 / 32
"""Text has none of the bytes below 32 but ends of lines and tabs. Numbers that zstd shrinks well,
as they are small, rounded or often zero, have many, and mostly shrink further in planes."""
_CONTROLS: Final = bytes(set(range(32)) - {9, 10, 13, 27})
_NEAR_RATIO: Final = 1.1
"""What is expected of planes, by the frequencies of bytes, falls short where zeros lie together."""
_HARDLY_ANY: Final = 0.02
"""What a sample shrinks to if there is next to nothing in it."""
_NUMBERS_FRACTION: Final = 0.95
"""Byte planes make this much of trained weights of any width, and never of noise."""
_WORTH_FRACTION: Final = 1 / 64
"""Saving less than this is not worth decoding at every read."""

_DELTA_SAVES: Final = 0.15
_DELTA_SAVES_COST: Final = 3.0
"""A delta must be expected to save this much, as it takes longer to make and to read; less, in
proportion, if more than this may be read for it. Where few numbers move it saves half and more, of
dense fp32 state less than a tenth (decision 0015)."""

_SPARSE_SURE: Final = 64
"""Where less than such a part of a payload is left, no other delta takes less."""

Encoded = tuple[int, bytes | memoryview]


class Reference(NamedTuple):
    """An earlier version of a chunk, to store a difference from.

    Attributes:
        read: Gives its bytes, or None if they can't be had. Not called if it would be no use.
        cost_bytes: Stored bytes that have to be read to have it.
        worth_bytes: A longer difference from it is no use.
        least_bytes: A shorter difference from it is not to be expected: it is not read for that.
    """

    read: Callable[[], bytes | memoryview | None]
    cost_bytes: int
    worth_bytes: int
    least_bytes: int = 0


class Difference(NamedTuple):
    """A payload as a difference from an earlier version of it.

    Attributes:
        reference: Which of the earlier versions that were offered it is a difference from.
        codec: The number of the codec.
        stored: The stored bytes.
    """

    reference: int
    codec: int
    stored: memoryview


def encode(plain: bytes | memoryview, *, is_mixed: bool = False, width: int = 0) -> Encoded:
    """Encode one frame's payload; returns the codec's number and the stored bytes.

    The result may be ``plain`` itself: it must not change until it has been written.

    Args:
        plain: The payload.
        is_mixed: It is made of many things, of which none may be an array of numbers.
        width: Bytes of an element as a header has them; 0: found by probing.
    """
    size = len(plain)
    number, stored = _chosen(plain, is_mixed=is_mixed, width=width)
    if number == RAW or len(stored) > size - size * _WORTH_FRACTION:
        return RAW, plain
    return (number, stored) if _survives(number, stored, b"", plain) else (RAW, plain)


def encode_delta(
    plain: bytes | memoryview,
    references: Sequence[Reference],
    chain_cost: float,
    width: int = 0,
) -> Difference | None:
    """Encode one frame's payload as a difference from an earlier version of it.

    Where few of its elements have changed these are found in all of it, and not in a sample:
    they may lie close together.

    Args:
        plain: The payload.
        references: Earlier versions, the likest first: the first that does is taken.
        chain_cost: How many times the stored bytes that the payload would take alone may have to
            be read to have it.
        width: Bytes of an element as a header has them; 0: found by probing.

    Returns:
        None if the payload had better stand alone.
    """
    size = len(plain)
    if size < _PROBE_BYTES_MIN:
        return None
    from ciuic.codec import planes, zstd

    parts = _SAMPLE_PARTS
    if zstd.probe(_sample(memoryview(plain), parts)) < _HARDLY_ANY:
        parts = _SECOND_PARTS
    sample = _sample(memoryview(plain), parts)
    alone = planes.probe(sample, width)
    fraction = min(alone.fraction, zstd.probe(sample), 1.0)
    shapes = _shapes(alone, width)
    saves = _DELTA_SAVES * min(1.0, _DELTA_SAVES_COST / chain_cost)
    for number, reference in enumerate(references):
        room = min(
            chain_cost * fraction * size - reference.cost_bytes,
            fraction * size,
            reference.worth_bytes,
        )
        old = reference.read() if room > reference.least_bytes else None
        if old is None or len(old) != size:
            continue
        enough = min(room, fraction * (1 - saves) * size)
        found = _difference(plain, old, shapes, parts, enough)
        if found is None:
            continue
        coded, stored = found
        if len(stored) <= room and _survives(coded, stored, old, plain):
            return Difference(number, coded, stored)
    return None


def _shapes(alone: Any, told: int) -> list[tuple[int, int]]:
    """Width and skip of the elements that may have moved, by how a payload is taken apart alone.

    Args:
        alone: How that is.
        told: What a header says that the elements' width is, or 0.
    """
    from ciuic.codec import delta, planes

    # Where numbers of one width show themselves, it is they that have moved.
    shapes = [(alone.width, alone.skip)]
    if alone.fraction > 1 - _WORTH_FRACTION:
        shapes = [(width, 0) for width in delta.WIDTHS]
    # Single bytes show themselves as longer numbers of which no part is noise.
    if told == 1 or all(one.coding != planes.RAW for one in alone.columns):
        shapes.append((1, 0))
    return shapes


def _difference(
    plain: bytes | memoryview,
    old: bytes | memoryview,
    shapes: Sequence[tuple[int, int]],
    parts: int,
    enough: float,
) -> tuple[int, memoryview] | None:
    """The shortest difference there is, and its codec, if it is to take no more than ``enough``."""
    from ciuic.codec import delta, sparse

    size = len(plain)
    few = [sparse.encode(plain, old, *shape) for shape in shapes]
    best = min([one for one in few if one is not None], key=len, default=None)
    if best is not None and len(best) <= min(enough, size / _SPARSE_SURE):
        return SPARSE, best
    sample, old_sample = [_sample(memoryview(one), parts) for one in (plain, old)]
    plans = [
        delta.probe(sample, old_sample, *shape) for shape in shapes if shape[0] in delta.WIDTHS
    ]
    plan = min(plans, key=lambda one: one.fraction)
    if plan.fraction * size <= enough:
        stored = delta.encode(plain, old, plan)
        if best is None or len(stored) < len(best):
            return DELTA, stored
    return None if best is None or len(best) > enough else (SPARSE, best)


def get_ready(*, numbers: bool) -> None:
    """Import now what would be imported by the first payload to be decoded.

    Args:
        numbers: Payloads of arrays of numbers are among them.
    """
    from ciuic.codec import zstd  # noqa: F401 - to be there

    if numbers:
        from ciuic.codec import planes  # noqa: F401 - likewise


def decode(
    codec: int, stored: bytes | memoryview, plain_bytes: int, reference: bytes | memoryview = b""
) -> bytes | memoryview:
    """Decode a payload to exactly ``plain_bytes`` bytes.

    For any ``stored`` it returns or raises within memory bounded by ``plain_bytes``.

    Args:
        codec: The payload's number.
        stored: The payload.
        plain_bytes: How long it is decoded.
        reference: What one of ``DIFFERENCES`` is from; not looked at otherwise.

    Raises:
        UnknownFormatError: No codec has this number.
        CorruptionError: ``stored`` is not a payload of that codec and length.
    """
    if codec == DELTA:
        from ciuic.codec import delta

        return delta.decode(memoryview(stored), plain_bytes, reference)
    if codec == SPARSE:
        from ciuic.codec import sparse

        return sparse.decode(memoryview(stored), plain_bytes, reference)
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnknownFormatError(f"codec {codec} is not known to this version of ciuic")
    return decoder(stored, plain_bytes)


def looks_like_numbers(samples: Sequence[bytes]) -> bool:
    """Stretches of a file are neither text nor noise, but have the exponents of floats."""
    sample = b"".join(samples)
    from ciuic.codec import planes, zstd

    if len(sample) < _SAMPLE_PARTS * _SAMPLE_PART_BYTES or zstd.probe(sample) < _TEXT_RATIO:
        return False
    return planes.probe(sample).fraction < _NUMBERS_FRACTION


def _chosen(plain: bytes | memoryview, *, is_mixed: bool, width: int) -> Encoded:
    from ciuic.codec import zstd

    if len(plain) < _PROBE_BYTES_MIN:
        return ZSTD, zstd.compress(plain)
    sample = _sample(memoryview(plain), _SAMPLE_PARTS)
    ratio = zstd.probe(sample)
    if ratio < _TEXT_RATIO:
        return _shrunk(plain, sample, ratio, is_mixed=is_mixed, width=width)
    # Takes a tenth of a second the first time: only for those who have tensors.
    from ciuic.codec import planes

    plan = planes.probe(sample, width)
    if plan.fraction < min(ratio, 1 - _WORTH_FRACTION):
        return PLANES, planes.encode(plain, plan)
    if ratio < 1 - _WORTH_FRACTION:
        return ZSTD, zstd.compress_fast(plain)
    return RAW, plain


def _shrunk(
    plain: bytes | memoryview, sample: bytes, ratio: float, *, is_mixed: bool, width: int
) -> Encoded:
    """What zstd makes much less of: as it is, or in planes if that is shorter still."""
    from ciuic.codec import zstd

    stored = zstd.compress(plain)
    if len(stored) > _MISLED * ratio * len(plain):
        # Rows of zeros, for one, may lie wherever the sample was taken.
        sample = _sample(memoryview(plain), _SECOND_PARTS)
        ratio = zstd.probe(sample)
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if is_mixed or ratio < _HARDLY_ANY or controls < len(sample) * _CONTROL_SHARE:
        return ZSTD, stored
    from ciuic.codec import planes

    # Small integers of eight bytes look like others of four, of which every second one is zero.
    plan = min(planes.probe(sample, width), planes.plan(sample, 8), key=lambda one: one.fraction)
    if plan.fraction < ratio * _NEAR_RATIO:
        planed = planes.encode(plain, plan)
        if len(planed) < len(stored):
            return PLANES, planed
    return ZSTD, stored


def _survives(
    number: int,
    stored: bytes | memoryview,
    reference: bytes | memoryview,
    plain: bytes | memoryview,
) -> bool:
    """Whether what was encoded can be had back."""
    try:
        again = decode(number, stored, len(plain), reference)
    except CorruptionError:
        return False
    # By checksum: comparing a bytes object with a memoryview walks it element by element.
    return checksum(again) == checksum(plain)


def _sample(plain: memoryview, parts: int) -> bytes:
    """A few stretches from all over; each begins at a multiple of 8, where elements do."""
    step = len(plain) // parts // 8 * 8
    return b"".join([plain[at : at + _SAMPLE_PART_BYTES] for at in range(0, step * parts, step)])


def _decode_raw(stored: bytes | memoryview, plain_bytes: int) -> bytes | memoryview:
    if len(stored) != plain_bytes:
        raise CorruptionError(f"raw payload of {len(stored)} bytes should have {plain_bytes}")
    return stored


def _decode_zstd(stored: bytes | memoryview, plain_bytes: int) -> bytes:
    from ciuic.codec import zstd

    return zstd.decompress(stored, plain_bytes)


def _decode_planes(stored: bytes | memoryview, plain_bytes: int) -> memoryview:
    from ciuic.codec import planes

    return planes.decode(memoryview(stored), plain_bytes)


_DECODERS: Final[dict[int, Callable[[bytes | memoryview, int], bytes | memoryview]]] = {
    RAW: _decode_raw,
    ZSTD: _decode_zstd,
    PLANES: _decode_planes,
}

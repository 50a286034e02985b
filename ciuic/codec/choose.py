"""Choose a codec for a payload by a sample of it, and encode the payload.

Trained weights look like noise to a general compressor. Zstd at level 3 removes 8% of fp32 Adam
state at 330 MB/s a core; byte planes remove 17% at more than twice that speed (decision 0003).
"""

from collections.abc import Sequence
from typing import Final

from ciuic.codec.decoding import PLANES, RAW, ZSTD, round_trips

__all__ = [
    "PROBE_BYTES_MIN",
    "SAMPLE_PARTS",
    "SECOND_SAMPLE_PARTS",
    "WORTH_FRACTION",
    "Encoded",
    "encode",
    "looks_like_numbers",
    "sample_of",
    "tells_little",
]

PROBE_BYTES_MIN: Final = 64 * 1024
"""A sample of a shorter payload costs as much as the payload; and small files are mostly text."""
SAMPLE_PARTS: Final = 4
_SAMPLE_PART_BYTES: Final = 2048
SECOND_SAMPLE_PARTS: Final = 29
"""A second sample, taken where the first may mislead. The number is prime, so that the second
sample comes from other places."""
WORTH_FRACTION: Final = 1 / 64
"""Saving less than this is not worth decoding at every read."""

_MISLED: Final = 2
"""The sample misled if zstd's output is this many times larger than the sample predicted."""
_TEXT_RATIO: Final = 0.65
"""A sample that zstd shrinks below this is text, code, a log, or mostly zeros."""
_CONTROL_SHARE: Final = 1 / 32
"""Text holds no bytes below 32 except line ends and tabs. Numbers that zstd shrinks well (small,
rounded, or often zero) hold many, and most of them shrink further in byte planes."""
_CONTROLS: Final = bytes(set(range(32)) - {9, 10, 13, 27})
_NEAR_RATIO: Final = 1.1
"""Byte frequencies underestimate byte planes where zeros are adjacent, by about this factor."""
_HARDLY_ANY: Final = 0.02
"""A sample that shrinks below this holds next to nothing."""
_NUMBERS_FRACTION: Final = 0.95
"""Byte planes shrink trained weights of any width below this, and never noise."""

Encoded = tuple[int, bytes | memoryview]
"""A codec's number and the stored bytes."""


def encode(plain: bytes | memoryview, *, is_mixed: bool = False, width: int = 0) -> Encoded:
    """Encode one frame's payload; returns the codec's number and the stored bytes.

    The result may be ``plain`` itself: it must not change until it has been written.

    Args:
        plain: The payload.
        is_mixed: The payload consists of many small things, none of them an array of numbers.
        width: Bytes per element, from a file's header; 0: found by probing.
    """
    size = len(plain)
    number, stored = _chosen(plain, is_mixed=is_mixed, width=width)
    if number == RAW or len(stored) > size - size * WORTH_FRACTION:
        return RAW, plain
    return (number, stored) if round_trips(number, stored, b"", plain) else (RAW, plain)


def looks_like_numbers(samples: Sequence[bytes]) -> bool:
    """Return whether parts of a file are neither text nor noise, and look like floats."""
    sample = b"".join(samples)
    from ciuic.codec import probing, zstd

    if len(sample) < SAMPLE_PARTS * _SAMPLE_PART_BYTES or zstd.probe(sample) < _TEXT_RATIO:
        return False
    return probing.probe(sample).fraction < _NUMBERS_FRACTION


def sample_of(plain: memoryview, parts: int) -> bytes:
    """Return a few short parts from all over; each begins at a multiple of 8, as elements do."""
    step = len(plain) // parts // 8 * 8
    return b"".join([plain[at : at + _SAMPLE_PART_BYTES] for at in range(0, step * parts, step)])


def tells_little(ratio: float) -> bool:
    """Return whether a sample that zstd shrinks to ``ratio`` says little about the rest."""
    return ratio < _HARDLY_ANY


def _chosen(plain: bytes | memoryview, *, is_mixed: bool, width: int) -> Encoded:
    from ciuic.codec import zstd

    if len(plain) < PROBE_BYTES_MIN:
        return ZSTD, zstd.compress(plain)
    sample = sample_of(memoryview(plain), SAMPLE_PARTS)
    ratio = zstd.probe(sample)
    if ratio < _TEXT_RATIO:
        return _shrunk(plain, sample, ratio, is_mixed=is_mixed, width=width)
    # The first import takes a tenth of a second: only snapshots with tensors pay for it.
    from ciuic.codec import planes, probing

    plan = probing.probe(sample, width)
    if plan.fraction < min(ratio, 1 - WORTH_FRACTION):
        return PLANES, planes.encode(plain, plan)
    if ratio < 1 - WORTH_FRACTION:
        return ZSTD, zstd.compress_fast(plain)
    return RAW, plain


def _shrunk(
    plain: bytes | memoryview, sample: bytes, ratio: float, *, is_mixed: bool, width: int
) -> Encoded:
    """Encode what zstd shrinks well: with zstd, or in byte planes if they are shorter still."""
    from ciuic.codec import zstd

    stored = zstd.compress(plain)
    if len(stored) > _MISLED * ratio * len(plain):
        # Rows of zeros, for example, may be exactly where the sample was taken.
        sample = sample_of(memoryview(plain), SECOND_SAMPLE_PARTS)
        ratio = zstd.probe(sample)
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if is_mixed or ratio < _HARDLY_ANY or controls < len(sample) * _CONTROL_SHARE:
        return ZSTD, stored
    from ciuic.codec import planes, probing

    # Small integers of eight bytes look like integers of four with every second one zero.
    plan = min(
        probing.probe(sample, width), probing.plan(sample, 8), key=lambda found: found.fraction
    )
    if plan.fraction < ratio * _NEAR_RATIO:
        planed = planes.encode(plain, plan)
        if len(planed) < len(stored):
            return PLANES, planed
    return ZSTD, stored

"""Byte planes: numbers of 2, 4 or 8 bytes, taken apart byte by byte.

The sign is rotated to the lowest bit, so that a float's exponent fills its highest byte; then
all first bytes are stored together, all second bytes, and so on. The plane of exponents has
little entropy and shrinks to a third; mantissa planes are noise and are stored as they are.
Byte layout: docs/format.md, "Codec 2".
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ciuic.codec import zstd
from ciuic.errors import CorruptionError

__all__ = ["Plan", "decode", "encode", "probe"]

_WIDTHS: Final = (2, 4, 8)
_RAW: Final = 0
_ZSTD: Final = 1
_PLANE: Final = struct.Struct("<BI")
_NOISE_BITS: Final = 7.6
"""Entropy of a byte above which coding gains less than it costs."""
_BETTER: Final = 0.98
"""A wider element must gain this much over a narrower one: 2 fits what 4 fits, as a rule."""

Words = npt.NDArray[Any]


class Plan(NamedTuple):
    """How to take elements apart.

    Attributes:
        width: Bytes of an element.
        coded: The planes that are worth coding, lowest byte first.
        fraction: What the bytes are expected to shrink to.
    """

    width: int
    coded: tuple[bool, ...]
    fraction: float


def probe(sample: bytes) -> Plan:
    """The plan that a sample suggests."""
    best = _plan(sample, 2)
    four = _plan(sample, 4)
    if four.fraction < best.fraction * _BETTER:
        best = four
    return best if best.fraction < 1 else _plan(sample, 8)


def encode(plain: bytes | memoryview, plan: Plan) -> bytes:
    """Planes of ``plain`` according to a plan, and a rest that is no element."""
    width = plan.width
    count = len(plain) // width
    rotated = _rotated_left(np.frombuffer(plain, dtype=f"<u{width}", count=count))
    headers, bodies = [bytes([width])], []
    for number, is_coded in enumerate(plan.coded):
        plane = (rotated >> (8 * number) if number else rotated).astype(np.uint8)
        raw = memoryview(plane.data)
        body = zstd.compress_entropy(raw) if is_coded else raw
        is_smaller = len(body) < count
        headers.append(
            _PLANE.pack(_ZSTD if is_smaller else _RAW, len(body) if is_smaller else count)
        )
        bodies.append(body if is_smaller else raw)
    return b"".join([*headers, *bodies, memoryview(plain)[count * width :]])


def decode(stored: memoryview, plain_bytes: int) -> memoryview:
    """The ``plain_bytes`` bytes that ``encode`` was given.

    Raises:
        CorruptionError: ``stored`` is nothing that ``encode`` makes.
    """
    width = stored[0] if len(stored) else 0
    if width not in _WIDTHS or len(stored) < 1 + width * _PLANE.size:
        raise CorruptionError("a payload of byte planes has no valid header")
    count = plain_bytes // width
    at = 1 + width * _PLANE.size
    out = np.empty(plain_bytes, dtype=np.uint8)
    elements = out[: count * width]
    for number in range(width):
        codec, length = _PLANE.unpack_from(stored, 1 + number * _PLANE.size)
        elements[number::width] = _decode_plane(codec, stored[at : at + length], length, count)
        at += length
    words = elements.view(f"<u{width}")
    words[:] = _rotated_right(words)
    rest = stored[at:]
    if len(rest) != plain_bytes - count * width:
        raise CorruptionError("a payload of byte planes does not have the length of its planes")
    out[count * width :] = np.frombuffer(rest, dtype=np.uint8)
    return memoryview(out.data)


def _rotated_left(words: Words) -> Words:
    bits = words.dtype.itemsize * 8
    rotated = words << 1
    rotated |= words >> (bits - 1)
    return rotated


def _rotated_right(words: Words) -> Words:
    bits = words.dtype.itemsize * 8
    rotated = words >> 1
    rotated |= words << (bits - 1)
    return rotated


def _decode_plane(codec: int, body: memoryview, length: int, count: int) -> Words:
    if len(body) != length:
        raise CorruptionError("a payload of byte planes is cut short")
    if codec == _ZSTD:
        body = memoryview(zstd.decompress(body, count))
    elif codec != _RAW:
        raise CorruptionError(f"a byte plane has the encoding {codec}, which does not exist")
    if len(body) != count:
        raise CorruptionError("a byte plane does not have the length of the others")
    return np.frombuffer(body, dtype=np.uint8)


def _plan(sample: bytes, width: int) -> Plan:
    """The plan for elements of this width, from the entropy of each plane of the sample."""
    words = np.frombuffer(sample, dtype=f"<u{width}", count=len(sample) // width)
    planes = _rotated_left(words).view(np.uint8).reshape(-1, width)
    bits = [_entropy_bits(planes[:, number]) for number in range(width)]
    coded = tuple([one <= _NOISE_BITS for one in bits])
    kept = [one if one <= _NOISE_BITS else 8.0 for one in bits]
    return Plan(width, coded, sum(kept) / (8 * width))


def _entropy_bits(plane: Words) -> float:
    """Order-0 entropy in bits a byte."""
    counts = np.bincount(plane, minlength=256)
    share = counts[counts > 0] / len(plane)
    return float(-(share * np.log2(share)).sum())

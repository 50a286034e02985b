"""Byte planes: numbers of 2, 4 or 8 bytes, taken apart byte by byte.

The sign is rotated to the lowest bit, so that a float's exponent fills its highest byte; then
all first bytes are stored together, all second bytes, and so on. The plane of exponents has
little entropy and shrinks to a third; mantissa planes are noise and are stored as they are.
Byte layout: docs/format.md, "Codec 2".
"""

import struct
import threading
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

_FIRST_CELLS: Final = np.arange(8, dtype=np.uint16) * 256
"""Where each plane's cells begin in a histogram of all planes."""

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
    four = _plan(sample, 4)
    # Elements of 4 bytes have one exponent in four bytes; what shows two of them, or none at
    # all, may be narrower.
    if four.fraction < 1 and not four.coded[1]:
        return four
    two = _plan(sample, 2)
    best = four if four.fraction < two.fraction * _BETTER else two
    return best if best.fraction < 1 else _plan(sample, 8)


def encode(plain: bytes | memoryview, plan: Plan) -> bytes:
    """Planes of ``plain`` according to a plan, and a rest that is no element."""
    width = plan.width
    count = len(plain) // width
    words = np.frombuffer(plain, dtype=f"<u{width}", count=count)
    rotated, spare = _scratch.take(width, count)
    _rotate_left(words, rotated, spare)
    headers, bodies = [bytes([width])], []
    for number, is_coded in enumerate(plan.coded):
        plane = np.empty(count, dtype=np.uint8)
        shifted = np.right_shift(rotated, 8 * number, out=spare) if number else rotated
        np.copyto(plane, shifted, casting="unsafe")
        raw = memoryview(plane.data)
        coded = zstd.compress_entropy(raw) if is_coded else raw
        is_smaller = len(coded) < count
        body = coded if is_smaller else raw
        headers.append(_PLANE.pack(_ZSTD if is_smaller else _RAW, len(body)))
        bodies.append(body)
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
    planes = []
    for number in range(width):
        codec, length = _PLANE.unpack_from(stored, 1 + number * _PLANE.size)
        planes.append(_decode_plane(codec, stored[at : at + length], length, count))
        at += length
    rest = stored[at:]
    if len(rest) != plain_bytes - count * width:
        raise CorruptionError("a payload of byte planes does not have the length of its planes")
    out = np.empty(plain_bytes, dtype=np.uint8)
    words = out[: count * width].view(f"<u{width}")
    np.copyto(words, planes[-1])
    for plane in reversed(planes[:-1]):
        np.left_shift(words, 8, out=words)
        np.bitwise_or(words, plane, out=words)
    _rotate_right(words, _scratch.take(width, count)[0])
    out[count * width :] = np.frombuffer(rest, dtype=np.uint8)
    return memoryview(out.data)


class _Scratch(threading.local):
    """Two arrays a thread, used again: fresh memory is slower than the arithmetic in it."""

    def __init__(self) -> None:
        self._bytes = np.empty((2, 0), dtype=np.uint8)

    def take(self, width: int, count: int) -> tuple[Words, Words]:
        """Two arrays of ``count`` elements; their content is anything."""
        if self._bytes.shape[1] < count * width:
            self._bytes = np.empty((2, -(-count * width // 4096) * 4096), dtype=np.uint8)
        first, second = self._bytes[:, : count * width].view(f"<u{width}")
        return first, second


_scratch = _Scratch()


def _rotate_left(words: Words, out: Words, spare: Words) -> None:
    """One bit to the left, out of ``words`` and into ``out``."""
    np.left_shift(words, 1, out=out)
    np.right_shift(words, words.dtype.itemsize * 8 - 1, out=spare)
    np.bitwise_or(out, spare, out=out)


def _rotate_right(words: Words, spare: Words) -> None:
    """One bit to the right, in place."""
    np.left_shift(words, words.dtype.itemsize * 8 - 1, out=spare)
    np.right_shift(words, 1, out=words)
    np.bitwise_or(words, spare, out=words)


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
    """The plan for elements of this width, from the order-0 entropy of each plane."""
    words = np.frombuffer(sample, dtype=f"<u{width}", count=len(sample) // width)
    rotated = np.empty_like(words)
    _rotate_left(words, rotated, np.empty_like(words))
    # One histogram for all planes: a call for each would cost more than the counting.
    cells = rotated.view(np.uint8).reshape(-1, width) + _FIRST_CELLS[:width]
    counts = np.bincount(cells.ravel(), minlength=256 * width).reshape(width, 256)
    share = counts / len(words)
    bits = -(share * np.log2(share, out=np.zeros_like(share), where=counts > 0)).sum(axis=1)
    coded = tuple([bool(one <= _NOISE_BITS) for one in bits])
    kept = [float(one) if one <= _NOISE_BITS else 8.0 for one in bits]
    return Plan(width, coded, sum(kept) / (8 * width))

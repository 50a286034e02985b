"""Sparse deltas: where the few elements are that have changed, and what has become of these.

Fine-tuning in few bits leaves most numbers as they are, and so does a table of which few rows are
touched. A delta of byte planes has something for every element all the same, which a general
compressor then has to find out again in each plane: of numbers that change here and there it makes
two to four times as much as there is to tell. Here only those are told that changed: how many that
stayed lie before each, and their differences, by themselves as small as those of any delta.

Elements of one byte, such as fp8, are told apart here, which the other codecs don't do.

Byte layout: docs/format.md, "Codec 4". Figures: decision 0015.
"""

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ciuic.codec import delta, zstd
from ciuic.errors import CorruptionError

__all__ = ["WIDTHS", "decode", "encode"]

WIDTHS: Final = (1, 2, 4, 8)
_RAW: Final = 0
_ZSTD: Final = 1
_HEADER: Final = struct.Struct("<BBIB")
_COLUMN: Final = struct.Struct("<BI")
_GAP_BYTES_MAX: Final = 4
_SHARE: Final = 2
"""At most such a part of the elements, one half, may be told: it bounds what a reader needs."""
_PROBED_MAX: Final = 4096
"""Changed elements that are looked at to find out how to store their differences."""

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


def encode(
    plain: bytes | memoryview, reference: bytes | memoryview, width: int, skip: int
) -> memoryview | None:
    """``plain`` as what differs from ``reference``, which is as long; None: too much does.

    Args:
        plain: The bytes.
        reference: Their earlier version.
        width: Bytes of an element: one of ``WIDTHS``.
        skip: Bytes before the first element, fewer than ``width``.
    """
    new, old = _elements(plain, width, skip), _elements(reference, width, skip)
    differs = new != old
    if np.count_nonzero(differs) > len(new) // _SHARE:
        return None
    places = np.flatnonzero(differs)
    gaps = (np.diff(places, prepend=-1) - 1).astype("<u4")
    columns = gaps.view(np.uint8).reshape(-1, _GAP_BYTES_MAX).T
    used = max([1, *[at + 1 for at in range(_GAP_BYTES_MAX) if columns[at].any()]])
    end = skip + len(new) * width
    parts = [_HEADER.pack(width, skip, len(places), used), plain[:skip], plain[end:]]
    parts += [_encode_column(np.ascontiguousarray(columns[at])) for at in range(used)]
    if width == 1:
        parts.append(_encode_column(_folded(new[places] - old[places])))
    elif len(places):
        parts.append(_encode_values(new[places], old[places], width))
    return memoryview(b"".join(parts))


def decode(stored: memoryview, plain_bytes: int, reference: bytes | memoryview) -> memoryview:
    """The ``plain_bytes`` bytes that ``encode`` was given, from the same reference.

    Raises:
        CorruptionError: ``stored`` is nothing that ``encode`` makes from such a reference.
    """
    if len(reference) != plain_bytes:
        raise CorruptionError("a sparse delta's reference has another length")
    if len(stored) < _HEADER.size:
        raise CorruptionError("a sparse delta is cut short")
    width, skip, count, used = _HEADER.unpack_from(stored)
    if width not in WIDTHS or skip >= width or skip > plain_bytes:
        raise CorruptionError("a sparse delta has elements that can't be")
    elements = (plain_bytes - skip) // width
    if count > elements // _SHARE or not 1 <= used <= _GAP_BYTES_MAX:
        raise CorruptionError("a sparse delta has places that can't be")
    at, end = _HEADER.size, skip + elements * width
    edges = stored[at : at + plain_bytes - elements * width]
    if len(edges) != plain_bytes - elements * width:
        raise CorruptionError("a sparse delta is cut short")
    at += len(edges)
    gaps = np.zeros((count, _GAP_BYTES_MAX), np.uint8)
    for column in range(used):
        gaps[:, column], at = _decode_column(stored, at, count)
    # In 64 bits: no number of gaps of 32 bits that fits into memory adds up to more.
    places = gaps.view("<u4").reshape(-1).astype(np.int64)
    places[1:] += 1
    np.cumsum(places, out=places)
    if count and places[-1] >= elements:
        raise CorruptionError("a sparse delta goes beyond its end")
    out = np.frombuffer(reference, np.uint8).copy()
    words = out[skip:end].view(f"<u{width}")
    if width == 1:
        folded, at = _decode_column(stored, at, count)
        words[places] += _unfolded(folded)
    elif count:
        old = words[places]
        values = delta.decode(stored[at:], count * width, old.view(np.uint8).data)
        words[places] = np.frombuffer(values, words.dtype)
        at = len(stored)
    if at != len(stored):
        raise CorruptionError("a sparse delta does not have the length of its columns")
    out[:skip] = np.frombuffer(edges[:skip], np.uint8)
    out[end:] = np.frombuffer(edges[skip:], np.uint8)
    return memoryview(out.data)


def _elements(data: bytes | memoryview, width: int, skip: int) -> Words:
    return np.frombuffer(data, f"<u{width}", (len(data) - skip) // width, skip)


def _encode_values(new: Words, old: Words, width: int) -> memoryview:
    """The elements that changed, one behind the other, as any numbers that have changed."""
    step = -(-len(new) // _PROBED_MAX)
    plan = delta.probe(new[::step].tobytes(), old[::step].tobytes(), width, 0)
    return delta.encode(new.tobytes(), old.tobytes(), plan)


def _encode_column(raw: Bytes) -> bytes:
    """Coding, stored length, and bytes that have no order in them but may be of few values."""
    coded = zstd.compress_entropy(raw.data)
    coding, body = (_ZSTD, coded) if len(coded) < len(raw) else (_RAW, raw.tobytes())
    return _COLUMN.pack(coding, len(body)) + body


def _decode_column(stored: memoryview, at: int, count: int) -> tuple[Bytes, int]:
    """A column of ``count`` bytes, and where it ends."""
    if len(stored) - at < _COLUMN.size:
        raise CorruptionError("a sparse delta is cut short")
    coding, length = _COLUMN.unpack_from(stored, at)
    at += _COLUMN.size
    body = stored[at : at + length]
    if len(body) != length:
        raise CorruptionError("a sparse delta is cut short")
    if coding == _ZSTD:
        body = memoryview(zstd.decompress(body, count))
    elif coding != _RAW:
        raise CorruptionError(f"a column has the encoding {coding}, which does not exist")
    if len(body) != count:
        raise CorruptionError("a column does not have the length of the others")
    return np.frombuffer(body, np.uint8), at + length


def _folded(difference: Bytes) -> Bytes:
    """The sign is the lowest bit."""
    signs = (difference.view(np.int8) >> 7).view(np.uint8)
    return np.asarray(difference << 1 ^ signs)


def _unfolded(folded: Bytes) -> Bytes:
    return np.asarray(folded >> 1 ^ -(folded & 1))

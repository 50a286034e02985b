"""Sparse deltas: the positions and the differences of the few elements that changed.

Fine-tuning in few bits leaves most numbers unchanged, and so does training that touches few rows
of a table. A dense delta still stores a difference for every element. A general compressor then
has to find the zeros again in each byte plane, and needs two to four times the bytes that the
changes take. A sparse delta stores only the changed elements: the number of unchanged elements
before each of them, and the differences, encoded as a dense delta of just those elements.

This codec also handles elements of one byte, such as fp8; the other codecs do not.

Byte layout: docs/format.md, "Codec 4". Figures: decision 0015.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from ciuic.codec import dense_delta, zstd
from ciuic.codec.dense_delta import Words, elements
from ciuic.errors import CorruptionError

__all__ = ["WIDTHS", "decode", "encode"]

WIDTHS: Final = (1, 2, 4, 8)
_RAW: Final = 0
_ZSTD: Final = 1
_HEADER: Final = struct.Struct("<BBIB")
_COLUMN: Final = struct.Struct("<BI")
_GAP_BYTES_MAX: Final = 4
_SHARE: Final = 2
"""At most one in this many elements may have changed, which bounds a reader's memory."""
_PROBED_MAX: Final = 4096
"""Changed elements in the sample that decides how to encode the differences."""

Bytes = npt.NDArray[np.uint8]


def encode(
    plain: bytes | memoryview, delta_base: bytes | memoryview, width: int, skip: int
) -> memoryview | None:
    """Encode ``plain`` as the elements that differ from ``delta_base``; None if too many differ.

    Args:
        plain: The payload.
        delta_base: Its delta base, of the same length.
        width: Bytes per element: one of ``WIDTHS``.
        skip: Bytes before the first element, fewer than ``width``.
    """
    new, old = elements(plain, width, skip), elements(delta_base, width, skip)
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


def decode(stored: memoryview, plain_bytes: int, delta_base: bytes | memoryview) -> memoryview:
    """Decode what ``encode`` returned, given the same delta base.

    Raises:
        CorruptionError: ``encode`` cannot have made ``stored`` from this delta base.
    """
    if len(delta_base) != plain_bytes:
        raise CorruptionError("the delta base of a sparse delta has the wrong length")
    if len(stored) < _HEADER.size:
        raise CorruptionError("a sparse delta is cut short")
    width, skip, count, used = _HEADER.unpack_from(stored)
    if width not in WIDTHS or skip >= width or skip > plain_bytes:
        raise CorruptionError("a sparse delta has impossible elements")
    element_count = (plain_bytes - skip) // width
    if count > element_count // _SHARE or not 1 <= used <= _GAP_BYTES_MAX:
        raise CorruptionError("a sparse delta has impossible positions")
    at, end = _HEADER.size, skip + element_count * width
    edges = stored[at : at + plain_bytes - element_count * width]
    if len(edges) != plain_bytes - element_count * width:
        raise CorruptionError("a sparse delta is cut short")
    at += len(edges)
    gaps = np.zeros((count, _GAP_BYTES_MAX), np.uint8)
    for column in range(used):
        gaps[:, column], at = _decode_column(stored, at, count)
    # In 64 bits: the gaps have 32 bits each, and no sum of gaps that fit in memory overflows.
    places = gaps.view("<u4").reshape(-1).astype(np.int64)
    places[1:] += 1
    np.cumsum(places, out=places)
    if count and places[-1] >= element_count:
        raise CorruptionError("a sparse delta goes beyond its end")
    out = np.frombuffer(delta_base, np.uint8).copy()
    words = out[skip:end].view(f"<u{width}")
    if width == 1:
        folded, at = _decode_column(stored, at, count)
        words[places] += _unfolded(folded)
    elif count:
        if bytes(stored[at : at + 2]) != bytes([width, 0]):
            raise CorruptionError("the new values of a sparse delta have another width or skip")
        old = words[places]
        values = dense_delta.decode(stored[at:], count * width, old.view(np.uint8).data)
        words[places] = np.frombuffer(values, words.dtype)
        at = len(stored)
    if at != len(stored):
        raise CorruptionError("a sparse delta does not have the length of its columns")
    out[:skip] = np.frombuffer(edges[:skip], np.uint8)
    out[end:] = np.frombuffer(edges[skip:], np.uint8)
    return memoryview(out.data)


def _encode_values(new: Words, old: Words, width: int) -> memoryview:
    """Encode the changed elements, one after another, as a dense delta."""
    step = -(-len(new) // _PROBED_MAX)
    plan = dense_delta.probe(new[::step].tobytes(), old[::step].tobytes(), width, 0)
    return dense_delta.encode(new.tobytes(), old.tobytes(), plan)


def _encode_column(raw: Bytes) -> bytes:
    """Encode bytes without order but perhaps with few distinct values: coding, length, body."""
    coded = zstd.compress_entropy(raw.data)
    coding, body = (_ZSTD, coded) if len(coded) < len(raw) else (_RAW, raw.tobytes())
    return _COLUMN.pack(coding, len(body)) + body


def _decode_column(stored: memoryview, at: int, count: int) -> tuple[Bytes, int]:
    """A column of ``count`` bytes, and the offset of its end."""
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
        raise CorruptionError(f"a column of a sparse delta has the unknown coding {coding}")
    if len(body) != count:
        raise CorruptionError("a column of a sparse delta has the wrong length")
    return np.frombuffer(body, np.uint8), at + length


def _folded(difference: Bytes) -> Bytes:
    """Move the sign into the lowest bit."""
    signs = (difference.view(np.int8) >> 7).view(np.uint8)
    return np.asarray(difference << 1 ^ signs)


def _unfolded(folded: Bytes) -> Bytes:
    return np.asarray(folded >> 1 ^ -(folded & 1))

"""Payloads: uncompressed bytes <-> stored bytes. The home of zstandard and numpy.

``choose`` picks a codec for a payload and encodes it; ``choose_delta`` encodes a payload as a
difference from its delta base; ``decoding`` decodes it. docs/format.md, "Codecs", numbers the
codecs and specifies each by the byte.

Importing this package loads neither zstandard nor numpy: ``ciuic list`` decodes no payload.
"""

from ciuic.codec.choose import Encoded, encode, looks_like_numbers
from ciuic.codec.choose_delta import DeltaBase, Difference, encode_delta
from ciuic.codec.decoding import (
    BASE_COUNTS,
    DELTA,
    DIFFERENCES,
    PLANES,
    RAW,
    SPARSE,
    ZSTD,
    decode,
    get_ready,
)

__all__ = [
    "BASE_COUNTS",
    "DELTA",
    "DIFFERENCES",
    "PLANES",
    "RAW",
    "SPARSE",
    "ZSTD",
    "DeltaBase",
    "Difference",
    "Encoded",
    "decode",
    "encode",
    "encode_delta",
    "get_ready",
    "looks_like_numbers",
]

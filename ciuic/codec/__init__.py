"""Payloads: uncompressed bytes <-> stored bytes. The home of zstandard and numpy.

``choose`` picks a codec for a payload and encodes it; ``choose_delta`` encodes a payload as a
difference from its delta base; ``decoding`` decodes it. docs/format.md, "Codecs", numbers the
codecs and specifies each by the byte.

Importing this package loads neither zstandard nor numpy: ``ciuic list`` decodes no payload. What
encodes is loaded when it is first used: a restore encodes nothing.
"""

import importlib
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from ciuic.codec.choose import Encoded, encode, looks_like_numbers
    from ciuic.codec.choose_delta import DeltaBase, Difference, encode_delta

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

_CHOOSE: Final = "ciuic.codec.choose"
_CHOOSE_DELTA: Final = "ciuic.codec.choose_delta"
_MODULES: Final = {
    "Encoded": _CHOOSE,
    "encode": _CHOOSE,
    "looks_like_numbers": _CHOOSE,
    "DeltaBase": _CHOOSE_DELTA,
    "Difference": _CHOOSE_DELTA,
    "encode_delta": _CHOOSE_DELTA,
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is not None:
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

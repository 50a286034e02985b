"""Stored bytes -> uncompressed bytes, by the codec's number. docs/format.md, "Codecs"."""

from collections.abc import Callable, Sequence
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.system.core import core
from ciuic.system.hashing import checksum

__all__ = [
    "BASE_COUNTS",
    "DELTA",
    "DIFFERENCES",
    "PLANES",
    "RAW",
    "SPARSE",
    "ZSTD",
    "decode",
    "get_ready",
    "round_trips",
]

RAW: Final = 0
ZSTD: Final = 1
PLANES: Final = 2
DELTA: Final = 3
SPARSE: Final = 4
DIFFERENCES: Final = frozenset((DELTA, SPARSE))
"""The codecs that need a delta base."""
BASE_COUNTS: Final = {RAW: 0, ZSTD: 0, PLANES: 0, DELTA: 1, SPARSE: 1}
"""How many delta bases a payload of each codec has. A frame has room for two."""


def decode(
    codec: int,
    stored: bytes | memoryview,
    plain_bytes: int,
    *delta_bases: bytes | memoryview,
    out: memoryview | None = None,
) -> bytes | memoryview:
    """Decode a payload to exactly ``plain_bytes`` bytes.

    For any ``stored`` it returns or raises within memory bounded by ``plain_bytes``.

    Args:
        codec: The number in the frame's header.
        stored: The payload.
        plain_bytes: Length of the decoded payload.
        delta_bases: The bytes that the payload is a difference from, as many as ``BASE_COUNTS``
            says; ignored by the codecs that need none.
        out: Writable memory of ``plain_bytes`` bytes, to decode to; it is then also returned. None:
            fresh memory, or that of ``stored``.

    Raises:
        UnknownFormatError: No codec has this number.
        CorruptionError: ``stored`` is not a payload of that codec and length.
    """
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnknownFormatError(f"codec {codec} is not known to this version of ciuic")
    if out is None:
        return decoder(stored, plain_bytes, delta_bases)
    if codec == PLANES:
        return _decode_planes(stored, plain_bytes, delta_bases, out)
    if codec == DELTA:
        return _decode_dense(stored, plain_bytes, delta_bases, out)
    # A copy of what is in the processor's cache takes little of the time.
    out[:] = decoder(stored, plain_bytes, delta_bases)
    return out


def get_ready(*, numbers: bool) -> None:
    """Import now what decoding the first payload would import.

    Args:
        numbers: Some of the payloads hold arrays of numbers.
    """
    from ciuic.codec import zstd  # noqa: F401 - imported for its effect

    if numbers:
        from ciuic.codec import planes  # noqa: F401 - imported for its effect


def round_trips(
    codec: int,
    stored: bytes | memoryview,
    delta_base: bytes | memoryview,
    plain: bytes | memoryview,
) -> bool:
    """Return whether ``stored`` decodes to ``plain`` again.

    Every encoding is checked this way before the writer gets it. A fault in a compressor, a
    processor core or a memory module then costs a raw frame instead of a snapshot.
    """
    try:
        if codec == PLANES:
            from ciuic.codec import planes

            return planes.matches(memoryview(stored), plain)
        again = decode(codec, stored, len(plain), delta_base)
    except CorruptionError:
        return False
    compiled = core()
    if compiled is not None:
        return compiled.functions.equal(again, plain)
    # By checksum: comparing a bytes object with a memoryview walks it element by element.
    return checksum(again) == checksum(plain)


_Bytes = bytes | memoryview


def _decode_raw(stored: _Bytes, plain_bytes: int, _: Sequence[_Bytes]) -> _Bytes:
    if len(stored) != plain_bytes:
        raise CorruptionError(f"a raw payload has {len(stored)} bytes instead of {plain_bytes}")
    return stored


def _decode_zstd(stored: _Bytes, plain_bytes: int, _: Sequence[_Bytes]) -> _Bytes:
    from ciuic.codec import zstd

    return zstd.decompress(stored, plain_bytes)


def _decode_planes(
    stored: _Bytes, plain_bytes: int, _: Sequence[_Bytes], out: memoryview | None = None
) -> _Bytes:
    from ciuic.codec import planes

    return planes.decode(memoryview(stored), plain_bytes, out)


def _decode_dense(
    stored: _Bytes,
    plain_bytes: int,
    delta_bases: Sequence[_Bytes],
    out: memoryview | None = None,
) -> _Bytes:
    from ciuic.codec import dense_delta

    return dense_delta.decode(memoryview(stored), plain_bytes, _only(delta_bases), out)


def _decode_sparse(stored: _Bytes, plain_bytes: int, delta_bases: Sequence[_Bytes]) -> _Bytes:
    from ciuic.codec import sparse_delta

    return sparse_delta.decode(memoryview(stored), plain_bytes, _only(delta_bases))


def _only(delta_bases: Sequence[_Bytes]) -> _Bytes:
    if len(delta_bases) != 1:
        raise CorruptionError(f"a delta has {len(delta_bases)} delta bases instead of 1")
    return delta_bases[0]


_DECODERS: Final[dict[int, Callable[[_Bytes, int, Sequence[_Bytes]], _Bytes]]] = {
    RAW: _decode_raw,
    ZSTD: _decode_zstd,
    PLANES: _decode_planes,
    DELTA: _decode_dense,
    SPARSE: _decode_sparse,
}

"""Plain bytes <-> stored bytes: the home of zstandard.

Codecs are numbered in docs/format.md, "Codecs". Every encoding is decoded and compared before
it is handed out: a fault in a compressor, a core or a memory module then costs a raw frame
instead of a snapshot.

Which level: trained weights are noise to zstd, and level 3 gets less out of them than level 1
does, at half the speed; text gains a fifth from level 3. A probe tells them apart.
"""

import threading
from collections.abc import Callable

import zstandard

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.hashing import checksum

__all__ = ["RAW", "ZSTD", "decode", "encode"]

RAW = 0
ZSTD = 1

_PROBE_BYTES = 32 * 1024
_FAST_LEVEL = 1
_TEXT_LEVEL = 3
_TEXT_RATIO = 0.65
"""A probe that shrinks below this is text, code or a log rather than tensors."""
_WORTH_FRACTION = 1 / 64
"""Saving less than this is not worth decoding at every read."""


class _Codecs(threading.local):
    """One set of compressors a thread: they must not be shared."""

    def __init__(self) -> None:
        self.fast = zstandard.ZstdCompressor(level=_FAST_LEVEL, write_content_size=True)
        self.text = zstandard.ZstdCompressor(level=_TEXT_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_codecs = _Codecs()


def encode(plain: bytes | memoryview) -> tuple[int, bytes | memoryview]:
    """Encode one frame's payload; returns the codec's number and the stored bytes.

    The result may be ``plain`` itself: it must not change until it has been written.
    """
    size = len(plain)
    compressor = _codecs.text
    if size > 2 * _PROBE_BYTES:
        middle = size // 2
        probe = plain[middle : middle + _PROBE_BYTES]
        shrunk = len(_codecs.fast.compress(probe))
        if shrunk > len(probe) * _TEXT_RATIO:
            compressor = _codecs.fast
    stored = compressor.compress(plain)
    if len(stored) > size - size * _WORTH_FRACTION:
        return RAW, plain
    # By checksum: comparing a bytes object with a memoryview walks it element by element.
    again = _codecs.decompressor.decompress(stored, max_output_size=size)
    if len(again) != size or checksum(again) != checksum(plain):
        return RAW, plain
    return ZSTD, stored


def decode(codec: int, stored: bytes | memoryview, plain_bytes: int) -> bytes | memoryview:
    """Decode a payload to exactly ``plain_bytes`` bytes.

    For any ``stored`` it returns or raises within memory bounded by ``plain_bytes``.

    Raises:
        UnknownFormatError: No codec has this number.
        CorruptionError: ``stored`` is not a payload of that codec and length.
    """
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnknownFormatError(f"codec {codec} is not known to this version of ciuic")
    return decoder(stored, plain_bytes)


def _decode_raw(stored: bytes | memoryview, plain_bytes: int) -> bytes | memoryview:
    if len(stored) != plain_bytes:
        raise CorruptionError(f"raw payload of {len(stored)} bytes should have {plain_bytes}")
    return stored


def _decode_zstd(stored: bytes | memoryview, plain_bytes: int) -> bytes:
    try:
        # The size is checked first: the library allocates what the frame claims.
        if zstandard.frame_content_size(stored) != plain_bytes:
            raise CorruptionError("zstd payload does not have the length that its header says")
        plain = _codecs.decompressor.decompress(stored, max_output_size=plain_bytes)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"zstd payload can't be decoded: {error}") from error
    if len(plain) != plain_bytes:
        raise CorruptionError("zstd payload does not have the length that its header says")
    return plain


_DECODERS: dict[int, Callable[[bytes | memoryview, int], bytes | memoryview]] = {
    RAW: _decode_raw,
    ZSTD: _decode_zstd,
}

"""Zstandard, with three sets of parameters."""

import threading
from typing import Final

import zstandard

from ciuic.errors import CorruptionError

__all__ = ["compress", "compress_entropy", "compress_fast", "decompress", "probe"]

_TEXT_LEVEL: Final = 3
_FAST_LEVEL: Final = 1
_ENTROPY_WINDOW_LOG: Final = 16
_MAGIC: Final = bytes.fromhex("28b52ffd")
_EMPTY_STEP_BYTES: Final = 64
"""Each block of 4 bytes may decode to 128 KiB: a step limits the memory to 2 MiB."""


class _Contexts(threading.local):
    """One set of contexts per thread, because threads must not share them."""

    def __init__(self) -> None:
        self.text = zstandard.ZstdCompressor(level=_TEXT_LEVEL)
        self.fast = zstandard.ZstdCompressor(level=_FAST_LEVEL)
        # These parameters search for hardly any matches, which leaves a Huffman coder. Exponents
        # shrink more than at level 3, five times as fast. A small window makes small blocks, each
        # with its own table: where two tensors meet, that gains more than the tables cost.
        entropy = zstandard.ZstdCompressionParameters.from_level(
            _FAST_LEVEL,
            strategy=zstandard.STRATEGY_FAST,
            min_match=7,
            hash_log=6,
            window_log=_ENTROPY_WINDOW_LOG,
        )
        self.entropy = zstandard.ZstdCompressor(compression_params=entropy)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(plain: bytes | memoryview) -> bytes:
    """Compress text, code and logs."""
    return bytes(_contexts.text.compress(plain))


def compress_fast(plain: bytes | memoryview) -> bytes:
    """Compress data with little redundancy."""
    return bytes(_contexts.fast.compress(plain))


def compress_entropy(plain: bytes | memoryview) -> bytes:
    """Compress bytes of uneven frequency without repetitions."""
    return bytes(_contexts.entropy.compress(plain))


def probe(sample: bytes) -> float:
    """Return the fraction of its length that a sample shrinks to."""
    return len(_contexts.fast.compress(sample)) / len(sample)


def decompress(stored: bytes | memoryview, plain_bytes: int) -> bytes:
    """Decode one zstd frame to exactly ``plain_bytes`` bytes.

    Raises:
        CorruptionError: ``stored`` is not exactly one zstd frame of that length.
    """
    try:
        # The size is checked first: the library allocates what the frame claims.
        if zstandard.frame_content_size(stored) != plain_bytes:
            raise CorruptionError("a zstd payload does not have the length in its header")
        if plain_bytes == 0:
            _check_empty(stored)
            return b""
        plain = bytes(
            _contexts.decompressor.decompress(
                stored, max_output_size=plain_bytes, allow_extra_data=False
            )
        )
    except zstandard.ZstdError as error:
        raise CorruptionError(f"a zstd payload cannot be decoded: {error}") from error
    if len(plain) != plain_bytes:
        raise CorruptionError("a zstd payload does not have the length in its header")
    return plain


def _check_empty(stored: bytes | memoryview) -> None:
    """Refuse what is not exactly one frame without content.

    ``decompress`` of the library returns at once if the header says 0 bytes: it would accept a
    frame that is cut short, damaged, skippable, or followed by other bytes.
    """
    frame = _contexts.decompressor.decompressobj()
    at = 0
    while at < len(stored) and not frame.eof:
        if frame.decompress(stored[at : at + _EMPTY_STEP_BYTES]):
            raise CorruptionError("a zstd payload of 0 bytes has content")
        at += _EMPTY_STEP_BYTES
    is_one = frame.eof and at >= len(stored) and not frame.unused_data
    if not is_one or bytes(stored[: len(_MAGIC)]) != _MAGIC:
        raise CorruptionError("a zstd payload of 0 bytes is not exactly one frame")

"""Zstandard, in the three ways that ciuic uses it."""

import threading
from typing import Final

import zstandard

from ciuic.errors import CorruptionError

__all__ = ["compress", "compress_entropy", "compress_fast", "decompress", "probe"]

_TEXT_LEVEL: Final = 3
_FAST_LEVEL: Final = 1
_ENTROPY_WINDOW_LOG: Final = 16


class _Contexts(threading.local):
    """One set of contexts a thread: they must not be shared."""

    def __init__(self) -> None:
        self.text = zstandard.ZstdCompressor(level=_TEXT_LEVEL)
        self.fast = zstandard.ZstdCompressor(level=_FAST_LEVEL)
        # Hardly any matches are looked for, which leaves a Huffman coder: exponents shrink more
        # by it than at level 3, five times as fast. A window makes a block, and each block has
        # a table of its own: where tensors meet, that is worth more than the tables cost.
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
    """For text, code and logs."""
    return bytes(_contexts.text.compress(plain))


def compress_fast(plain: bytes | memoryview) -> bytes:
    """For data in which there is little to be found."""
    return bytes(_contexts.fast.compress(plain))


def compress_entropy(plain: bytes | memoryview) -> bytes:
    """For bytes of uneven frequency without repetitions."""
    return bytes(_contexts.entropy.compress(plain))


def probe(sample: bytes) -> float:
    """To what fraction of itself a sample shrinks."""
    return len(_contexts.fast.compress(sample)) / len(sample)


def decompress(stored: bytes | memoryview, plain_bytes: int) -> bytes:
    """Decode one zstd frame to exactly ``plain_bytes`` bytes.

    Raises:
        CorruptionError: It is not such a frame.
    """
    try:
        # The size is checked first: the library allocates what the frame claims.
        if zstandard.frame_content_size(stored) != plain_bytes:
            raise CorruptionError("zstd payload does not have the length that its header says")
        plain = bytes(_contexts.decompressor.decompress(stored, max_output_size=plain_bytes))
    except zstandard.ZstdError as error:
        raise CorruptionError(f"zstd payload can't be decoded: {error}") from error
    if len(plain) != plain_bytes:
        raise CorruptionError("zstd payload does not have the length that its header says")
    return plain

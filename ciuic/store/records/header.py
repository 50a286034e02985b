"""The store's own record: format version, required features, how files are cut.

docs/format.md, "Header". A program that creates a store writes it last: a directory without a
header is not a store yet.
"""

import re
from typing import Final

import msgspec

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.store.records.sealed import seal, unseal

__all__ = [
    "CHUNK_BYTES_DEFAULT",
    "CONTENT",
    "FIXED",
    "FORMAT",
    "HEADER_BYTES_MAX",
    "KINDS",
    "KNOWN_FEATURES",
    "TENSORS",
    "Chunking",
    "Header",
    "decode_header",
]

FORMAT: Final = 1
HEADER_BYTES_MAX: Final = 1024 * 1024
"""A longer file is not a header, and no program reads more of it."""
FIXED: Final = "fixed"
TENSORS: Final = "tensors"
CONTENT: Final = "content"
KINDS: Final = (FIXED, TENSORS, CONTENT)
KNOWN_FEATURES: Final[frozenset[str]] = frozenset()
"""Features that this version can read."""
WRITABLE_FEATURES: Final[frozenset[str]] = frozenset()
"""Features that this version keeps to when it writes or removes."""
CHUNK_BYTES_DEFAULT: Final = 1024 * 1024
_CHUNK_BYTES_MIN: Final = 4096
_CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
_AVERAGE_BYTES_MIN: Final = 256
_AVERAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_LEAST_BYTES_MIN: Final = 64
_LEAST_BYTES_MAX: Final = 1024 * 1024
_STORE_ID: Final = r"[0-9a-f]{32}"


class Chunking(msgspec.Struct, frozen=True, omit_defaults=True):
    """How files are cut.

    Attributes:
        kind: ``FIXED``: at every multiple of ``size_bytes``. ``TENSORS``: files of tensors at the
            ends of their tensors, other files as with ``FIXED``. ``CONTENT``: other files by their
            content, unless programs write into their middle; see ``ciuic.chunking``.
        size_bytes: Maximum chunk size.
        average_bytes: Average chunk size of files cut by content, a power of two; 0: none are.
        least_bytes: Minimum chunk size of files cut by content, a power of two; 0: none are.
    """

    kind: str
    size_bytes: int
    average_bytes: int = 0
    least_bytes: int = 0

    @classmethod
    def of(
        cls, kind: str, size_bytes: int, average_bytes: int = 0, least_bytes: int = 0
    ) -> "Chunking":
        """Replace lengths of 0 of ``CONTENT`` by defaults.

        The average is half the maximum, the minimum a quarter of the average, both rounded down to
        powers of two.
        """
        if kind != CONTENT:
            return cls(kind, size_bytes, average_bytes, least_bytes)
        average = average_bytes or min(_power_below(size_bytes) // 2, _AVERAGE_BYTES_MAX)
        least = least_bytes or min(_power_below(average) // 4, _LEAST_BYTES_MAX)
        return cls(kind, size_bytes, average, least)

    @property
    def problem(self) -> str:
        """Why no store can be cut like this; empty if a store can."""
        if self.kind not in KINDS:
            return f"chunking '{self.kind}' is not known"
        if not _CHUNK_BYTES_MIN <= self.size_bytes <= _CHUNK_BYTES_MAX:
            return f"a chunk size of {self.size_bytes} bytes is not between 4 KiB and 16 MiB"
        if self.kind != CONTENT:
            return ""
        average, least = self.average_bytes, self.least_bytes
        if not _AVERAGE_BYTES_MIN <= average <= _AVERAGE_BYTES_MAX or average.bit_count() != 1:
            return f"an average of {average} bytes is not a power of two from 256 B to 4 MiB"
        if not _LEAST_BYTES_MIN <= least <= _LEAST_BYTES_MAX or least.bit_count() != 1:
            return f"a minimum length of {least} bytes is not a power of two from 64 B to 1 MiB"
        if not least <= average <= self.size_bytes:
            return (
                f"the minimum, average and maximum chunk sizes ({least}, {average},"
                f" {self.size_bytes} bytes) are not in ascending order"
            )
        return ""


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """See docs/format.md, "Header".

    Attributes:
        format: The version of the format.
        required: Features that a program must know to use the store.
        store_id: Tells two stores apart.
        created: When the store was created, in the form of RFC 3339.
        chunking: How files are cut.
        required_to_write: Features that a program must know to change the store.
        optional: Features that a program may ignore.
        checksum: See ``sealed``.
    """

    format: int
    required: list[str]
    store_id: str
    created: str
    chunking: Chunking
    required_to_write: list[str] = []
    optional: list[str] = []
    checksum: str = ""

    @property
    def problem_for_writers(self) -> str:
        """Why this version must not write to the store; empty if it may."""
        unknown = sorted(set(self.required_to_write) - WRITABLE_FEATURES)
        if not unknown:
            return ""
        return f"this ciuic can only read the store: it has the feature {unknown[0]!r}"

    def encode(self) -> bytes:
        """Return the content of the header file."""
        return seal(self)


class _Version(msgspec.Struct):
    format: int
    required: list[str] = []


def decode_header(data: bytes) -> Header:
    """Parse and check a header file.

    Raises:
        UnknownFormatError: The store has a version, or needs a feature, that this ciuic does not
            know.
        CorruptionError: The header is damaged.
    """
    # Checked before the seal: a later version may seal its header in another way.
    try:
        version = msgspec.json.decode(data, type=_Version)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"this is not a store's header: {error}") from error
    if version.format != FORMAT:
        raise UnknownFormatError(
            f"the store has format {version.format}, and this ciuic knows format {FORMAT} only"
        )
    unknown = sorted(set(version.required) - KNOWN_FEATURES)
    if unknown:
        raise UnknownFormatError(f"the store needs the feature '{unknown[0]}'")
    header = unseal(data, Header)
    if re.fullmatch(_STORE_ID, header.store_id) is None:
        raise CorruptionError(f"{header.store_id!r} is not the ID of a store")
    if header.chunking.problem:
        raise UnknownFormatError(header.chunking.problem)
    return header

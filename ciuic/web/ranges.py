"""Ranges of a file, as an HTTP client asks for them (RFC 9110, section 14)."""

import re
from typing import Final, NamedTuple

__all__ = ["ByteSpan", "RangeError", "parse_range"]

_ONE: Final = re.compile(r"bytes=\s*(\d*)\s*-\s*(\d*)\s*", re.ASCII)
_DIGITS_MAX: Final = 20


class RangeError(ValueError):
    """The range is outside the file."""


class ByteSpan(NamedTuple):
    """A part of a file; ``end`` is the first byte after it."""

    begin: int
    end: int


def parse_range(header: str | None, size_bytes: int) -> ByteSpan | None:
    """Return the range that a header asks for; None: all of the file.

    A header of several ranges, or in another unit, counts as none: a server may ignore it.

    Raises:
        RangeError: The range is outside the file.
    """
    match = None if header is None else _ONE.fullmatch(header)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(_number(match[2]), size_bytes)
        if not length:
            raise RangeError
        return ByteSpan(size_bytes - length, size_bytes)
    begin = _number(match[1])
    end = min(_number(match[2]) + 1, size_bytes) if match[2] else size_bytes
    if match[2] and _number(match[2]) < begin:
        return None
    if begin >= size_bytes:
        raise RangeError
    return ByteSpan(begin, end)


def _number(digits: str) -> int:
    # 20 digits are beyond every file, and int() refuses thousands of them.
    return int(digits.lstrip("0")[:_DIGITS_MAX] or "0")

"""Parse and format numbers with units."""

import math
from collections.abc import Sequence

__all__ = [
    "counted",
    "format_bytes",
    "format_duration",
    "format_files",
    "freed_in_words",
    "inflected",
    "listed",
    "parse_duration_s",
    "parse_size_bytes",
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FACTORS = {"": 1, "b": 1} | {
    f"{letter}{binary}{byte}": 1024**power
    for power, letter in enumerate("kmgtp", start=1)
    for binary in ("", "i")
    for byte in ("", "b")
}
_LETTERS = "BGIKMPTbgikmpt"
_BLANKS = " \t\n\r\f\v"


def parse_duration_s(text: str) -> float:
    """Parse a duration (``30m``, ``1h``, ``7d``, ``0``) and return seconds.

    A bare number other than 0 is refused, because ``interval = 30`` may mean minutes.

    Raises:
        ValueError: The text is not a duration; the message shows examples.
    """
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    number, unit = stripped[:-1].rstrip(_BLANKS), stripped[-1:]
    if unit not in _SECONDS or not _is_number(number):
        raise ValueError(f"'{text}' is not a duration; write a number and s, m, h, d or w: 30m, 1h")
    return float(number) * _SECONDS[unit]


def parse_size_bytes(text: str) -> int:
    """Parse a size (``64 MiB``, ``2G``, ``4096``); K, M, G, T and P are powers of 1024.

    Raises:
        ValueError: The text is not a size.
    """
    stripped = text.strip()
    number = stripped.rstrip(_LETTERS)
    unit = stripped[len(number) :].lower()
    number = number.rstrip(_BLANKS)
    if unit not in _FACTORS or not _is_number(number):
        raise ValueError(f"'{text}' is not a size; write a number and KiB, MiB, GiB or TiB: 64 MiB")
    size = float(number) * _FACTORS[unit]
    if math.isinf(size):
        raise ValueError("that is more than any disk has")
    return int(size)


def _is_number(text: str) -> bool:
    """Return whether a text is a decimal number. Every start would have to compile a pattern."""
    whole, point, fraction = text.partition(".")
    return text.isascii() and whole.isdecimal() and (not point or fraction.isdecimal())


def counted(count: int, singular: str, plural: str = "") -> str:
    """Format a number and the noun that it counts: ``1 file``, ``2,000 files``, ``0 copies``.

    Args:
        count: How many.
        singular: The noun for 1.
        plural: The noun for other numbers; by default the singular with an ``s``.
    """
    return f"{count:,} {inflected(count, singular, plural or f'{singular}s')}"


def inflected(count: int, singular: str, plural: str) -> str:
    """Return the form of a word that goes with a number: ``was`` with 1, ``were`` with others."""
    return singular if count == 1 else plural


def listed(names: Sequence[str], count: int) -> str:
    """Join names with commas, and add how many more there are: ``a, b and 3 more``.

    Args:
        names: The first names.
        count: The number of all names.
    """
    more = count - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more > 0 else "")


def format_files(count: int) -> str:
    """Format a number of files: ``1 file``, ``2,000 files``."""
    return counted(count, "file")


def format_bytes(size_bytes: int) -> str:
    """Format a size with three significant digits: ``1.50 GiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.{_places(size)}f} {unit}"
        size /= 1024
    return f"{size:.{_places(size)}f} PiB"


def _places(size: float) -> int:
    return 2 if abs(size) < 10 else 1 if abs(size) < 100 else 0


def format_duration(duration_s: float) -> str:
    """Format a duration: ``0.42 s``, ``3 m 05 s``, ``2 h 10 m``, ``3 d 04 h``."""
    if duration_s < 60:
        return f"{duration_s:.2f} s" if duration_s < 10 else f"{duration_s:.0f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} m"
    return f"{hours // 24} d {hours % 24:02d} h"


def freed_in_words(freed_bytes: int) -> str:
    """Say how much room a prune made, or how much more it takes until condemned packs are gone."""
    if freed_bytes < 0:
        return f"{format_bytes(-freed_bytes)} more in use for now"
    return f"{format_bytes(freed_bytes)} freed"

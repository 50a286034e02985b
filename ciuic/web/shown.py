"""Text for people: on the page, and in command lines to copy.

A name may hold any characters. Jinja escapes markup, and this module escapes invisible characters.
"""

import math
import os
import shlex
from collections.abc import Iterable, Sequence
from urllib.parse import quote_from_bytes, urlencode

from ciuic.documents import Document
from ciuic.model import bash_quoted
from ciuic.system.clock import from_local_text, local_time_text

__all__ = [
    "address",
    "by_day",
    "command_line",
    "farthest",
    "heat",
    "ladder",
    "local_time",
    "meant",
    "sent",
    "shown",
]

_DAY = len("2026-06-15")
_HOTTEST = 5


def shown(text: str | bytes | None) -> str:
    """Return text with an escape for each character that cannot be seen, or that moves others."""
    decoded = os.fsdecode(text) if isinstance(text, bytes) else text or ""
    return "".join([char if char.isprintable() else _escape(char) for char in decoded])


def meant(text: str, names: Iterable[str]) -> str:
    """Return the name that a form has sent: a name with escapes is sent with them.

    Args:
        text: What was sent.
        names: The known names.
    """
    known = list(names)
    if text in known or "\\" not in text:
        return text
    return next((name for name in known if text in {shown(name), sent(name).decode()}), text)


def sent(name: str) -> bytes:
    """Return a name from a log as text that can be sent; it may hold any surrogates."""
    return name.encode("utf-8", "backslashreplace")


def _escape(char: str) -> str:
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode()


def address(place: str, **query: object) -> str:
    """Return the address of a page with a query; parts that are None are left out."""
    given = {key: value for key, value in query.items() if value is not None}
    # quote_from_bytes: a path need not be UTF-8.
    encoded = urlencode(given, quote_via=lambda text, *_: _quoted(text))
    return f"{place}?{encoded}" if encoded else place


def _quoted(text: str | bytes) -> str:
    return quote_from_bytes(text if isinstance(text, bytes) else os.fsencode(text), safe="/")


def ladder(path: bytes) -> list[tuple[bytes, bytes]]:
    """Return the directories from ``/`` down to a path, each with its name."""
    found = [(b"/", b"/")]
    at = b""
    for name in path.split(b"/"):
        if name:
            at += b"/" + name
            found.append((at, name))
    return found


def command_line(arguments: Sequence[bytes]) -> str:
    """Return a command line that a person can paste into a shell."""
    return " ".join([_argument(argument) for argument in arguments])


def _argument(argument: bytes) -> str:
    text = os.fsdecode(argument)
    return shlex.quote(text) if text.isprintable() else bash_quoted(argument)


def heat(value: float | None, most: float) -> int:
    """Return the heat of a relative distance: 0 for none, 5 for more than half of the greatest.

    Each step is half of the one above. A scale that is the same for all tables would give all
    tensors of a training that moves them much the same color.

    Args:
        value: The distance.
        most: The greatest one in the table.
    """
    if value is None or value <= 0 or most <= 0:
        return 0
    return max(1, _HOTTEST - int(math.log2(most) - math.log2(value)))


def farthest(tensors: Sequence[Document]) -> float:
    """Return the greatest distance in the document of ``ciuic compare --json``; 0: none moved."""
    distances = [value for one in tensors for value in one["relative_distances"]]
    return max([value for value in distances if value is not None], default=0.0)


def by_day(plan: Document) -> list[tuple[str, list[tuple[Document, bool]]]]:
    """Return the snapshots of a plan by their local day, newest first; true: it is kept.

    Args:
        plan: The document of ``ciuic forget --json``.
    """
    found = [(one, True) for one in plan["kept"]] + [(one, False) for one in plan["forgotten"]]
    days: dict[str, list[tuple[Document, bool]]] = {}
    for one, is_kept in sorted(found, key=lambda pair: str(pair[0]["taken"]), reverse=True):
        days.setdefault(local_time(one["taken"])[:_DAY], []).append((one, is_kept))
    return list(days.items())


def local_time(moment: str | None) -> str:
    """Return a time of a JSON document as local time."""
    moment_ns = None if moment is None else from_local_text(moment)
    return moment or "" if moment_ns is None else local_time_text(moment_ns)

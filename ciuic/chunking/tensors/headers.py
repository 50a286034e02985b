"""What the readers of all formats share: a file's headers, read within bounds."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = [
    "DIMENSIONS_MAX",
    "HEADER_BYTES_MAX",
    "NAME_BYTES_MAX",
    "SPANS_MAX",
    "WIDTHS",
    "Headers",
    "NoLayoutError",
    "Read",
    "Span",
    "named",
]

HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one file: the tokenizers that GGUF files begin with take up to 8 MiB."""
CLOSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same, of a file that is looked at closely: for each small tensor some 300 bytes more."""
SPANS_MAX: Final = 100_000
"""Optimizer states have three tensors for each of some ten thousand parameters."""

NAME_BYTES_MAX: Final = 1024
"""Of a tensor: real ones take up to some 200. A longer one is as good as none."""

DIMENSIONS_MAX: Final = 8
"""Of a shape that is told: no real one has more."""
WIDTHS: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "C128": 16,
}
"""Bytes of an element of each type that is known as numbers."""

Read = Callable[[int, int], bytes]


class NoLayoutError(Exception):
    """The file is not what it begins like, or says of itself what can't be."""


class Span(NamedTuple):
    """One tensor's bytes, and what it is called in every save of it.

    No two names of a file should be the same, but a file may lie. An element type is spelled as
    safetensors spells it (``BF16``), or as GGUF spells those that only it has (``Q4_K``).

    Attributes:
        offset_bytes: From the file's start.
        length_bytes: Of the tensor.
        width_bytes: Of an element; 0: not known.
        name: Without what differs between saves; empty: not known. Bytes that are not UTF-8 are
            surrogate escapes.
        element: The type of its elements; empty: not known without looking into a pickle.
    """

    offset_bytes: int
    length_bytes: int
    width_bytes: int = 0
    name: str = ""
    element: str = ""


def named(name: bytes) -> str:
    """A tensor's name as it stands in a file, if it is not too long for one."""
    return name.decode(errors="surrogateescape") if len(name) <= NAME_BYTES_MAX else ""


class Headers:
    """Reads what is asked for, within the file and within a bound.

    Args:
        read: Gives the bytes at an offset, so many.
        size_bytes: The file's length.
        closely: For who wants to see each tensor: small ones have a place of their own, too, and
            shapes are kept.

    Attributes:
        size_bytes: As above.
        closely: As above.
        shapes: Of the tensors, by their names, where the headers tell.
    """

    def __init__(self, read: Read, size_bytes: int, *, closely: bool = False) -> None:
        self._read = read
        self._left_bytes = CLOSE_BYTES_MAX if closely else min(HEADER_BYTES_MAX, size_bytes)
        self.closely = closely
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._start = 0
        self._window = b""
        self.size_bytes = size_bytes

    def at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Exactly these bytes.

        What was read last is not read again: headers that lie close together cost one read.

        Raises:
            NoLayoutError: They are not there, or they are too many.
        """
        skipped = offset_bytes - self._start
        if skipped < 0 or skipped + length_bytes > len(self._window):
            self._start, self._window = offset_bytes, self._fetched(offset_bytes, length_bytes)
            skipped = 0
        return self._window[skipped : skipped + length_bytes]

    def keep_shape(self, name: str, shape: Sequence[int]) -> None:
        """Remember a tensor's shape, if anybody wants it."""
        if self.closely and len(shape) <= DIMENSIONS_MAX:
            self.shapes[name] = tuple(shape)

    def near(self, offset_bytes: int, length_bytes: int, near_bytes: int) -> bytes:
        """The same; what lies up to ``near_bytes`` before its end will be asked for next."""
        end = offset_bytes + length_bytes
        if offset_bytes < self._start or end > self._start + len(self._window):
            start = max(0, min(offset_bytes, end - near_bytes))
            if end - start <= self._left_bytes:
                self.at(start, end - start)
        return self.at(offset_bytes, length_bytes)

    def _fetched(self, offset_bytes: int, length_bytes: int) -> bytes:
        if offset_bytes < 0 or offset_bytes + length_bytes > self.size_bytes:
            raise NoLayoutError("beyond the file's end")
        if length_bytes > self._left_bytes:
            raise NoLayoutError("too long for headers")
        self._left_bytes -= length_bytes
        data = self._read(offset_bytes, length_bytes)
        if len(data) != length_bytes:
            raise NoLayoutError("the file has become shorter")
        return data

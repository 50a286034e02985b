"""Bounded reading of a file's headers, and the types that the readers of all formats share."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = [
    "DIMENSIONS_MAX",
    "HEADER_BYTES_MAX",
    "NAMES_BYTES_MAX",
    "NAME_BYTES_MAX",
    "SPANS_MAX",
    "WIDTHS",
    "CutShortError",
    "Headers",
    "ImpossibleError",
    "NoLayoutError",
    "Part",
    "Read",
    "Span",
    "named",
]

HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The most bytes read of one file: the tokenizers at the start of GGUF files take up to 8 MiB."""
CLOSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same if a file is read closely: about 300 bytes more for each small tensor."""
SPANS_MAX: Final = 100_000
"""The most tensors of a file. An optimizer state has three tensors for each of about ten thousand
parameters."""

NAMES_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest pickle that is searched for names: about 15,000 tensors, which takes two seconds.
The tensors of a longer one are identified by their ranges."""
NAME_BYTES_MAX: Final = 1024
"""The longest name of a tensor: real names have up to 200 bytes. A longer name is ignored."""

DIMENSIONS_MAX: Final = 8
"""The most dimensions of a shape: real shapes have fewer."""
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
"""Bytes per element of each type of numbers."""

Read = Callable[[int, int], bytes]


class Part(NamedTuple):
    """A range of a file of a distributed checkpoint, and its name.

    Attributes:
        offset_bytes: From the start of the file.
        length_bytes: Length of the range.
        name: The tensor, or the part of a tensor that begins at the index in brackets.
    """

    offset_bytes: int
    length_bytes: int
    name: str


class NoLayoutError(Exception):
    """The file is not in the format that its first bytes suggest, or its headers are impossible."""


class CutShortError(NoLayoutError):
    """The headers name bytes beyond the file's end."""


class ImpossibleError(NoLayoutError):
    """The headers break a rule of their format: no program could load the file."""


class Span(NamedTuple):
    """The bytes of one tensor, and its name.

    Names should be unique in a file, but a file may repeat them. Element types have the names of
    safetensors (``BF16``), or of GGUF if only GGUF has them (``Q4_K``).

    Attributes:
        offset_bytes: From the start of the file.
        length_bytes: Length of the tensor.
        width_bytes: Bytes per element; 0: unknown.
        name: The same in every save of the tensor; empty: unknown. Bytes that are not UTF-8 are
            surrogate escapes.
        element: The type of the elements; empty: unknown without reading a pickle.
    """

    offset_bytes: int
    length_bytes: int
    width_bytes: int = 0
    name: str = ""
    element: str = ""


def named(name: bytes) -> str:
    """Decode a tensor's name; empty if it is too long."""
    return name.decode(errors="surrogateescape") if len(name) <= NAME_BYTES_MAX else ""


class Headers:
    """Reads headers, within the file and within a total number of bytes.

    Args:
        read: Reads (offset, length) of the file.
        size_bytes: Length of the file.
        closely: Find the exact ranges of small tensors, too, and keep shapes.

    Attributes:
        size_bytes: Length of the file.
        closely: See above.
        shapes: Shapes of tensors, by name, as far as the headers contain them.
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
        """Return exactly these bytes.

        Bytes of the last read are not read again, so adjacent headers cost one read.

        Raises:
            CutShortError: The range is outside the file.
            NoLayoutError: Too many bytes were read.
        """
        skipped = offset_bytes - self._start
        if skipped < 0 or skipped + length_bytes > len(self._window):
            self._start, self._window = offset_bytes, self._fetched(offset_bytes, length_bytes)
            skipped = 0
        return self._window[skipped : skipped + length_bytes]

    def keep_shape(self, name: str, shape: Sequence[int]) -> None:
        """Remember a tensor's shape, if the file is read closely."""
        if self.closely and len(shape) <= DIMENSIONS_MAX:
            self.shapes[name] = tuple(shape)

    def near(self, offset_bytes: int, length_bytes: int, near_bytes: int) -> bytes:
        """Like ``at``, and read ahead up to ``near_bytes`` before the end of the range."""
        end = offset_bytes + length_bytes
        if offset_bytes < self._start or end > self._start + len(self._window):
            start = max(0, min(offset_bytes, end - near_bytes))
            if end - start <= self._left_bytes:
                self.at(start, end - start)
        return self.at(offset_bytes, length_bytes)

    def _fetched(self, offset_bytes: int, length_bytes: int) -> bytes:
        if offset_bytes < 0 or offset_bytes + length_bytes > self.size_bytes:
            raise CutShortError("beyond the file's end")
        if length_bytes > self._left_bytes:
            raise NoLayoutError("too long for headers")
        self._left_bytes -= length_bytes
        data = self._read(offset_bytes, length_bytes)
        if len(data) != length_bytes:
            raise NoLayoutError("the file has become shorter")
        return data

"""The files of a snapshot of the library: safetensors files, and ``state.json``.

A safetensors file is the length of a JSON object, the object, and the tensors without gaps.
https://github.com/huggingface/safetensors, "Format".
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = [
    "STATE_FORMAT",
    "STATE_NAME",
    "TensorFile",
    "TensorRow",
    "encoded",
    "header",
    "state_document",
]

STATE_NAME: Final = "state.json"
STATE_FORMAT: Final = 1
"""The version of ``state.json``; a reader refuses a later one."""
_ALIGNMENT_BYTES: Final = 8


class TensorRow(NamedTuple):
    """A tensor in a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


class TensorFile:
    """The tensors of one safetensors file that is being planned.

    Attributes:
        rows: Name, element type, shape and length of each tensor, in the order of the file.
    """

    def __init__(self) -> None:
        self.rows: list[TensorRow] = []
        self._names: set[str] = {"__metadata__"}

    def add(self, name: str, dtype: str, shape: tuple[int, ...], size_bytes: int) -> str:
        """Add a tensor; returns the name that it gets, which is unique and valid UTF-8."""
        wanted = name.encode("utf-8", "backslashreplace").decode()
        unique, number = wanted, 1
        while unique in self._names:
            number += 1
            unique = f"{wanted}#{number}"
        self._names.add(unique)
        self.rows.append(TensorRow(unique, dtype, shape, size_bytes))
        return unique


def header(rows: Sequence[TensorRow]) -> bytes:
    """Return the header of a safetensors file whose tensors follow in this order."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for row in rows:
        end = at + row.size_bytes
        table[row.name] = {"dtype": row.dtype, "shape": row.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def state_document(fields: dict[str, object]) -> bytes:
    """Return the bytes of ``state.json``; this adds the version to ``fields``."""
    return encoded({"format": STATE_FORMAT, **fields})


def encoded(document: dict[str, object]) -> bytes:
    """Return the bytes of ``state.json``; ``document`` includes the version."""
    # On one line: json's compiled encoder does not indent, and the training waits meanwhile.
    return json.dumps(document, allow_nan=False).encode() + b"\n"

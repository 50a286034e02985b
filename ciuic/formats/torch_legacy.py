"""The format of ``torch.save`` before version 1.6.

Newer versions write it with ``_use_new_zipfile_serialization=False``.

Five pickles (a magic number, a protocol number, the machine, the state, the keys of the storages),
and then each storage in the order of the keys: its number of elements in 8 bytes, and its elements.
Nothing is executed.
"""

import io
import re
import warnings
from typing import Final

from ciuic.formats.headers import WIDTHS, CutShortError, Headers, NoLayoutError
from ciuic.formats.pickle_machine import Container, OddPickleError, PickleMachine, Storage
from ciuic.formats.torch_pickle import PICKLE_BYTES_MAX

__all__ = ["begins", "end_bytes"]

_MAGIC: Final = re.compile(
    rb"\x80[\x02-\x05](?:\x95\x0d\0{7})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\."
)
"""The magic number as a pickle. Torch writes protocol 2 unless told otherwise; from protocol 4 on,
the number is in a frame."""
_PICKLES: Final = 5
_COUNT_BYTES: Final = 8


def begins(head: bytes) -> bool:
    """Return whether a file is in this format, from its first ``KIND_BYTES``."""
    return _MAGIC.match(head) is not None


def end_bytes(headers: Headers) -> int:
    """Return the length that a file in this format must have."""
    file = io.BytesIO(headers.at(0, min(headers.size_bytes, PICKLE_BYTES_MAX)))
    storages: dict[str, Storage] = {}
    keys = None
    try:
        # Python warns about odd escapes in text; no user can act on that.
        with warnings.catch_warnings(action="ignore"):
            for _ in range(_PICKLES):
                machine = PickleMachine()
                keys = machine.run(file)
                storages |= machine.storages
    except (OddPickleError, ValueError, IndexError, KeyError) as error:
        if isinstance(error, ValueError) and file.tell() == headers.size_bytes:
            raise CutShortError("a pickle goes on after the file's end") from error
        raise NoLayoutError("an odd or very long pickle") from error
    if not isinstance(keys, Container):
        raise NoLayoutError("no list of storages")
    found = [storages.get(key) for _, key in keys.items if isinstance(key, str)]
    sizes = [
        _COUNT_BYTES + one.elements * WIDTHS[one.element]
        for one in found
        if one is not None and one.element in WIDTHS
    ]
    if len(sizes) != len(keys.items):
        raise NoLayoutError("storages of unknown types")
    return file.tell() + sum(sizes)

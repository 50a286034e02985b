"""A set of byte strings in little memory: 12 to 24 bytes for each, whatever their length."""

from array import array
from typing import Final

from ciuic.system.hashing import data_id

__all__ = ["KeySet"]

_SLOTS_MIN: Final = 1 << 10
_PREFIX_BYTES: Final = 8


class KeySet:
    """Remembers byte strings by the first 8 bytes of their BLAKE3 hashes.

    A string that was never added counts as known with a probability of n in 2^64, where n is the
    number of strings in the set.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * _SLOTS_MIN
        self._count = 0

    def add(self, key: bytes) -> bool:
        """Add a string; returns whether it is new."""
        # 0 marks a free slot.
        value = int.from_bytes(data_id(key)[:_PREFIX_BYTES], "little") or 1
        slots = self._slots
        mask = len(slots) - 1
        at = value & mask
        while slots[at]:
            if slots[at] == value:
                return False
            at = (at + 1) & mask
        slots[at] = value
        self._count += 1
        # Above two thirds, the runs of taken slots become long.
        if 3 * self._count > 2 * len(slots):
            self._grow()
        return True

    def __len__(self) -> int:
        return self._count

    def _grow(self) -> None:
        old = self._slots
        slots = array("Q", [0]) * (2 * len(old))
        mask = len(slots) - 1
        for value in old:
            if value:
                at = value & mask
                while slots[at]:
                    at = (at + 1) & mask
                slots[at] = value
        self._slots = slots

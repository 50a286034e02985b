"""Decide which chunks of tensors are not compared with their old versions."""

from dataclasses import dataclass
from typing import Final

__all__ = ["Skips"]

_NEVER: Final = 1 << 60
_SKIPPED_CHUNKS_MAX: Final = 15
"""Maximum number of chunks of a tensor that are stored without a delta base after a chunk was not
similar to its old version. The number grows with each miss; the limit keeps the loss small if later
chunks are similar."""
_MISSES: Final = 3
_SKIPPED_TENSORS_MAX: Final = 7
"""After ``_MISSES`` tensors in a row that were not similar to their old versions, the next tensor
is not compared. After each further miss, one more tensor is skipped, up to this many."""


@dataclass(slots=True)
class _Tensor:
    left: int = 0
    """Chunks still to skip."""
    skips: int | None = None
    """Chunks skipped after the last result; None: there was no result."""
    begun_bytes: int = -1
    """Offset of the last chunk whose comparison was begun."""
    decided_bytes: int = -1
    """Misses of chunks up to here change nothing: their comparisons began before the last result.
    Without this rule, several threads that compare neighboring chunks at once would count one miss
    as many."""


class Skips:
    """Skips chunks of tensors if earlier chunks of the same tensor were not similar."""

    def __init__(self) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._misses = 0
        self._tensors_left = 0

    def should_skip(self, tensor: int, offset_bytes: int) -> bool:
        """Return whether to skip the next chunk; each call is about a further chunk.

        Args:
            tensor: The chunk's tensor; -1: the chunk is in no tensor.
            offset_bytes: Where the chunk begins in the file.
        """
        if tensor < 0:
            return False
        is_new = tensor not in self._tensors
        state = self._tensors.setdefault(tensor, _Tensor())
        if is_new and self._tensors_left:
            self._tensors_left -= 1
            state.left = _NEVER
        if state.left:
            state.left -= 1
            return True
        state.begun_bytes = max(state.begun_bytes, offset_bytes)
        return False

    def tell(self, tensor: int, offset_bytes: int, *, is_like: bool) -> None:
        """Record whether a chunk was similar to its old version."""
        if tensor < 0:
            return
        state = self._tensors.setdefault(tensor, _Tensor())
        if is_like:
            self._misses = self._tensors_left = 0
            state.skips = state.left = 0
        elif offset_bytes > state.decided_bytes:
            if state.skips is None:
                self._misses += 1
                self._tensors_left = min(max(self._misses - _MISSES, 0), _SKIPPED_TENSORS_MAX)
            before = 1 if state.skips is None else state.skips
            state.skips = state.left = min(2 * before + 1, _SKIPPED_CHUNKS_MAX)
        state.decided_bytes = max(state.begun_bytes, offset_bytes)

"""What the search for a delta base asks of the file that is being stored."""

from collections.abc import Sequence
from typing import Protocol

from ciuic.formats.headers import Span

__all__ = ["NewVersion"]


class NewVersion(Protocol):
    """The version of a file that is being stored. Its methods read the file only if needed."""

    @property
    def name(self) -> bytes:
        """The file's name."""
        ...

    @property
    def size_bytes(self) -> int:
        """The file's length."""
        ...

    @property
    def spans(self) -> Sequence[Span] | None:
        """The file's tensors; None: it is not a file of tensors."""
        ...

    def spans_by_pickle(self) -> Sequence[Span] | None:
        """Return the tensors in order, with the names from the file's pickle; None: it has none.

        The file is read once. Needed only if the positions of the tensors don't identify them.
        """
        ...

    def metadata(self) -> bytes:
        """Read the ``METADATA`` file in the same directory; empty if that fails."""
        ...

"""Frames to check: what they must hold, and in which order they are read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ciuic.ids import ChunkId, PackId
from ciuic.store.index.places import ChunkPlace

__all__ = ["ChecksFrames", "Frames", "Needed", "OnProgress", "Task", "in_order"]

OnProgress = Callable[[int, int], None]
"""Receives the bytes of frames that were read, and of all frames; 0 while that is not known."""


class Needed(NamedTuple):
    """A chunk that a frame must hold."""

    chunk_id: ChunkId
    kind: int
    start_bytes: int
    length_bytes: int


_Key = tuple[PackId, int]
Frames = dict[_Key, tuple[ChunkPlace, list[Needed]]]
"""For pack and offset: the place of a frame, and the chunks that it must hold."""


class Task(NamedTuple):
    """A frame to check.

    Attributes:
        place: Of the frame.
        needed: The chunks that it must hold; empty for a listed frame.
        keep: One of the next frames may be a delta from it.
        header_id: Hash of the header of a listed frame, which must hold all chunks that its header
            names. Empty for other frames.
        number: Of a listed frame; -1 for other frames.
    """

    place: ChunkPlace
    needed: Sequence[Needed]
    keep: bool
    header_id: bytes = b""
    number: int = -1


class ChecksFrames(Protocol):
    """Checks frames while a walk is still finding others: ``Checker`` in ``frame_checks.py``."""

    def begin(self, task: Task) -> None:
        """Check a frame that is probably not a delta base."""
        ...

    def begin_groups(self, groups: Iterable[list[Task]]) -> None:
        """Check the frames of each group together: each delta follows its base."""
        ...


def in_order(frames: Frames) -> Iterator[list[Task]]:
    """Yield frames in the order of the packs, each followed by the frames that are deltas from it.

    So each frame is decoded once, and not once for every delta that has it as its base.
    """
    for keys in _groups(frames):
        yield [Task(*frames[key], keep=len(keys) > 1) for key in keys]


def _groups(frames: Frames) -> Iterator[list[_Key]]:
    bases = {base for place, _ in frames.values() for base in place.delta_bases}
    keys = {
        chunk.chunk_id: key
        for key, (_, needed) in frames.items()
        for chunk in needed
        if chunk.chunk_id in bases
    }
    deltas: dict[_Key, list[_Key]] = {}
    for key, (place, _) in frames.items():
        below = [keys[base] for base in place.delta_bases if base in keys]
        if below:
            deltas.setdefault(below[0], []).append(key)
    behind = {key for found in deltas.values() for key in found}
    for first in sorted(frames.keys() - behind):
        group = [first]
        for key in group:
            group += deltas.pop(key, ())
        yield group
    # The deltas that are left form rings. No writer makes them; they are reported as damage.
    yield from ([key] for found in deltas.values() for key in found)

"""Compares the tensors in files between two snapshots.

Files are read from the store piece by piece. Tensors that consist of the same pieces are not read.
If a tensor changed, its equal pieces are read as well, because the distance is a share of the
length (L2). A file is compared with the file of the same path, or else with that of an earlier
step: a path that differs in one number. The names of tensors in a distributed checkpoint come from
the ``.metadata`` beside its files.

Guarantees:
    - memory is bounded by a file's number of tensors and by some MiB for each thread.
    - damage affects only the tensor that it belongs to.
"""

import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from ciuic.codec.elements import Distance, compare
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.formats.headers import WIDTHS, Part
from ciuic.formats.names import Tensor, described
from ciuic.formats.spans import MAGIC_BYTES, is_recognized
from ciuic.model import Entry
from ciuic.report.checkpoint_metadata import CheckpointMetadata
from ciuic.report.earlier_steps import EarlierSteps, has_content
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.recipe_nodes import Piece
from ciuic.store.store import Store
from ciuic.view.diff import Change, diff
from ciuic.view.file import StoredFile
from ciuic.view.located import Located

__all__ = [
    "Comparison",
    "FileTensors",
    "TensorChange",
    "compare_tensor",
    "diff_tensors",
    "relative",
]

_BLOCK_BYTES: Final = 1024 * 1024
_BATCH: Final = 256


class TensorChange(NamedTuple):
    """The change of one tensor.

    Attributes:
        sign: ``+`` added, ``-`` removed, ``M`` changed, ``?`` it cannot be read.
        name: Name of the tensor.
        before: The old tensor; None if it was added.
        after: The new tensor; None if it was removed.
        distance: Distance of the two; None unless both have the same type and length.
        what: Why it cannot be read.
    """

    sign: str
    name: str
    before: Tensor | None
    after: Tensor | None
    distance: Distance | None = None
    what: str = ""


class FileTensors(NamedTuple):
    """The changes of the tensors of a file.

    Attributes:
        compared_with: The path in the first snapshot.
        same: Number of unchanged tensors.
        changes: The other tensors in the order of the file; removed ones come last.
        what: Why they cannot be compared; empty if they can.
    """

    compared_with: bytes
    same: int
    changes: tuple[TensorChange, ...]
    what: str = ""


def relative(distance: Distance) -> float | None:
    """Return the distance as a share of the length; None if it is not a finite number."""
    if not distance.before_squared or not math.isfinite(distance.before_squared):
        return None
    share = math.sqrt(distance.apart_squared / distance.before_squared)
    return share if math.isfinite(share) else None


OnProgress = Callable[[int, int], None]
"""Receives the number of tensors that are done, and of all tensors."""

Comparison = Callable[[OnProgress], FileTensors | None]
"""Compares two files, which may take long; returns None unless both are files of tensors."""


def diff_tensors(
    store: Store, before: Manifest, after: Manifest
) -> Iterator[tuple[Change, Comparison | None]]:
    """Yield the changes that ``diff`` yields, each with a function that compares the tensors.

    Args:
        store: An open store.
        before: The first snapshot.
        after: The second.

    Raises:
        CorruptionError: A tree is damaged.
    """
    steps = EarlierSteps(store)
    for change in diff(store, before, after):
        if change.sign == "+":
            steps.add(change)
    steps.search(before)
    metadata = CheckpointMetadata(store, before), CheckpointMetadata(store, after)
    for change in diff(store, before, after):
        old = Located(change.path, change.before) if change.before else None
        if change.sign == "+":
            old = steps.before(change.path)
        new = change.after
        comparison = None
        if change.sign in {"+", "M"} and old is not None and new is not None:
            is_file = has_content(old.entry) and has_content(new)
            both = old, Located(change.path, new)
            comparison = (
                functools.partial(_compare_files, store, metadata, *both) if is_file else None
            )
        yield change, comparison


def _compare_files(
    store: Store,
    metadata: tuple[CheckpointMetadata, CheckpointMetadata],
    before: Located,
    after: Located,
    progress: OnProgress,
) -> FileTensors | None:
    """Return the changes of a file's tensors; None unless both are files of tensors."""
    comparer = _Comparer(store, metadata)
    try:
        return comparer.files(before, after, progress)
    finally:
        comparer.close()


def compare_tensor(
    store: Store, before: tuple[Manifest, Located], after: tuple[Manifest, Located], name: str
) -> FileTensors | None:
    """Return the change of one tensor of a file; None unless both are files of tensors.

    Args:
        store: An open store.
        before: The file in the first snapshot.
        after: The file in the second.
        name: The tensor's name.
    """
    metadata = CheckpointMetadata(store, before[0]), CheckpointMetadata(store, after[0])
    comparer = _Comparer(store, metadata, name)
    try:
        return comparer.files(before[1], after[1], lambda _done, _total: None)
    finally:
        comparer.close()


class _Comparer:
    """Compares two files, several tensors at a time."""

    def __init__(
        self,
        store: Store,
        metadata: tuple[CheckpointMetadata, CheckpointMetadata],
        only: str | None = None,
    ) -> None:
        self._store = store
        self._only = only
        self._metadata = metadata
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "tensors")

    def close(self) -> None:
        """Stop the threads."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def files(self, before: Located, after: Located, progress: OnProgress) -> FileTensors | None:
        """Return the changes of a file's tensors; None unless both are files of tensors."""
        try:
            old_parts = self._metadata[0].parts(before.path)
            new_parts = self._metadata[1].parts(after.path)
            if not (old_parts and new_parts):
                # If only one file has names, the tensors are compared by place.
                old_parts = new_parts = []
            old = self._described(before.entry, old_parts)
            new = self._described(after.entry, new_parts)
        except (CorruptionError, UnknownFormatError) as error:
            return FileTensors(before.path, 0, (), error.message)
        if old is None or new is None:
            return None
        if not (_has_names(old) and _has_names(new)):
            old, new = _by_place(old), _by_place(new)
        if self._only is not None:
            old = tuple([tensor for tensor in old if tensor.name == self._only])
            new = tuple([tensor for tensor in new if tensor.name == self._only])
        left = {tensor.name: tensor for tensor in old}
        pairs = [(left.pop(tensor.name, None), tensor) for tensor in new]
        changes: list[TensorChange] = []
        same = 0
        for number, change in enumerate(self._changes(before.entry, after.entry, iter(pairs))):
            progress(number, len(pairs))
            if change is None:
                same += 1
            else:
                changes.append(change)
        changes += [TensorChange("-", tensor.name, tensor, None) for tensor in left.values()]
        return FileTensors(before.path, same, tuple(changes))

    def _described(self, entry: Entry, parts: Sequence[Part]) -> tuple[Tensor, ...] | None:
        file = StoredFile(self._store, entry)
        if not is_recognized(file.read(0, MAGIC_BYTES)):
            return None
        return described(file.read, entry.size_bytes, parts)

    def _changes(
        self, before: Entry, after: Entry, pairs: Iterator[tuple[Tensor | None, Tensor]]
    ) -> Iterator[TensorChange | None]:
        while batch := list(islice(pairs, _BATCH)):
            yield from self._pool.map(lambda pair: self._change(before, after, *pair), batch)

    def _change(
        self, before: Entry, after: Entry, old: Tensor | None, new: Tensor
    ) -> TensorChange | None:
        """Return the change of a tensor; None if it is unchanged."""
        if old is None:
            return TensorChange("+", new.name, None, new)
        if (old.element, old.length_bytes) != (new.element, new.length_bytes):
            return TensorChange("M", new.name, old, new)
        try:
            files = StoredFile(self._store, before), StoredFile(self._store, after)
            distance = self._distance(*files, old, new)
        except (CorruptionError, UnknownFormatError) as error:
            return TensorChange("?", new.name, old, new, what=error.message)
        if distance.equal < distance.elements or old.shape != new.shape:
            return TensorChange("M", new.name, old, new, distance)
        return None

    def _distance(
        self, before: StoredFile, after: StoredFile, old: Tensor, new: Tensor
    ) -> Distance:
        is_same = all(a == b for a, b in self._blocks(before, old, after, new))
        width = WIDTHS.get(new.element, 1)
        found = Distance()
        for old_pieces, new_pieces in self._blocks(before, old, after, new):
            length = sum([piece.length_bytes for piece in old_pieces])
            has_no_length = new.element not in WIDTHS or not any(piece.id for piece in old_pieces)
            if old_pieces == new_pieces and (is_same or has_no_length):
                found = found.plus(Distance(length // width, length // width))
                continue
            data = before.data(old_pieces)
            new_data = data if old_pieces == new_pieces else after.data(new_pieces)
            found = found.plus(compare(data, new_data, new.element))
        return found

    def _blocks(
        self, before: StoredFile, old: Tensor, after: StoredFile, new: Tensor
    ) -> Iterator[tuple[list[Piece], list[Piece]]]:
        """Yield the pieces of a tensor in both files, block by block."""
        for at in range(0, new.length_bytes, _BLOCK_BYTES):
            if self._stopped.is_set():
                raise CancelledError("interrupted")
            length = min(_BLOCK_BYTES, new.length_bytes - at)
            yield (
                before.pieces(old.offset_bytes + at, length),
                after.pieces(new.offset_bytes + at, length),
            )


def _has_names(tensors: tuple[Tensor, ...]) -> bool:
    """Return whether a tensor has a name of its own, not only that of its archive member."""
    return any(tensor.name != tensor.place or tensor.shape is not None for tensor in tensors)


def _by_place(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple([tensor._replace(name=tensor.place) for tensor in tensors])

"""How the tensors in files differ between two snapshots.

Files are read from the store piece by piece; tensors that are spelled alike are not read. Of one
that has changed, what is spelled alike is read once, for its length: the distance is told as a
share of that. A file is compared with the one of the same path, or, where there is none, with
that of the step before: the path that differs in one number only, wherever that stands in it. The
tensors of a distributed checkpoint have their names from the ``.metadata`` beside its files.

Guarantees:
    - memory is bounded by a file's number of tensors and by some MiB for each thread.
    - what can't be read spoils the tensor that it belongs to, and no other.
"""

import contextlib
import functools
import math
import os
import re
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from ciuic.chunking.tensors import MAGIC_BYTES, is_recognised
from ciuic.chunking.tensors.described import Tensor, described
from ciuic.chunking.tensors.headers import WIDTHS
from ciuic.chunking.tensors.pickled import PICKLE_BYTES_MAX, Part, parts
from ciuic.codec.elements import Distance, compare
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.model import SKIPPED, UNREADABLE, Entry
from ciuic.store import Store
from ciuic.store.manifest import Manifest
from ciuic.store.nodes import Piece
from ciuic.verbs.browse import Change, Located, Locator, diff, root_entry, walk
from ciuic.verbs.earlier import DISTCP, METADATA
from ciuic.verbs.seeking import StoredFile

__all__ = ["Comparison", "FileTensors", "TensorChange", "diff_tensors", "relative"]

_BLOCK_BYTES: Final = 1024 * 1024
_BATCH: Final = 256
_ADDED_MAX: Final = 10_000
"""Files that are looked for under the name of another step."""
_NUMBER: Final = re.compile(rb"[0-9]+")


class TensorChange(NamedTuple):
    """What became of one tensor.

    Attributes:
        sign: ``+`` added, ``-`` removed, ``M`` changed, ``?`` it can't be read.
        name: What it is called.
        before: As it was; None if it is new.
        after: As it is; None if it is gone.
        distance: How far apart the two are; None unless both have the same type and length.
        what: Why it can't be read.
    """

    sign: str
    name: str
    before: Tensor | None
    after: Tensor | None
    distance: Distance | None = None
    what: str = ""


class FileTensors(NamedTuple):
    """What became of the tensors of a file.

    Attributes:
        compared_with: The path in the first snapshot.
        same: How many are as they were.
        changes: The others, in the order of the file; those that are gone come last.
        what: Why nothing can be told of them.
    """

    compared_with: bytes
    same: int
    changes: tuple[TensorChange, ...]
    what: str = ""


def relative(distance: Distance) -> float | None:
    """The distance as a share of the length; None if there is no such number."""
    if not distance.before_squared or not math.isfinite(distance.before_squared):
        return None
    share = math.sqrt(distance.apart_squared / distance.before_squared)
    return share if math.isfinite(share) else None


OnProgress = Callable[[int, int], None]
"""Told how many tensors are done, and of how many."""


Comparison = Callable[[OnProgress], FileTensors | None]
"""Compares two files, which takes its time; None: they are not both files of tensors."""


def diff_tensors(
    store: Store, before: Manifest, after: Manifest
) -> Iterator[tuple[Change, Comparison | None]]:
    """What changed, as ``diff`` tells it, and of files what compares their tensors.

    Args:
        store: An open store.
        before: The first snapshot.
        after: The second.

    Raises:
        CorruptionError: A tree is damaged.
    """
    steps = _Steps(store)
    for change in diff(store, before, after):
        if change.sign == "+":
            steps.add(change)
    steps.look(before)
    beside = _Beside(store, before), _Beside(store, after)
    for change in diff(store, before, after):
        old = Located(change.path, change.before) if change.before else None
        if change.sign == "+":
            old = steps.before(change.path)
        new = change.after
        comparison = None
        if change.sign in {"+", "M"} and old is not None and new is not None:
            is_file = _has_content(old.entry) and _has_content(new)
            both = old, Located(change.path, new)
            comparison = functools.partial(_compared, store, beside, *both) if is_file else None
        yield change, comparison


def _compared(
    store: Store,
    beside: "tuple[_Beside, _Beside]",
    before: Located,
    after: Located,
    progress: OnProgress,
) -> FileTensors | None:
    """What became of a file's tensors; None if either is no file of them."""
    comparer = _Comparer(store, beside)
    try:
        return comparer.files(before, after, progress)
    finally:
        comparer.close()


class _Steps:
    """Finds for new files those that differ in one number of the path: the step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self._alike: set[bytes] = set()
        # By the place of the first wanted step behind: of all between two only the last counts.
        self._nearest: dict[bytes, dict[int, tuple[int, Located]]] = defaultdict(dict)
        self._places: dict[bytes, list[int]] = {}
        self._first: dict[bytes, tuple[int, Located]] = {}
        self._count = 0

    def add(self, change: Change) -> None:
        """A new file, if it is one of tensors."""
        entry = change.after
        if entry is None or self._count >= _ADDED_MAX or not _NUMBER.search(change.path):
            return
        if _has_content(entry) and _is_recognised(StoredFile(self._store, entry)):
            self._count += 1
            self._alike.add(_NUMBER.sub(b"0", change.path))
            for key, number in _masked(change.path):
                self._wanted[key].append((number, change.path))

    def look(self, manifest: Manifest) -> None:
        """Look through a whole snapshot for them; only if any are wanted."""
        if not self._wanted:
            return
        for wanted in self._wanted.values():
            wanted.sort()
        for root in manifest.roots:
            if root.tree:
                for one in walk(self._store, Located(root.path, root_entry(self._store, root))):
                    if _has_content(one.entry):
                        self._offer(one)
        self._places = {key: sorted(nearest) for key, nearest in self._nearest.items()}

    def before(self, path: bytes) -> Located | None:
        """The nearest earlier step of a file, or else the first later one."""
        for key, number in _masked(path):
            place = bisect_right(self._wanted.get(key, []), (number, path)) - 1
            places = self._places.get(key, [])
            at = bisect_right(places, place)
            if at:
                return self._nearest[key][places[at - 1]][1]
            if key in self._first:
                return self._first[key][1]
        return None

    def _offer(self, found: Located) -> None:
        if _NUMBER.sub(b"0", found.path) not in self._alike:
            return
        for key, number in _masked(found.path):
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            at = bisect_right(wanted, (number, b"\xff"))
            last = self._nearest[key].get(at)
            if at < len(wanted) and (last is None or last[0] < number):
                self._nearest[key][at] = (number, found)
            if key not in self._first or number < self._first[key][0]:
                self._first[key] = (number, found)


def _masked(path: bytes) -> Iterator[tuple[bytes, int]]:
    """A path without one of its numbers, and that number; the largest first.

    It may stand in several places, of which the first need not be meant: ``/data6/step6/r6.pt``.
    """
    runs = [(one.start(), one.end(), int(one[0])) for one in _NUMBER.finditer(path)]
    for number in sorted({one[2] for one in runs}, reverse=True):
        places = [(start, end) for start, end, value in runs if value == number]
        chosen = [places[first:] for first in range(len(places))]
        for some in [*chosen, *[[one] for one in places[:-1]]]:
            yield _without(path, some), number


def _without(path: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    for start, end in reversed(places):
        path = path[:start] + b"\0" + path[end:]
    return path


def _has_content(entry: Entry) -> bool:
    return entry.is_file and entry.size_bytes > 0 and entry.state not in {UNREADABLE, SKIPPED}


def _is_recognised(file: StoredFile) -> bool:
    try:
        return is_recognised(file.read(0, MAGIC_BYTES))
    except (CorruptionError, UnknownFormatError):
        return False


class _Beside:
    """What a distributed checkpoint of a snapshot says of its files; the last one is remembered."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._directory: bytes | None = None
        self._parts: dict[str, list[Part]] = {}

    def parts(self, path: bytes) -> list[Part]:
        """What a file holds."""
        if not path.endswith(DISTCP):
            return []
        directory, name = os.path.split(path)
        if directory != self._directory:
            self._directory, self._parts = directory, {}
            # What can't be read tells no names: the tensors can still be compared.
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                self._parts = self._read(os.path.join(directory, METADATA))
        return self._parts.get(os.fsdecode(name), [])

    def _read(self, path: bytes) -> dict[str, list[Part]]:
        found = Locator(self._store, self._manifest).find(path)
        if found is None or not _has_content(found.entry):
            return {}
        size_bytes = found.entry.size_bytes
        if size_bytes > PICKLE_BYTES_MAX:
            return {}
        return parts(StoredFile(self._store, found.entry).read(0, size_bytes))


class _Comparer:
    """Compares two files, several tensors at a time."""

    def __init__(self, store: Store, beside: tuple[_Beside, _Beside]) -> None:
        self._store = store
        self._beside = beside
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "tensors")

    def close(self) -> None:
        """Stop what is under way."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def files(self, before: Located, after: Located, progress: OnProgress) -> FileTensors | None:
        """What became of a file's tensors; None if either is no file of them."""
        try:
            found = [
                one.parts(at.path) for one, at in zip(self._beside, (before, after), strict=True)
            ]
            # Names that only one of the two has can't be found in the other.
            named = found if all(found) else [[], []]
            old = self._described(before.entry, named[0])
            new = self._described(after.entry, named[1])
        except (CorruptionError, UnknownFormatError) as error:
            return FileTensors(before.path, 0, (), error.message)
        if old is None or new is None:
            return None
        if not (_has_names(old) and _has_names(new)):
            old, new = _by_place(old), _by_place(new)
        there = {one.name: one for one in old}
        pairs = [(there.pop(one.name, None), one) for one in new]
        changes: list[TensorChange] = []
        same = 0
        for number, change in enumerate(self._changes(before.entry, after.entry, iter(pairs))):
            progress(number, len(pairs))
            if change is None:
                same += 1
            else:
                changes.append(change)
        changes += [TensorChange("-", one.name, one, None) for one in there.values()]
        return FileTensors(before.path, same, tuple(changes))

    def _described(self, entry: Entry, parts: Sequence[Part]) -> tuple[Tensor, ...] | None:
        file = StoredFile(self._store, entry)
        if not is_recognised(file.read(0, MAGIC_BYTES)):
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
        """What became of one tensor; None: nothing."""
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
        is_alike = all(one == other for one, other in self._blocks(before, old, after, new))
        width = WIDTHS.get(new.element, 1)
        found = Distance()
        for one, other in self._blocks(before, old, after, new):
            length = sum([piece.length_bytes for piece in one])
            is_nothing = is_alike or new.element not in WIDTHS or not any(piece.id for piece in one)
            if one == other and is_nothing:
                found = found.plus(Distance(length // width, length // width))
                continue
            data = before.data(one)
            found = found.plus(
                compare(data, data if one == other else after.data(other), new.element)
            )
        return found

    def _blocks(
        self, before: StoredFile, old: Tensor, after: StoredFile, new: Tensor
    ) -> Iterator[tuple[list[Piece], list[Piece]]]:
        """How both files spell a tensor, block by block."""
        for at in range(0, new.length_bytes, _BLOCK_BYTES):
            if self._stopped.is_set():
                raise CancelledError("interrupted")
            length = min(_BLOCK_BYTES, new.length_bytes - at)
            yield (
                before.pieces(old.offset_bytes + at, length),
                after.pieces(new.offset_bytes + at, length),
            )


def _has_names(tensors: tuple[Tensor, ...]) -> bool:
    """They are called otherwise than the archive calls them, or it is no such archive."""
    return any(one.name != one.place or one.shape is not None for one in tensors)


def _by_place(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple([one._replace(name=one.place) for one in tensors])

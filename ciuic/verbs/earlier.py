"""Which file, and which of its chunks, is the last version of what is being stored.

Found by role and not by path: ``step_600.pt`` follows ``step_500.pt``, and
``global_step600/rank_0.pt`` follows ``global_step500/rank_0.pt``. A file of another name follows
one of nearly its length, or else the one of whose tensors most are in it, by name and length: more
or fewer tensors may lie beside them. Within files of tensors a chunk
follows the one that begins as far into the tensor of the same name, or of the same number among
those without a name; elsewhere, and in other files, the one at the same place. What the tensors in
a file of a distributed checkpoint are called, the ``.metadata`` beside it says, now and then. What
``torch.save`` writes has numbers for names: if they can't be those of the same tensors, its pickle
says what these are called.

All of this only says where to look. Whether a chunk is stored as a difference is decided on its
bytes: a guess that is wrong costs reading a chunk.
"""

import contextlib
import functools
import itertools
import os
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ciuic.chunking.tensors import Span, layout
from ciuic.chunking.tensors.described import (
    NAMES_BYTES_MAX,
    called_by_parts,
    called_by_pickle,
)
from ciuic.chunking.tensors.pickled import Part, parts
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.hashing import ID_BYTES
from ciuic.model import WHOLE, Entry
from ciuic.store.frame import DATA
from ciuic.store.nodes import HOLE, iter_pieces, iter_tree
from ciuic.store.reader import StoreReader

__all__ = [
    "DISTCP",
    "METADATA",
    "Called",
    "EarlierChunks",
    "EarlierDirectory",
    "EarlierOfNamed",
]

METADATA: Final = b".metadata"
DISTCP: Final = b".distcp"

Called = Callable[[], Sequence[Span] | None]
"""A file's tensors, in their order, by names of their own; None: they have no others."""

_DIGITS: Final = re.compile(rb"\d+")
_FILE_BYTES_MIN: Final = 64 * 1024
_NEAR_SHARE: Final = 64
"""A file of another name is the same one renamed if it is as long but for such a part."""
_NAMES_MAX: Final = 10_000
"""Of one directory; whoever has more large files in one does not name them by steps."""
_NUMBERS_MAX: Final = 8
_RENAMED_MAX: Final = 32
_NEVER: Final = 1 << 60
_PASSED_MAX: Final = 15
"""Chunks of a tensor that are stored alone without a look after one that was nothing like its last
version: more each time, and never so many that it mattered if others were."""
_MISSED: Final = 3
_PASSED_TENSORS_MAX: Final = 7
"""After so many tensors in a row that were nothing like their last versions, the next one is not
looked at; after each further one as many more, up to this many."""
_OTHERS_MAX: Final = 8
"""Files whose headers are read to find tensors of the same names."""


class EarlierDirectory:
    """What an earlier snapshot says of a directory, or of one that had its role.

    Nothing is read before a file is asked for: most directories have no large file that changed.
    Several threads may ask.

    Args:
        reader: Of the store.
        old: What stood at its path, if that was a directory.
        above: Where one of its role is looked for otherwise, and its name there.
    """

    def __init__(
        self,
        reader: StoreReader,
        old: Entry | None,
        above: "tuple[EarlierDirectory, bytes] | None" = None,
    ) -> None:
        self._reader = reader
        self._old = old
        self._above = above
        self._lock = threading.Lock()
        self._names: _Names | None = None
        self._parts: _PartsOfBoth | None = None

    def file(
        self,
        name: bytes,
        size_bytes: int,
        spans: Sequence[Span] | None,
        metadata: Callable[[], bytes],
        called: Called,
    ) -> "EarlierChunks | None":
        """The chunks of the last version of a regular file.

        Args:
            name: What it is called now.
            size_bytes: Its length.
            spans: Its tensors; None: it is not a file of tensors.
            metadata: Reads what lies beside it as ``METADATA`` now; asked once a directory, and
                only if this is a file of a distributed checkpoint.
            called: Its tensors by the names that it has within itself, if it has; asked once, and
                only if their places won't do.
        """
        names = self._all()
        same = names.of_role(name, is_directory=False)
        entry = same or names.renamed(name, size_bytes)
        named, then = spans, dict[str, list[Part]]()
        if spans and name.endswith(DISTCP) and names.metadata is not None:
            now, then = self._parts_of_both(metadata, names.metadata)
            mine = now.get(os.fsdecode(name), [])
            # Names that only one of the two has can't be found in the other.
            named, then = (called_by_parts(spans, mine), then) if mine else (spans, {})

        once = functools.cache(called)

        def chunks(one: Entry) -> EarlierChunks:
            theirs = then.get(os.fsdecode(one.name), [])
            return EarlierChunks(self._reader, one, named if theirs else spans, theirs, once)

        found = chunks(entry) if entry is not None else None
        if same is not None or not spans or (found is not None and found.shared_bytes):
            return found
        others = [chunks(one) for one in names.others(name)]
        best = max(others, key=lambda one: one.shared_bytes, default=None)
        return best if best is not None and best.shared_bytes else found

    def _parts_of_both(self, metadata: Callable[[], bytes], then: Entry) -> "_PartsOfBoth":
        with self._lock:
            if self._parts is None:
                self._parts = parts(metadata()), self._parts_then(then)
            return self._parts

    def _parts_then(self, metadata: Entry) -> dict[str, list[Part]]:
        try:
            stored = EarlierChunks(self._reader, metadata, None)
            return parts(stored.read(0, metadata.size_bytes))
        except (CorruptionError, UnknownFormatError):
            return {}

    def directory(self, name: bytes, old: Entry | None) -> "EarlierDirectory":
        """A subdirectory: what stood at its path, else the one that had its role."""
        if old is not None and old.is_directory:
            return EarlierDirectory(self._reader, old)
        return EarlierDirectory(self._reader, None, (self, name))

    def _all(self) -> "_Names":
        """Not by recursion: trees are deeper than the stack is."""
        unread = [self]
        while unread[-1]._names is None and unread[-1]._above is not None:
            unread.append(unread[-1]._above[0])
        names = _Names()
        for one in reversed(unread):
            with one._lock:
                if one._names is None:
                    one._names = one._read(names)
            names = one._names
        return names

    def _read(self, above: "_Names") -> "_Names":
        names = _Names()
        top = self._old
        if self._above is not None:
            top = above.of_role(self._above[1], is_directory=True)
        if top is None or not top.content:
            return names
        # What could be read of a damaged directory is as good as anything.
        with contextlib.suppress(CorruptionError):
            for entry in iter_tree(self._reader.node, top.content, top.level):
                is_file = entry.is_file and entry.size_bytes >= _FILE_BYTES_MIN
                if entry.content and entry.state == WHOLE and (is_file or entry.is_directory):
                    names.add(entry)
                if entry.name == METADATA and _tells_names(entry):
                    names.metadata = entry
                if names.count >= _NAMES_MAX:
                    break
        return names


_PartsOfBoth = tuple[dict[str, list[Part]], dict[str, list[Part]]]
"""What the files of a distributed checkpoint hold, by their names: now, and then."""


def _tells_names(metadata: Entry) -> bool:
    if not metadata.is_file or not metadata.content or metadata.state != WHOLE:
        return False
    return metadata.size_bytes <= NAMES_BYTES_MAX


class _Names:
    """Entries by what of their names stays from step to step; the newest of each kind.

    Attributes:
        count: How many were taken in.
        metadata: What says of a distributed checkpoint what its files hold.
    """

    def __init__(self) -> None:
        self.count = 0
        self.metadata: Entry | None = None
        self._newest: dict[tuple[object, ...], Entry] = {}
        self._by_suffix: dict[bytes, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Take an entry in."""
        self.count += 1
        for key in _keys(entry.name, is_directory=entry.is_directory):
            known = self._newest.get(key)
            if known is None or known.mtime_ns <= entry.mtime_ns:
                self._newest[key] = entry
        if entry.is_file:
            found = self._by_suffix.setdefault(_suffix(entry.name), [])
            found.append(entry)
            if len(found) > 2 * _RENAMED_MAX:
                found.sort(key=lambda one: one.mtime_ns)
                del found[:_RENAMED_MAX]

    def of_role(self, name: bytes, *, is_directory: bool) -> Entry | None:
        """The one of this name; else of a name with one other number; else with other numbers."""
        keys = _keys(name, is_directory=is_directory)
        return next((self._newest[key] for key in keys if key in self._newest), None)

    def renamed(self, name: bytes, size_bytes: int) -> Entry | None:
        """The newest that ends alike and is about as long."""
        near = [
            one
            for one in self._by_suffix.get(_suffix(name), ())
            if abs(one.size_bytes - size_bytes) <= size_bytes // _NEAR_SHARE
        ]
        return max(near, key=lambda one: one.mtime_ns, default=None)

    def others(self, name: bytes) -> list[Entry]:
        """The newest, those that end alike before others: one may have tensors of the same name."""
        suffix = _suffix(name)
        found = [
            (ending == suffix, one.mtime_ns, one.name, one)
            for ending, entries in self._by_suffix.items()
            for one in entries
        ]
        return [one for *_, one in sorted(found, reverse=True)[:_OTHERS_MAX]]


def _keys(name: bytes, *, is_directory: bool) -> Iterator[tuple[object, ...]]:
    """What a name has in common with others of its role, the likest first."""
    yield is_directory, name
    role = _DIGITS.sub(b"0", name)
    numbers = _DIGITS.findall(name)
    if 1 < len(numbers) <= _NUMBERS_MAX:
        for at in range(len(numbers)):
            yield is_directory, role, at, *numbers[:at], *numbers[at + 1 :]
    if numbers:
        yield is_directory, role, b""


def _suffix(name: bytes) -> bytes:
    return name[name.rfind(b".") :] if b"." in name else b""


def _span_keys(spans: Sequence[Span]) -> list[str | int]:
    """What tells a file's tensors from each other: names, or numbers where there are none."""
    nameless = itertools.count()
    return [one.name or next(nameless) for one in spans]


def _places(spans: Sequence[Span]) -> list[tuple[str, int]]:
    """What two saves of the same tensors have in common, as a rule, and two of others have not."""
    return [(one.name, one.length_bytes) for one in spans]


class EarlierChunks:
    """The chunks of a file's last version.

    Args:
        reader: Of the store.
        entry: The last version.
        spans: The tensors of the file as it is now; None: it is not a file of tensors.
        held: What the last version held, if it was a file of a distributed checkpoint and the
            spans are called by what this one holds.
        called: The spans by names within the file, which have to do where tensors were added,
            taken out or moved.

    Attributes:
        shared_bytes: Of tensors that have the same name and the same length in both.
    """

    def __init__(
        self,
        reader: StoreReader,
        entry: Entry,
        spans: Sequence[Span] | None,
        held: Sequence[Part] = (),
        called: Called = lambda: None,
    ) -> None:
        self._reader = reader
        self._size_bytes = entry.size_bytes
        self._offsets = array("q")
        self._starts = array("q")
        self._ids = bytearray()
        try:
            at = 0
            for piece in iter_pieces(reader.node, entry):
                self._offsets.append(at)
                self._starts.append(piece.start_bytes)
                self._ids += piece.id if piece.id != HOLE else bytes(ID_BYTES)
                at += piece.length_bytes
        except CorruptionError:
            pass  # the rest of the file has no earlier version, then
        self._spans = spans or ()
        self._begins = [one.offset_bytes for one in self._spans]
        self._passed: dict[int, int] = {}
        self._passing: dict[int, int] = {}
        self._missed = 0
        self._passed_on = 0
        now, then = self._told_apart(self._spans, held, called) if spans else ((), ())
        self._keys = _span_keys(now)
        old = dict(zip(_span_keys(then), then, strict=True))
        self._old = {key: one.offset_bytes for key, one in old.items()}
        self.shared_bytes = sum(
            [
                one.length_bytes
                for one in now
                if one.name in old and old[one.name].length_bytes == one.length_bytes
            ]
        )

    def at(self, offset_bytes: int) -> bytes:
        """The ID of the chunk that one which begins here is a later version of; empty: none.

        It may be of another length: then it is no earlier version of anything.
        """
        tensor = self._tensor(offset_bytes)
        if tensor >= 0:
            old = self._old.get(self._keys[tensor])
            if old is None:
                return b""
            offset_bytes += old - self._spans[tensor].offset_bytes
        at = bisect_left(self._offsets, offset_bytes)
        if at == len(self._offsets) or self._offsets[at] != offset_bytes or self._starts[at]:
            return b""
        name = bytes(self._ids[at * ID_BYTES : (at + 1) * ID_BYTES])
        return name if any(name) else b""

    def likely_at(self, offset_bytes: int) -> bytes:
        """As ``at``, but none where the last chunks of the tensor were nothing like theirs.

        A tensor is as a rule of one kind: first moments of Adam never are like what they were, and
        to find that out means to read and decode it.
        """
        tensor = self._tensor(offset_bytes)
        if self._passed_on and tensor >= 0 and tensor not in self._passing:
            self._passed_on -= 1
            self._passing[tensor] = _NEVER
        left = self._passing.get(tensor, 0)
        if left:
            self._passing[tensor] = left - 1
            return b""
        return self.at(offset_bytes)

    def tell(self, offset_bytes: int, *, is_like: bool) -> None:
        """The chunk that begins here was compared with what ``at`` says."""
        tensor = self._tensor(offset_bytes)
        if tensor < 0:
            return
        if is_like:
            self._missed = self._passed_on = 0
        elif tensor not in self._passed:
            self._missed += 1
            self._passed_on = min(max(self._missed - _MISSED, 0), _PASSED_TENSORS_MAX)
        passed = 0 if is_like else min(2 * self._passed.get(tensor, 1) + 1, _PASSED_MAX)
        self._passed[tensor] = self._passing[tensor] = passed

    def _tensor(self, offset_bytes: int) -> int:
        """The number of the tensor that a chunk begins in; -1: in none."""
        number = bisect_right(self._begins, offset_bytes) - 1
        if number >= 0:
            span = self._spans[number]
            if offset_bytes - span.offset_bytes < span.length_bytes:
                return number
        return -1

    def _told_apart(
        self, now: Sequence[Span], held: Sequence[Part], called: Called
    ) -> tuple[Sequence[Span], Sequence[Span]]:
        """The tensors of both versions, called so that those of one name are the same."""
        try:
            then = layout(self.read, self._size_bytes) or ()
            if held:
                return now, called_by_parts(then, held)
            if _places(then) == _places(now):
                return now, then
            named = called_by_pickle(self.read, self._size_bytes, then)
            mine = called() if named is not None else None
            return (now, then) if mine is None or named is None else (mine, named)
        except (CorruptionError, UnknownFormatError):
            return now, ()

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """The last version's bytes there; fewer at its end.

        Raises:
            CorruptionError: A chunk of it is damaged.
            UnknownFormatError: A newer ciuic has stored it.
        """
        end = min(offset_bytes + length_bytes, self._size_bytes)
        parts = []
        at = bisect_right(self._offsets, offset_bytes) - 1
        while offset_bytes < end and 0 <= at < len(self._offsets):
            behind = self._offsets[at + 1] if at + 1 < len(self._offsets) else self._size_bytes
            count = min(end, behind) - offset_bytes
            name = bytes(self._ids[at * ID_BYTES : (at + 1) * ID_BYTES])
            if any(name):
                start = self._starts[at] + offset_bytes - self._offsets[at]
                part = bytes(self._reader.chunk(name, kind=DATA)[start : start + count])
            else:
                part = bytes(count)
            if len(part) != count:
                raise CorruptionError("a chunk is shorter than its file wants it")
            parts.append(part)
            offset_bytes += count
            at += 1
        return b"".join(parts)


class EarlierOfNamed:
    """The last versions of some of a file's chunks, by their IDs.

    Args:
        chunks: Of the file.
        offsets: Where each of them begins.
    """

    def __init__(self, chunks: EarlierChunks, offsets: Mapping[bytes, int]) -> None:
        self._chunks = chunks
        self._offsets = offsets

    def of(self, name: bytes) -> bytes:
        """See ``store.writer.Earlier``."""
        return self._chunks.likely_at(self._offsets[name])

    def tell(self, name: bytes, *, is_like: bool) -> None:
        """See ``store.writer.Earlier``."""
        self._chunks.tell(self._offsets[name], is_like=is_like)

"""Which paths of a snapshot can't be had, as far as can be told without reading file content.

Trees and recipes are read and checked; of file content it is looked up whether each chunk lies in
a pack that is long enough, and whether it is not known to be lost. What many snapshots share is
walked once.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store.frame import DATA
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece, iter_pieces, iter_tree
from ciuic.store.store import Store

__all__ = ["Spoiled", "Survey", "known_lost"]

_BATCH: Final = 4096
"""Pieces that are looked up together; bounds what one huge file takes."""


class Spoiled(NamedTuple):
    """A path that can't be had.

    Attributes:
        path: Absolute; of a manifest that can't be read, its place in the store.
        what: Why, in words.
        chunks: Those of its chunks that can't be had, and what is lost of each: itself, or
            something that it is a difference from.
        is_directory: It is one: what lay in it can't be had either, and nobody knows its names.
    """

    path: bytes
    what: str
    chunks: Mapping[bytes, bytes]
    is_directory: bool = False


class _Problem(NamedTuple):
    """As ``Spoiled``, under the name that it has in its directory; empty for the directory."""

    name: bytes
    what: str
    chunks: Mapping[bytes, bytes]


class _Directory(NamedTuple):
    """What is wrong in a directory itself, and its subdirectories."""

    problems: list[_Problem]
    inner: list[Entry]


class _Level:
    """A directory on the way down."""

    def __init__(self, path: bytes, tree: bytes, inner: Iterator[Entry], *, is_sound: bool) -> None:
        self.path = path
        self.tree = tree
        self.inner = inner
        self.is_sound = is_sound


def known_lost(store: Store) -> set[bytes]:
    """Chunks that were found to be lost, by the catalog's memory; empty without a catalog."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.lost_chunks()
    return set()


class Survey:
    """Walks snapshots.

    Args:
        store: An open store.
        lost: Chunks that count as lost, wherever they are said to lie.
    """

    def __init__(self, store: Store, lost: Collection[bytes]) -> None:
        self._store = store
        self._lost = lost
        self._sound: set[bytes] = set()
        self._unsound: dict[bytes, _Directory] = {}
        self._sound_recipes: set[bytes] = set()
        self._pack_sizes: dict[bytes, int | None] = {}
        self._failed_node = b""
        self._check: Callable[[], None] = lambda: None

    def go_on(self, store: Store, lost: Collection[bytes], check: Callable[[], None]) -> None:
        """Go on in the same store, opened anew: what was looked through is not read again.

        Args:
            store: Packs may have been moved in it since; what was sound has not been lost for that.
            lost: By now; what was found sound before is not asked again.
            check: Called after each directory that was read; raises to end the walk for now, and
                the next one is further by that directory.
        """
        self._store = store
        self._lost = lost
        self._check = check
        self._pack_sizes = {}

    def is_sound(self, snapshot_id: str) -> bool:
        """Every path of the snapshot can be had, as far as is known."""
        return next(self.damage(snapshot_id), None) is None

    def damage(self, snapshot_id: str) -> Iterator[Spoiled]:
        """Every path of a snapshot that can't be had.

        Raises:
            SnapshotNotFoundError: There is no such snapshot.
            StoreError: The store itself can't be used.
        """
        try:
            manifest = self._store.manifest(snapshot_id)
        except (CorruptionError, UnknownFormatError) as error:
            yield Spoiled(os.fsencode(f"snapshots/{snapshot_id}.json"), error.message, {})
            return
        for root in manifest.roots:
            if root.tree:
                yield from self._tree_damage(root.path, root.tree, 0)

    def entry_is_sound(self, entry: Entry) -> bool:
        """A file's content, or all that is below a directory, can be had, as far as is known.

        Raises:
            StoreError: The store itself can't be used.
        """
        if entry.is_file:
            return not self._files([entry])
        if entry.is_directory and entry.content:
            return next(self._tree_damage(b"", entry.content, entry.level), None) is None
        return True

    def _tree_damage(self, path: bytes, tree: bytes, height: int) -> Iterator[Spoiled]:
        """Not by recursion: trees are deeper than the stack is."""
        # The tree of a root has one entry: the root itself.
        directory = self._enter(tree, height)
        yield from _spoiled(path, directory)
        levels = [_Level(path, tree, iter(directory.inner), is_sound=not directory.problems)]
        while levels:
            level = levels[-1]
            entry = next(level.inner, None)
            if entry is None:
                levels.pop()
                if level.is_sound:
                    self._sound.add(level.tree)
                    self._unsound.pop(level.tree, None)
                elif levels:
                    levels[-1].is_sound = False
                continue
            if entry.content in self._sound:
                continue
            below = level.path if len(levels) == 1 else _join(level.path, entry.name)
            directory = self._enter(entry.content, entry.level)
            yield from _spoiled(below, directory)
            levels.append(
                _Level(below, entry.content, iter(directory.inner), is_sound=not directory.problems)
            )

    def _enter(self, tree: bytes, height: int) -> _Directory:
        """A directory's own nodes and files; its subdirectories come later."""
        known = self._unsound.get(tree)
        if known is not None:
            return known
        try:
            entries = list(iter_tree(self._node, tree, height))
        except (CorruptionError, UnknownFormatError) as error:
            what = f"the directory can't be read: {error.message}"
            found = _Directory([_Problem(b"", what, {self._failed_node: self._failed_node})], [])
        else:
            inner = [one for one in entries if one.is_directory and one.content]
            found = _Directory(self._files([one for one in entries if one.is_file]), inner)
        self._unsound[tree] = found
        self._check()
        return found

    def _files(self, entries: list[Entry]) -> list[_Problem]:
        problems: list[_Problem] = []
        lost: dict[bytes, dict[bytes, bytes]] = {}
        recipes: set[bytes] = set()
        waiting: list[tuple[bytes, Piece, bool]] = []
        for entry in entries:
            if not entry.content or entry.content in self._sound_recipes:
                continue
            try:
                for piece in self._pieces(entry):
                    waiting.append((entry.name, piece, entry.level == 0))
                    if len(waiting) >= _BATCH:
                        self._look_up(waiting, lost)
                        waiting = []
            except (CorruptionError, UnknownFormatError) as error:
                chunks = {self._failed_node: self._failed_node}
                problems.append(_Problem(entry.name, error.message, chunks))
            if entry.level:
                recipes.add(entry.content)
        self._look_up(waiting, lost)
        problems += [
            _Problem(name, _missing(len(chunks), next(iter(chunks))), chunks)
            for name, chunks in lost.items()
        ]
        if not problems:
            self._sound_recipes |= recipes
        return problems

    def _pieces(self, entry: Entry) -> Iterator[Piece]:
        """Those of a file's pieces that are no holes."""
        if entry.level == 0:
            yield Piece(entry.size_bytes, entry.content)
            return
        for piece in iter_pieces(self._node, entry):
            if piece.id:
                yield piece

    def _look_up(
        self, wanted: list[tuple[bytes, Piece, bool]], lost: dict[bytes, dict[bytes, bytes]]
    ) -> None:
        """Add to ``lost`` what can't be had of each file."""
        reader = self._store.reader
        names = list({one.id: None for _, one, _ in wanted if one.id not in self._lost})
        places = reader.places(names)
        doubtful = [name for name in names if name not in places or not self._fits(places[name])]
        if doubtful:
            # The catalog may be at fault, and no restore would fail for that.
            places |= reader.places_in_packs(doubtful)
            for name in doubtful:
                if name in places and not self._fits(places[name]):
                    del places[name]
        unchained = reader.unchained(places, self._is_there)
        for file, piece, is_whole in wanted:
            place = None if piece.id in unchained else places.get(piece.id)
            length = -1 if place is None else place.length_bytes
            end = piece.start_bytes + piece.length_bytes
            if not (length == end if is_whole else length >= end):
                lost.setdefault(file, {})[piece.id] = unchained.get(piece.id, piece.id)

    def _is_there(self, name: bytes, place: ChunkPlace) -> bool:
        return name not in self._lost and self._fits(place)

    def _fits(self, place: ChunkPlace) -> bool:
        if place.pack not in self._pack_sizes:
            self._pack_sizes[place.pack] = self._store.reader.pack_size(place.pack)
        size = self._pack_sizes[place.pack]
        return (
            place.kind == DATA
            and size is not None
            and place.offset_bytes + place.frame_bytes <= size
        )

    def _node(self, kind: int, name: bytes) -> bytes:
        self._failed_node = name
        if name in self._lost:
            raise CorruptionError(f"node {name.hex()[:12]} is damaged")
        return self._store.reader.node(kind, name)


def _spoiled(path: bytes, directory: _Directory) -> Iterator[Spoiled]:
    for one in directory.problems:
        below = _join(path, one.name) if one.name else path
        yield Spoiled(below, one.what, one.chunks, not one.name)


def _missing(count: int, first: bytes) -> str:
    chunks = "1 of its chunks" if count == 1 else f"{count} of its chunks"
    return f"{chunks} can't be had: {first.hex()[:12]}{'' if count == 1 else ' first'}"


def _join(path: bytes, name: bytes) -> bytes:
    return path + name if path.endswith(b"/") else path + b"/" + name

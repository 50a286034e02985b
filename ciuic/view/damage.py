"""Which paths of a snapshot are damaged, as far as is known without reading file content.

Trees and recipes are read and checked. File content is only looked up: each chunk must be in a pack
that is long enough, and must not be known to be lost. A chunk that a record of damage names is
read, as records also name sound bytes. What several snapshots share is walked once.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.model import NO_CONTENT, Entry
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.broken_chains import chunks_without_base
from ciuic.store.records.damage import KnownDamage
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import HOLE, Piece
from ciuic.store.store import Store
from ciuic.view.damage_walk import DamageWalk, Directory, Visit
from ciuic.view.located import inner_path
from ciuic.view.recipe_walk import Recipes

__all__ = ["DamageSurvey", "DamagedPath"]

_BATCH: Final = 4096
"""Files that are looked up together."""


class DamagedPath(NamedTuple):
    """A path that cannot be read in full.

    Attributes:
        path: Absolute; for a manifest that cannot be read, its place in the store.
        what: Why, in words.
        chunks: Its chunks that cannot be read, each with the chunk that is lost: the chunk itself,
            or one of its delta bases.
        is_directory: The path is a directory. What was in it cannot be read either, and the names
            are not known.
    """

    path: bytes
    what: str
    chunks: Mapping[ChunkId, ChunkId]
    is_directory: bool = False


class _Problem(NamedTuple):
    """As ``DamagedPath``, with the name of the file in its directory."""

    name: bytes
    what: str
    chunks: Mapping[ChunkId, ChunkId]


class DamageSurvey:
    """Finds the damaged paths of snapshots.

    Args:
        store: An open store.
        lost: Chunks that count as lost, even if the chunk index has a place for them.
    """

    def __init__(self, store: Store, lost: Collection[ChunkId]) -> None:
        self._store = store
        self._lost_chunks = lost
        self._walk = DamageWalk(self._node, self._pack_lengths)
        self._problems: dict[bytes, dict[bytes, list[_Problem]]] = {}
        self._recipes = Recipes(self._node, self._lost_pieces)
        self._pack_sizes: dict[PackId, int | None] = {}
        self._records: KnownDamage | None = None
        self._failed_node = HOLE
        self._measured: dict[ChunkId, int] = {}
        self._check: Callable[[], None] = lambda: None

    def resume(self, store: Store, lost: Collection[ChunkId], check: Callable[[], None]) -> None:
        """Continue with the same store, opened again. Finished directories are not read again.

        Args:
            store: Its packs may have been rewritten since; that loses nothing that was sound.
            lost: The chunks that count as lost now; directories that were found sound before are
                not checked against them.
            check: Called after each directory that was read. It may raise an error to end this
                walk; the next walk continues after that directory.
        """
        self._store = store
        self._lost_chunks = lost
        self._check = check
        self._pack_sizes = {}
        self._records = None
        self._measured = {}
        self._recipes = Recipes(self._node, self._lost_pieces)

    def is_sound(self, snapshot_id: SnapshotId) -> bool:
        """Return whether no path of the snapshot is known to be damaged."""
        return next(self.damage(snapshot_id), None) is None

    def damage(self, snapshot_id: SnapshotId) -> Iterator[DamagedPath]:
        """Yield every damaged path of a snapshot.

        Raises:
            SnapshotNotFoundError: The store has no snapshot of this ID.
            StoreError: The store itself cannot be used.
        """
        try:
            manifest = self._store.manifest(snapshot_id)
        except (CorruptionError, UnknownFormatError) as error:
            yield DamagedPath(os.fsencode(f"snapshots/{snapshot_id}.json"), error.message, {})
            return
        for root in manifest.roots:
            yield from self._damage_at(self._walk.visit_root(root))

    def entry_is_sound(self, entry: Entry) -> bool:
        """Return whether no damage is known in a file, or in or below a directory.

        Raises:
            StoreError: The store itself cannot be used.
        """
        return self.entries_are_sound([entry])[0]

    def entries_are_sound(self, entries: Sequence[Entry]) -> list[bool]:
        """Like ``entry_is_sound``, for many entries; their files are looked up together.

        Raises:
            StoreError: The store itself cannot be used.
        """
        files = [number for number, entry in enumerate(entries) if entry.is_file]
        bad = self._files_damage([entries[number] for number in files])
        unsound = {files[at] for at in bad}
        return [
            number not in unsound and (not entry.is_directory or self._tree_is_sound(entry))
            for number, entry in enumerate(entries)
        ]

    def _tree_is_sound(self, entry: Entry) -> bool:
        if not entry.content:
            return True
        if self._walk.is_unsound(entry.content):
            return False
        return next(self._damage_at(self._walk.visit(b"", entry)), None) is None

    def _damage_at(self, visits: Iterator[Visit]) -> Iterator[DamagedPath]:
        """Yield the damage that a walk meets, in the order in which it meets it."""
        for visit in visits:
            directory = visit.directory
            if visit.failure:
                self._walk.mark_damaged(directory, 0)
                chunks = {self._failed_node: self._failed_node} if visit.lacks_node else {}
                yield DamagedPath(directory.path, visit.failure, chunks, True)
            elif visit.files is None:
                self._walk.record(directory)
                if directory.is_sound:
                    self._problems.pop(directory.tree, None)
            else:
                for problem in self._problems_in(directory, visit.files):
                    self._walk.mark_damaged(directory, 1)
                    inside = inner_path(directory.path, problem.name)
                    yield DamagedPath(inside, problem.what, problem.chunks)

    def _problems_in(self, directory: Directory, files: Sequence[Entry]) -> list[_Problem]:
        """Return the problems of the files of a leaf, remembered if the leaf was met before."""
        known = self._problems.setdefault(directory.tree, {})
        key = files[0].name if files else b""
        if key not in known:
            known[key] = list(self._files_damage(files).values())
            self._check()
        return known[key]

    def _files_damage(self, entries: Sequence[Entry]) -> dict[int, _Problem]:
        """Return the problems of files, by their number in the list."""
        lost = self._lost_of_whole(entries)
        problems: dict[int, _Problem] = {}
        for number, entry in enumerate(entries):
            if not entry.content:
                if entry.lacks_content:
                    problems[number] = _Problem(entry.name, NO_CONTENT, {})
                continue
            if not entry.level or self._recipes.is_sound(entry):
                continue
            try:
                found = self._recipes.lost(entry)
            except (CorruptionError, UnknownFormatError) as error:
                chunks = {self._failed_node: self._failed_node}
                problems[number] = _Problem(entry.name, error.message, chunks)
            else:
                lost |= {number: found} if found else {}
        for number, chunks in lost.items():
            what = _missing(len(chunks), next(iter(chunks)))
            problems[number] = _Problem(entries[number].name, what, chunks)
        return problems

    def _lost_of_whole(self, entries: Sequence[Entry]) -> dict[int, dict[ChunkId, ChunkId]]:
        """Return the lost chunks of the files of one chunk, by number of the file."""
        lost: dict[int, dict[ChunkId, ChunkId]] = {}
        whole = [
            (number, Piece(entry.size_bytes, ChunkId(entry.content)))
            for number, entry in enumerate(entries)
            if entry.content and not entry.level
        ]
        for at in range(0, len(whole), _BATCH):
            batch = whole[at : at + _BATCH]
            bad = self._lost([piece for _, piece in batch], is_whole=True)
            lost |= {
                number: {piece.id: bad[piece.id]} for number, piece in batch if piece.id in bad
            }
        return lost

    def _lost_pieces(self, pieces: Sequence[Piece]) -> dict[ChunkId, ChunkId]:
        return self._lost(pieces, is_whole=False)

    def _lost(self, wanted: Sequence[Piece], *, is_whole: bool) -> dict[ChunkId, ChunkId]:
        """Return the chunks of pieces that cannot be read, each with the chunk that is lost.

        Args:
            wanted: The pieces.
            is_whole: Each piece is a whole chunk.
        """
        reader = self._store.reader
        chunk_ids = list({piece.id: None for piece in wanted if piece.id not in self._lost_chunks})
        places = reader.places(chunk_ids)
        doubtful = [
            chunk_id
            for chunk_id in chunk_ids
            if chunk_id not in places or not self._fits(places[chunk_id])
        ]
        if doubtful:
            # The chunk index may be wrong. A restore would find them in the packs, too.
            places |= reader.places_in_packs(doubtful)
            for chunk_id in doubtful:
                if chunk_id in places and not self._fits(places[chunk_id]):
                    del places[chunk_id]
        if self._noted():
            for chunk_id in [one for one, place in places.items() if self._is_noted(place)]:
                if self._measure(chunk_id) < 0:
                    del places[chunk_id]
        without_base = chunks_without_base(reader, places, self._is_sound)
        lost: dict[ChunkId, ChunkId] = {}
        for piece in wanted:
            place = None if piece.id in without_base else places.get(piece.id)
            length = -1 if place is None else place.length_bytes
            end = piece.start_bytes + piece.length_bytes
            if length >= 0 and (length != end if is_whole else length < end):
                length = self._measure(piece.id)
            if not (length == end if is_whole else length >= end):
                lost[piece.id] = without_base.get(piece.id, piece.id)
        return lost

    def _measure(self, chunk_id: ChunkId) -> int:
        """Return the length of a chunk by reading it; -1: it cannot be read.

        The place that is known may be that of a damaged copy of another length.
        """
        if chunk_id not in self._measured:
            self._measured[chunk_id] = -1
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                data = self._store.reader.chunk(chunk_id, kind=DATA)
                self._measured[chunk_id] = len(data)
        return self._measured[chunk_id]

    def _is_sound(self, chunk_id: ChunkId, place: ChunkPlace) -> bool:
        if chunk_id in self._lost_chunks or not self._fits(place):
            return False
        return not self._is_noted(place) or self._measure(chunk_id) >= 0

    def _is_noted(self, place: ChunkPlace) -> bool:
        """Return whether a record of damage names some of a place."""
        return self._noted().touches(place.pack_id, place.offset_bytes, place.frame_bytes)

    def _noted(self) -> KnownDamage:
        if self._records is None:
            self._records = self._store.known_damage()
        return self._records

    def _fits(self, place: ChunkPlace) -> bool:
        """Return whether a frame holds file content, and its pack is long enough to contain it."""
        if place.pack_id not in self._pack_sizes:
            self._pack_sizes[place.pack_id] = self._store.reader.pack_size(place.pack_id)
        size = self._pack_sizes[place.pack_id]
        return (
            place.kind == DATA
            and size is not None
            and place.offset_bytes + place.frame_bytes <= size
        )

    def _pack_lengths(self) -> Sequence[int]:
        return self._store.pack_lengths()

    def _node(self, kind: int, node_id: ChunkId) -> bytes:
        self._failed_node = node_id
        if node_id in self._lost_chunks:
            raise CorruptionError(f"node {node_id.hex()[:12]} is damaged")
        return self._store.reader.node(kind, node_id)


def _missing(count: int, first: ChunkId) -> str:
    return (
        f"{count:,} of its chunks cannot be read: {first.hex()[:12]}"
        f"{'' if count == 1 else ' first'}"
    )

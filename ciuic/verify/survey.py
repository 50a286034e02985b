"""Walking snapshots to find damaged paths. What was found sound is not walked again."""

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, cast

from ciuic.errors import CorruptionError, SnapshotNotFoundError, UnknownFormatError
from ciuic.ids import ChunkId
from ciuic.model import NO_CONTENT, Entry, PathWarning, Root, SnapshotSummary
from ciuic.store.records.kinds import DATA
from ciuic.store.records.recipe_nodes import Piece
from ciuic.store.store import Store
from ciuic.units import counted
from ciuic.verify.by_footers import Listed
from ciuic.verify.chunk_lookup import LOOKED_UP_TOGETHER, ChunkLookup
from ciuic.verify.tasks import ChecksFrames, Frames
from ciuic.view.damage_walk import DamageWalk, Directory
from ciuic.view.located import inner_path
from ciuic.view.recipe_walk import Recipes

__all__ = ["SnapshotSurvey"]

_PIECES_TOGETHER: Final = 4096
_SHARED_KEPT: Final = 32


class SnapshotSurvey:
    """Finds the damaged paths of snapshots.

    Args:
        store: The store.
        bad: Chunks that are known to be damaged.
        checker: Receives the frames of small files as soon as the walk has passed them.
        listed: Chunks that it lists are not looked up in the chunk index.
    """

    def __init__(
        self,
        store: Store,
        bad: Set[ChunkId],
        checker: ChecksFrames | None = None,
        listed: Listed | None = None,
    ) -> None:
        self._store = store
        self._bad = bad
        self._lookup = ChunkLookup(store, bad, checker, listed)
        self._recipes = Recipes(self._node, self._lost_pieces, checks_hints=True)
        self._walk = DamageWalk(self._node, store.pack_lengths, checks_hints=True)

    @property
    def frames(self) -> Frames:
        """The frames that the checker has not received, and what each must contain."""
        return self._lookup.frames

    @property
    def chunks(self) -> int:
        """How many chunks were looked up."""
        return self._lookup.chunks

    def damage(self, snapshot: SnapshotSummary) -> list[PathWarning]:
        """Return every damaged path of a snapshot."""
        path = os.fsencode(f"snapshots/{snapshot.id}.json")
        try:
            manifest = self._store.manifest(snapshot.id, copy=False)
        except (CorruptionError, UnknownFormatError) as error:
            return [PathWarning(path, error.message)]
        except SnapshotNotFoundError:
            return [PathWarning(path, "it is gone")]
        found: list[PathWarning] = []
        for root in manifest.roots:
            found.extend(self._root_damage(root))
        self._lookup.look_up_nodes()
        self._lookup.hand_over_shared(kept=0)
        return found

    def _root_damage(self, root: Root) -> Iterator[PathWarning]:
        """Yield damage in and below a root.

        The files of many directories are looked up together.
        """
        entered: dict[Directory, list[Entry]] = {}
        failures: dict[Directory, str] = {}
        left: list[Directory] = []
        gathered = 0
        for visit in self._walk.visit_root(root):
            if visit.is_last:
                left.append(visit.directory)
                continue
            files = visit.files or ()
            entered.setdefault(visit.directory, []).extend(files)
            if visit.failure:
                failures[visit.directory] = visit.failure
            # A directory without files counts, too: there may be millions.
            gathered += 1 + len(files)
            if gathered >= LOOKED_UP_TOGETHER:
                yield from self._judge(entered, failures, left)
                entered, failures, left, gathered = {}, {}, [], 0
        yield from self._judge(entered, failures, left)

    def _judge(
        self,
        entered: Mapping[Directory, list[Entry]],
        failures: Mapping[Directory, str],
        left: Sequence[Directory],
    ) -> Iterator[PathWarning]:
        """Yield damage in these directories' own nodes and files.

        Args:
            entered: The directories, each with its files.
            failures: Why some of these cannot be read.
            left: The directories that the walk has finished, with all directories in them.
        """
        files = [entry for entries in entered.values() for entry in entries]
        whole = [entry.content for entry in files if entry.content and not entry.level]
        self._lookup.look_up(DATA, cast("list[ChunkId]", whole))
        for directory, entries in entered.items():
            warnings = list(self._files_damage(directory.path, self._doubtful(entries)))
            if directory in failures:
                warnings.append(PathWarning(directory.path, failures[directory]))
            if warnings:
                self._walk.mark_damaged(directory, len(warnings))
            yield from warnings
        for directory in left:
            self._walk.record(directory)
        self._lookup.hand_over_shared(kept=_SHARED_KEPT)

    def _doubtful(self, files: list[Entry]) -> list[Entry]:
        """Return the files that must be judged one by one: most have one chunk, and are sound."""
        # The content of a file of one chunk is the chunk's ID.
        lengths, bad = cast("dict[bytes, int]", self._lookup.lengths), self._bad
        return [
            entry
            for entry in files
            if entry.level
            or lengths.get(entry.content, -1) != entry.size_bytes
            or (bad and entry.content in bad)
        ]

    def _files_damage(self, path: bytes, entries: list[Entry]) -> Iterator[PathWarning]:
        waiting: list[Entry] = []
        chunk_ids: list[ChunkId] = []
        for entry in entries:
            if entry.lacks_content:
                yield PathWarning(inner_path(path, entry.name), NO_CONTENT)
                continue
            if not entry.content or self._recipes.is_sound(entry):
                continue
            try:
                chunk_ids += (
                    self._recipes.read_ahead(entry) if entry.level else [ChunkId(entry.content)]
                )
            except (CorruptionError, UnknownFormatError) as error:
                yield PathWarning(inner_path(path, entry.name), error.message)
                continue
            waiting.append(entry)
            if len(chunk_ids) >= _PIECES_TOGETHER:
                yield from self._damage_of(path, waiting, chunk_ids)
                waiting, chunk_ids = [], []
        yield from self._damage_of(path, waiting, chunk_ids)

    def _damage_of(
        self, path: bytes, entries: list[Entry], chunk_ids: list[ChunkId]
    ) -> Iterator[PathWarning]:
        self._lookup.look_up(DATA, chunk_ids)
        # Files of one chunk first: the lookups for recipes may drop the lengths of their chunks.
        for entry in sorted(entries, key=lambda entry: entry.level > 0):
            try:
                lost = self._recipes.lost(entry) if entry.level else self._lost_whole(entry)
            except (CorruptionError, UnknownFormatError) as error:
                yield PathWarning(inner_path(path, entry.name), error.message)
                continue
            if lost:
                first = next(iter(lost))
                state = "damaged" if first in self._bad else "missing"
                what = f"{counted(len(lost), 'chunk')} damaged or missing;"
                what = f"{what} {first.hex()[:12]} is {state}"
                yield PathWarning(inner_path(path, entry.name), what)
        self._recipes.forget_leaves()

    def _lost_whole(self, entry: Entry) -> dict[ChunkId, ChunkId]:
        """Return the only chunk of a file if it is missing, damaged or of another length."""
        chunk_id = ChunkId(entry.content)
        length = self._lookup.lengths.get(chunk_id, -1)
        if length >= 0 and length != entry.size_bytes:
            length = self._lookup.measure(chunk_id)
        has_length = length == entry.size_bytes
        return {} if has_length and chunk_id not in self._bad else {chunk_id: chunk_id}

    def _lost_pieces(self, pieces: Sequence[Piece]) -> dict[ChunkId, ChunkId]:
        self._lookup.look_up(DATA, [piece.id for piece in pieces])
        return {piece.id: piece.id for piece in pieces if not self._is_sound(piece)}

    def _is_sound(self, piece: Piece) -> bool:
        """Return whether the chunk exists, is long enough, and is not known to be damaged."""
        end = piece.start_bytes + piece.length_bytes
        length = self._lookup.lengths.get(piece.id, -1)
        if 0 <= length < end:
            length = self._lookup.measure(piece.id)
        return length >= end and piece.id not in self._bad

    def _node(self, kind: int, node_id: ChunkId) -> bytes:
        if node_id in self._bad:
            raise CorruptionError(f"node {node_id.hex()[:12]} is damaged")
        return self._lookup.read_node(kind, node_id)

"""Prove that snapshots can be restored.

Without checksums: every manifest and tree is read and checked, every chunk is looked up, and its
pack must be long enough to hold it. With checksums every chunk is also read, decoded and hashed.
Each damaged path of a snapshot is named once.
"""

import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.clock import Clock
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.memory import prepare_for_bulk
from ciuic.model import Entry, Root, SnapshotSummary, Trouble, VerifyReport, VerifySnapshot
from ciuic.store import Store
from ciuic.store.frame import DATA, RECIPE, TREE
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece, iter_pieces, iter_tree
from ciuic.store.survey import known_lost
from ciuic.store.writer import ALONE_BYTES
from ciuic.verbs.checking import Checker, Frames, Needed, OnProgress, Task, in_order
from ciuic.verbs.listed import Listed

__all__ = ["verify_all", "verify_snapshots"]

_LOOKED_UP_TOGETHER: Final = 500
_SHARED_KEPT: Final = 32
_PRESENT_MAX: Final = 100_000
"""Chunks that are remembered to be there; a chunk that comes up again later is looked up again."""


def verify_all(
    store: Store, *, checksum: bool, clock: Clock, progress: OnProgress | None = None
) -> VerifyReport:
    """Verify every snapshot, those whose manifest can't be read included."""
    broken = damaged_manifests(store)
    report = _verify(
        store,
        list_snapshots(store),
        broken,
        checksum=checksum,
        clock=clock,
        progress=progress,
        every=True,
    )
    return VerifyReport(
        report.snapshots,
        report.read_bytes,
        report.chunks,
        report.total_s,
        report.bad,
        tuple(
            [
                Trouble(os.fsencode(f"packs/{name.hex()}"), error.message)
                for name, error in sorted(store.unreachable_packs().items())
            ]
        ),
    )


def verify_snapshots(
    store: Store,
    snapshots: Iterable[SnapshotSummary],
    broken: Mapping[str, str],
    *,
    checksum: bool,
    clock: Clock,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Verify some snapshots; what they share is checked once.

    Args:
        store: An open store.
        snapshots: Those to verify.
        broken: Others whose manifest can't be read, and why: part of the report.
        checksum: Read, decode and hash every chunk as well.
        clock: For how long it took.
        progress: Told of chunks.

    Raises:
        StoreError: The store itself can't be used. Damage is not raised but reported.
    """
    return _verify(
        store, snapshots, broken, checksum=checksum, clock=clock, progress=progress, every=False
    )


def _verify(
    store: Store,
    snapshots: Iterable[SnapshotSummary],
    broken: Mapping[str, str],
    *,
    checksum: bool,
    clock: Clock,
    progress: OnProgress | None,
    every: bool,
) -> VerifyReport:
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    chosen = list(snapshots)
    read_bytes = 0
    if checksum:
        packs = store.pack_files()
        with Checker(store, sum(packs.values()), progress) as checker:
            # Of some snapshots only, the catalog knows with less reading.
            listed = Listed(store, packs if every else ())
            checker.expect(numbers=listed.has_numbers or not every)
            survey = _Survey(store, set(), checker, listed)
            found = {one.id: survey.damage(one) for one in chosen}
            groups, count = listed.left()
            checker.finish(
                itertools.chain(in_order(survey.frames), groups), len(survey.frames) + count
            )
            checker.look_again(listed.needed_in(checker.doubtful))
        bad, read_bytes = checker.bad, checker.read_bytes + listed.node_bytes
        if bad:
            second = _Survey(store, bad)
            found = {one.id: second.damage(one) for one in chosen}
    else:
        bad = known_lost(store)  # what a scrub has read counts
        survey = _Survey(store, bad)
        found = {one.id: survey.damage(one) for one in chosen}
    results = [VerifySnapshot(one.id, tuple(found[one.id])) for one in chosen]
    for name, what in sorted(broken.items()):
        place = os.fsencode(f"snapshots/{name}.json")
        results.append(VerifySnapshot(name, (Trouble(place, what),)))
    total_s = clock.monotonic_s() - began_s
    chunks = survey.chunks + (listed.chunks if checksum else 0)
    return VerifyReport(tuple(results), read_bytes, chunks, total_s, frozenset(bad))


class _Level:
    """A directory on the way down.

    Attributes:
        files: What is to be looked at in it.
        inner: Gives its subdirectories.
        failure: Why it can't be read; empty if it can.
        is_sound: Nothing in it or below it is known to be damaged.
    """

    def __init__(self, parent: "_Level | None", path: bytes, tree: bytes) -> None:
        self.parent = parent
        self.path = path
        self.tree = tree
        self.files: list[Entry] = []
        self.inner: Iterator[Entry] = iter(())
        self.failure = ""
        self.is_sound = True

    def spoil(self) -> None:
        """It is damaged, and with that all that it is in."""
        level: _Level | None = self
        while level is not None and level.is_sound:
            level.is_sound = False
            level = level.parent


class _Survey:
    """Walks snapshots; what was found sound once is not walked again.

    Args:
        store: The store.
        bad: Chunks that are known to be damaged.
        checker: Told of frames of small files as soon as the walk has left them behind.
        listed: What is in it is not looked up.

    Attributes:
        frames: Those that are left, and what each must hold.
        chunks: How many were looked up.
    """

    def __init__(
        self,
        store: Store,
        bad: set[bytes],
        checker: Checker | None = None,
        listed: Listed | None = None,
    ) -> None:
        self._store = store
        self._bad = bad
        self._sound_trees: set[bytes] = set()
        self._present: dict[bytes, int] = {}
        self._pack_sizes: dict[bytes, int | None] = {}
        self._nodes: dict[int, list[bytes]] = {RECIPE: [], TREE: []}
        self._checker = checker
        self._listed = listed
        self._shared: Frames = {}
        self.frames: Frames = {}
        self.chunks = 0

    def damage(self, snapshot: SnapshotSummary) -> list[Trouble]:
        """Every damaged path of a snapshot."""
        try:
            manifest = self._store.manifest(snapshot.id, copy=False)
        except (CorruptionError, UnknownFormatError) as error:
            return [Trouble(os.fsencode(f"snapshots/{snapshot.id}.json"), error.message)]
        found: list[Trouble] = []
        for root in manifest.roots:
            if root.tree:
                found.extend(self._tree_damage(root))
        self._look_up_nodes()
        self._leave_behind(0)
        return found

    def _tree_damage(self, root: Root) -> Iterator[Trouble]:
        """Damage below a root; directories without any are remembered as sound.

        The files of many directories are looked up together: asked for one directory, the catalog
        takes twice as long.
        """
        entered: list[_Level] = []
        left: list[_Level] = []
        waiting = 0
        for level in self._walk(root, left):
            entered.append(level)
            waiting += len(level.files)
            if waiting >= _LOOKED_UP_TOGETHER:
                yield from self._judge(entered, left)
                waiting = 0
        yield from self._judge(entered, left)

    def _walk(self, root: Root, left: list[_Level]) -> Iterator[_Level]:
        """Every directory as it is entered; once all below it is done with, it is in ``left``.

        Not by recursion: trees are deeper than the stack is.
        """
        levels = [self._entered(None, root.path, root.tree, 0)]
        yield levels[0]
        while levels:
            level = levels[-1]
            entry = next(level.inner, None)
            if entry is None:
                left.append(levels.pop())
                continue
            if entry.content in self._sound_trees:
                continue
            path = level.path if len(levels) == 1 else _join(level.path, entry.name)
            levels.append(self._entered(level, path, entry.content, entry.level))
            yield levels[-1]

    def _entered(self, parent: _Level | None, path: bytes, tree: bytes, height: int) -> _Level:
        level = _Level(parent, path, tree)
        try:
            entries = list(iter_tree(self._node, tree, height))
        except (CorruptionError, UnknownFormatError) as error:
            level.failure = f"the directory can't be read: {error.message}"
            return level
        # Not by ``is_file``: a call for each of a million entries.
        level.files = [one for one in entries if stat.S_IFMT(one.mode) == stat.S_IFREG]
        if len(level.files) < len(entries):
            level.inner = iter([one for one in entries if one.is_directory and one.content])
        return level

    def _judge(self, entered: list[_Level], left: list[_Level]) -> Iterator[Trouble]:
        """Damage in these directories' own nodes and files; both lists are empty afterwards."""
        files = [one for level in entered for one in level.files]
        self._look_up(DATA, [one.content for one in files if one.content and not one.level])
        for level in entered:
            troubles = list(self._files_damage(level.path, self._doubtful(level.files)))
            if level.failure:
                troubles.append(Trouble(level.path, level.failure))
            if troubles:
                level.spoil()
            yield from troubles
            level.files = []
        self._sound_trees.update([level.tree for level in left if level.is_sound])
        entered.clear()
        left.clear()
        if len(self._present) > _PRESENT_MAX:
            self._present.clear()
        self._leave_behind(_SHARED_KEPT)

    def _doubtful(self, files: list[Entry]) -> list[Entry]:
        """Those that are to be looked at one by one: most are of one chunk, and sound."""
        present, bad = self._present, self._bad
        return [
            one
            for one in files
            if one.level
            or present.get(one.content, -1) != one.size_bytes
            or (bad and one.content in bad)
        ]

    def _files_damage(self, path: bytes, entries: list[Entry]) -> Iterator[Trouble]:
        wanted: list[tuple[Entry, list[Piece]]] = []
        for entry in entries:
            try:
                wanted.append((entry, self._pieces(entry)))
            except (CorruptionError, UnknownFormatError) as error:
                if entry.content:
                    yield Trouble(_join(path, entry.name), error.message)
        self._look_up(DATA, [piece.id for _, pieces in wanted for piece in pieces])
        for entry, pieces in wanted:
            whole = entry.level == 0
            lost = dict.fromkeys([one.id for one in pieces if not self._is_sound(one, whole)])
            if lost:
                first = next(iter(lost))
                state = "damaged" if first in self._bad else "missing"
                yield Trouble(
                    _join(path, entry.name),
                    f"{len(lost)} of its {len({one.id for one in pieces})} chunks can't be read;"
                    f" {first.hex()[:12]} is {state}",
                )

    def _pieces(self, entry: Entry) -> list[Piece]:
        """Those of a file's pieces that are no holes."""
        if entry.level == 0 and entry.content:
            return [Piece(entry.size_bytes, entry.content)]
        return [piece for piece in iter_pieces(self._node, entry) if piece.id]

    def _is_sound(self, piece: Piece, whole: bool) -> bool:
        """A chunk is there, as long as its file wants it, and not known to be damaged."""
        there = self._present.get(piece.id, -1)
        end = piece.start_bytes + piece.length_bytes
        return (there == end if whole else there >= end) and piece.id not in self._bad

    def _node(self, kind: int, name: bytes) -> bytes:
        if name in self._bad:
            raise CorruptionError(f"node {name.hex()[:12]} is damaged")
        found = self._listed.node(kind, name) if self._listed is not None else None
        if found is not None:
            return found
        data = self._store.reader.node(kind, name)
        # Where it lies is asked later, for many at once: to be read it needs to be there.
        waiting = self._nodes[kind]
        waiting.append(name)
        if len(waiting) >= _LOOKED_UP_TOGETHER:
            self._look_up_nodes()
        return data

    def _look_up_nodes(self) -> None:
        for kind, names in self._nodes.items():
            self._look_up(kind, names)
            names.clear()

    def _look_up(self, kind: int, names: list[bytes]) -> None:
        present = self._present
        if self._listed is not None and self._checker is not None and kind == DATA:
            names, shared = self._listed.need(names, present)
            for task in shared:
                self._checker.begin(task)
        new = [name for name in dict.fromkeys(names) if name not in present]
        if not new:
            return
        places = self._store.reader.places(new)
        doubtful = [name for name in new if name not in places or not self._fits(places[name])]
        if doubtful:
            # The catalog may be at fault, and no restore would fail for that.
            places.update(self._store.reader.places_in_packs(doubtful))
        lost = {name for name in doubtful if name not in places or not self._fits(places[name])}
        lost.update(self._store.reader.unchained(places, self._is_there))
        for name, place in places.items():
            if name in lost:
                continue
            present[name] = place.length_bytes
            self.chunks += 1
            needed = Needed(name, kind, place.start_bytes, place.length_bytes)
            key = (place.pack, place.offset_bytes)
            is_shared = place.length_bytes < ALONE_BYTES and not place.reference and kind == DATA
            frames = self._shared if is_shared and self._checker is not None else self.frames
            frame = frames.get(key)
            if frame is None:
                frames[key] = (place, [needed])
            else:
                frame[1].append(needed)

    def _leave_behind(self, kept: int) -> None:
        """Give away frames of small files: the walk meets their chunks one soon after the other.

        Should one come up again, its frame is read again.
        """
        while self._checker is not None and len(self._shared) > kept:
            frame = self._shared.pop(next(iter(self._shared)))
            self._checker.begin(Task(*frame, keep=False))

    def _is_there(self, name: bytes, place: ChunkPlace) -> bool:
        return name not in self._bad and self._fits(place)

    def _fits(self, place: ChunkPlace) -> bool:
        if place.pack not in self._pack_sizes:
            self._pack_sizes[place.pack] = self._store.reader.pack_size(place.pack)
        size = self._pack_sizes[place.pack]
        return size is not None and place.offset_bytes + place.frame_bytes <= size


def _join(path: bytes, name: bytes) -> bytes:
    return path + name if path.endswith(b"/") else path + b"/" + name

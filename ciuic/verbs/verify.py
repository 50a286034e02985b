"""Prove that snapshots can be restored.

Without checksums: every manifest and tree is read and checked, every chunk is looked up, and its
pack must be long enough to hold it. With checksums every chunk is also read, decoded and hashed.
Each damaged path of a snapshot is named once.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.catalog import damaged_manifests, list_snapshots
from ciuic.clock import Clock
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.memory import prepare_for_bulk
from ciuic.model import Entry, Root, SnapshotSummary, Trouble, VerifyReport, VerifySnapshot
from ciuic.store import Store
from ciuic.store.frame import DATA, RECIPE, TREE, chunk_id
from ciuic.store.index import ChunkPlace
from ciuic.store.nodes import Piece, iter_pieces, iter_tree
from ciuic.store.survey import known_lost

__all__ = ["verify_all", "verify_snapshots"]

_WORKERS_MAX: Final = 8
_WINDOW: Final = 4
"""Frames under way for each worker."""
_LOOKED_UP_TOGETHER: Final = 500

OnProgress = Callable[[int, int], None]
"""Told frames checked and frames in all."""


class _Needed(NamedTuple):
    """A chunk that a frame must hold."""

    name: bytes
    kind: int
    start_bytes: int
    length_bytes: int


_Key = tuple[bytes, int]
_Frames = dict[_Key, tuple[ChunkPlace, list[_Needed]]]


def verify_all(
    store: Store, *, checksum: bool, clock: Clock, progress: OnProgress | None = None
) -> VerifyReport:
    """Verify every snapshot, those whose manifest can't be read included."""
    broken = [
        VerifySnapshot(name, (Trouble(os.fsencode(f"snapshots/{name}.json"), what),))
        for name, what in sorted(damaged_manifests(store).items())
    ]
    report = verify_snapshots(
        store, list_snapshots(store), checksum=checksum, clock=clock, progress=progress
    )
    return VerifyReport(
        (*report.snapshots, *broken),
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
    *,
    checksum: bool,
    clock: Clock,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Verify some snapshots; what they share is checked once.

    Raises:
        StoreError: The store itself can't be used. Damage is not raised but reported.
    """
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    chosen = list(snapshots)
    # Without reading it counts what a scrub has read.
    bad = set() if checksum else known_lost(store)
    survey = _Survey(store, bad)
    found = {one.id: survey.damage(one) for one in chosen}
    read_bytes = 0
    if checksum:
        bad, read_bytes = _check_frames(store, survey.frames, progress)
        if bad:
            second = _Survey(store, bad)
            found = {one.id: second.damage(one) for one in chosen}
    results = tuple([VerifySnapshot(one.id, tuple(found[one.id])) for one in chosen])
    total_s = clock.monotonic_s() - began_s
    return VerifyReport(results, read_bytes, survey.chunks, total_s, frozenset(bad))


class _Level:
    """A directory on the way down; ``inner`` gives its subdirectories."""

    def __init__(self, path: bytes, tree: bytes, height: int) -> None:
        self.path = path
        self.tree = tree
        self.height = height
        self.inner: Iterator[Entry] = iter(())
        self.is_sound = True


class _Survey:
    """Walks snapshots; what was found sound once is not walked again.

    Args:
        store: The store.
        bad: Chunks that are known to be damaged.
    """

    def __init__(self, store: Store, bad: set[bytes] = frozenset()) -> None:  # type: ignore[assignment]
        self._store = store
        self._bad = bad
        self._sound_trees: set[bytes] = set()
        self._present: dict[bytes, int] = {}
        self._pack_sizes: dict[bytes, int | None] = {}
        self._nodes: dict[int, list[bytes]] = {RECIPE: [], TREE: []}
        self.frames: _Frames = {}
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
        return found

    def _tree_damage(self, root: Root) -> Iterator[Trouble]:
        """Damage below a root; directories without any are remembered as sound.

        Not by recursion: trees are deeper than the stack is.
        """
        levels = [_Level(root.path, root.tree, 0)]
        yield from self._enter(levels[0])
        while levels:
            level = levels[-1]
            entry = next(level.inner, None)
            if entry is None:
                levels.pop()
                if level.is_sound:
                    self._sound_trees.add(level.tree)
                elif levels:
                    levels[-1].is_sound = False
                continue
            if entry.content in self._sound_trees:
                continue
            path = level.path if len(levels) == 1 else _join(level.path, entry.name)
            levels.append(_Level(path, entry.content, entry.level))
            yield from self._enter(levels[-1])

    def _enter(self, level: _Level) -> Iterator[Trouble]:
        """Check a directory's own nodes and files; its subdirectories come later."""
        try:
            entries = list(iter_tree(self._node, level.tree, level.height))
        except (CorruptionError, UnknownFormatError) as error:
            level.is_sound = False
            yield Trouble(level.path, f"the directory can't be read: {error.message}")
            return
        for trouble in self._files_damage(level.path, self._doubtful(entries)):
            level.is_sound = False
            yield trouble
        level.inner = iter([one for one in entries if one.is_directory and one.content])

    def _doubtful(self, entries: list[Entry]) -> list[Entry]:
        """Files that are to be looked at one by one: most are of one chunk, and sound."""
        files = [one for one in entries if one.is_file]
        self._look_up(DATA, [one.content for one in files if one.content and not one.level])
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
        new = [name for name in dict.fromkeys(names) if name not in self._present]
        places = self._store.reader.places(new)
        doubtful = [name for name in new if name not in places or not self._fits(places[name])]
        if doubtful:
            # The catalog may be at fault, and no restore would fail for that.
            places.update(self._store.reader.places_in_packs(doubtful))
        lost = {name for name in doubtful if name not in places or not self._fits(places[name])}
        lost.update(self._store.reader.unchained(places, self._is_there))
        present, frames = self._present, self.frames
        for name, place in places.items():
            if name in lost:
                continue
            present[name] = place.length_bytes
            self.chunks += 1
            needed = _Needed(name, kind, place.start_bytes, place.length_bytes)
            key = (place.pack, place.offset_bytes)
            frame = frames.get(key)
            if frame is None:
                frames[key] = (place, [needed])
            else:
                frame[1].append(needed)

    def _is_there(self, name: bytes, place: ChunkPlace) -> bool:
        return name not in self._bad and self._fits(place)

    def _fits(self, place: ChunkPlace) -> bool:
        if place.pack not in self._pack_sizes:
            self._pack_sizes[place.pack] = self._store.reader.pack_size(place.pack)
        size = self._pack_sizes[place.pack]
        return size is not None and place.offset_bytes + place.frame_bytes <= size


def _check_frames(
    store: Store, frames: _Frames, progress: OnProgress | None
) -> tuple[set[bytes], int]:
    """Read, decode and hash frames in the order they lie on the disk; returns the bad chunks."""
    bad: set[bytes] = set()
    read_bytes = done = 0
    workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
    under_way: deque[Future[list[bytes]]] = deque()
    with ThreadPoolExecutor(workers, "verify") as pool:
        for keys in _together(frames):
            group = [frames[key] for key in keys]
            read_bytes += sum([place.frame_bytes for place, _ in group])
            under_way.append(pool.submit(_check_group, store, group))
            if len(under_way) >= _WINDOW * workers:
                bad.update(under_way.popleft().result())
            done += len(group)
            if progress is not None:
                progress(done, len(frames))
        for future in under_way:
            bad.update(future.result())
    return bad, read_bytes


def _together(frames: _Frames) -> Iterator[list[_Key]]:
    """Frames in the order they lie on the disk, each followed by those that are deltas from it.

    So each is decoded once, and not once for every delta that builds on it.
    """
    references = {place.reference for place, _ in frames.values() if place.reference}
    keys = {
        one.name: key
        for key, (_, needed) in frames.items()
        for one in needed
        if one.name in references
    }
    deltas: dict[_Key, list[_Key]] = {}
    for key, (place, _) in frames.items():
        if place.reference in keys:
            deltas.setdefault(keys[place.reference], []).append(key)
    behind = {key for found in deltas.values() for key in found}
    for first in sorted(frames.keys() - behind):
        group = [first]
        for key in group:
            group += deltas.pop(key, ())
        yield group
    # What is left are rings, which no writer makes: they end as damage.
    yield from ([key] for found in deltas.values() for key in found)


def _check_group(store: Store, group: list[tuple[ChunkPlace, list[_Needed]]]) -> list[bytes]:
    is_chain = len(group) > 1
    return [name for one in group for name in _check_frame(store, *one, keep=is_chain)]


def _check_frame(
    store: Store, place: ChunkPlace, needed: list[_Needed], *, keep: bool
) -> list[bytes]:
    """The needed chunks that can't be had, neither here nor from another pack."""
    try:
        # What parity gives back is damaged all the same, and to be named.
        _, plain = store.reader.frame(place, heal=False, keep=keep)
        view = memoryview(plain)
        for one in needed:
            part = view[one.start_bytes : one.start_bytes + one.length_bytes]
            if chunk_id(one.kind, part) != one.name:
                raise CorruptionError("a chunk hashes to another name")
    except (CorruptionError, UnknownFormatError):
        return [one.name for one in needed if not _readable(store, one)]
    return []


def _readable(store: Store, one: _Needed) -> bool:
    """Ask again before calling it damage: cables fail too, and another pack may have it."""
    try:
        store.reader.chunk(one.name, kind=one.kind, heal=False)
    except (CorruptionError, UnknownFormatError):  # a store that fails is no damage of a chunk
        return False
    return True


def _join(path: bytes, name: bytes) -> bytes:
    return path + name if path.endswith(b"/") else path + b"/" + name

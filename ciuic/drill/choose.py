"""Chooses the files of a snapshot to practice on."""

import random
import sys
from collections.abc import Iterator

from ciuic.formats.soundness import CHECKPOINT_SUFFIXES
from ciuic.model import CONSISTENT
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.listing import OnDamage, readable_roots, walk
from ciuic.view.located import Located
from ciuic.view.tree_walk import PathBudget

__all__ = ["choose", "sizes_bytes"]


def choose(
    store: Store,
    manifest: Manifest,
    *,
    files_max: int,
    size_max_bytes: int,
    seed: int,
    on_damage: OnDamage,
) -> list[Located]:
    """Choose regular files at random: the newest checkpoint, other checkpoints, and any files.

    Half of the files are checkpoints if there are enough. Files that were being written are left
    out, because they may be torn, and so are files that have no content to restore. One walk over
    the snapshot, with memory for the chosen files only.

    Args:
        store: The open store.
        manifest: The snapshot.
        files_max: How many files at most.
        size_max_bytes: The sum of their sizes is at most this.
        seed: The same seed chooses the same files of the same snapshot.
        on_damage: Receives each damaged directory, whose files cannot be chosen.
    """
    chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
    newest: Located | None = None
    checkpoints = _Sample(max(1, files_max // 2), chance)
    others = _Sample(files_max, chance)
    for found in _files(store, manifest, size_max_bytes, on_damage):
        if not found.path.lower().endswith(CHECKPOINT_SUFFIXES):
            others.offer(found)
            continue
        checkpoints.offer(found)
        if newest is None or found.entry.mtime_ns > newest.entry.mtime_ns:
            newest = found
    first = [] if newest is None else [newest]
    turn = [*first, *checkpoints.shuffled(), *others.shuffled()]
    chosen: dict[bytes, Located] = {}
    left_bytes = size_max_bytes
    for found in turn:
        if len(chosen) == files_max:
            break
        if found.path not in chosen and found.entry.size_bytes <= left_bytes:
            chosen[found.path] = found
            left_bytes -= found.entry.size_bytes
    return list(chosen.values())


def sizes_bytes(store: Store, manifest: Manifest) -> Iterator[int]:
    """Yield the size of each file that a drill can choose."""
    for found in _files(store, manifest, sys.maxsize, lambda _path, _error: None):
        yield found.entry.size_bytes


def _files(
    store: Store, manifest: Manifest, size_max_bytes: int, on_damage: OnDamage
) -> Iterator[Located]:
    budget = PathBudget(store.pack_lengths)
    for root in readable_roots(store, manifest.roots, on_damage):
        for found in walk(store, root, budget, on_damage=on_damage):
            entry = found.entry
            if entry.is_file and entry.state == CONSISTENT and entry.size_bytes <= size_max_bytes:
                yield found


class _Sample:
    """A uniform sample of a stream of unknown length (reservoir sampling, algorithm R)."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self._size = size
        self._chance = chance
        self._seen = 0
        self._kept: list[Located] = []

    def offer(self, found: Located) -> None:
        self._seen += 1
        if len(self._kept) < self._size:
            self._kept.append(found)
        elif (place := self._chance.randrange(self._seen)) < self._size:
            self._kept[place] = found

    def shuffled(self) -> list[Located]:
        self._chance.shuffle(self._kept)
        return self._kept

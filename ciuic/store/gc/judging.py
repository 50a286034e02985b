"""Decides which condemned packs must stay, after every session that may rely on them has ended."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.mark import Marks
from ciuic.store.gc.usage import read_frames
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.store.store import Store

__all__ = ["Judgment", "judge_packs"]


class Judgment(NamedTuple):
    """Which condemned packs stay, and where the needed chunks of the others are.

    Attributes:
        spared: Packs with a needed chunk that no open pack has.
        elsewhere: For needed chunks of the other packs, an open pack that has them without a base.
    """

    spared: frozenset[PackId]
    elsewhere: dict[PackId, set[ChunkId]]


class _Frames:
    """The frames of packs that stay, as far as they were read."""

    def __init__(self, store: Store, check: Callable[[], None]) -> None:
        self._store = store
        self._check = check
        self.of: dict[PackId, list[PackedFrame]] = {}

    def read(self, pack_ids: Iterable[PackId]) -> None:
        """Read footers. The chunks of a damaged or missing pack do not count."""
        for pack_id in pack_ids:
            if pack_id not in self.of:
                self._check()
                try:
                    self.of[pack_id] = read_frames(self._store.packs, pack_id)
                except CorruptionError:
                    self.of[pack_id] = []

    def sound(self) -> set[ChunkId]:
        """Return the chunks that can be decoded from these packs alone."""
        found: set[ChunkId] = set()
        deltas: list[PackedFrame] = []
        for packed in (one for frames in self.of.values() for one in frames):
            if packed.frame.is_delta:
                deltas.append(packed)
            else:
                found.update(chunk_id for chunk_id, _ in packed.frame.chunks)
        while more := {
            chunk_id
            for packed in deltas
            if found.issuperset(packed.frame.delta_bases)
            for chunk_id, _ in packed.frame.chunks
            if chunk_id not in found
        }:
            found |= more
        return found


def judge_packs(
    store: Store,
    packs: Collection[PackId],
    staying: Collection[PackId],
    marks: Marks,
    check: Callable[[], None],
) -> Judgment:
    """Find the condemned packs without which a needed chunk would be lost.

    The chunk index only says where to look first; the footers of the packs decide.

    Args:
        store: Open for writing; its chunk index has every pack.
        packs: The condemned packs that are there.
        staying: The packs that no condemnation names.
        marks: Every needed chunk, delta bases too.
        check: Called often; raises to end the work.

    Raises:
        UnknownFormatError: A pack has frames of a later version.
    """
    spared: set[PackId] = set()
    needed: dict[PackId, set[ChunkId]] = {}
    condemned = _Frames(store, check)
    for pack_id in packs:
        try:
            condemned.of[pack_id] = read_frames(store.packs, pack_id)
        except CorruptionError:
            spared.add(pack_id)  # a repair may need the pack, and its chunks are not known
            continue
        needed[pack_id] = {
            chunk_id
            for packed in condemned.of[pack_id]
            for chunk_id, _ in packed.frame.chunks
            if marks.is_needed(packed.frame.kind, chunk_id)
        }
    wanted = set[ChunkId]().union(*needed.values())
    here = _Frames(store, check)
    here.read(_likely(store, wanted, frozenset(staying)))
    if not wanted <= here.sound():
        here.read(staying)
    while lacking := set[ChunkId]().union(*needed.values()) - here.sound():
        more = {pack_id for pack_id, chunk_ids in needed.items() if chunk_ids & lacking}
        spared |= more
        for pack_id in more:
            here.of[pack_id] = condemned.of[pack_id]
            del needed[pack_id]
    return Judgment(frozenset(spared), _alone(here, set[ChunkId]().union(*needed.values())))


def _likely(store: Store, wanted: set[ChunkId], staying: frozenset[PackId]) -> set[PackId]:
    """Return the packs that have these chunks and their chains, as the chunk index says."""
    found: set[PackId] = set()
    seen: set[ChunkId] = set()
    for _ in range(CHAIN_MAX + 1):
        wanted -= seen
        if not wanted:
            break
        seen |= wanted
        places = store.index.places(list(wanted)).values()
        found.update(place.pack_id for place in places)
        wanted = {base for place in places for base in place.delta_bases}
    return found & staying


def _alone(here: _Frames, wanted: set[ChunkId]) -> dict[PackId, set[ChunkId]]:
    found: dict[PackId, set[ChunkId]] = {}
    for pack_id, frames in here.of.items():
        chunk_ids = {
            chunk_id
            for packed in frames
            if not packed.frame.is_delta
            for chunk_id, _ in packed.frame.chunks
            if chunk_id in wanted
        }
        if chunk_ids:
            found[pack_id] = chunk_ids
            wanted -= chunk_ids
    return found

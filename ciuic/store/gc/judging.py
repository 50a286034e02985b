"""Decides which condemned packs must stay, after every session that may rely on them has ended."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError
from ciuic.ids import SESSION_BYTES, ChunkId, PackId, SessionId
from ciuic.store.format.delta_graph import shortest_chains
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.mark import Marks
from ciuic.store.gc.usage import is_sound, read_frames
from ciuic.store.records.kinds import CHAIN_MAX
from ciuic.store.store import Store

__all__ = ["Judgment", "judge_packs"]


class Judgment(NamedTuple):
    """Which condemned packs stay, and where the needed chunks of the others are.

    Attributes:
        spared: Packs with a needed chunk that no open pack has as good.
        elsewhere: For needed chunks of the other packs, a staying pack that has them without a
            base. If none has: one with the delta that the chunk index has in a pack that goes.
    """

    spared: frozenset[PackId]
    elsewhere: dict[PackId, set[ChunkId]]


_Copy = tuple[ChunkId, frozenset[ChunkId]]
"""A copy of a chunk: its delta bases."""
_Place = tuple[PackId, int]
"""A frame: its pack, and its offset."""
_ALONE: Final[frozenset[ChunkId]] = frozenset()


class _Frames:
    """The frames of packs that stay, as far as they were read."""

    def __init__(self, store: Store, check: Callable[[], None]) -> None:
        self._store = store
        self._check = check
        self._sound: set[_Place] = set()
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

    def decodable(self) -> set[ChunkId]:
        """Return the chunks that can be decoded from these packs alone, as far as they list."""
        options: dict[ChunkId, list[tuple[ChunkId, ...]]] = {}
        for packed in (frame for frames in self.of.values() for frame in frames):
            for chunk_id, _ in packed.frame.chunks:
                options.setdefault(chunk_id, []).append(packed.frame.delta_bases)
        return set(shortest_chains(options))

    def lacking(self, copies: Iterable[_Copy]) -> set[ChunkId]:
        """Return the chunks for which these packs have nothing that is as good as these copies.

        As good is a copy without base, or a delta against the same bases. A delta against others
        may have a longer chain, and a delta of a staying pack may count on the shorter one.
        """
        decodable = self.decodable()
        here = {
            (chunk_id, frozenset(packed.frame.delta_bases))
            for frames in self.of.values()
            for packed in frames
            for chunk_id, _ in packed.frame.chunks
        }
        return {
            chunk_id
            for chunk_id, bases in copies
            if chunk_id not in decodable or here.isdisjoint(((chunk_id, _ALONE), (chunk_id, bases)))
        }

    def leave_out_damaged(self, copies: Iterable[_Copy], trusted: Collection[PackId]) -> bool:
        """Read what stands in for these copies, and leave out frames that are damaged.

        Args:
            copies: The copies.
            trusted: Packs that are not read.

        Returns:
            Whether a frame was left out.
        """
        damaged: set[_Place] = set()
        for places in self._standing_in(copies, trusted):
            for pack_id, packed in places:
                place = (pack_id, packed.offset_bytes)
                if pack_id in trusted or place in self._sound:
                    break
                if place in damaged:
                    continue
                self._check()
                if is_sound(self._store.packs, self._store.reader, pack_id, packed):
                    self._sound.add(place)
                    break
                damaged.add(place)
        for pack_id, offset_bytes in damaged:
            frames = self.of[pack_id]
            self.of[pack_id] = [one for one in frames if one.offset_bytes != offset_bytes]
        return bool(damaged)

    def _standing_in(
        self, copies: Iterable[_Copy], trusted: Collection[PackId]
    ) -> Iterator[list[tuple[PackId, PackedFrame]]]:
        """Yield for each copy the frames that are as good, first those in trusted packs."""
        wanted = set(copies)
        chunk_ids = {chunk_id for chunk_id, _ in wanted}
        frames: dict[_Copy, list[tuple[PackId, PackedFrame]]] = {}
        for pack_id, listed in self.of.items():
            for packed in listed:
                bases = frozenset(packed.frame.delta_bases)
                for chunk_id in chunk_ids.intersection([one for one, _ in packed.frame.chunks]):
                    frames.setdefault((chunk_id, bases), []).append((pack_id, packed))
        for chunk_id, bases in wanted:
            found = [one for kind in {_ALONE, bases} for one in frames.get((chunk_id, kind), ())]
            yield sorted(found, key=lambda one: (one[0] not in trusted, one[0]))


def judge_packs(
    store: Store,
    packs: Collection[PackId],
    staying: Collection[PackId],
    marks: Marks,
    *,
    check: Callable[[], None],
    session_id: SessionId,
) -> Judgment:
    """Find the condemned packs without which a needed chunk would be lost.

    The chunk index only says where to look first; the packs decide. What stays is read before a
    copy goes in its favor: this machine may not know that it is damaged.

    Args:
        store: Open for writing; its chunk index has every pack.
        packs: The condemned packs that are there.
        staying: The packs that no condemnation names.
        marks: Every needed chunk, delta bases too.
        check: Called often; raises to end the work.
        session_id: The session that condemned the packs. What it has written was read from sound
            copies, and is not read again.

    Raises:
        UnknownFormatError: A pack has frames of a later version.
    """
    spared: set[PackId] = set()
    needed: dict[PackId, set[_Copy]] = {}
    condemned = _Frames(store, check)
    for pack_id in packs:
        try:
            condemned.of[pack_id] = read_frames(store.packs, pack_id)
        except CorruptionError:
            spared.add(pack_id)  # a repair may need the pack, and its chunks are not known
            continue
        needed[pack_id] = {
            (chunk_id, frozenset(packed.frame.delta_bases))
            for packed in condemned.of[pack_id]
            for chunk_id, _ in packed.frame.chunks
            if marks.is_needed(packed.frame.kind, chunk_id)
        }
    here = _Frames(store, check)
    here.read(_likely(store, _chunks(needed), frozenset(staying)))
    if here.lacking(_copies(needed)):
        here.read(staying)
    while True:
        lacking = here.lacking(_copies(needed))
        if not lacking:
            written = {one for one in staying if one[:SESSION_BYTES] == session_id}
            if not here.leave_out_damaged(_copies(needed), written):
                break
            here.read(staying)  # others may have it
            continue
        more = {
            pack_id
            for pack_id, copies in needed.items()
            if not lacking.isdisjoint([chunk_id for chunk_id, _ in copies])
        }
        spared |= more
        for pack_id in more:
            here.of[pack_id] = condemned.of[pack_id]
            del needed[pack_id]
    elsewhere = _alone(here, _chunks(needed))
    alone = set[ChunkId]().union(*elsewhere.values())
    for pack_id, chunk_ids in _same_deltas(here, store, needed, alone).items():
        elsewhere.setdefault(pack_id, set()).update(chunk_ids)
    return Judgment(frozenset(spared), elsewhere)


def _copies(needed: Mapping[PackId, set[_Copy]]) -> set[_Copy]:
    return set[_Copy]().union(*needed.values())


def _chunks(needed: Mapping[PackId, set[_Copy]]) -> set[ChunkId]:
    return {chunk_id for chunk_id, _ in _copies(needed)}


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


def _same_deltas(
    here: _Frames, store: Store, needed: Mapping[PackId, set[_Copy]], alone: set[ChunkId]
) -> dict[PackId, set[ChunkId]]:
    """Find the deltas that the chunk index has in packs that go: the same bases elsewhere."""
    places = store.index.places(list(_chunks(needed) - alone))
    wanted = {
        (chunk_id, frozenset(place.delta_bases))
        for chunk_id, place in places.items()
        if place.pack_id in needed
    }
    found: dict[PackId, set[ChunkId]] = {}
    for pack_id, frames in here.of.items():
        for packed in frames:
            for chunk_id, _ in packed.frame.chunks:
                copy = (chunk_id, frozenset(packed.frame.delta_bases))
                if copy in wanted:
                    wanted.remove(copy)
                    found.setdefault(pack_id, set()).add(chunk_id)
    return found

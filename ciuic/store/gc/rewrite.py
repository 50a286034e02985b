"""Moves the needed chunks out of fragmented and small packs, so that the packs can be removed.

A pack is never changed. The needed frames of a fragmented pack are copied to a new pack without
decoding. If much of a frame is garbage, its needed chunks are encoded again with other chunks of
their kind. If several copies of a chunk would move, each a delta with another base, the chunk is
written once, without base, and replaces all of them.

``rewrite_output`` defines when a new pack is durable and when an old pack is removed. A crash
leaves chunks that are in two packs, or packs that the chunk index does not know. That is garbage,
which the next prune removes. A reader that misses a pack finds its chunks with the chunk index.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from ciuic.codec import DIFFERENCES
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.format.frame import CHUNKS_MAX, Frame, encode_frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.mark import Marks
from ciuic.store.gc.rewrite_output import CountedPack, Output
from ciuic.store.gc.usage import (
    PackUsage,
    Usage,
    is_fragmented,
    kept_chunks,
    read_chunks,
    read_frames,
    read_payload,
)
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.packs.pack_writer import PACK_BYTES, TOGETHER_BYTES, PackFile
from ciuic.store.packs.reader import StoreReader
from ciuic.store.place.packs import OpenPack, Packs, footer_of
from ciuic.store.records.kinds import ALONE_BYTES, DATA

__all__ = ["PackTotals", "Rewriter", "Rewritten", "point_at_retained"]

_Pack = TypeVar("_Pack", PackFile, CountedPack)
_GROUP_BYTES: Final = {True: 1024 * 1024, False: 256 * 1024}
"""Plain bytes that are encoded together from fragmented frames: of data, and of nodes."""


class PackTotals(NamedTuple):
    """A number of packs, and their total size."""

    packs: int = 0
    size_bytes: int = 0

    def plus(self, sizes: Iterable[int]) -> "PackTotals":
        """Return the totals with further packs of these sizes."""
        more = list(sizes)
        return PackTotals(self.packs + len(more), self.size_bytes + sum(more))


class Rewritten(NamedTuple):
    """What a rewrite did.

    Attributes:
        written: The new packs.
        removed: The emptied packs.
        damaged: Packs that stay, because a needed chunk in them cannot be read.
    """

    written: PackTotals
    removed: PackTotals
    damaged: tuple[PackId, ...]


def point_at_retained(packs: Packs, index: ChunkIndex, retained: dict[ChunkId, PackId]) -> None:
    """Record the chunks that are in several packs at the pack that keeps them.

    This is durable when it returns. When a pack is removed, its rows are deleted, and nothing
    searches for other copies of its chunks.

    Args:
        packs: The store's packs, which the caller may remove.
        index: The chunk index.
        retained: The pack that keeps each chunk.
    """
    chunks: dict[PackId, set[ChunkId]] = {}
    for chunk_id, pack_id in retained.items():
        chunks.setdefault(pack_id, set()).add(chunk_id)
    for pack_id, chunk_ids in chunks.items():
        index.replace_places(pack_id, read_frames(packs, pack_id), chunk_ids)
    if retained:
        index.commit()


class _Group:
    """Chunks that will share a frame."""

    def __init__(self) -> None:
        self.chunks: list[tuple[ChunkId, bytes]] = []
        self.plain_bytes = 0
        self.sources: set[PackId] = set()


class _Open(Generic[_Pack]):
    """A new pack that is not full, and the packs that its content comes from."""

    def __init__(self, pack: _Pack) -> None:
        self.pack: _Pack = pack
        self.sources: set[PackId] = set()


class Rewriter(Generic[_Pack]):
    """Moves the needed chunks out of packs, one new pack at a time, and removes the emptied packs.

    When a new pack is full, and packs of at least its length are empty, it is published, and they
    are removed.

    Args:
        packs: The store's packs, which the caller may rewrite.
        reader: Finds other copies of damaged chunks.
        marks: The marks of all needed chunks.
        usage: The usage of the packs.
        output: Takes the new packs.
        temporary: The directory of unfinished packs, for messages.
        joins_small: If there is little data and few nodes, they share a pack.
    """

    def __init__(
        self,
        packs: Packs,
        reader: StoreReader,
        marks: Marks,
        usage: Usage,
        output: Output[_Pack],
        *,
        temporary: str,
        joins_small: bool,
    ) -> None:
        self._packs = packs
        self._temporary = temporary
        self._reader = reader
        self._marks = marks
        self._retained = usage.retained
        self._copies = usage.several
        self._output: Output[_Pack] = output
        self._joins_small = joins_small
        self._several: set[ChunkId] = set()
        self._settled: set[ChunkId] = set()
        self._left_bytes = 0
        self._open: dict[bool, _Open[_Pack]] = {}
        self._groups: dict[int, _Group] = {}
        self._emptied: dict[PackId, int] = {}
        self._written = PackTotals()
        self._removed = PackTotals()
        self._damaged: list[PackId] = []

    @property
    def rewritten(self) -> Rewritten:
        """What was done so far, also by a run that failed."""
        return Rewritten(self._written, self._removed, tuple(self._damaged))

    def run(
        self, uses: Sequence[PackUsage], *, check: Callable[[], None], done: Callable[[int], None]
    ) -> Rewritten:
        """Empty packs and remove them.

        Args:
            uses: The usage of the packs: fragmented or small ones.
            check: Called between two packs; raises to end the work.
            done: Receives the number of emptied packs.

        Raises:
            StoreError: The store failed; every needed chunk is still there.
            CancelledError: ``check`` raised it. At least one pack was emptied and removed, so
                repeated calls finish, even if each of them is cancelled.
        """
        self._output.begin()
        self._left_bytes = sum([use.size_bytes - use.dead_bytes for use in uses])
        moving = {use.pack_id for use in uses}
        self._several = {
            chunk_id
            for chunk_id, packs in self._copies.items()
            if sum([pack in moving for pack in packs]) > 1
        }
        try:
            try:
                for number, use in enumerate(uses):
                    if number:
                        check()
                    self._drain(use)
                    done(number + 1)
            except CancelledError:
                self._finish()
                raise
            self._finish()
        finally:
            for unfinished in self._open.values():
                unfinished.pack.discard()
        return self.rewritten

    def _finish(self) -> None:
        """Publish the last new packs, and remove the packs that they emptied."""
        for kind in list(self._groups):
            self._flush_group(kind)
        if self._output.portion_bytes < PACK_BYTES:
            self._discard_useless()
        self._join_small()
        for is_data in list(self._open):
            self._seal(is_data)
        # Packs whose last frame happened to fill a new pack are left.
        self._output.finish(list(self._emptied))
        self._removed = self._removed.plus(self._emptied.values())

    def _discard_useless(self) -> None:
        """Discard the new packs that free nothing: all that they have came from damaged packs."""
        for is_data, opened in list(self._open.items()):
            if self._emptied.keys().isdisjoint(opened.sources):
                opened.pack.discard()
                del self._open[is_data]

    def _drain(self, use: PackUsage) -> None:
        """Move the needed chunks out of one pack."""
        opened = self._packs.open(use.pack_id)
        frames = [
            (packed, kept_chunks(use.pack_id, packed.frame, self._marks, self._retained))
            for packed in footer_of(opened, use.pack_id)
        ]
        self._output.announce(opened, [packed for packed, kept in frames if any(kept)])
        taken = [self._take(use.pack_id, opened, packed, kept) for packed, kept in frames]
        if all(taken):
            self._emptied[use.pack_id] = use.size_bytes
        else:
            self._damaged.append(use.pack_id)

    def _take(
        self, pack_id: PackId, opened: OpenPack, packed: PackedFrame, kept: list[bool]
    ) -> bool:
        """Move the kept chunks of a frame; returns whether all of them could be read."""
        frame = packed.frame
        kept = self._unsettled(pack_id, frame, kept)
        if not any(kept):
            return True
        try:
            if self._needs_full_copy(frame, kept):
                parts = self._read_alone(frame, kept)
            elif frame.is_delta or not is_fragmented(frame, kept):
                payload = self._output.payload(opened, packed)
                parts = None
            else:
                parts = read_chunks(frame, read_payload(opened, packed), kept)
        except (CorruptionError, UnknownFormatError):
            try:
                parts = self._read_alone(frame, kept)
            except (CorruptionError, UnknownFormatError):
                return False
        if parts is None:
            self._add({pack_id}, frame, payload)
            return True
        for chunk_id, plain in parts:
            self._add_chunk(pack_id, frame.kind, chunk_id, plain)
        return True

    def _needs_full_copy(self, frame: Frame, kept: list[bool]) -> bool:
        """Return whether a kept chunk replaces other copies, or is the only user of its delta base.

        In the second case the copy without base takes a little more, and the next prune removes the
        delta base.
        """
        # A delta of a codec that this version cannot decode is copied as it is.
        if frame.codec in DIFFERENCES and any(map(self._marks.has_one_use, frame.delta_bases)):
            return True
        return any(
            is_kept and chunk_id in self._several for (chunk_id, _), is_kept in _paired(frame, kept)
        )

    def _read_alone(self, frame: Frame, kept: list[bool]) -> list[tuple[ChunkId, bytes]]:
        """Read the kept chunks of a frame from any readable copy."""
        return [
            (chunk_id, bytes(self._reader.chunk(chunk_id, kind=frame.kind)))
            for (chunk_id, _), is_kept in _paired(frame, kept)
            if is_kept
        ]

    def _unsettled(self, pack_id: PackId, frame: Frame, kept: list[bool]) -> list[bool]:
        """Return the kept chunks of a frame, except those that a new pack has without base."""
        if not self._settled:
            return kept
        settled = [
            is_kept and chunk_id in self._settled for (chunk_id, _), is_kept in _paired(frame, kept)
        ]
        if not any(settled):
            return kept
        # The pack stays until the new packs are durable.
        for group in self._groups.values():
            group.sources.add(pack_id)
        for opened in self._open.values():
            opened.sources.add(pack_id)
        return [
            is_kept and not is_settled for is_kept, is_settled in zip(kept, settled, strict=True)
        ]

    def _add_chunk(self, pack_id: PackId, kind: int, chunk_id: ChunkId, plain: bytes) -> None:
        """Add a chunk to a group that will share a frame; a long chunk gets a frame of its own."""
        if chunk_id in self._several:
            self._settled.add(chunk_id)
        if kind == DATA and len(plain) >= ALONE_BYTES:
            self._add({pack_id}, *encode_frame(kind, [(chunk_id, plain)]))
            return
        group = self._groups.setdefault(kind, _Group())
        group.chunks.append((chunk_id, plain))
        group.plain_bytes += len(plain)
        group.sources.add(pack_id)
        if group.plain_bytes >= _GROUP_BYTES[kind == DATA] or len(group.chunks) == CHUNKS_MAX:
            self._flush_group(kind)

    def _flush_group(self, kind: int) -> None:
        group = self._groups.pop(kind)
        self._add(group.sources, *encode_frame(kind, group.chunks))

    def _add(self, sources: set[PackId], frame: Frame, payload: bytes | memoryview) -> None:
        """Append a frame to the new pack of its kind; publish the pack when it is full."""
        is_data = frame.kind == DATA
        with store_faults("write to", self._temporary):
            if is_data not in self._open:
                self._open[is_data] = _Open(self._output.new_pack(self._left_bytes))
            opened = self._open[is_data]
            opened.pack.add(frame, payload)
        self._left_bytes -= frame.total_bytes
        opened.sources.update(sources)
        size_bytes = opened.pack.size_bytes
        if size_bytes < self._output.portion_bytes:
            return
        # A published pack that frees less than it takes would fill a disk, and also the space of
        # the reserve. An unfinished one gives it back.
        if size_bytes >= PACK_BYTES or sum(self._ready(is_data).values()) >= size_bytes:
            self._seal(is_data)
            return
        # Old packs with data and nodes are empty when both new packs are published.
        open_bytes = sum([one.pack.size_bytes for one in self._open.values()])
        if sum(self._ready().values()) >= open_bytes:
            for kind in sorted(self._open, key=lambda kind: kind == is_data):
                self._seal(kind)

    def _join_small(self) -> None:
        """Make one pack of little data and few nodes, as for a small snapshot."""
        data, nodes = self._open.get(True), self._open.get(False)
        if not self._joins_small or data is None or nodes is None:
            return
        if data.pack.size_bytes + nodes.pack.size_bytes > TOGETHER_BYTES:
            return
        with store_faults("write to", self._temporary):
            data.pack.absorb(nodes.pack)
        del self._open[False]
        data.sources |= nodes.sources

    def _ready(self, *published: bool) -> dict[PackId, int]:
        """Return the packs that are empty once the new packs of these kinds are published.

        Args:
            published: See ``_open``; none: of all kinds.
        """
        kinds = published or tuple(self._open)
        others = [opened.sources for kind, opened in self._open.items() if kind not in kinds]
        needed = set[PackId]().union(*others, *[group.sources for group in self._groups.values()])
        return {pack: size for pack, size in self._emptied.items() if pack not in needed}

    def _seal(self, is_data: bool) -> None:
        """Complete and publish a new pack, and remove the packs that are empty now."""
        sealed = self._open[is_data].pack
        with store_faults("write to", self._temporary):
            pack_id = sealed.complete()
        ready = self._ready(is_data)
        self._output.publish(sealed, pack_id, list(ready))
        del self._open[is_data]
        for pack in ready:
            del self._emptied[pack]
        self._written = self._written.plus([sealed.size_bytes])
        self._removed = self._removed.plus(ready.values())


def _paired(frame: Frame, kept: list[bool]) -> Iterable[tuple[tuple[ChunkId, int], bool]]:
    """Pair the chunks of a frame, with their lengths, with whether each is kept."""
    return zip(frame.chunks, kept, strict=True)

"""Sends the chunks that another store lacks, frame by frame, without decoding them.

Frames are read in the order of the packs, and compared with their checksums. A chunk is decoded,
and encoded again on the other side, in these cases only:

    its frame, or the list of the pack, is damaged: the reader looks for parity and other copies
    a fifth of the frame is not wanted, or some of it is there already
    it is a delta, and its delta base is not there
    it replaces what the other store has lost: then it is compared with its ID

A delta whose base may still come waits until the end of the snapshot.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.codec import BASE_COUNTS
from ciuic.errors import ChunkMissingError, CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.store.format.frame import Frame
from ciuic.store.format.pack import PackedFrame
from ciuic.store.gc.usage import is_fragmented, read_payload
from ciuic.store.index.places import ChunkPlace
from ciuic.store.packs.listed_frames import ListedFrames
from ciuic.store.place.packs import OpenPack
from ciuic.store.records.kinds import KINDS
from ciuic.store.store import Store
from ciuic.store.transfer.receiver import CHAIN_HALF, Receiver

__all__ = ["Sender", "Sent"]

_WAITING_MAX: Final = 100_000
"""Deltas that wait for their bases; more would only take memory."""

_Found = tuple[ChunkId, ChunkPlace]


class Sent(NamedTuple):
    """What was sent: chunks, and stored bytes; of chunks that are encoded again, their length."""

    chunks: int = 0
    size_bytes: int = 0

    def plus(self, chunks: int, size_bytes: int) -> "Sent":
        """Return the sum."""
        return Sent(self.chunks + chunks, self.size_bytes + size_bytes)


class Sender:
    """Sends chunks of a store to a receiver.

    Args:
        store: The store that has them.
        receiver: Receives them.
        spend: Receives a number of bytes before they are sent; waits for the bandwidth limit, and
            raises to end the work.
        is_checked: Every chunk is decoded, and compared with its ID, before it is sent.

    Attributes:
        sent: What was sent.
    """

    def __init__(
        self,
        store: Store,
        receiver: Receiver,
        spend: Callable[[int], None],
        *,
        is_checked: bool = False,
    ) -> None:
        self.sent = Sent()
        self._store = store
        self._receiver = receiver
        self._spend = spend
        self._is_checked = is_checked
        self._listed = ListedFrames(store.index_keeper.list_pack)
        self._waiting: dict[ChunkId, None] = {}

    def send(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Send those of some chunks that the receiver lacks; some deltas may wait for ``finish``.

        Raises:
            CorruptionError: A chunk is missing or damaged.
            UnknownFormatError: A later version wrote a chunk.
            StoreError: One of the stores failed.
        """
        self._send(list(chunk_ids), is_last=False)
        if len(self._waiting) > _WAITING_MAX:
            self.finish()

    def finish(self) -> None:
        """Send the deltas that wait for their bases: as they are if the bases have come by now.

        Raises:
            StoreError: See ``send``.
        """
        waiting, self._waiting = list(self._waiting), {}
        depths = {chunk_id: self._deltas_below(chunk_id) for chunk_id in waiting}
        # The shortest delta chains first: then the delta base of each chunk has come before it.
        for depth in sorted(set(depths.values())):
            self._send([one for one in waiting if depths[one] == depth], is_last=True)

    def drop_waiting(self) -> None:
        """Drop the deltas that wait for their bases: their snapshot cannot be sent."""
        self._waiting = {}

    def _send(self, chunk_ids: list[ChunkId], *, is_last: bool) -> None:
        lacking = self._receiver.lacking(chunk_ids)
        wanted = [chunk_id for chunk_id in chunk_ids if chunk_id in lacking]
        places = self._store.reader.places(wanted)
        for chunk_id in wanted:
            if chunk_id not in places:
                raise ChunkMissingError(f"chunk {chunk_id.hex()[:12]} is in no pack")
        found = sorted(places.items(), key=_pack_and_offset)
        for pack_id, group in itertools.groupby(found, key=lambda one: one[1].pack_id):
            self._send_from(pack_id, list(group), is_last=is_last)

    def _send_from(self, pack_id: PackId, found: Sequence[_Found], *, is_last: bool) -> None:
        """Send chunks of one pack, in the order of their frames."""
        pack = self._opened(pack_id)
        try:
            if pack is not None and self._receiver.reads:
                _announce(pack, [place for _, place in found])
            for _, group in itertools.groupby(found, key=lambda one: one[1].offset_bytes):
                same_frame = list(group)
                packed = self._listed.frame(same_frame[0][1])
                if pack is None or packed is None or not _lists(packed.frame, same_frame):
                    self._send_decoded(same_frame)
                else:
                    self._send_frame(pack, packed, same_frame, is_last=is_last)
        finally:
            if pack is not None:
                # What is read once must not push the training's own data out of the page cache.
                pack.pass_by(0, pack.size_bytes)

    def _opened(self, pack_id: PackId) -> OpenPack | None:
        """Open a pack; returns None if it is gone or damaged: a prune may have moved its chunks."""
        try:
            return self._store.packs.open(pack_id)
        except CorruptionError:
            return None

    def _send_frame(
        self, pack: OpenPack, packed: PackedFrame, found: Sequence[_Found], *, is_last: bool
    ) -> None:
        frame = packed.frame
        _refuse_unknown_codec(frame)
        listed = [chunk_id for chunk_id, _ in frame.chunks]
        lacking = self._receiver.lacking(listed)
        wanted = [one for one in found if one[0] in lacking]  # another frame may have brought some
        if not wanted:
            return
        names = {chunk_id for chunk_id, _ in wanted}
        is_whole = len(lacking) == len(listed)
        wants = [chunk_id in names for chunk_id in listed]
        if self._is_checked or not is_whole or is_fragmented(frame, wants):
            self._send_decoded(wanted)
        elif frame.is_delta and not self._can_send_delta(frame):
            if is_last:
                self._send_decoded(wanted)
            else:
                self._waiting.update(dict.fromkeys(names))
        else:
            self._send_as_it_is(pack, packed, wanted)

    def _can_send_delta(self, frame: Frame) -> bool:
        ((chunk_id, _),) = frame.chunks
        is_short = self._deltas_below(chunk_id) <= CHAIN_HALF
        return is_short and self._receiver.takes_delta(frame)

    def _deltas_below(self, chunk_id: ChunkId) -> int:
        """Return the length of a chunk's delta chain, itself included."""
        chain = self._store.reader.chain(chunk_id)
        return CHAIN_HALF + 1 if chain is None else len(chain)

    def _send_as_it_is(self, pack: OpenPack, packed: PackedFrame, found: Sequence[_Found]) -> None:
        payload = b""
        if self._receiver.reads:
            self._spend(packed.frame.total_bytes)
            try:
                payload = read_payload(pack, packed)
                pack.done(packed.offset_bytes, packed.frame.total_bytes)
            except CorruptionError:
                self._send_decoded(found)
                return
        self._receiver.add_frame(packed.frame, payload)
        self.sent = self.sent.plus(len(packed.frame.chunks), packed.frame.total_bytes)

    def _send_decoded(self, found: Sequence[_Found]) -> None:
        """Send chunks of one frame decoded: from wherever the reader finds them."""
        kind = found[0][1].kind
        if kind not in KINDS:
            raise CorruptionError("the chunk index has an impossible kind of a chunk")
        chunks = []
        for chunk_id, place in found:
            self._spend(place.length_bytes)
            plain = b""
            if self._receiver.reads:
                plain = bytes(self._store.reader.chunk(chunk_id, kind=kind))
            chunks.append((chunk_id, plain))
        self._receiver.add_chunks(kind, chunks)
        length = sum([place.length_bytes for _, place in found])
        self.sent = self.sent.plus(len(found), length)


def _refuse_unknown_codec(frame: Frame) -> None:
    """Refuse a codec of a later version: the header of the other store may have to name it."""
    if frame.codec not in BASE_COUNTS:
        raise UnknownFormatError(f"a frame of codec {frame.codec} is not known")


def _pack_and_offset(found: _Found) -> tuple[PackId, int, int]:
    place = found[1]
    return place.pack_id, place.offset_bytes, place.start_bytes


def _lists(frame: Frame, found: Sequence[_Found]) -> bool:
    """Return whether a frame holds these chunks, and is of their kind."""
    listed = {chunk_id for chunk_id, _ in frame.chunks}
    return all(chunk_id in listed and place.kind == frame.kind for chunk_id, place in found)


def _announce(pack: OpenPack, places: Sequence[ChunkPlace]) -> None:
    """Have these frames read ahead, and nothing between them."""
    begin = end = 0
    spans: Mapping[int, int] = {place.offset_bytes: place.frame_bytes for place in places}
    for offset, length in sorted(spans.items(), key=operator.itemgetter(0)):
        if offset != end:
            if end > begin:
                pack.read_ahead(begin, end - begin)
            begin = offset
        end = offset + length
    if end > begin:
        pack.read_ahead(begin, end - begin)

"""Taking packs away, and moving what is needed out of those that are mostly garbage.

A pack is never changed. Of a worn one the needed frames are copied into a new pack as they are,
without decoding; of a frame that is itself mostly garbage, the needed chunks are encoded again
with others of the kind. A chunk of which several copies would move, each a difference from
something else, is written once, standing alone, and makes up for all of them. Order of durable
writes, portion by portion (docs/format.md, "Order of removal"):

    1. a new pack is synced and gets its name, and the directory of packs is synced;
    2. one transaction of the catalog: the chunks lie in the new pack, the emptied packs are gone;
    3. the emptied packs are unlinked.

Packs that nobody needs go with the first portion: a disk that is giving back blocks may keep each
sync waiting until that is done, and has nothing else to do at the end. With little room they go
first, so that there is more.

A crash leaves chunks that lie in two packs, or packs that the catalog does not know: garbage,
which the next prune takes away. A reader that misses a pack finds its chunks by the catalog.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular
from ciuic.store.frame import CHUNKS_MAX, DATA, Frame, encode_frame
from ciuic.store.index import Emptied, Index
from ciuic.store.mark import Marks
from ciuic.store.pack import MAGIC, PackedFrame, encode_footer, read_footer
from ciuic.store.packfile import PACK_BYTES, PackFile
from ciuic.store.reader import StoreReader
from ciuic.store.removal import Removals, unlink_pack
from ciuic.store.sweep import (
    Census,
    PackUse,
    is_worn,
    kept_chunks,
    pack_path,
    read_chunks,
    read_frames,
    read_payload,
)
from ciuic.store.writer import ALONE_BYTES, publish_pack, sync_packs

__all__ = ["Rewriter", "forget_packs", "point_at_keepers"]

_GROUP_BYTES: Final = {True: 1024 * 1024, False: 256 * 1024}
"""Plain bytes that are encoded together of what is left of frames: of data, and of nodes."""
_PORTION_BYTES_MIN: Final = 1024 * 1024
_PORTION_SHARE: Final = 8
"""A new pack takes at most this part of the room that there is; two may be open at once."""


def forget_packs(index: Index, names: Sequence[bytes]) -> None:
    """The catalog knows nothing more of packs that nobody needs, durably; then they may go.

    Whoever looks for a chunk must not be sent to a pack that is gone.

    Raises:
        StoreFullError: It has no room to forget them.
        StoreError: It can't be written.
    """
    if names:
        index.remove_packs(names)
        index.commit()


def point_at_keepers(store_path: str, index: Index, keepers: dict[bytes, bytes]) -> None:
    """The catalog says of chunks that lie in several packs that they lie where they stay.

    Durable when this returns: rows of a pack that is removed go, and nobody looks for others.

    Args:
        store_path: The store's directory, whose write lock is held.
        index: The catalog.
        keepers: For each chunk the pack that keeps it.
    """
    chunks: dict[bytes, set[bytes]] = {}
    for name, pack in keepers.items():
        chunks.setdefault(pack, set()).add(name)
    for pack, names in chunks.items():
        index.point(pack, read_frames(store_path, pack), names)
    if keepers:
        index.commit()


class _Counted:
    """As ``PackFile``, and writes nothing: what the pack would be, to the byte."""

    def __init__(self) -> None:
        self.frames: list[PackedFrame] = []
        self.size_bytes = len(MAGIC)

    def add(self, frame: Frame, _payload: bytes | memoryview) -> None:
        """Count one frame."""
        self.frames.append(PackedFrame(self.size_bytes, frame, frame.encode_header()))
        self.size_bytes += frame.total_bytes

    def complete(self) -> bytes:
        """Count the footer; returns the pack's ID."""
        name, end = encode_footer(self.frames, self.size_bytes)
        self.size_bytes += len(end)
        return name


class Rewriter:
    """Moves what is needed out of worn packs, and removes them.

    In portions: when a new pack is full it is made durable, and the old packs that are empty by
    then go. So there is never need for more room than two new packs take, one of data and one of
    nodes, and less where there is not so much.

    Args:
        store_path: The store's directory, whose write lock is held.
        index: The catalog.
        reader: Finds what is damaged in a pack in another way, if there is one.
        marks: Of all that is needed.
        census: Of the packs.
        parity: The share of each new pack that its parity takes.
        room_bytes: Says how much room there is.
        removals: Takes the packs that go; None: only count what would be written.
        dead: Packs that nobody needs. They go with the first that are emptied, or before if there
            is little room.

    Attributes:
        dead: Those of them that have not gone.
        written: Packs and bytes that were written.
        removed: Packs and bytes that were removed.
        damaged: Packs that stay, because something needed in them can't be read.
    """

    def __init__(
        self,
        store_path: str,
        index: Index,
        reader: StoreReader,
        marks: Marks,
        census: Census,
        *,
        parity: float,
        room_bytes: Callable[[], int],
        removals: Removals | None,
        dead: Sequence[bytes] = (),
    ) -> None:
        self.dead = list(dead)
        self._store_path = store_path
        self._temporary = os.path.join(store_path, layout.TEMPORARY)
        self._index = index
        self._reader = reader
        self._marks = marks
        self._keepers = census.keepers
        self._copies = census.several
        self._several: set[bytes] = set()
        self._settled: set[bytes] = set()
        self._room_bytes = room_bytes
        self._parity = parity
        self._removals = removals
        self._left_bytes = 0
        self._helper = ThreadPoolExecutor(1, "write")
        self._sinks: dict[bool, PackFile | _Counted] = {}
        self._groups: dict[int, list[tuple[bytes, bytes]]] = {}
        self._waiting: dict[tuple[str, int], set[bytes]] = {}
        self._group_bytes: dict[int, int] = {}
        self._emptied: dict[bytes, int] = {}
        self._made: set[bytes] = set()
        self._portion_bytes = 0
        self.written = (0, 0)
        self.removed = (0, 0)
        self.damaged: list[bytes] = []

    def run(
        self, uses: Sequence[PackUse], *, check: Callable[[], None], done: Callable[[int], None]
    ) -> None:
        """Empty these packs and remove them, and those that nobody needs.

        Args:
            uses: Of packs that are worn.
            check: Called between two of them; raises to end the work.
            done: Told how many have been emptied.

        Raises:
            StoreError: The store failed; everything that is needed is still there.
            CancelledError: ``check`` raised it. What was emptied by then is gone, one pack at
                least: who is stopped again and again comes to an end all the same.
        """
        self._measure_room()
        self._left_bytes = sum([use.size_bytes - use.dead_bytes for use in uses])
        worn = {use.pack for use in uses}
        self._several = {
            name for name, packs in self._copies.items() if sum([one in worn for one in packs]) > 1
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
            for sink in self._sinks.values():
                if isinstance(sink, PackFile):
                    sink.discard()
            self._helper.shutdown()

    def _finish(self) -> None:
        """What has been moved is durable, and what that emptied is gone."""
        for kind in list(self._groups):
            self._flush_group(kind)
        for is_data in list(self._sinks):
            self._seal(is_data)
        # Those whose last frame happened to fill a new pack; and what was unlinked is made durable.
        left = {pack: size for pack, size in self._emptied.items() if pack not in self._made}
        if self._removals is not None:
            self._remove(self._removals, list(left))
            self._removals.finish()
        self._count_removed(left)

    def _remove(self, removals: Removals, packs: list[bytes]) -> None:
        """Remove packs, and those that nobody needs."""
        gone = [*packs, *self._dead_left()]
        forget_packs(self._index, gone)
        removals.add(gone)
        self.dead = []

    def _dead_left(self) -> list[bytes]:
        """Without those in whose place a new pack of the same name is by now."""
        return [pack for pack in self.dead if pack not in self._made]

    @property
    def has_room(self) -> bool:
        """A new pack may be as long as any."""
        return self._room_bytes() // _PORTION_SHARE >= PACK_BYTES

    def _measure_room(self) -> None:
        if self._removals is not None and not self.has_room:
            self._remove(self._removals, [])
            self._removals.wait()  # there is no more room than what they leave
        room = self._room_bytes() // _PORTION_SHARE
        self._portion_bytes = max(_PORTION_BYTES_MIN, min(PACK_BYTES, room))

    def _drain(self, use: PackUse) -> None:
        path = pack_path(self._store_path, use.pack)
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                frames = [
                    (one, kept_chunks(use.pack, one.frame, self._marks, self._keepers))
                    for one in read_footer(fd, use.pack)
                ]
                if self._removals is not None:
                    _announce(fd, [one for one, kept in frames if any(kept)])
                taken = [self._take(use.pack, fd, one, kept) for one, kept in frames]
            finally:
                os.close(fd)
        if all(taken):
            self._emptied[use.pack] = use.size_bytes
        else:
            self.damaged.append(use.pack)

    def _take(self, pack: bytes, fd: int, one: PackedFrame, kept: list[bool]) -> bool:
        """Copy what is kept of a frame; returns whether all of it could be had."""
        frame = one.frame
        kept = self._unsettled(pack, frame, kept)
        if not any(kept):
            return True
        # Whose reference serves nothing else stands alone from now on: that takes a little more,
        # and the next prune gives back the reference.
        is_freed = frame.is_delta and self._marks.has_one_use(frame.reference)
        is_freed |= any(one and name in self._several for (name, _), one in _paired(frame, kept))
        as_it_is = not is_freed and (frame.is_delta or not is_worn(frame, kept))
        try:
            if is_freed:
                parts = self._read_alone(frame, kept)
            elif as_it_is:
                payload = b"" if self._removals is None else read_payload(fd, one)
            else:
                parts = read_chunks(frame, read_payload(fd, one), kept)
        except (CorruptionError, UnknownFormatError):
            as_it_is = False
            try:
                parts = self._read_alone(frame, kept)
            except (CorruptionError, UnknownFormatError):
                return False
        if as_it_is:
            self._add({pack}, frame, payload)
        else:
            for name, plain in parts:
                self._group(pack, frame.kind, name, plain)
        return True

    def _read_alone(self, frame: Frame, kept: list[bool]) -> list[tuple[bytes, bytes]]:
        """The kept chunks of a frame, from wherever they can be had."""
        return [
            (name, bytes(self._reader.chunk(name, kind=frame.kind)))
            for (name, _), is_kept in _paired(frame, kept)
            if is_kept
        ]

    def _unsettled(self, pack: bytes, frame: Frame, kept: list[bool]) -> list[bool]:
        """What is kept of a frame, without what stands alone in a new pack by now."""
        if not self._settled:
            return kept
        settled = [one and name in self._settled for (name, _), one in _paired(frame, kept)]
        if not any(settled):
            return kept
        for sources in self._waiting.values():
            sources.add(pack)  # which stays until that new pack is durable
        return [one and not other for one, other in zip(kept, settled, strict=True)]

    def _group(self, pack: bytes, kind: int, name: bytes, plain: bytes) -> None:
        """Add a chunk to those that will share a frame, unless it is to have its own."""
        if name in self._several:
            self._settled.add(name)
        if kind == DATA and len(plain) >= ALONE_BYTES:
            self._add({pack}, *encode_frame(kind, [(name, plain)]))
            return
        group = self._groups.setdefault(kind, [])
        group.append((name, plain))
        self._waiting.setdefault(("group", kind), set()).add(pack)
        self._group_bytes[kind] = self._group_bytes.get(kind, 0) + len(plain)
        if self._group_bytes[kind] >= _GROUP_BYTES[kind == DATA] or len(group) == CHUNKS_MAX:
            self._flush_group(kind)

    def _flush_group(self, kind: int) -> None:
        frame, payload = encode_frame(kind, self._groups.pop(kind))
        del self._group_bytes[kind]
        self._add(self._waiting.pop(("group", kind)), frame, payload)

    def _add(self, sources: set[bytes], frame: Frame, payload: bytes | memoryview) -> None:
        is_data = frame.kind == DATA
        with store_faults("write to", self._temporary):
            sink = self._sinks.get(is_data)
            if sink is None:
                sink = self._new_sink()
                self._sinks[is_data] = sink
            sink.add(frame, payload)
        self._left_bytes -= frame.total_bytes
        self._waiting.setdefault(("pack", is_data), set()).update(sources)
        if sink.size_bytes >= self._portion_bytes:
            self._seal(is_data)

    def _new_sink(self) -> PackFile | _Counted:
        if self._removals is None:
            return _Counted()
        expected_bytes = min(self._portion_bytes, self._left_bytes)
        return PackFile(
            self._temporary,
            parity=self._parity,
            expected_bytes=expected_bytes,
            helper=self._helper,
        )

    def _seal(self, is_data: bool) -> None:
        """The new pack is durable, and the old ones that it emptied are gone."""
        sink = self._sinks[is_data]
        with store_faults("write to", self._temporary):
            name = sink.complete()
        self._made.add(name)
        del self._waiting["pack", is_data]
        kept = self._made.union(*self._waiting.values())
        ready = {pack: size for pack, size in self._emptied.items() if pack not in kept}
        if isinstance(sink, PackFile):
            self._publish(sink, name, list(ready))
            sink.close()
        del self._sinks[is_data]
        for pack in ready:
            del self._emptied[pack]
        self.written = (self.written[0] + 1, self.written[1] + sink.size_bytes)
        self._count_removed(ready)

    def _count_removed(self, packs: dict[bytes, int]) -> None:
        self.removed = (self.removed[0] + len(packs), self.removed[1] + sum(packs.values()))

    def _publish(self, sink: PackFile, name: bytes, emptied: list[bytes]) -> None:
        if self._removals is not None:
            self._removals.make_way(name)
        path = pack_path(self._store_path, name)
        is_new = not os.path.lexists(path)
        try:
            # The disk works on the one while the processor works on the other.
            publishing = self._helper.submit(self._make_durable, sink, name)
            try:
                if self.dead:
                    self._index.remove_packs(self._dead_left())
                held = (Emptied(one, self._chunks_of(one)) for one in emptied)
                self._index.move(name, sink.size_bytes, sink.frames, held)
            finally:
                publishing.exception()  # it must have ended, however it did
            publishing.result()
            self._index.commit()
        except BaseException:
            self._index.rollback()
            if is_new:
                # Nobody was told of it, and it takes room that may be what was missing.
                unlink_pack(self._store_path, name)
            raise
        if self._removals is not None:
            self._removals.add([*emptied, *self._dead_left()])
            self.dead = []
        self._measure_room()

    def _make_durable(self, sink: PackFile, name: bytes) -> None:
        publish_pack(self._store_path, sink, name)
        sync_packs(self._store_path)

    def _chunks_of(self, pack: bytes) -> list[bytes]:
        frames = read_frames(self._store_path, pack)
        return [name for one in frames for name, _ in one.frame.chunks]


def _announce(fd: int, frames: Iterable[PackedFrame]) -> None:
    """Have these frames of a pack read ahead, and nothing of what goes with it."""
    begin = end = 0
    for one in frames:
        if one.offset_bytes != end:
            if end > begin:
                os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
            begin = one.offset_bytes
        end = one.offset_bytes + one.frame.total_bytes
    if end > begin:
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)


def _paired(frame: Frame, kept: list[bool]) -> Iterable[tuple[tuple[bytes, int], bool]]:
    """The chunks of a frame, and which of them are kept."""
    return zip(frame.chunks, kept, strict=True)

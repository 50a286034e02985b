"""Adds up a store's bytes by codec, and the newest snapshot's by file format and element type.

Reads the footers of packs, the first bytes of files, the headers of files of tensors, and the
headers of frames. It reads no tensor.

Each chunk of the snapshot, and each delta base that it needs, counts once in the stored bytes: for
one of the files that have it, and for the element type that fills most of it.

Memory: that of ``chunk_owners``, the offset of each frame of the snapshot, so that none counts
twice, and the tensors of one file.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.formats.names import Tensor, described
from ciuic.formats.spans import KIND_BYTES, kind_of
from ciuic.ids import ChunkId, PackId, SnapshotId
from ciuic.model import Entry
from ciuic.report.amounts import Amount, Breakdown
from ciuic.report.chunk_owners import ChunkOwners, Share
from ciuic.report.chunks import Frames, StoredChunk, StoredFrame, codec_name, file_chunks
from ciuic.store.health.inspect import pack_frames
from ciuic.store.place.packs import listed_frames
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store
from ciuic.view.file import StoredFile
from ciuic.view.listing import walk
from ciuic.view.located import Located, root_entry

__all__ = ["break_down"]

_SMALL_BYTES: Final = 64 * 1024
"""Shorter files are not opened: a million of them would take longer than everything else."""
_BATCH: Final = 4096
_DISTCP: Final = b".distcp"
_SMALL: Final = "small"
_OTHER: Final = "other"
_HEADERS: Final = "headers"
_UNKNOWN: Final = "unknown"


def break_down(
    store: Store,
    snapshot_id: SnapshotId | None,
    *,
    progress: Callable[[int, int, bytes], None] = lambda *_: None,
) -> Breakdown:
    """Read every pack's footer and examine every file of a snapshot.

    Args:
        store: An open store.
        snapshot_id: The snapshot; None if there is none.
        progress: Receives the files and bytes that are done, and the next path.

    Raises:
        CorruptionError: A tree is damaged.
        StoreError: A pack or the chunk index cannot be read.
    """
    found = Breakdown(snapshot_id)
    _add_packs(store, found)
    if snapshot_id is not None:
        _add_snapshot(store, found, snapshot_id, progress)
    return found


def _add_packs(store: Store, found: Breakdown) -> None:
    for pack_file in store.pack_files():
        frames = (
            pack_frames(store.path, pack_file)
            if store.bucket is None
            else listed_frames(store.packs, pack_file)
        )
        for packed in frames:
            frame = packed.frame
            name = codec_name(frame.codec) if frame.kind == DATA else "metadata"
            _add(found.codecs[name], frame.plain_bytes, frame.total_bytes)


def _add_snapshot(
    store: Store,
    found: Breakdown,
    snapshot_id: SnapshotId,
    progress: Callable[[int, int, bytes], None],
) -> None:
    snapshot = _Snapshot(store, found)
    files = size_bytes = 0
    for root in store.manifest(snapshot_id).roots:
        if not root.tree:
            continue
        for located in walk(store, Located(root.path, root_entry(store, root))):
            if not located.entry.is_file:
                continue
            progress(files, size_bytes, located.path)
            snapshot.add(located)
            files += 1
            size_bytes += located.entry.size_bytes
    snapshot.finish()


def _add(amount: Amount, plain_bytes: int, stored_bytes: int = 0, count: int = 1) -> None:
    amount.count += count
    amount.plain_bytes += plain_bytes
    amount.stored_bytes += stored_bytes


class _Group(NamedTuple):
    """What the stored bytes of a chunk count for; ``element`` is empty outside files of tensors."""

    kind: str
    element: str


class _Snapshot:
    """Adds up a snapshot's files; small ones in batches."""

    def __init__(self, store: Store, found: Breakdown) -> None:
        self._store = store
        self._owners = ChunkOwners(store)
        self._groups: dict[_Group, int] = {}
        self._frames = Frames(store)
        self._found = found
        self._waiting: list[tuple[str, Entry]] = []
        self._seen: dict[PackId, set[int]] = defaultdict(set)
        self._own: dict[PackId, set[int]] = defaultdict(set)

    def add(self, file: Located) -> None:
        """Add a file."""
        entry = file.entry
        try:
            kind = self._kind(file)
            if entry.level == 0 and kind in {_SMALL, _OTHER}:
                self._waiting.append((kind, entry))
                if len(self._waiting) >= _BATCH:
                    self.flush()
                return
            chunks = file_chunks(self._store, self._frames, entry)
            if kind in {_SMALL, _OTHER}:
                pairs: Iterator[tuple[StoredChunk, str]] = ((chunk, "") for chunk in chunks)
            else:
                pairs = self._with_elements(entry, chunks)
            for chunk, element in pairs:
                self._add_stored(chunk, _Group(kind, element))
                self._add_chain(chunk)
            _add(self._found.kinds[kind], entry.size_bytes)
        except (CorruptionError, UnknownFormatError):
            self._found.unknown_count += 1

    def flush(self) -> None:
        """Look up the files that wait for a batch."""
        waiting, self._waiting = self._waiting, []
        places = self._store.reader.places(
            list({ChunkId(entry.content) for _, entry in waiting if entry.content})
        )
        for kind, entry in waiting:
            chunk = StoredChunk(0, entry.size_bytes, ChunkId(entry.content))
            if entry.content:
                frames, delta_bases, what = self._frames.cached(chunk.id, places.get(chunk.id))
                chunk = chunk._replace(chain=frames, delta_bases=delta_bases, what=what)
            self._add_stored(chunk, _Group(kind, ""))
            self._add_chain(chunk)
            _add(self._found.kinds[kind], entry.size_bytes)

    def finish(self) -> None:
        """Add the stored bytes of all chunks to the kinds and element types."""
        self.flush()
        self._owners.flush()
        self._owners.follow_delta_bases(self._store)
        shares = [Share() for _ in self._groups]
        self._owners.add_to(shares)
        for group, share in zip(self._groups, shares, strict=True):
            self._found.kinds[group.kind].stored_bytes += share.stored_bytes
            if group.element:
                self._found.elements[group.element].stored_bytes += share.stored_bytes

    def _add_stored(self, chunk: StoredChunk, group: _Group) -> None:
        if chunk.id:
            number = self._groups.setdefault(group, len(self._groups))
            self._owners.add(chunk.id, chunk.start_bytes + chunk.length_bytes, number)

    def _kind(self, file: Located) -> str:
        """Return the format of a file, from its first bytes.

        Files of a distributed checkpoint begin like any archive of torch, so their name decides.
        """
        if file.entry.size_bytes < _SMALL_BYTES or not file.entry.content:
            return _SMALL
        kind = kind_of(StoredFile(self._store, file.entry).read(0, KIND_BYTES))
        if kind == "torch.save" and file.path.endswith(_DISTCP):
            return "distcp"
        return kind or _OTHER

    def _with_elements(
        self, entry: Entry, chunks: Iterator[StoredChunk]
    ) -> Iterator[tuple[StoredChunk, str]]:
        """Count the bytes of chunks by element type; yield each with the type of most bytes."""
        file = StoredFile(self._store, entry)
        tensors = described(file.read, entry.size_bytes)
        rest = _HEADERS
        if tensors is None:
            tensors, rest = (), _UNKNOWN
        for tensor in tensors:
            self._found.elements[tensor.element or _UNKNOWN].count += 1
        at = 0
        for chunk in chunks:
            end = chunk.offset_bytes + chunk.length_bytes
            while at < len(tensors) and _end(tensors[at]) <= chunk.offset_bytes:
                at += 1
            lengths: dict[str, int] = defaultdict(int)
            for element, length in _overlaps(tensors, at, chunk.offset_bytes, end):
                lengths[element] += length
            if left_bytes := chunk.length_bytes - sum(lengths.values()):
                lengths[rest] += left_bytes
            for element, length in lengths.items():
                _add(self._found.elements[element], length, count=0)
            yield chunk, max(lengths, key=lambda element: lengths[element], default=rest)

    def _add_chain(self, chunk: StoredChunk) -> None:
        chains = self._found.chains
        if chunk.what:
            self._found.unknown_count += 1
        if not chunk.chain:
            return
        depth = len(chunk.delta_bases)
        chains.chunks += 1
        chains.deltas += bool(depth)
        chains.depth_sum += depth
        chains.depth_max = max(chains.depth_max, depth)
        first, last = chunk.chain[0], chunk.chain[-1]
        if _is_new(self._own, first):
            chains.own_bytes += first.frame_bytes
            chains.alone_bytes += (
                last.share_bytes(first.plain_bytes) if depth else first.frame_bytes
            )
        for frame in chunk.chain:
            if _is_new(self._seen, frame):
                chains.read_bytes += frame.frame_bytes


def _is_new(seen: dict[PackId, set[int]], frame: StoredFrame) -> bool:
    offsets = seen[frame.pack_id]
    if frame.offset_bytes in offsets:
        return False
    offsets.add(frame.offset_bytes)
    return True


def _end(tensor: Tensor) -> int:
    return tensor.offset_bytes + tensor.length_bytes


def _overlaps(
    tensors: tuple[Tensor, ...], at: int, begin: int, end: int
) -> Iterator[tuple[str, int]]:
    """Yield the element types in a stretch of a file, and the bytes of each."""
    while at < len(tensors) and tensors[at].offset_bytes < end:
        length = min(_end(tensors[at]), end) - max(tensors[at].offset_bytes, begin)
        if length > 0:
            yield tensors[at].element or _UNKNOWN, length
        at += 1

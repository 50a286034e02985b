"""What a store's bytes are: by codec, and of the newest snapshot by kind of file and of element.

Packs are asked for their footers, files for their first bytes and, if they are of tensors, for
their headers; the headers of frames say what a stretch takes. No tensor is read.

Memory: what is remembered of each frame of the newest snapshot, so that none counts twice, and the
tensors of one file.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ciuic.chunking.tensors import KIND_BYTES, kind_of
from ciuic.chunking.tensors.described import Tensor, described
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store import Store
from ciuic.store.frame import DATA
from ciuic.store.inspect import pack_frames
from ciuic.verbs.browse import Located, root_entry, walk
from ciuic.verbs.chunks import Frames, StoredChunk, StoredFrame, codec_name, file_chunks
from ciuic.verbs.seeking import StoredFile

__all__ = ["Chains", "Weight", "Weights", "weigh"]

_SMALL_BYTES: Final = 64 * 1024
"""Shorter files are not opened: a million of them would take longer than all the rest."""
_BATCH: Final = 4096
_DISTCP: Final = b".distcp"
_SMALL: Final = "small"
_OTHER: Final = "other"
_HEADERS: Final = "headers"
_UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class Weight:
    """So many files or frames, their bytes, and what these take in the store."""

    count: int = 0
    plain_bytes: int = 0
    stored_bytes: int = 0

    @property
    def ratio(self) -> float | None:
        """How many plain bytes one stored byte holds."""
        return self.plain_bytes / self.stored_bytes if self.stored_bytes else None

    def as_json(self) -> dict[str, Any]:
        """The form that commands print."""
        return {
            "count": self.count,
            "logical_bytes": self.plain_bytes,
            "stored_bytes": self.stored_bytes,
            "ratio": self.ratio,
        }


@dataclass(slots=True)
class Chains:
    """What it takes to rebuild the newest snapshot.

    Attributes:
        chunks: Stretches of its files, holes left out.
        deltas: Those that are stored as a difference.
        depth_max: The longest way from one to a chunk that stands alone.
        depth_sum: Of all.
        read_bytes: Of all frames that must be read, each once.
        own_bytes: Of those that its own chunks lie in.
        alone_bytes: What its chunks would take without differences: of each delta as many stored
            bytes a plain byte as the chunk at the end of its chain takes.
    """

    chunks: int = 0
    deltas: int = 0
    depth_max: int = 0
    depth_sum: int = 0
    read_bytes: int = 0
    own_bytes: int = 0
    alone_bytes: int = 0

    @property
    def depth_mean(self) -> float:
        """Over all chunks."""
        return self.depth_sum / self.chunks if self.chunks else 0.0

    @property
    def read_cost(self) -> float | None:
        """What must be read, as a multiple of what it would take alone."""
        return self.read_bytes / self.alone_bytes if self.alone_bytes else None

    def as_json(self) -> dict[str, Any]:
        """The form that commands print."""
        return {
            "chunks": self.chunks,
            "deltas": self.deltas,
            "depth_max": self.depth_max,
            "depth_mean": self.depth_mean,
            "read_bytes": self.read_bytes,
            "own_bytes": self.own_bytes,
            "alone_bytes": self.alone_bytes,
            "read_cost": self.read_cost,
        }


def _weights() -> dict[str, Weight]:
    return defaultdict(Weight)


@dataclass(slots=True)
class Weights:
    """All of it.

    Attributes:
        snapshot: The newest; None if there is none, and all but ``codecs`` is empty.
        codecs: Frames of all packs by what they are encoded with.
        kinds: Files of the snapshot by how they begin.
        elements: Bytes of files of tensors by the type of their elements.
        chains: See there.
        trouble: How many files and chunks could not be told.
    """

    snapshot: str | None = None
    codecs: dict[str, Weight] = field(default_factory=_weights)
    kinds: dict[str, Weight] = field(default_factory=_weights)
    elements: dict[str, Weight] = field(default_factory=_weights)
    chains: Chains = field(default_factory=Chains)
    trouble: int = 0

    def as_json(self) -> dict[str, Any]:
        """The document's part of ``ciuic stats --detail --json``."""
        return {
            "snapshot": self.snapshot,
            "codecs": _json(self.codecs, "codec"),
            "kinds": _json(self.kinds, "kind"),
            "types": _json(self.elements, "type"),
            "chains": self.chains.as_json(),
            "trouble_count": self.trouble,
        }


def _json(weights: dict[str, Weight], key: str) -> list[dict[str, Any]]:
    return [{key: name, **weights[name].as_json()} for name in sorted(weights)]


def weigh(
    store: Store,
    snapshot_id: str | None,
    *,
    progress: Callable[[int, int, bytes], None] = lambda *_: None,
) -> Weights:
    """Look at every pack's footer and at every file of a snapshot.

    Args:
        store: An open store.
        snapshot_id: The snapshot; None: there is none.
        progress: Told how many files and bytes are done, and which file is next.

    Raises:
        CorruptionError: A tree is damaged.
        StoreError: A pack can't be read.
    """
    found = Weights(snapshot_id)
    for pack in store.pack_files():
        for packed in pack_frames(store.path, pack):
            one = packed.frame
            name = codec_name(one.codec) if one.kind == DATA else "metadata"
            _add(found.codecs[name], one.plain_bytes, one.total_bytes)
    if snapshot_id is not None:
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
        snapshot.flush()
    return found


def _add(weight: Weight, plain_bytes: int, stored_bytes: int, count: int = 1) -> None:
    weight.count += count
    weight.plain_bytes += plain_bytes
    weight.stored_bytes += stored_bytes


class _Snapshot:
    """Adds up a snapshot's files; those of one chunk many at a time."""

    def __init__(self, store: Store, found: Weights) -> None:
        self._store = store
        self._frames = Frames(store)
        self._found = found
        self._waiting: list[tuple[str, Entry]] = []
        self._seen: dict[bytes, set[int]] = defaultdict(set)
        self._own: dict[bytes, set[int]] = defaultdict(set)

    def add(self, file: Located) -> None:
        """One more file."""
        entry = file.entry
        try:
            kind = self._kind(file)
            if entry.level == 0 and kind in {_SMALL, _OTHER}:
                self._waiting.append((kind, entry))
                if len(self._waiting) >= _BATCH:
                    self.flush()
                return
            stored_bytes = 0
            chunks = file_chunks(self._store, self._frames, entry)
            if kind not in {_SMALL, _OTHER}:
                chunks = self._weighed_by_element(entry, chunks)
            for chunk in chunks:
                stored_bytes += chunk.stored_bytes
                self._chain(chunk)
            _add(self._found.kinds[kind], entry.size_bytes, stored_bytes)
        except (CorruptionError, UnknownFormatError):
            self._found.trouble += 1

    def flush(self) -> None:
        """Look up what waits for company."""
        waiting, self._waiting = self._waiting, []
        names = list({entry.content for _, entry in waiting if entry.content})
        places = self._store.reader.places(names)
        for kind, entry in waiting:
            chunk = StoredChunk(0, entry.size_bytes, entry.content)
            if entry.content:
                chain = self._frames.remembered(entry.content, places.get(entry.content))
                frames, references, what = chain
                chunk = chunk._replace(chain=frames, references=references, what=what)
            self._chain(chunk)
            _add(self._found.kinds[kind], entry.size_bytes, chunk.stored_bytes)

    def _kind(self, file: Located) -> str:
        """What a file is, by how it begins; the parts of a distributed checkpoint by their names.

        These begin like any archive of torch's.
        """
        if file.entry.size_bytes < _SMALL_BYTES or not file.entry.content:
            return _SMALL
        kind = kind_of(StoredFile(self._store, file.entry).read(0, KIND_BYTES))
        if kind == "torch.save" and file.path.endswith(_DISTCP):
            return "distcp"
        return kind or _OTHER

    def _weighed_by_element(
        self, entry: Entry, chunks: Iterator[StoredChunk]
    ) -> Iterator[StoredChunk]:
        """The same chunks, on whose way their bytes are told apart by what they are elements of."""
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
            self._share(chunk, _overlaps(tensors, at, chunk.offset_bytes, end), rest)
            yield chunk

    def _share(self, chunk: StoredChunk, overlaps: Iterator[tuple[str, int]], rest: str) -> None:
        left_bytes, left_stored = chunk.length_bytes, chunk.stored_bytes
        for element, length in overlaps:
            stored = round(chunk.stored_bytes * length / chunk.length_bytes)
            _add(self._found.elements[element], length, stored, 0)
            left_bytes -= length
            left_stored -= stored
        if left_bytes:
            _add(self._found.elements[rest], left_bytes, max(0, left_stored), 0)

    def _chain(self, chunk: StoredChunk) -> None:
        chains = self._found.chains
        if chunk.what:
            self._found.trouble += 1
        if not chunk.chain:
            return
        depth = len(chunk.references)
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
        for one in chunk.chain:
            if _is_new(self._seen, one):
                chains.read_bytes += one.frame_bytes


def _is_new(seen: dict[bytes, set[int]], frame: StoredFrame) -> bool:
    offsets = seen[frame.pack]
    if frame.offset_bytes in offsets:
        return False
    offsets.add(frame.offset_bytes)
    return True


def _end(tensor: Tensor) -> int:
    return tensor.offset_bytes + tensor.length_bytes


def _overlaps(
    tensors: tuple[Tensor, ...], at: int, begin: int, end: int
) -> Iterator[tuple[str, int]]:
    """The elements of a stretch of a file, and how many bytes of them lie in it."""
    while at < len(tensors) and tensors[at].offset_bytes < end:
        length = min(_end(tensors[at]), end) - max(tensors[at].offset_bytes, begin)
        if length > 0:
            yield tensors[at].element or _UNKNOWN, length
        at += 1

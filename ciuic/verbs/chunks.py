"""How files are stored: their chunks, the frames these lie in, and what must be read for each.

Nothing is decoded: the catalog knows where a chunk lies, and the header of its frame says the
rest. Memory does not grow with a file or a snapshot.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic import codec
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store import Store
from ciuic.store.frame import CHAIN_MAX
from ciuic.store.index import ChunkPlace
from ciuic.verbs.pieces import windows

__all__ = ["Frames", "StoredChunk", "StoredFrame", "codec_name", "file_chunks"]

_CODECS: Final = {
    codec.RAW: "raw",
    codec.ZSTD: "zstd",
    codec.PLANES: "planes",
    codec.DELTA: "delta",
    codec.SPARSE: "sparse",
}
_KEPT_MAX: Final = 16_384
"""Frames and chains that are remembered: neighbours lie in the same ones."""


class StoredFrame(NamedTuple):
    """What a frame's header says, and its place.

    Attributes:
        pack: The pack's ID.
        offset_bytes: Where it begins there.
        frame_bytes: How long it is, header included.
        plain_bytes: Of all its chunks.
        codec: Its number.
        reference: The chunk that it is a difference from; empty: it is none.
    """

    pack: bytes
    offset_bytes: int
    frame_bytes: int
    plain_bytes: int
    codec: int
    reference: bytes

    def share_bytes(self, length_bytes: int) -> int:
        """What so many of its plain bytes take of it."""
        return round(self.frame_bytes * length_bytes / max(1, self.plain_bytes))


class StoredChunk(NamedTuple):
    """A stretch of a file, as it is stored.

    Attributes:
        offset_bytes: In the file.
        length_bytes: Of the stretch.
        id: Of the chunk; empty: a hole, which takes nothing.
        start_bytes: Where in the chunk it begins.
        chain: Its frame, then that of the chunk it is a difference from, and so on.
        references: The chunks of these, but for its own.
        what: Why it can't be told; empty if it can.
    """

    offset_bytes: int
    length_bytes: int
    id: bytes
    start_bytes: int = 0
    chain: tuple[StoredFrame, ...] = ()
    references: tuple[bytes, ...] = ()
    what: str = ""

    @property
    def stored_bytes(self) -> int:
        """What it takes of its own frame."""
        return self.chain[0].share_bytes(self.length_bytes) if self.chain else 0

    @property
    def read_bytes(self) -> int:
        """What must be read to have it: all of its frame, and of each below."""
        return sum([one.frame_bytes for one in self.chain])


Chain = tuple[tuple[StoredFrame, ...], tuple[bytes, ...], str]


class Frames:
    """Looks up how chunks are stored, and remembers it for a while."""

    def __init__(self, store: Store) -> None:
        self._reader = store.reader
        self._frames: OrderedDict[tuple[bytes, int], StoredFrame] = OrderedDict()
        self._chains: OrderedDict[bytes, Chain] = OrderedDict()

    def chain(self, name: bytes, place: ChunkPlace | None) -> Chain:
        """Frames, references and, if it does not end as it should, why: see ``StoredChunk``."""
        found: list[StoredFrame] = []
        references: list[bytes] = []
        try:
            while place is not None and len(found) <= CHAIN_MAX:
                frame = self._frame(place)
                found.append(frame)
                if not frame.reference:
                    return tuple(found), tuple(references), ""
                name = frame.reference
                references.append(name)
                if name in self._chains:
                    frames, further, what = self._chains[name]
                    return (*found, *frames), (*references, *further), what
                place = self._reader.places([name]).get(name)
        except (CorruptionError, UnknownFormatError) as error:
            return tuple(found), tuple(references), error.message
        what = "a chain without an end" if place else f"chunk {name.hex()[:12]} is in no pack"
        return tuple(found), tuple(references), what

    def remembered(self, name: bytes, place: ChunkPlace | None) -> Chain:
        """The same; what was asked lately is not looked up again."""
        found = self._chains.get(name)
        if found is None:
            found = self._chains[name] = self.chain(name, place)
            if len(self._chains) > _KEPT_MAX:
                self._chains.popitem(last=False)
        return found

    def _frame(self, place: ChunkPlace) -> StoredFrame:
        key = place.pack, place.offset_bytes
        found = self._frames.get(key)
        if found is None:
            header = self._reader.header(place)
            reference = header.reference if header.is_delta else b""
            found = StoredFrame(
                *key, place.frame_bytes, header.plain_bytes, header.codec, reference
            )
            self._frames[key] = found
            if len(self._frames) > _KEPT_MAX:
                self._frames.popitem(last=False)
        return found


def file_chunks(store: Store, frames: Frames, entry: Entry) -> Iterator[StoredChunk]:
    """The chunks of a regular file in order.

    Raises:
        CorruptionError: Its recipe is damaged.
    """
    for window in windows(store.reader, entry):
        names = list({part.piece.id for part in window if part.piece.id})
        places = store.reader.places(names)
        for offset, piece in window:
            if not piece.id:
                yield StoredChunk(offset, piece.length_bytes, b"")
                continue
            chain, references, what = frames.remembered(piece.id, places.get(piece.id))
            yield StoredChunk(
                offset, piece.length_bytes, piece.id, piece.start_bytes, chain, references, what
            )


def codec_name(number: int) -> str:
    """What people call a codec."""
    return _CODECS.get(number, f"codec {number}")

"""Values of ``ciuic stats --detail``: amounts by codec, file format and element type."""

from collections import defaultdict
from dataclasses import dataclass, field

from ciuic.documents import Document
from ciuic.ids import SnapshotId

__all__ = ["Amount", "Breakdown", "ChainCost"]


@dataclass(slots=True)
class Amount:
    """A number of files or frames, their bytes, and the bytes that they take in the store."""

    count: int = 0
    plain_bytes: int = 0
    stored_bytes: int = 0

    @property
    def ratio(self) -> float | None:
        """Return plain bytes per stored byte; None without stored bytes."""
        return self.plain_bytes / self.stored_bytes if self.stored_bytes else None

    def as_json(self) -> Document:
        """Return the fields of the JSON document."""
        return {
            "count": self.count,
            "logical_bytes": self.plain_bytes,
            "stored_bytes": self.stored_bytes,
            "ratio": self.ratio,
        }


@dataclass(slots=True)
class ChainCost:
    """The cost of reading the newest snapshot, through its delta chains.

    Attributes:
        chunks: Ranges of its files, without holes.
        deltas: Chunks that are stored as deltas.
        depth_max: Length of the longest delta chain.
        depth_sum: Length of all delta chains together.
        read_bytes: Size of all frames that a read needs, each counted once.
        own_bytes: Size of the frames that hold its own chunks.
        alone_bytes: Estimated size of its chunks without deltas: each delta is taken to compress
            as well as the chunk at the end of its chain.
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
        """Return the mean length of a chunk's delta chain."""
        return self.depth_sum / self.chunks if self.chunks else 0.0

    @property
    def read_cost(self) -> float | None:
        """Return the bytes to read as a multiple of the bytes without deltas; None if unknown."""
        return self.read_bytes / self.alone_bytes if self.alone_bytes else None

    def as_json(self) -> Document:
        """Return the fields of the JSON document."""
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


def _amounts() -> dict[str, Amount]:
    return defaultdict(Amount)


@dataclass(slots=True)
class Breakdown:
    """A store's bytes by codec, file format and element type.

    Attributes:
        snapshot_id: The newest snapshot; None if there is none. Then only ``codecs`` is filled.
        codecs: Frames of all packs by codec.
        kinds: Files of the snapshot by file format.
        elements: Bytes of files of tensors by element type.
        chains: The cost of reading the snapshot.
        unknown_count: Files and chunks that could not be examined.
    """

    snapshot_id: SnapshotId | None = None
    codecs: dict[str, Amount] = field(default_factory=_amounts)
    kinds: dict[str, Amount] = field(default_factory=_amounts)
    elements: dict[str, Amount] = field(default_factory=_amounts)
    chains: ChainCost = field(default_factory=ChainCost)
    unknown_count: int = 0

    def as_json(self) -> Document:
        """Return the field ``detail`` of ``ciuic stats --detail --json``."""
        return {
            "snapshot": self.snapshot_id,
            "codecs": _json(self.codecs, "codec"),
            "kinds": _json(self.kinds, "kind"),
            "types": _json(self.elements, "type"),
            "chains": self.chains.as_json(),
            "trouble_count": self.unknown_count,
        }


def _json(amounts: dict[str, Amount], key: str) -> list[Document]:
    return [{key: name, **amounts[name].as_json()} for name in sorted(amounts)]

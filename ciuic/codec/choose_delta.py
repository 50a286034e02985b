"""Encodes a payload as a delta, if that saves enough.

Training moves its numbers a little at each step, so the difference from their last version takes
fewer bytes than the numbers alone. Reading it requires reading the delta base first, and that
version's own delta base. The bytes that a chain may cost to read are bounded (decision 0015).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ciuic.codec.choose import (
    PROBE_BYTES_MIN,
    SAMPLE_PARTS,
    SECOND_SAMPLE_PARTS,
    WORTH_FRACTION,
    sample_of,
    tells_little,
)
from ciuic.codec.decoding import DELTA, SPARSE, round_trips
from ciuic.codec.plan import RAW, WIDTHS, Plan

__all__ = ["DeltaBase", "Difference", "encode_delta"]

_DELTA_SAVES: Final = 0.15
_DELTA_SAVES_COST: Final = 3.0
"""A delta must save this share, because it takes longer to encode and to read. The share shrinks
in proportion where ``chain_cost`` exceeds the second number. Where few numbers move, a delta saves
half and more; of dense fp32 state it saves less than a tenth (decision 0015)."""

_SPARSE_SURE: Final = 64
"""If a sparse delta takes less than this part of the payload, no other delta takes less."""


class DeltaBase(Protocol):
    """A candidate delta base: an older version of the chunk."""

    @property
    def cost_bytes(self) -> int:
        """Stored bytes that have to be read to get the version."""
        ...

    @property
    def worth_bytes(self) -> int:
        """A longer delta against this version is useless."""
        ...

    @property
    def bytes_min(self) -> int:
        """The expected minimum of a delta against this version.

        If a delta must be shorter than that, the version is not read.
        """
        ...

    def read(self) -> bytes | memoryview | None:
        """Return the version, or None if it cannot be read. Called only if it can be of use."""
        ...


class Difference(NamedTuple):
    """A payload encoded as a delta against one of the candidates.

    Attributes:
        base_number: Index of the candidate that is its delta base.
        codec: The number of the codec.
        stored: The stored bytes.
    """

    base_number: int
    codec: int
    stored: memoryview


class _Sampling(NamedTuple):
    """What a sample tells about a payload.

    Attributes:
        parts: How many parts the sample has; the delta base is sampled at the same places.
        fraction: The payload's stored length without a delta base, as a share of the payload.
        shapes: Width and skip, in bytes, of the elements that may have moved.
    """

    parts: int
    fraction: float
    shapes: list[tuple[int, int]]


def encode_delta(
    plain: bytes | memoryview,
    bases: Sequence[DeltaBase],
    chain_cost: float,
    width: int = 0,
) -> Difference | None:
    """Encode one frame's payload as a delta against an older version of it.

    If only a few elements changed, this finds them by looking at the whole payload instead of
    a sample: they may be close together.

    Args:
        plain: The payload.
        bases: Candidate delta bases, most similar first. The first suitable candidate is taken.
        chain_cost: Bound on the stored bytes that have to be read to decode the payload, as a
            multiple of the stored bytes that it would take alone.
        width: Bytes per element, from a file's header; 0: found by probing.

    Returns:
        None if the payload is better stored without a delta base.
    """
    size = len(plain)
    if size < PROBE_BYTES_MIN:
        return None
    sampled = _sampled(plain, width)
    saves = _DELTA_SAVES * min(1.0, _DELTA_SAVES_COST / chain_cost)
    for number, base in enumerate(bases):
        bytes_max = min(
            chain_cost * sampled.fraction * size - base.cost_bytes,
            sampled.fraction * size,
            base.worth_bytes,
        )
        old = base.read() if bytes_max > base.bytes_min else None
        if old is None or len(old) != size:
            continue
        enough = min(bytes_max, sampled.fraction * (1 - saves) * size)
        found = _difference(plain, old, sampled, enough)
        if found is None:
            continue
        codec, stored = found
        if len(stored) <= bytes_max and round_trips(codec, stored, old, plain):
            return Difference(number, codec, stored)
    return None


def _sampled(plain: bytes | memoryview, width: int) -> _Sampling:
    from ciuic.codec import probing, zstd

    parts = SAMPLE_PARTS
    if tells_little(zstd.probe(sample_of(memoryview(plain), parts))):
        parts = SECOND_SAMPLE_PARTS
    sample = sample_of(memoryview(plain), parts)
    alone = probing.probe(sample, width)
    fraction = min(alone.fraction, zstd.probe(sample), 1.0)
    return _Sampling(parts, fraction, _shapes(alone, width))


def _shapes(alone: Plan, told: int) -> list[tuple[int, int]]:
    """Return width and skip of elements that may have moved, by how the payload alone splits.

    Args:
        alone: The plan of byte planes for the payload alone.
        told: The elements' width according to a file's header, or 0.
    """
    # Where numbers of one width show themselves, those numbers are what moved.
    shapes = [(alone.width, alone.skip)]
    if alone.fraction > 1 - WORTH_FRACTION:
        shapes = [(width, 0) for width in WIDTHS]
    # Single bytes look like wider numbers without noise.
    if told == 1 or all(column.coding != RAW for column in alone.columns):
        shapes.append((1, 0))
    return shapes


def _difference(
    plain: bytes | memoryview, old: bytes | memoryview, sampled: _Sampling, enough: float
) -> tuple[int, memoryview] | None:
    """Return the shorter delta, sparse or dense, with its codec; None above ``enough`` bytes."""
    from ciuic.codec import dense_delta, sparse_delta

    size = len(plain)
    tried = [sparse_delta.encode(plain, old, *shape) for shape in sampled.shapes]
    best = min([stored for stored in tried if stored is not None], key=len, default=None)
    if best is not None and len(best) <= min(enough, size / _SPARSE_SURE):
        return SPARSE, best
    sample, old_sample = (sample_of(memoryview(data), sampled.parts) for data in (plain, old))
    plans = [
        dense_delta.probe(sample, old_sample, *shape)
        for shape in sampled.shapes
        if shape[0] in WIDTHS
    ]
    plan = min(plans, key=lambda found: found.fraction)
    if plan.fraction * size <= enough:
        stored = dense_delta.encode(plain, old, plan)
        if best is None or len(stored) < len(best):
            return DELTA, stored
    return None if best is None or len(best) > enough else (SPARSE, best)

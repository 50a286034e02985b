"""Identifiers of chunks, packs and snapshots, as types of their own; the name of a schedule."""

import itertools
import os
from collections.abc import Iterable
from typing import Final, NewType

__all__ = [
    "DEFAULT_SCHEDULE",
    "SESSION_BYTES",
    "ChunkId",
    "PackId",
    "SessionId",
    "SnapshotId",
    "matching_ids",
    "random_snapshot_id",
    "short_ids",
]

SESSION_BYTES: Final = 8

ChunkId = NewType("ChunkId", bytes)
"""BLAKE3-256 of a chunk: 32 bytes. Nodes of trees and recipes are chunks as well."""
PackId = NewType("PackId", bytes)
"""The ID of the session that wrote a pack, then a hash of the pack's footer: 32 bytes."""
SessionId = NewType("SessionId", bytes)
"""``SESSION_BYTES`` random bytes, drawn when a process opens a store for writing."""
SnapshotId = NewType("SnapshotId", str)
"""``cs-`` and hex digits."""
DEFAULT_SCHEDULE: Final = "default"
"""The schedule that the keys at the top of a configuration describe."""

_RANDOM_BYTES: Final = 8
"""64 bits: among a million snapshots, two get the same ID with a probability of 1 in 37 million."""
_SHOWN_MIN: Final = len("cs-") + 6


def random_snapshot_id() -> SnapshotId:
    """Draw a snapshot ID from the random numbers of the kernel, never from a seed."""
    return SnapshotId(f"cs-{os.urandom(_RANDOM_BYTES).hex()}")


def matching_ids(text: str, snapshot_ids: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Return the IDs that ``text`` may mean: the exact ID, or else all IDs that begin with it.

    Args:
        text: Hex digits, with or without ``cs-``.
        snapshot_ids: The IDs to choose from.
    """
    wanted = text if text.startswith("cs-") else f"cs-{text}"
    found = sorted([found for found in snapshot_ids if found.startswith(wanted)])
    return [SnapshotId(wanted)] if wanted in found else found


def short_ids(snapshot_ids: Iterable[SnapshotId]) -> dict[SnapshotId, str]:
    """Map each ID to its shortest unique prefix of at least six digits.

    An ID that is itself a prefix of another ID is shown whole: the exact ID means that snapshot.
    """
    ordered = sorted(set(snapshot_ids))
    # In sorted order, the longest common prefix of an ID is the one with a neighbor.
    shared = [_shared_length(before, after) for before, after in itertools.pairwise(ordered)]
    needed = map(max, [0, *shared], [*shared, 0])
    return {
        snapshot_id: snapshot_id[: max(_SHOWN_MIN, length + 1)]
        for snapshot_id, length in zip(ordered, needed, strict=False)
    }


def _shared_length(before: str, after: str) -> int:
    if before[:_SHOWN_MIN] != after[:_SHOWN_MIN]:
        return 0  # the shortest form tells them apart; nearly all pairs end here
    pairs = zip(before, after, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

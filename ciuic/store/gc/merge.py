"""Chooses the small packs that a prune merges, so that many small snapshots do not keep many files.

Packs are sorted into tiers by their needed bytes. Each tier is eight times as large as the tier
below it. Eight packs of a tier are merged into one pack, which belongs to a higher tier. A byte is
copied once or twice in each tier, and after a prune a store has at most seven small packs of each
tier. If a prune writes packs for another reason, it also merges tiers of six packs, as it creates
up to two packs of any size.
"""

import bisect
from collections.abc import Iterable
from typing import Final

from ciuic.store.gc.usage import PackUsage

__all__ = ["MERGED_MIN", "SMALL_PACK_BYTES", "TIERS", "choose_merges"]

_KIB: Final = 1024
TIERS: Final = tuple(kib * _KIB for kib in (32, 256, 2048, 16384))
"""The length at which each tier ends. A longer pack is not a small pack."""
SMALL_PACK_BYTES: Final = TIERS[0]
MERGED_MIN: Final = 8
_TAKEN_ALONG_MIN: Final = 6


def choose_merges(
    uses: Iterable[PackUsage], *, writes_anyway: bool, bytes_max: float
) -> tuple[PackUsage, ...]:
    """Return the small packs to merge, in the order of their IDs.

    Args:
        uses: The usage of the sound packs that are not rewritten for another reason.
        writes_anyway: Other packs are rewritten.
        bytes_max: The most bytes to merge. With little free space new packs are short, and each
            prune would merge them again.
    """
    tiers: dict[int, list[PackUsage]] = {}
    for use in uses:
        number = bisect.bisect_right(TIERS, use.size_bytes - use.dead_bytes)
        if number < len(TIERS):
            tiers.setdefault(number, []).append(use)
    if not writes_anyway and all(len(tier) < MERGED_MIN for tier in tiers.values()):
        return ()
    chosen = [use for tier in tiers.values() if len(tier) >= _TAKEN_ALONG_MIN for use in tier]
    if sum([use.size_bytes - use.dead_bytes for use in chosen]) > bytes_max:
        return ()
    return tuple(sorted(chosen, key=lambda use: use.pack_id))

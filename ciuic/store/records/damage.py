"""What records say about damage in packs: docs/format.md, "Records of damage".

A record is an empty file in ``damaged/``; its name says which bytes are damaged, and in which pack.
In a bucket it is an object in ``packs/``: the listing of the packs, which each session makes, shows
all records and costs no further request.
"""

import bisect
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ciuic.ids import PackId
from ciuic.store.records import layout

__all__ = ["RECORDS_MAX", "ByteSpan", "KnownDamage", "merged"]

RECORDS_MAX: Final = 1000
"""A program adds none to as many records, and knows about this many spans."""


class ByteSpan(NamedTuple):
    """Bytes of a pack.

    Attributes:
        begin_bytes: The first one.
        end_bytes: The one behind the last.
    """

    begin_bytes: int
    end_bytes: int


class KnownDamage:
    """The damage that the records of a store name.

    A record only says that a copy of a chunk is not to be relied on: what a snapshot needs of it is
    stored again. A wrong record costs that space, and nothing else.

    Args:
        names: Names of files or objects; those that are no records are ignored.

    Attributes:
        count: How many records there are. Of more than ``RECORDS_MAX``, the spans in a pack are
            joined, so that each record counts, whatever its name.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[PackId, list[str]] = {}
        spans: dict[PackId, list[ByteSpan]] = {}
        self.count = 0
        for name in sorted(names):
            parsed = layout.parse_damage_name(name)
            if parsed is not None:
                pack_id, begin, end = parsed
                self._names.setdefault(pack_id, []).append(name)
                spans.setdefault(pack_id, []).append(ByteSpan(begin, end))
                self.count += 1
        each = RECORDS_MAX if self.count <= RECORDS_MAX else max(1, RECORDS_MAX // len(spans))
        self._spans = {pack_id: merged(found, each) for pack_id, found in spans.items()}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def packs(self) -> frozenset[PackId]:
        """Return the packs that records name."""
        return frozenset(self._names)

    def names_of(self, pack_id: PackId) -> list[str]:
        """Return the names of the records of a pack."""
        return list(self._names.get(pack_id, ()))

    def touches(self, pack_id: PackId, offset_bytes: int, length_bytes: int) -> bool:
        """Return whether some of these bytes are damaged, as the records say."""
        spans = self._spans.get(pack_id, ())
        after = bisect.bisect_left(spans, (offset_bytes + length_bytes,))
        return after > 0 and spans[after - 1].end_bytes > offset_bytes

    def covers(self, pack_id: PackId, span: ByteSpan) -> bool:
        """Return whether all of these bytes are damaged, as the records say."""
        return any(
            known.begin_bytes <= span.begin_bytes and span.end_bytes <= known.end_bytes
            for known in self._spans.get(pack_id, ())
        )


def merged(spans: Iterable[ByteSpan], count_max: int = RECORDS_MAX) -> list[ByteSpan]:
    """Join spans that meet, and then the nearest ones until at most ``count_max`` are left."""
    found: list[ByteSpan] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1].end_bytes:
            before = found.pop()
            found.append(ByteSpan(before.begin_bytes, max(before.end_bytes, end)))
        else:
            found.append(ByteSpan(begin, end))
    if len(found) <= count_max:
        return found
    kept = sorted(range(1, len(found)), key=lambda at: _gap(found, at))[-(count_max - 1) :]
    starts = [0, *sorted(kept if count_max > 1 else ())]
    ends = [*(at - 1 for at in starts[1:]), len(found) - 1]
    return [
        ByteSpan(found[begin].begin_bytes, found[end].end_bytes)
        for begin, end in zip(starts, ends, strict=True)
    ]


def _gap(spans: Sequence[ByteSpan], at: int) -> int:
    return spans[at].begin_bytes - spans[at - 1].end_bytes

"""The results of earlier checks, from the chunk index. Reads no pack."""

import contextlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from ciuic.catalog import known_damaged, known_lost
from ciuic.documents import Document
from ciuic.errors import StoreError
from ciuic.ids import PackId
from ciuic.store.index.places import CheckRecord
from ciuic.store.index.records import GONE, UNNAMED
from ciuic.store.store import Store
from ciuic.system.clock import rfc3339
from ciuic.units import counted

__all__ = [
    "Health",
    "KnownDamage",
    "KnownDocument",
    "damaged_documents",
    "health",
    "read_since_s",
    "recorded_checks",
]

_NS: Final = 1_000_000_000
_SLOW_BYTES_PER_S: Final = 10_000_000


class KnownDamage(NamedTuple):
    """A pack that was damaged at its last check, or was gone, and that snapshots may need."""

    pack_id: PackId
    what: str
    checked_ns: int

    def as_json(self) -> dict[str, str]:
        """Return a part of the documents of ``ciuic scrub --json`` and ``stats --json``."""
        return {
            "pack": self.pack_id.hex(),
            "what": self.what,
            "checked": rfc3339(self.checked_ns),
        }


class KnownDocument(NamedTuple):
    """A manifest or mark that the last scrub found damaged or gone.

    Attributes:
        path: In the store.
        what: What is wrong.
        found_ns: When it was read.
    """

    path: str
    what: str
    found_ns: int

    def as_json(self) -> dict[str, str]:
        """Return a part of the same documents."""
        return {"path": self.path, "what": self.what, "found": rfc3339(self.found_ns)}


@dataclass(slots=True)
class Health:
    """The results of earlier checks.

    Attributes:
        packs: The number of packs.
        unchecked: How many packs were never read in full.
        oldest_ns: The time of the oldest last check; None if some packs were never read, or if
            there is no pack.
        damaged: Packs that are known to be damaged or gone.
        documents: Manifests and marks that are known to be damaged or gone.
        lost_chunks: How many chunks are lost: no pack and no parity has them.
        is_known: False: this machine has no chunk index of the bucket, and the packs were not
            listed. All numbers are then 0.
    """

    packs: int
    unchecked: int
    oldest_ns: int | None
    damaged: tuple[KnownDamage, ...]
    lost_chunks: int
    is_known: bool = True
    documents: tuple[KnownDocument, ...] = ()

    @property
    def is_damaged(self) -> bool:
        """Whether any damage is known."""
        return bool(self.damaged or self.documents or self.lost_chunks)

    @property
    def damage(self) -> str:
        """What is known to be damaged, in words."""
        counts = [
            counted(len(self.damaged), "pack") if self.damaged else "",
            counted(len(self.documents), "manifest or mark", "manifests or marks")
            if self.documents
            else "",
        ]
        return ", ".join([*filter(None, counts), f"{counted(self.lost_chunks, 'chunk')} lost"])

    def as_json(self) -> Document:
        """Return the field ``checks`` of ``ciuic stats --json`` and ``status --json``."""
        return {
            "packs": self.packs,
            "unchecked": self.unchecked,
            "oldest": None if self.oldest_ns is None else rfc3339(self.oldest_ns),
            "damaged": [known.as_json() for known in self.damaged],
            "documents": [known.as_json() for known in self.documents],
            "lost_chunks": self.lost_chunks,
        }


def health(store: Store, *, is_asked: bool = True) -> Health:
    """Return the results of earlier checks. Reads no pack.

    Args:
        store: An open store.
        is_asked: False: of a bucket, the packs count that the chunk index of this machine names. A
            listing of the bucket costs a request for each thousand packs.

    Raises:
        StoreError: The packs cannot be listed.
    """
    recorded: dict[PackId, int] | None = {}
    if is_asked or store.bucket is None:
        packs = store.pack_files()
    else:
        recorded = _recorded_packs(store)
        packs = recorded or {}
    found = recorded_checks(store)
    checks = {pack_id: check for pack_id, check in found.items() if pack_id in packs}
    unchecked = len(packs) - len(checks)
    damaged = [
        KnownDamage(pack_id, check.what, check.checked_ns)
        for pack_id, check in sorted(found.items(), key=lambda item: item[1].checked_ns)
        if (check.what if pack_id in packs else _is_missed(pack_id, check))
    ]
    oldest_ns = min((check.checked_ns for check in checks.values()), default=None)
    return Health(
        packs=len(packs),
        unchecked=unchecked,
        oldest_ns=None if unchecked else oldest_ns,
        damaged=tuple(damaged),
        lost_chunks=len(known_lost(store)),
        is_known=recorded is not None,
        documents=damaged_documents(store),
    )


def _is_missed(pack_id: PackId, check: CheckRecord) -> bool:
    """Return whether a pack is gone, and a scrub has found that."""
    return check.what == GONE and check.checked_ns > 0 and pack_id != UNNAMED


def damaged_documents(store: Store) -> tuple[KnownDocument, ...]:
    """Return the manifests and marks that the last scrub of this machine found damaged or gone."""
    found = known_damaged(store)
    return tuple([KnownDocument(path, *found[path]) for path in sorted(found)])


def read_since_s(store: Store, since_ns: int) -> float:
    """Estimate how long packs have been read since then, from the times of their checks.

    A pack counts with the time since the check before it, but at most with the time of a slow disk.
    """
    checks = [check for check in recorded_checks(store).values() if check.checked_ns >= since_ns]
    spent_s = 0.0
    before_ns = since_ns
    for check in sorted(checks, key=lambda check: (check.checked_ns, check.read_bytes)):
        slow_s = check.read_bytes / _SLOW_BYTES_PER_S
        spent_s += min((check.checked_ns - before_ns) / _NS, slow_s)
        before_ns = check.checked_ns
    return spent_s


def _recorded_packs(store: Store) -> dict[PackId, int] | None:
    """Return the packs that the chunk index names; None if it is missing or damaged."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.packs()
    return None


def recorded_checks(store: Store) -> dict[PackId, CheckRecord]:
    """Return the last check of each pack; empty if the chunk index is missing or damaged."""
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.checks()
    return {}

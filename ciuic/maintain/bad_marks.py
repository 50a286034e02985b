"""Finds marks of snapshots that are damaged or gone, and repairs them.

A repair puts a mark back from its undamaged copy. In a bucket, where no mark is ever replaced, it
adds one that says the same as the copy of this machine. Without a copy the mark may have been a
pin, so the repair adds a mark with a pin, and with the last tags and the last note that are known.
"""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.catalog import all_snapshots, labelled
from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.ids import SnapshotId
from ciuic.store.records import layout
from ciuic.store.records.mark import Mark
from ciuic.store.store import Store

__all__ = ["BadMark", "MarkSurvey", "repair_mark", "survey_marks"]

_REQUESTS_AT_ONCE: Final = 8


class BadMark(NamedTuple):
    """The newest mark of a snapshot, if it is damaged or gone.

    Attributes:
        id: The snapshot.
        number: The number of the mark.
        what: What is wrong.
        has_copy: It has a sound copy: see ``Marks.has_copy``.
        stays: Why it cannot be repaired, or could not be; empty: it can.
    """

    id: SnapshotId
    number: int
    what: str
    has_copy: bool
    stays: str = ""


class MarkSurvey(NamedTuple):
    """The newest marks of all snapshots.

    Attributes:
        damaged: Those that are damaged or gone.
        uncopied: Sound ones without a sound copy.
        unread: Those of a later version, and why.
        unreachable: Those that the file system cannot return, and why.
    """

    damaged: list[BadMark]
    uncopied: list[tuple[SnapshotId, int]]
    unread: dict[tuple[SnapshotId, int], str]
    unreachable: dict[tuple[SnapshotId, int], str]


def survey_marks(store: Store, among: Collection[SnapshotId] | None = None) -> MarkSurvey:
    """Read the newest mark of each snapshot, and its copy.

    Args:
        store: The store.
        among: Only look at these snapshots; None: at all.
    """
    found = MarkSurvey([], [], {}, {})

    def check(key: tuple[SnapshotId, int]) -> CorruptionError | UnknownFormatError | None:
        try:
            store.marks.check(*key)
        except (CorruptionError, UnknownFormatError) as error:
            return error
        return None

    keys = [key for key in _newest(store) if among is None or key[0] in among]
    with ThreadPoolExecutor(1 if store.bucket is None else _REQUESTS_AT_ONCE, "marks") as pool:
        for key, error in zip(keys, pool.map(check, keys), strict=True):
            if isinstance(error, UnreachableError):
                found.unreachable[key] = error.message
            elif error is not None and not store.manifests.is_there(key[0]):
                continue  # a prune has removed the snapshot and its marks meanwhile
            elif isinstance(error, CorruptionError):
                has_copy = store.marks.has_copy(*key)
                is_put_back = has_copy and store.bucket is None
                is_last = key[1] >= layout.MARK_NUMBER_MAX and not is_put_back
                stays = "no number is left for another" if is_last else ""
                found.damaged.append(BadMark(*key, error.message, has_copy, stays))
            elif error is not None:
                found.unread[key] = error.message
            elif store.bucket is None and not store.marks.has_copy(*key):
                found.uncopied.append(key)
    return found


def repair_mark(store: Store, bad: BadMark) -> None:
    """Give a snapshot its mark back from the copy, or add a mark with a pin if there is no copy.

    If there is a copy in a directory, the caller has set the damaged file aside.

    Raises:
        SnapshotNotFoundError: A prune has removed the snapshot meanwhile.
        CorruptionError: Its manifest or the copy is damaged.
        UnknownFormatError: A later version has written a mark or the manifest meanwhile.
        UsageError: The tags take more than a mark can hold.
        StoreError: The store failed; the snapshot counts as pinned until the next repair.
    """
    if bad.has_copy and store.bucket is None:
        store.marks.put_back(bad.id, bad.number)
        return
    if store.bucket is not None and not store.manifests.is_there(bad.id):
        return  # a prune has removed it meanwhile: a retired ID gets no mark
    summary = labelled(store, store.manifest(bad.id).summary, to_change=True)
    if summary.purged:
        return  # a purged snapshot never changes again, and its marks go with it
    # Without a copy, it counts as listed and pinned.
    mark = Mark(summary.tags, summary.pinned, summary.forgotten_ns, note=summary.note)
    store.marks.add(summary, mark, copy=store.bucket is None)


def _newest(store: Store) -> Iterator[tuple[SnapshotId, int]]:
    """Return each snapshot's greatest number, as files, copies and the chunk index say."""
    there, copies = store.marks.newest(), store.marks.newest_copies()
    for summary in all_snapshots(store):
        number = max(there.get(summary.id, 0), copies.get(summary.id, 0), summary.mark)
        if number:
            yield summary.id, number

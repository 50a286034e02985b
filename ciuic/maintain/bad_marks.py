"""Finds marks of snapshots that are damaged or gone, and repairs them.

A repair puts a mark back from its undamaged copy. Without a copy the mark may have been a pin, so
the repair adds a mark with a pin and the tags that are known.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ciuic.catalog import all_snapshots, labelled
from ciuic.errors import CorruptionError, UnknownFormatError, UnreachableError
from ciuic.ids import SnapshotId
from ciuic.store.records.mark import Mark
from ciuic.store.store import Store

__all__ = ["BadMark", "MarkSurvey", "repair_mark", "survey_marks"]


class BadMark(NamedTuple):
    """The newest mark of a snapshot, if it is damaged or gone.

    Attributes:
        id: The snapshot.
        number: The number of the mark.
        what: What is wrong.
        has_copy: It has a sound copy.
    """

    id: SnapshotId
    number: int
    what: str
    has_copy: bool


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


def survey_marks(store: Store) -> MarkSurvey:
    """Read the newest mark of each snapshot, and its copy."""
    found = MarkSurvey([], [], {}, {})
    for key in _newest(store):
        has_copy = store.marks.has_copy(*key)
        try:
            store.marks.read(*key, copy=False)
        except UnreachableError as error:
            found.unreachable[key] = error.message
        except CorruptionError as error:
            found.damaged.append(BadMark(*key, error.message, has_copy))
        except UnknownFormatError as error:
            found.unread[key] = error.message
        else:
            if not has_copy:
                found.uncopied.append(key)
    return found


def repair_mark(store: Store, bad: BadMark) -> None:
    """Give a snapshot its mark back from the copy, or add a mark with a pin if there is no copy.

    If there is a copy, the caller has set the damaged file aside.

    Raises:
        StoreError: The store failed; the snapshot counts as pinned until the next repair.
    """
    if bad.has_copy:
        store.marks.put_back(bad.id, bad.number)
        return
    summary = labelled(store, store.manifest(bad.id).summary)
    store.marks.add(summary, Mark(summary.tags, pinned=True, note=summary.note), copy=True)


def _newest(store: Store) -> Iterator[tuple[SnapshotId, int]]:
    """Return each snapshot's greatest number, as files, copies and the chunk index say."""
    there, copies = store.marks.newest(), store.marks.newest_copies()
    for summary in all_snapshots(store):
        number = max(there.get(summary.id, 0), copies.get(summary.id, 0), summary.mark)
        if number:
            yield summary.id, number

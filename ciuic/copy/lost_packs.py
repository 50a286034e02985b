"""Knows what a copy has lost: which snapshots are sent again, and which stay damaged."""

import contextlib
from collections.abc import Collection

from ciuic.catalog import known_lost, lacks_manifests
from ciuic.copy.report import CopyReport
from ciuic.errors import SnapshotNotFoundError
from ciuic.ids import SnapshotId
from ciuic.store.store import Store
from ciuic.view.damage import DamageSurvey

__all__ = ["lacks_packs", "note_damaged_there", "unlisted_are_sound"]


def lacks_packs(copy: Store) -> bool:
    """Return whether packs of the copy may be gone, so that any snapshot of it may lack chunks.

    A chunk index that was just built from the packs cannot know of others.
    """
    if copy.index_keeper.is_rebuilt or copy.index.has_gone():
        return True
    # A dry run opens the copy for reading, and its index may name packs that are not there.
    return not copy.index.packs().items() <= copy.pack_files().items()


def note_damaged_there(copy: Store, named: Collection[SnapshotId], report: CopyReport) -> None:
    """Note which snapshots of the copy stay damaged, after everything was sent.

    Raises:
        StoreError: The copy failed.
    """
    index = copy.index
    has_gone = index.has_gone()
    if not (has_gone or index.lost_chunks()):
        return
    survey = DamageSurvey(copy, known_lost(copy))
    listed = sorted(copy.listed_ids())
    report.damaged_there = [one for one in listed if not survey.is_sound(one)]
    is_sound = not (named or report.damaged_there)
    if has_gone and is_sound and unlisted_are_sound(copy, survey):
        index.forget_gone()
        index.commit()


def unlisted_are_sound(store: Store, survey: DamageSurvey) -> bool:
    """Return whether no damage is known of the snapshots that a list leaves out.

    They are those in the trash, and those whose manifest cannot be read, which is damage. As long
    as one of them is damaged, what is known to be lost must not be forgotten.
    """
    if lacks_manifests(store):
        return False
    for snapshot_id in store.trash.ids():
        with contextlib.suppress(SnapshotNotFoundError):  # a prune has just removed it
            if not survey.is_sound(snapshot_id):
                return False
    return True

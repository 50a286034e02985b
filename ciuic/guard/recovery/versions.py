"""Chooses what replaces broken files: of each, the newest version in a snapshot that is valid."""

from collections.abc import Callable, Sequence

from ciuic.catalog import list_snapshots
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.formats.soundness import fault
from ciuic.guard.recovery.report import BrokenFile, Version
from ciuic.model import CONSISTENT, Entry, SnapshotSummary
from ciuic.store.store import Store
from ciuic.view.file import StoredFile
from ciuic.view.locator import Locator

__all__ = ["choose_versions", "usable_snapshots"]


def usable_snapshots(store: Store, *, without_tag: str) -> list[SnapshotSummary]:
    """Return the snapshots without a tag, newest first."""
    found = [one for one in list_snapshots(store) if without_tag not in one.tags]
    return sorted(found, key=lambda one: one.taken_ns, reverse=True)


def choose_versions(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    broken: Sequence[BrokenFile],
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Set ``version`` of each file to its newest valid version, or to None.

    A version is valid if it was not being written, and its format has no fault. Its bytes are
    checked when it is restored.

    Args:
        store: The open store.
        snapshots: Newest first.
        broken: The files; versions in ``refused`` are passed over.
        cancelled: Called for each snapshot.
    """
    waiting = sorted(broken, key=lambda one: one.path)
    for found in waiting:
        found.version = None
    for summary in snapshots:
        if not waiting:
            return
        if cancelled():
            raise CancelledError("the search for versions was interrupted")
        try:
            locator = Locator(store, store.manifest(summary.id))
        except (CorruptionError, UnknownFormatError):
            continue
        for found in waiting:
            entry = _entry(locator, found)
            if entry is not None and _is_valid(store, entry):
                found.version = Version(
                    summary.id, summary.taken_ns, entry.content, entry.size_bytes
                )
        waiting = [found for found in waiting if found.version is None]


def _entry(locator: Locator, found: BrokenFile) -> Entry | None:
    try:
        located = locator.find(found.path)
    except (CorruptionError, UnknownFormatError):
        return None
    if located is None or not located.entry.is_file or located.entry.content in found.refused:
        return None
    return located.entry


def _is_valid(store: Store, entry: Entry) -> bool:
    if entry.state != CONSISTENT:
        return False
    try:
        return not fault(StoredFile(store, entry).read, entry.size_bytes, entry.name)
    except (CorruptionError, UnknownFormatError):
        return False

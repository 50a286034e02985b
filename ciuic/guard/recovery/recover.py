"""A recovery: find the broken files, show the plan, carry it out. docs/guide.md."""

from collections.abc import Callable, Sequence

from ciuic.errors import CancelledError
from ciuic.guard.recovery.find import Finder, Window
from ciuic.guard.recovery.replace import BrokenVersionError, replace
from ciuic.guard.recovery.report import BrokenFile, RecoveryReport
from ciuic.guard.recovery.versions import choose_versions
from ciuic.model import ExcludeRules, SnapshotSummary
from ciuic.source.exclusions import Exclusions
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["recover"]


def recover(
    store: Store,
    roots: Sequence[bytes],
    window: Window,
    *,
    snapshots: Sequence[SnapshotSummary],
    exclude: ExcludeRules,
    clock: Clock,
    is_dry_run: bool = False,
    planned: Callable[[BrokenFile], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> RecoveryReport:
    """Put the newest valid versions of broken files back; the broken files are moved aside.

    Args:
        store: The open store.
        roots: Where to look.
        window: Which files to look at.
        snapshots: Where versions may come from, newest first.
        exclude: What snapshots leave out.
        clock: For the duration.
        is_dry_run: Find the files and their versions, and change nothing.
        planned: Called for each broken file before any file is changed.
        cancelled: True ends it; each file is in its old or its new state.

    Raises:
        StoreError: The store cannot be used.
        CancelledError: ``cancelled`` turned true.
    """
    began_s = clock.monotonic_s()
    finder = Finder(window, Exclusions(exclude), store.path, cancelled)
    report = RecoveryReport(is_dry_run=is_dry_run)
    report.broken = list(finder.find(roots))
    report.checked, report.left_alone = finder.checked, finder.left_alone
    choose_versions(store, snapshots, report.broken, cancelled)
    for found in report.broken:
        planned(found)
    for found in () if is_dry_run else report.broken:
        while True:
            if cancelled():
                raise CancelledError("the recovery was interrupted")
            try:
                replace(store, found, clock, cancelled)
                break
            except BrokenVersionError as error:
                # The next older version.
                found.refused.add(error.content)
                choose_versions(store, snapshots, [found], cancelled)
    report.total_s = clock.monotonic_s() - began_s
    return report

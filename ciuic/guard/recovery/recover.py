"""A recovery: find the broken files, show the plan, carry it out. docs/guide.md."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.errors import CancelledError
from ciuic.guard.recovery.find import Finder, Window
from ciuic.guard.recovery.replace import BrokenVersionError, replace
from ciuic.guard.recovery.report import BrokenFile, RecoveryReport
from ciuic.guard.recovery.versions import choose_versions
from ciuic.model import ExcludeRules, PathWarning, SnapshotSummary
from ciuic.source.exclusions import Exclusions
from ciuic.store.store import Store
from ciuic.system.clock import Clock

__all__ = ["Search", "recover"]


class Search(NamedTuple):
    """A search for broken files.

    Attributes:
        root: The file or directory to look at.
        window: Which files to look at.
        snapshots: Where their versions may come from, the preferred ones first.
    """

    root: bytes
    window: Window
    snapshots: Sequence[SnapshotSummary]


def recover(
    store: Store,
    searches: Sequence[Search],
    *,
    skipped: Sequence[PathWarning] = (),
    exclude: ExcludeRules,
    clock: Clock,
    is_dry_run: bool = False,
    planned: Callable[[BrokenFile], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> RecoveryReport:
    """Put the newest valid versions of broken files back; the broken files are moved aside.

    Args:
        store: The open store.
        searches: Where to look, and where versions come from.
        skipped: Paths to leave alone, and why. The report names them.
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
    report = RecoveryReport(is_dry_run=is_dry_run)
    work: list[tuple[BrokenFile, Sequence[SnapshotSummary]]] = []
    report.left_alone += skipped
    seen = {warning.path for warning in skipped}
    # The directories of one schedule may be inside those of another: the innermost one counts.
    for search in sorted(searches, key=lambda one: len(one.root), reverse=True):
        finder = Finder(search.window, Exclusions(exclude), store.path, seen, cancelled)
        found_here = list(finder.find([search.root]))
        choose_versions(store, search.snapshots, found_here, cancelled)
        broken = [one for one in found_here if one.version is not None or not one.is_suspected]
        work += [(found, search.snapshots) for found in broken]
        report.checked += finder.checked
        report.not_judged += finder.unjudged + len(found_here) - len(broken)
        report.left_alone += finder.left_alone
        # So that it counts for the files that its window passes over, too.
        seen.add(search.root)
    report.broken = [found for found, _ in work]
    for found in report.broken:
        planned(found)
    for found, snapshots in () if is_dry_run else work:
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
                if found.is_suspected and found.version is None:
                    # No version shows that it has been a checkpoint: it stays in its place.
                    report.broken.remove(found)
                    report.not_judged += 1
                    break
    report.total_s = clock.monotonic_s() - began_s
    return report

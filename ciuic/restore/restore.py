"""Restore paths of a snapshot. docs/guarantees.md, "Restore".

    resolve      find every path and every target, before anything is changed
    lock         keep other restores out of the targets
    walk         the snapshot's tree beside the target's: keep, write, replace, delete
    write        temporary files, data in the order of the packs, all metadata
    barrier      one syncfs for thousands of files, then their renames
    finish       deletions, hard links, the times of directories; a last barrier

Each file appears complete or not at all, even after a power cut. An interrupted restore can be run
again: it keeps the files that are right already.
"""

import os
from collections.abc import Callable, Container, Mapping

from ciuic.catalog.removed import naming_removal, refuse_removed
from ciuic.errors import CiuicError, CorruptionError
from ciuic.model import PathWarning
from ciuic.progress import Progress
from ciuic.restore.being_written import refuse_being_written
from ciuic.restore.holds import alone_in
from ciuic.restore.passes import Run, open_directory, target_errors
from ciuic.restore.report import RestoreReport
from ciuic.restore.selection import Selection, Verdict
from ciuic.restore.space import space_warnings
from ciuic.restore.targets import (
    RestoreRequest,
    Target,
    refuse_existing,
    refuse_nothing,
    refuse_outside_roots,
    resolve,
)
from ciuic.source.directory import DirectoryHandle
from ciuic.source.exclusions import Exclusions
from ciuic.store.packs.failures import RememberFailures
from ciuic.store.records.manifest import Manifest
from ciuic.store.restored import note_restored
from ciuic.store.store import Store
from ciuic.system.buffers import collect_rarely
from ciuic.system.clock import Clock
from ciuic.system.machine import this_machine
from ciuic.view.locator import Locator

__all__ = ["restore"]


def restore(
    store: Store,
    manifest: Manifest,
    request: RestoreRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    warn: Callable[[PathWarning], None] | None = None,
) -> RestoreReport:
    """Restore paths of a snapshot.

    An error that ends a restore midway has the report so far in ``done``.

    Args:
        store: The store.
        manifest: The snapshot.
        request: What to restore, and where.
        clock: Measures how long it takes.
        cancelled: Turns true when the user interrupts.
        progress: The display; None for no display.
        warn: Receives what the user should know before files are written; None: the notes of the
            report have it.

    Raises:
        UsageError: The request contradicts itself.
        PathNotFoundError: The snapshot does not have a path, or the patterns leave out all paths;
            nothing was changed.
        TargetError: A target exists and may not be overwritten, a program is writing in it, or
            another restore is at work in it, and nothing was changed; or the target's file system
            failed, and what was restored by then stays.
        CorruptionError: A directory above a path is damaged, and with ``fallback`` no older
            snapshot has the path; nothing was changed.
        StoreError: The store cannot be used; what was restored by then stays.
        CancelledError: ``cancelled`` turned true; each file is old or new, none is torn.
    """
    collect_rarely()
    began_s = clock.monotonic_s()
    selection = Selection(request.include, request.exclude)
    lost: dict[bytes, str] = {}
    if request.fallback:
        # Imported here: few restores need an older snapshot.
        from ciuic.restore.older_snapshots import Fallback, locate_in_older

        # Chunks that older snapshots share with this one are not read a second time.
        store.reader.failures = RememberFailures()
        locate = locate_in_older(store, manifest, lost)
    else:
        locate = Locator(store, manifest).locate
    with naming_removal(store, manifest.summary.id):
        targets = resolve(store, manifest, request, locate)
    refuse_nothing(store, targets, selection)
    refuse_existing(targets, overwrite=request.overwrite)
    refuse_outside_roots(manifest, request, targets)
    report = RestoreReport(dry_run=request.dry_run)
    run = Run(store, manifest, request, selection, report, cancelled, progress)
    if request.refuses_being_written:
        refuse_being_written(run, targets, _left_out(manifest))
    for warning in space_warnings(run, targets):
        (warn or report.notes.append)(warning)
    try:
        with (
            naming_removal(store, manifest.summary.id),
            alone_in(run, _whole_directories(run, targets)) as made,
        ):
            being_written = _place_all(run, targets, lost, made)
            if request.fallback:
                Fallback(run, targets).restore(being_written)
            elif report.damaged_paths:
                refuse_removed(store, manifest.summary.id)
    except CiuicError as error:
        report.repaired_frames = store.reader.repaired_frames
        error.done = report.as_json()
        raise
    report.repaired_frames = store.reader.repaired_frames
    if store.reader.suspects and not request.dry_run:
        # Imported here: few stores are damaged.
        from ciuic.store.damage_records import note_found

        note_found(store)
    if request.is_noted and not request.dry_run and report.changes:
        places = [os.path.normpath(target.place) for target in targets]
        note_restored(store, places, manifest.summary.id, this_machine())
    report.unmatched = selection.unmatched
    report.total_s = clock.monotonic_s() - began_s
    return report


def _whole_directories(run: Run, targets: list[Target]) -> list[Target]:
    """Return the targets that this restore must have for itself; a dry run needs none."""
    if run.request.dry_run:
        return []
    return [
        target
        for target in targets
        if target.entry.is_directory and run.selection.verdict(target.path) is Verdict.TAKEN
    ]


def _place_all(
    run: Run, targets: list[Target], lost: Mapping[bytes, str], made: Container[bytes]
) -> list[bytes]:
    """Restore all targets; return the files that were being written and were not placed.

    Args:
        run: The restore.
        targets: All targets.
        lost: Paths that the snapshot cannot list, and why: they are not placed here.
        made: Targets that this restore has just created.
    """
    ledger = run.ledger()
    try:
        with run.placer(
            run.manifest,
            ledger,
            delete=run.request.delete,
            sets_aside_being_written=run.request.fallback,
            protected=_left_out(run.manifest),
        ) as placer:
            for target in targets:
                if target.path in lost:
                    ledger.lost(target.path, lost[target.path])
                    continue
                parent = run.open_parent(target)
                with target_errors(target):
                    above = None if parent is not None else _nearest(target.parent)
                    placer.place(
                        parent,
                        target.name,
                        target.entry,
                        target.path,
                        above=above,
                        is_kept=run.request.stays_in_roots
                        and target.path in run.manifest.summary.roots,
                        is_made=target.place in made,
                    )
        return placer.set_aside
    finally:
        run.report.failed += ledger.failures
        run.report.damaged_paths |= ledger.lost_paths


def _left_out(manifest: Manifest) -> Exclusions:
    """Return what the snapshot left out. ``--delete`` never removes it."""
    try:
        return Exclusions(manifest.exclude)
    except ValueError as error:
        what = f"the exclude patterns of {manifest.summary.id} are invalid: {error}"
        raise CorruptionError(what) from error


def _nearest(path: bytes) -> DirectoryHandle | None:
    """Return the nearest directory above a missing path; None if it is not readable."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return open_directory(path) if os.access(path, os.R_OK) else None

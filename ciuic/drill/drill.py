"""A drill: practice a recovery, take the time, record the result. docs/guide.md, "Practice"."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from ciuic.catalog import all_snapshots, list_snapshots
from ciuic.drill.choose import choose, sizes_bytes
from ciuic.drill.compare import difference
from ciuic.drill.loading import load_checkpoint
from ciuic.drill.report import DrillReport
from ciuic.errors import (
    CancelledError,
    CiuicError,
    CorruptionError,
    PathNotFoundError,
    StoreError,
    TargetError,
    UnknownFormatError,
    UsageError,
)
from ciuic.model import (
    CONSISTENT,
    Entry,
    PathWarning,
    SnapshotSummary,
    complete_ones,
    covers,
    newest_first,
    path_text,
)
from ciuic.progress import Progress
from ciuic.restore.report import RestoreReport
from ciuic.restore.restore import restore
from ciuic.restore.targets import RestoreRequest
from ciuic.store.index.places import DrillRecord
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.system.clock import Clock, local_time_text
from ciuic.system.free_space import free_space
from ciuic.system.machine import this_machine
from ciuic.units import format_bytes, format_files
from ciuic.view.listing import readable_roots, walk
from ciuic.view.located import Located

__all__ = ["DrillRequest", "drill", "last_drill", "practiced_ns", "record_drill"]

_NAME_BYTES_MAX: Final = 200
_SHARE_OF_SPACE: Final = 0.5
"""A sample fills at most this part of the free space: other programs use the directory too."""
_LOCK_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """What to practice on.

    Attributes:
        scratch: An existing directory. The drill makes a directory in it, and removes that again.
        is_full: Restore every path instead of a sample.
        files_max: Size of the sample.
        size_max_bytes: Bytes of the sample.
        seed: Chooses the sample.
        is_dry_run: Choose, and restore nothing.
    """

    scratch: str
    is_full: bool = False
    files_max: int = 20
    size_max_bytes: int = 1 << 30
    seed: int = 0
    is_dry_run: bool = False


def drill(
    store: Store,
    manifest: Manifest,
    request: DrillRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> DrillReport:
    """Restore files of a snapshot into a scratch directory, compare them, and load checkpoints.

    The files come from the store alone, not from reflink copies. The scratch directory is removed
    whatever happens, unless the process is killed; then a directory ``ciuic-drill-*`` stays.

    Raises:
        UsageError: ``size_max_bytes`` is less than the size of every file.
        TargetError: The scratch directory cannot be used, or has too little space for any file.
        StoreError: The store cannot be used.
        CancelledError: ``cancelled`` turned true.
    """
    summary = manifest.summary
    report = DrillReport(
        summary.id, summary.taken_ns, is_full=request.is_full, is_dry_run=request.is_dry_run
    )
    began_s = clock.monotonic_s()
    run = _Drill(store, manifest, report, clock=clock, cancelled=cancelled, progress=progress)
    if request.is_full:
        _refuse_too_little_space(manifest, request)
        chosen = list(readable_roots(store, manifest.roots, run.note_directory))
    else:
        space_bytes = int(_available_bytes(request.scratch) * _SHARE_OF_SPACE)
        size_max_bytes = min(space_bytes, request.size_max_bytes)
        chosen = choose(
            store,
            manifest,
            files_max=request.files_max,
            size_max_bytes=size_max_bytes,
            seed=request.seed,
            on_damage=run.note_directory,
        )
        if not chosen and not report.damaged:
            smallest = min(sizes_bytes(store, manifest), default=0)
            if smallest > size_max_bytes:
                raise _too_small(request, smallest, space_bytes)
    report.chosen = [found.path for found in chosen]
    if not request.is_dry_run:
        with _scratch(request.scratch) as directory:
            run.practice(chosen, os.fsencode(directory))
    if report.ok and not (report.chosen if request.is_dry_run else report.files):
        report.problem = _fuller(store, summary)
    report.total_s = clock.monotonic_s() - began_s
    return report


def _fuller(store: Store, summary: SnapshotSummary) -> str:
    """Say that an older snapshot has files where this one has none; empty: none has."""
    older = [
        one
        for one in newest_first(complete_ones(list_snapshots(store)))
        if one.taken_ns < summary.taken_ns
        and one.files
        and covers(one.roots, summary.roots)
        and one.owner.machine.is_same(summary.owner.machine)
    ]
    if not older:
        return ""
    return (
        f"{summary.id} has no complete file, so nothing shows that a restore works, and"
        f" {older[0].id} of {local_time_text(older[0].taken_ns)} has"
        f" {format_files(older[0].files)}: have they been lost?"
    )


def record_drill(
    opened: Callable[[float], AbstractContextManager[Store]], report: DrillReport, now_ns: int
) -> None:
    """Record the result in the chunk index, for ``ciuic doctor``.

    If the store cannot be written to, or another process is changing it, no error is raised: the
    report says why there is no record.

    Args:
        opened: Opens the store for writing; it takes the seconds to wait for the lock.
        report: The result.
        now_ns: When the drill ended.
    """
    record = DrillRecord(
        now_ns,
        report.snapshot_id,
        report.files,
        report.restored_bytes,
        report.restore_s,
        report.is_full,
        report.outcome,
    )
    try:
        with opened(_LOCK_WAIT_S) as store:
            store.index.put_drill(record)
            store.index.commit()
    except StoreError as error:
        report.not_recorded = error.message


def last_drill(store: Store) -> DrillRecord | None:
    """Return the newest drill that the chunk index knows; None if none can be found.

    If this machine has snapshots, that of another machine's counts only if it failed, which is a
    fault of the store, or if there is no other.
    """
    with contextlib.suppress(StoreError):
        known = _drills(store)
        own = _about_here(store, known)
        return next((one for one in known if one.outcome or one in own), next(iter(known), None))
    return None


def practiced_ns(store: Store) -> int | None:
    """Return when a recovery was practiced last, or could have been; None: there is no snapshot.

    Without a drill on record, it is when the oldest snapshot was taken. If this machine has
    snapshots, the others' and their drills do not count: they show nothing about its own.
    """
    for drill in _about_here(store, _drills(store)):
        return drill.done_ns
    own, others = _own_and_others(complete_ones(list_snapshots(store)))
    return min((one.taken_ns for one in own or others), default=None)


def _drills(store: Store) -> list[DrillRecord]:
    with contextlib.suppress(StoreError):
        index = store.existing_index
        if index is not None:
            return index.drills()
    return []


def _about_here(store: Store, drills: list[DrillRecord]) -> list[DrillRecord]:
    """Return the drills that are not of another machine's snapshots; all if this one has none.

    The machine of a snapshot that is gone is not known. Such a drill counts: a policy that soon
    forgets would otherwise leave no drill on record.
    """
    if not drills:
        return []
    own, others = _own_and_others(complete_ones(all_snapshots(store)))
    foreign = {one.id for one in others} if own else set()
    return [drill for drill in drills if drill.snapshot not in foreign]


def _own_and_others(
    snapshots: Iterable[SnapshotSummary],
) -> tuple[list[SnapshotSummary], list[SnapshotSummary]]:
    here = this_machine()
    own: list[SnapshotSummary] = []
    others: list[SnapshotSummary] = []
    for one in snapshots:
        (own if one.owner.machine.is_same(here) else others).append(one)
    return own, others


class _Drill:
    """One drill on an open store."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        report: DrillReport,
        *,
        clock: Clock,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._report = report
        self._clock = clock
        self._cancelled = cancelled
        self._progress = progress
        self._damaged_paths: set[bytes] = set()

    def note_directory(self, path: bytes, error: CorruptionError) -> None:
        """Add a damaged directory to the report, unless it is there."""
        self._add_damaged(PathWarning(path, f"the directory cannot be read: {error.message}"))

    def _add_damaged(self, found: PathWarning) -> None:
        if found.path not in self._damaged_paths:
            self._damaged_paths.add(found.path)
            self._report.damaged.append(found)

    def practice(self, chosen: Iterable[Located], directory: bytes) -> None:
        """Restore all paths, then compare and load: the time is that of the restore alone."""
        began_s = self._clock.monotonic_s()
        restored = []
        for number, found in enumerate(chosen):
            name = os.path.basename(found.path)[-_NAME_BYTES_MAX:] or b"root"
            place = os.path.join(directory, b"%05d-%b" % (number, name))
            if self._restore(found.path, place):
                restored.append((found, place))
        self._report.restore_s = self._clock.monotonic_s() - began_s
        for found, place in restored:
            for path, entry, inner in self._files(found, place):
                if self._cancelled():
                    raise CancelledError("the drill was interrupted")
                self._check(path, entry, inner)

    def _restore(self, path: bytes, place: bytes) -> bool:
        """Restore one path; return whether anything was restored."""
        request = RestoreRequest((path,), place=place, hot=False)
        try:
            done = restore(
                self._store,
                self._manifest,
                request,
                clock=self._clock,
                cancelled=self._cancelled,
                progress=self._progress,
            )
        except (CorruptionError, UnknownFormatError, PathNotFoundError) as error:
            self._add_damaged(PathWarning(path, error.message))
            return False
        self._report.restored_bytes += done.written_bytes
        self._note_failures(done)
        return True

    def _note_failures(self, done: RestoreReport) -> None:
        unwritten = done.unwritten
        self._report.unrestored += unwritten
        for failure in done.failed:
            if failure not in unwritten and failure.path not in done.flux:
                self._add_damaged(failure)

    def _files(self, found: Located, place: bytes) -> Iterator[tuple[bytes, Entry, bytes]]:
        """Yield the restored files at and below a path that should be like the snapshot's."""
        failed = {bad.path for bad in (*self._report.damaged, *self._report.unrestored)}
        for path, entry in walk(self._store, found, on_damage=self.note_directory):
            if entry.is_file and entry.state == CONSISTENT and path not in failed:
                yield path, entry, place + path[len(found.path.rstrip(b"/")) :]

    def _check(self, path: bytes, entry: Entry, place: bytes) -> None:
        report = self._report
        try:
            what = difference(self._store, entry, place)
            loaded = None if what else load_checkpoint(path, place)
        except CorruptionError as error:
            self._add_damaged(PathWarning(path, error.message))
        except OSError as error:
            what = os.strerror(error.errno or 0).lower()
            report.unrestored.append(PathWarning(path, f"it cannot be read again: {what}"))
        else:
            if what:
                report.different.append(PathWarning(path, what))
                return
            report.files += 1
            if loaded is not None:
                report.loaded.append(loaded)


def _available_bytes(directory: str) -> int:
    try:
        if not stat.S_ISDIR(os.stat(directory).st_mode):
            raise _unusable(directory, "it is not a directory")
        return free_space(directory).available_bytes
    except OSError as error:
        raise _unusable(directory, os.strerror(error.errno or 0).lower()) from error


def _unusable(directory: str, why: str) -> TargetError:
    return TargetError(
        f"the scratch directory {path_text(os.fsencode(directory))} cannot be used: {why}",
        hint="Name another one with --scratch DIR.",
    )


def _refuse_too_little_space(manifest: Manifest, request: DrillRequest) -> None:
    needed_bytes = manifest.summary.logical_bytes
    available_bytes = _available_bytes(request.scratch)
    if needed_bytes > available_bytes:
        raise TargetError(
            f"a full drill needs {format_bytes(needed_bytes)}, and {request.scratch} has"
            f" {format_bytes(available_bytes)} free",
            hint="Name a larger directory with --scratch DIR, or leave out --full for a sample.",
        )


def _too_small(request: DrillRequest, smallest_bytes: int, space_bytes: int) -> CiuicError:
    """No file fits, so the drill would restore nothing and prove nothing."""
    smallest = f"the smallest file has {format_bytes(smallest_bytes)}"
    if space_bytes < request.size_max_bytes:
        return TargetError(
            f"{request.scratch} has too little space for a drill: {smallest}, and a drill takes at"
            f" most half of the free space, {format_bytes(space_bytes)}",
            hint="Free space there, or name another directory with --scratch DIR.",
        )
    return UsageError(
        f"no file fits into {format_bytes(request.size_max_bytes)}: {smallest}",
        hint="Give more with --size.",
    )


@contextlib.contextmanager
def _scratch(parent: str) -> Iterator[str]:
    """Make a directory for this user alone, and remove it with all that was restored into it."""
    try:
        made = tempfile.TemporaryDirectory(prefix="ciuic-drill-", dir=parent)
    except OSError as error:
        raise _unusable(parent, os.strerror(error.errno or 0).lower()) from error
    with made as directory:
        # Restored files are opened without following symlinks; the scratch directory may be one.
        yield os.path.realpath(directory)

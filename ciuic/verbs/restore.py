"""Put paths of a snapshot back. docs/guarantees.md, "Restore".

    resolve      every path and every target, before anything is touched
    walk         the snapshot's tree beside the target's: keep, write, replace, delete
    write        temporary files, data in the order of the packs, all metadata
    barrier      one syncfs for thousands of files, then their renames
    finish       deletions, hard links, directories' own times; a last barrier

Each file appears whole or not at all, also after a power cut. A run that was interrupted can be
run again: what is right by then is left alone.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ciuic.catalog import list_snapshots
from ciuic.clock import Clock, local_time_text
from ciuic.errors import (
    CorruptionError,
    SnapshotNotFoundError,
    TargetError,
    UnknownFormatError,
    UsageError,
)
from ciuic.memory import prepare_for_bulk
from ciuic.model import FLUX, Entry, RestoreReport, SnapshotSummary, Trouble, path_text
from ciuic.scan import DirectoryHandle, Exclusions
from ciuic.store import Store
from ciuic.store.manifest import Manifest
from ciuic.verbs.browse import Located, Locator
from ciuic.verbs.hot import HotCopies
from ciuic.verbs.placing import Placer
from ciuic.verbs.progress import Progress
from ciuic.verbs.target import remedy, target_faults

__all__ = ["RestoreRequest", "restore"]

_PARENT_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to put back, and where.

    Attributes:
        paths: Absolute paths as the snapshot has them.
        destination: Directory that takes each path under its last name; None for the old places.
        overwrite: Targets may exist: what differs is replaced.
        delete: What the snapshot does not have is removed from restored directories.
        dry_run: Say what would be done, and do nothing.
        fallback: Take paths that are damaged or were in flux from the newest older snapshot that
            has them whole.
        hot: Share the blocks of hot copies where there are any.
    """

    paths: tuple[bytes, ...]
    destination: bytes | None = None
    overwrite: bool = False
    delete: bool = False
    dry_run: bool = False
    fallback: bool = False
    hot: bool = True


class _Target(NamedTuple):
    """One path and the place it goes to."""

    path: bytes
    entry: Entry
    parent: bytes
    name: bytes

    @property
    def place(self) -> bytes:
        return os.path.join(self.parent, self.name)


_Wanted = Mapping[bytes, Trouble | None]
"""Paths that another snapshot may have, and what is wrong with them; None: they were in flux."""


def restore(
    store: Store,
    manifest: Manifest,
    request: RestoreRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> RestoreReport:
    """Put paths of a snapshot back.

    Raises:
        UsageError: The request contradicts itself.
        PathNotFoundError: The snapshot does not have a path; nothing has been touched.
        TargetError: A target exists and may not be overwritten, and nothing has been touched;
            or the target's file system failed: what was restored until then stays.
        CorruptionError: The way to a path is damaged; nothing has been touched.
        StoreError: The store can't be used (any longer); what was restored until then stays.
        CancelledError: ``cancelled`` turned true; files are old or new, none is torn.
    """
    prepare_for_bulk()
    began_s = clock.monotonic_s()
    targets = _resolve(store, manifest, request)
    _refuse_existing(targets, overwrite=request.overwrite)
    report = RestoreReport(dry_run=request.dry_run)
    run = _Run(store, manifest, request, report, cancelled=cancelled, progress=progress)
    if request.fallback:
        # What older snapshots share with this one is as lost there.
        store.reader.lost = {}
    run.place_all(targets)
    if request.fallback:
        run.fall_back(targets)
    report.total_s = clock.monotonic_s() - began_s
    return report


def _resolve(store: Store, manifest: Manifest, request: RestoreRequest) -> list[_Target]:
    if not request.paths:
        raise UsageError("no path to restore was given", hint="Name one with -p.")
    targets: dict[bytes, _Target] = {}
    locator = Locator(store, manifest)
    for path in _outermost(request.paths, together=request.destination is None):
        located = locator.locate(path)
        target = _target_of(manifest, located, request.destination)
        _refuse_store(store, target)
        other = targets.setdefault(target.place, target)
        if other.path != target.path:
            raise UsageError(
                f"{path_text(other.path)} and {path_text(target.path)} would both become"
                f" {path_text(target.place)}",
                hint="Restore them with two commands into two directories.",
            )
    return list(targets.values())


def _outermost(paths: Iterable[bytes], *, together: bool) -> list[bytes]:
    """Each path once; at their old places, a path inside another is restored with it."""
    kept: list[bytes] = []
    for path in sorted({b"/" + os.path.normpath(one).lstrip(b"/") for one in paths}):
        if together and any(path.startswith(one.rstrip(b"/") + b"/") for one in kept):
            continue
        kept.append(path)
    return kept


def _target_of(manifest: Manifest, located: Located, destination: bytes | None) -> _Target:
    """Symlinks on the way to the target's directory are the user's own and are followed.

    So is a root that is itself a symlink: the snapshot followed it, too.
    """
    path, entry = located
    if destination is None and path in manifest.summary.roots:
        parent, name = os.path.split(os.path.realpath(path))
    elif destination is None:
        parent, name = os.path.split(path)
    else:
        parent, name = os.path.abspath(destination), os.path.basename(path)
    if not name:
        return _Target(path, entry, os.path.realpath(parent), b".")
    return _Target(path, entry, os.path.realpath(parent), name)


def _refuse_store(store: Store, target: _Target) -> None:
    own = os.fsencode(os.path.realpath(store.path))
    if (target.place + b"/").startswith(own + b"/"):
        raise TargetError(
            f"{path_text(target.place)} lies in the store itself", hint="Choose another place."
        )


def _refuse_existing(targets: list[_Target], *, overwrite: bool) -> None:
    """Refuse before anything is touched."""
    for target in targets:
        there = target.parent
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            raise TargetError(
                f"{path_text(there)} is not a directory",
                hint="Give a directory with -d.",
            )
    if overwrite:
        return
    existing = [one for one in targets if os.path.lexists(one.place)]
    if existing:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise TargetError(
            f"{path_text(existing[0].place)}{more} exists already; nothing was changed",
            hint="Add --overwrite to replace what differs, or choose another place with -d.",
        )


class _Run:
    """One restore: the main pass, and one more for each older snapshot that is asked."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        request: RestoreRequest,
        report: RestoreReport,
        *,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._request = request
        self._report = report
        self._cancelled = cancelled
        self._progress = progress
        self._in_flux: list[bytes] = []

    def place_all(self, targets: list[_Target]) -> None:
        """Restore targets into their places."""
        request = self._request
        with self._placer(
            self._manifest,
            delete=request.delete,
            sets_flux_aside=request.fallback,
            protected=_left_out(self._manifest),
        ) as placer:
            for target in targets:
                with target_faults(target.place), _path_errors(target):
                    parent = self._open_parent(target.parent)
                    above = None if parent is not None else _nearest(target.parent)
                    placer.place(parent, target.name, target.entry, target.path, above=above)
            self._in_flux = placer.set_aside

    @contextlib.contextmanager
    def _placer(
        self, manifest: Manifest, *, delete: bool, sets_flux_aside: bool, protected: Exclusions
    ) -> Iterator[Placer]:
        hot = HotCopies(self._store, manifest) if self._request.hot else None
        try:
            with Placer(
                self._store,
                self._report,
                taken_ns=manifest.summary.taken_ns,
                hot=hot,
                delete=delete,
                dry_run=self._request.dry_run,
                sets_flux_aside=sets_flux_aside,
                protected=protected,
                cancelled=self._cancelled,
                progress=self._progress,
            ) as placer:
                yield placer
        finally:
            if hot is not None:
                hot.close()

    def fall_back(self, targets: list[_Target]) -> None:
        """Take what is damaged or was in flux from older snapshots, newest first.

        Versions that were whole come first. Only where there is none, one that was in flux is
        better than nothing: the snapshot's own, if it is not damaged.
        """
        report = self._report
        lost = {one.path: one for one in report.failed if one.path in report.damaged_paths}
        report.failed = [one for one in report.failed if one.path not in lost]
        places = {target.path: target for target in targets}
        wanted: _Wanted = {**dict.fromkeys(self._in_flux), **lost}
        for summary in self._older():
            wanted = self._from_snapshot(summary, wanted, places, also_flux=False)
        in_flux = {path: None for path, trouble in wanted.items() if trouble is None}
        wanted = {path: trouble for path, trouble in wanted.items() if trouble is not None}
        own = self._manifest.summary
        wanted = {**wanted, **self._from_snapshot(own, in_flux, places, also_flux=True)}
        for summary in self._older():
            wanted = self._from_snapshot(summary, wanted, places, also_flux=True)
        report.failed.extend([trouble for trouble in wanted.values() if trouble is not None])
        report.damaged_paths = set(wanted)

    def _older(self) -> Iterator[SnapshotSummary]:
        own = self._manifest.summary
        for summary in list_snapshots(self._store):
            if (summary.taken_ns, summary.id) < (own.taken_ns, own.id):
                yield summary

    def _from_snapshot(
        self,
        summary: SnapshotSummary,
        wanted: _Wanted,
        places: Mapping[bytes, _Target],
        *,
        also_flux: bool,
    ) -> _Wanted:
        """Try paths from one snapshot; returns those that are still wanted."""
        if not wanted:
            return {}
        try:
            manifest = self._store.manifest(summary.id)
        except (CorruptionError, SnapshotNotFoundError, UnknownFormatError):
            return wanted  # a store that fails is another matter, and ends the restore
        report = self._report
        before, report.failed, report.damaged_paths = report.failed, [], set()
        tried = self._place_wanted(manifest, wanted, places, also_flux=also_flux)
        lost = {one.path: one for one in report.failed if one.path in report.damaged_paths}
        failed = {one.path for one in report.failed}
        report.failed = before + [one for one in report.failed if one.path not in lost]
        for path in tried:
            if path not in failed:
                self._note_fallback(path, wanted[path], summary)
        # A directory was had, and something in it was not.
        inner = {path: lost[path] for path in lost.keys() - tried.keys()}
        left = {path: wanted[path] for path in wanted if path not in tried or path in lost}
        return {**inner, **left}

    def _note_fallback(
        self, path: bytes, trouble: Trouble | None, summary: SnapshotSummary
    ) -> None:
        own = self._manifest.summary
        if summary.id == own.id:
            return
        why = "in flux" if trouble is None else "damaged"
        when = local_time_text(summary.taken_ns)
        what = f"{why} in {own.id}: taken from {summary.id} of {when}"
        self._report.notes.append(Trouble(path, what))

    def _place_wanted(
        self,
        manifest: Manifest,
        wanted: _Wanted,
        places: Mapping[bytes, _Target],
        *,
        also_flux: bool,
    ) -> dict[bytes, None]:
        """Place what a snapshot has of these paths; returns those that were tried, in order."""
        tried: dict[bytes, None] = {}
        parent: DirectoryHandle | None = None
        locator = Locator(self._store, manifest)
        with self._placer(
            manifest, delete=False, sets_flux_aside=False, protected=Exclusions(())
        ) as placer:
            for path in sorted(wanted, key=_names):
                try:
                    located = locator.find(path)
                except (CorruptionError, UnknownFormatError):
                    continue
                # A hostile store's names lead elsewhere.
                if located is None or located.path != path:
                    continue
                entry = located.entry
                if entry.state == FLUX and not also_flux:
                    continue
                if wanted[path] is None and not entry.is_file:
                    continue
                tried[path] = None
                for outer in _holders(path, places):
                    if parent is None or parent.path != outer.parent:
                        with target_faults(outer.place), _path_errors(outer):
                            parent = self._open_parent(outer.parent)
                    self._place_inside(placer, parent, outer, path, entry)
        return tried

    def _place_inside(
        self,
        placer: Placer,
        parent: DirectoryHandle | None,
        outer: _Target,
        path: bytes,
        entry: Entry,
    ) -> None:
        """Place a path below a target that has just been restored, following no symlink.

        Args:
            placer: Of the snapshot that has it.
            parent: The directory that the target was restored into; None in a dry run without it.
            outer: The target.
            path: Of the entry in the snapshot.
            entry: As the snapshot has it.
        """
        inside = path[len(outer.path) :].lstrip(b"/")
        place = os.path.join(outer.place, inside) if inside else outer.place
        target = _Target(path, entry, *os.path.split(place))
        with target_faults(target.place), _path_errors(target):
            handle = parent
            below = target.parent[len(outer.parent) :].strip(b"/")
            for name in below.split(b"/") if below else []:
                handle = self._child(handle, name)
            placer.place(handle, target.name, entry, path, above=parent, keeps_time=bool(below))

    def _child(self, directory: DirectoryHandle | None, name: bytes) -> DirectoryHandle | None:
        """A directory below the target; None in a dry run without it."""
        try:
            return None if directory is None else directory.child(name)
        except (FileNotFoundError, NotADirectoryError):
            if self._request.dry_run:
                return None
            raise

    def _open_parent(self, path: bytes) -> DirectoryHandle | None:
        """The directory that a target goes into, made if need be; None in a dry run without it."""
        if not os.path.isdir(path):
            if self._request.dry_run:
                return None
            os.makedirs(path, _PARENT_MODE, exist_ok=True)
        return _opened(path)


def _left_out(manifest: Manifest) -> Exclusions:
    """What the snapshot left out, which is never extra."""
    try:
        return Exclusions(manifest.exclude)
    except ValueError as error:
        what = f"what {manifest.summary.id} left out can't be known: {error}"
        raise CorruptionError(what) from error


def _opened(path: bytes) -> DirectoryHandle:
    return DirectoryHandle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


def _nearest(path: bytes) -> DirectoryHandle | None:
    """The directory that is there already, and that one which is not would be made in."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return _opened(path) if os.access(path, os.R_OK) else None


@contextlib.contextmanager
def _path_errors(target: _Target) -> Iterator[None]:
    """Turn what remains of OSErrors about a target's directory into one sentence."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise TargetError(
            f"cannot restore to {path_text(target.place)}: {reason}",
            hint=remedy(error),
        ) from error


def _names(path: bytes) -> list[bytes]:
    """What a walk sorts by: all of a directory comes before what follows it."""
    return path.split(b"/")


def _holders(path: bytes, targets: Mapping[bytes, _Target]) -> Iterator[_Target]:
    """The targets that a path was restored with: itself, and those that it lies in."""
    at = path
    while at != b"/":
        if at in targets:
            yield targets[at]
        at = os.path.dirname(at)
    if at in targets:
        yield targets[at]

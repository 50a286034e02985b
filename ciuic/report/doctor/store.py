"""Checks the store's disk, permissions, free space and health, and the reflink copies."""

import contextlib
import errno
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ciuic.copy.record import Standing
from ciuic.errors import ReadOnlyError
from ciuic.maintain.scrub.pack_health import Health
from ciuic.model import SnapshotSummary, path_text
from ciuic.report.doctor.findings import NOTE, NS, OK, PROBLEM, WARNING, Finding, Plan, join
from ciuic.report.growth import SOON_S, full_in_s
from ciuic.source.freeze.places import frozen_snapshots
from ciuic.store.directory.find import ALLOW_SHARED
from ciuic.store.directory.leftovers import unreachable_leftovers
from ciuic.store.place.packs import Bucket
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system.free_space import COPIES_RESERVE, SNAPSHOT_RESERVE, free_space
from ciuic.system.priority import schedulers_of
from ciuic.units import counted, format_bytes, format_duration, inflected

__all__ = ["examine_checks", "examine_copies", "examine_standing", "examine_store"]

_FAR_S: Final = 3650 * 86_400.0
_CHECKED_S: Final = 60 * 86_400
"""Every pack should be read within this time, before damage grows beyond the reach of parity."""


def examine_store(
    store: Store, roots: Iterable[bytes], snapshots: Sequence[SnapshotSummary], now_ns: int
) -> Iterator[Finding]:
    """Check permissions, leftovers and free space, and whether the store shares a root's disk."""
    yield Finding(OK, "store", f"{store.name} opens, format {store.header.format}")
    if store.header.problem_for_writers:
        advice = "Use a newer version of ciuic to take snapshots, and to forget, prune and repair."
        yield Finding(PROBLEM, "store", store.header.problem_for_writers, advice)
    if store.bucket is not None:
        yield _space_for_cache(store.path)
        yield from _right_to_delete(store.bucket)
        return
    yield from _permissions(store.path)
    for error in unreachable_leftovers(store.path).values():
        yield Finding(PROBLEM, "store", error.message, error.hint)
    yield _free_space(store.path, snapshots, now_ns)
    yield from _quarantine(store.path)
    together = [path_text(root) for root in roots if _share_a_disk(os.fsencode(store.path), root)]
    if together:
        yield Finding(
            WARNING,
            "store",
            f"on the same disk as {join(together)}: if that disk dies, both are lost",
            "Put the store on another disk, or copy it to another machine regularly.",
        )


def examine_standing(copy: Standing) -> Finding:
    """Report how far a copy is behind, or that it has what the store lacks."""
    if copy.is_behind:
        return Finding(WARNING, f"copy {copy.name}", copy.sentence(), copy.advice)
    if copy.differences:
        there = shlex.quote(copy.address)
        advice = f"'ciuic --store {there} list' shows the snapshots that the copy has."
        return Finding(NOTE, f"copy {copy.name}", copy.sentence(), advice)
    return Finding(OK, f"copy {copy.name}", copy.sentence())


def _free_space(store_path: str, snapshots: Sequence[SnapshotSummary], now_ns: int) -> Finding:
    space = free_space(store_path)
    inodes = os.statvfs(store_path)
    free = f"{format_bytes(space.available_bytes)} free on its file system"
    if space.is_below(SNAPSHOT_RESERVE) or (inodes.f_files and not inodes.f_favail):
        return Finding(PROBLEM, "store", free, "Free some space, or snapshots will fail.")
    left_s = full_in_s(snapshots, space.available_bytes, now_ns)
    if left_s is None or left_s > _FAR_S:
        return Finding(OK, "store", free)
    free += f", full in {format_duration(left_s)} if the store grows as in the last week"
    if left_s < SOON_S:
        advice = "Keep fewer snapshots (retention_policy), or give the store more space."
        return Finding(WARNING, "store", free, advice)
    return Finding(OK, "store", free)


def _space_for_cache(path: str) -> Finding:
    """Check the disk of what this machine keeps of a bucket."""
    space = free_space(path)
    what = f"{path} is its cache directory, with {format_bytes(space.available_bytes)} free there"
    if space.is_below(SNAPSHOT_RESERVE):
        advice = "Free some space, or snapshots will fail: packs wait there for their upload."
        return Finding(PROBLEM, "store", what, advice)
    return Finding(OK, "store", what)


def _right_to_delete(bucket: Bucket) -> Iterator[Finding]:
    """Tell if these credentials may not delete: a session of this machine could not, nor can this.

    Nothing but leases that should be gone is deleted to find out: even an attempt to delete an
    absent object leaves something in a bucket with versions.
    """
    count = bucket.count_refused_leases()
    if count:
        what = (
            "these credentials have no right to delete: they take snapshots, but cannot prune, and"
            f" {counted(count, 'lease')} of ended sessions {inflected(count, 'is', 'are')} left"
        )
        advice = (
            "Allow them to delete objects (s3:DeleteObject), or prune on a machine whose"
            " credentials may."
        )
        yield Finding(WARNING, "store", what, advice)


def _quarantine(store_path: str) -> Iterator[Finding]:
    """Yield the size of what repairs have set aside: nothing else removes it."""
    sizes: list[int] = []
    with (
        contextlib.suppress(OSError),
        os.scandir(os.path.join(store_path, layout.QUARANTINE)) as files,
    ):
        sizes += [file.stat(follow_symlinks=False).st_size for file in files]
    if sizes:
        what = f"{layout.QUARANTINE}/ holds {counted(len(sizes), 'file')} that repairs replaced"
        advice = "When 'ciuic verify --all --checksum' finds no damage, you may delete its packs."
        yield Finding(NOTE, "store", f"{what}, {format_bytes(sum(sizes))}", advice)


def _permissions(store_path: str) -> Iterator[Finding]:
    names = ("", layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY)
    places = [os.path.join(store_path, name).rstrip("/") for name in names]
    modes = {}
    for place in places:
        with contextlib.suppress(OSError):
            modes[place] = os.stat(place)
    top = modes.get(places[0])
    if top is None:
        return
    writable = [place for place, status in modes.items() if status.st_mode & 0o022]
    fix = f"chmod -R go-rwx {store_path}"
    if writable:
        what = f"other users can write to {join(writable)}, which {ALLOW_SHARED} allows"
        yield Finding(WARNING, "store", what, fix)
    elif top.st_mode & 0o055:
        what = f"other users may read every file in every snapshot: mode {top.st_mode & 0o7777:04o}"
        yield Finding(WARNING, "store", what, fix)
    else:
        yield Finding(OK, "store", "only its owner may read or write it")
    if os.statvfs(store_path).f_flag & os.ST_RDONLY:
        what = f"{store_path}: {os.strerror(errno.EROFS)}, so nothing can be written to it"
        yield Finding(WARNING, "store", what, ReadOnlyError.default_hint)
    elif not os.access(store_path, os.W_OK):
        what = f"this user may read it, but not write to it: it belongs to user {top.st_uid}"
        yield Finding(NOTE, "store", what, "Run ciuic as that user to take snapshots.")


def _share_a_disk(store_path: bytes, root: bytes) -> bool:
    with contextlib.suppress(OSError):
        if os.stat(store_path).st_dev == os.stat(root).st_dev:
            return True
    disks = set(schedulers_of(os.fsdecode(store_path)))
    return bool(disks & set(schedulers_of(os.fsdecode(root))))


def examine_checks(known: Health, now_ns: int) -> Iterator[Finding]:
    """Check what scrubs have found, and when."""
    if known.is_damaged:
        what = f"damage is known: {known.damage}"
        if known.documents:
            what += f"; first {known.documents[0].path}: {known.documents[0].what}"
        advice = (
            "'ciuic repair' shows what can be repaired, and 'ciuic repair --apply' repairs it;"
            " 'ciuic verify --all' names the files."
        )
        yield Finding(PROBLEM, "checks", what, advice)
    if not known.packs:
        return
    if known.oldest_ns is None:
        were = inflected(known.unchecked, "was", "were")
        what = (
            f"{known.unchecked:,} of {counted(known.packs, 'pack')} {were} not read since"
            f" {inflected(known.unchecked, 'it was', 'they were')} written"
        )
        advice = "The daemon reads some every day (scrub_budget); 'ciuic scrub' reads them now."
        yield Finding(NOTE, "checks", what, advice)
        return
    age_s = max(0, now_ns - known.oldest_ns) / NS
    what = f"every pack was read within the last {format_duration(age_s)}"
    if age_s > _CHECKED_S:
        advice = "Run 'ciuic scrub', or give the daemon a larger scrub_budget."
        yield Finding(WARNING, "checks", what, advice)
    elif not known.is_damaged:
        yield Finding(OK, "checks", f"{what} and found sound")


def examine_copies(store: Store, roots: Iterable[bytes], plan: Plan | None) -> Iterator[Finding]:
    """Check the places of reflink copies, and the free space there."""
    areas = frozen_snapshots(store.header.store_id, roots)
    for area, snapshot_ids in areas:
        what = f"{area} holds reflink copies of {join(snapshot_ids) or 'no snapshot'}"
        space = free_space(area)
        what += f", {format_bytes(space.available_bytes)} free there"
        if space.is_below(COPIES_RESERVE):
            advice = "Free some space: until then, ciuic removes reflink copies and makes none."
            yield Finding(WARNING, "reflink copies", what, advice)
        else:
            yield Finding(OK, "reflink copies", what)
    if plan is not None and not plan.hot_snapshots:
        what = "none are kept: hot_snapshots is 0"
        yield Finding(NOTE, "reflink copies", what, "Set it to 1 for instant rollback.")

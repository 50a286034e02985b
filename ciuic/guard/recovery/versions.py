"""Chooses what replaces broken files: of each, the newest version in a snapshot that is valid."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.catalog import list_snapshots
from ciuic.catalog.whose import of_host, of_this_machine
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError, UsageError
from ciuic.formats.soundness import fault, is_judged
from ciuic.guard.recovery.report import BrokenFile, Version
from ciuic.model import (
    CONSISTENT,
    EMERGENCY_TAG,
    SUSPECT_TAG,
    Entry,
    SnapshotSummary,
    covers,
    holds_part,
    path_text,
)
from ciuic.store.store import Store
from ciuic.system.machine import this_machine
from ciuic.view.file import StoredFile
from ciuic.view.locator import Locator

__all__ = ["Source", "choose_versions", "sources_of"]


class Source(NamedTuple):
    """Where the versions of the files at and below a path come from.

    Attributes:
        root: The path.
        snapshots: Those of this machine, newest first. If another machine was chosen, those of
            both: an emergency snapshot of this machine may hold what it has written since.
        saved_ns: When the newest of the chosen machine was taken that holds all of the path, and
            that no failure caused; 0: there is none.
        remark: What to tell the user about the choice; see ``of_this_machine``.
        refusal: Why the path must be left alone: a user must choose a machine.
    """

    root: bytes
    snapshots: Sequence[SnapshotSummary] = ()
    saved_ns: int = 0
    remark: str = ""
    refusal: UsageError | None = None


def sources_of(store: Store, roots: Sequence[bytes], host: str | None) -> list[Source]:
    """Choose for each path the snapshots without the tag ``suspect`` that versions come from.

    Args:
        store: The open store.
        roots: The paths.
        host: The machine that a user has chosen; None: see ``of_this_machine``.

    Raises:
        UsageError: Several machines have the name ``host``.
        SnapshotNotFoundError: The chosen one has no snapshot.
    """
    known = [one for one in list_snapshots(store) if not one.owner.is_library]
    if host is not None:
        known = of_host(known, host)
    known.sort(key=lambda one: one.taken_ns, reverse=True)
    return [_source(known, root, is_chosen=host is not None) for root in roots]


def _source(known: Sequence[SnapshotSummary], root: bytes, *, is_chosen: bool) -> Source:
    about = [one for one in known if holds_part(one.roots, root)]
    # A part of the path says nothing about the rest, and alone rules out no machine that has all.
    whole = [one for one in about if covers(one.roots, [root])] or about
    # A job that has moved to this machine, and failed, leaves an emergency snapshot of this machine
    # and broken files. That snapshot alone does not rule out those of the machine before.
    regular = [one for one in whole if EMERGENCY_TAG not in one.tags]
    try:
        chosen, remark = of_this_machine(regular or whole, what=f" of {path_text(root)}")
    except UsageError as error:
        return Source(root, refusal=error)
    machines = {this_machine(), *(one.owner.machine for one in chosen)}
    # Not before: without its suspect snapshots, a machine would seem to have none.
    usable = [
        one
        for one in about
        if SUSPECT_TAG not in one.tags
        and any(one.owner.machine.is_same(machine) for machine in machines)
    ]
    saved = [
        one.taken_ns
        for one in chosen
        if not {EMERGENCY_TAG, SUSPECT_TAG} & {*one.tags} and covers(one.roots, [root])
    ]
    if is_chosen:
        remark = ""
    if chosen and not usable:
        took = chosen[0].owner.machine
        where = "this machine" if took.is_same(this_machine()) else took.name
        which = f"all snapshots of {path_text(root)} that were taken on {where}"
        remark = f"{which} have the tag '{SUSPECT_TAG}', and none is used"
    return Source(root, usable, max(saved, default=0), remark)


def choose_versions(
    store: Store,
    snapshots: Sequence[SnapshotSummary],
    broken: Sequence[BrokenFile],
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Set ``version`` of each file to its newest valid version, or to None.

    A version is valid if it was not being written, and its format has no fault. One in no known
    format counts only if there is none in a known one, and never for a file that is suspected. The
    bytes of a version are checked when it is restored.

    Args:
        store: The open store.
        snapshots: Newest first.
        broken: The files; versions in ``refused`` are passed over.
        cancelled: Called for each snapshot.
    """
    waiting = sorted(broken, key=lambda one: one.path)
    unjudged: dict[bytes, Version] = {}
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
            if entry is None:
                continue
            version = Version(
                summary.id,
                summary.taken_ns,
                entry.content,
                entry.size_bytes,
                summary.owner.machine.name,
            )
            match _is_known(store, entry):
                case True:
                    found.version = version
                case False if not found.is_suspected:
                    unjudged.setdefault(found.path, version)
        waiting = [found for found in waiting if found.version is None]
    for found in waiting:
        found.version = unjudged.get(found.path)


def _entry(locator: Locator, found: BrokenFile) -> Entry | None:
    try:
        located = locator.find(found.path)
    except (CorruptionError, UnknownFormatError):
        return None
    if located is None or not located.entry.is_file or located.entry.content in found.refused:
        return None
    return located.entry


def _is_known(store: Store, entry: Entry) -> bool | None:
    """Return whether a version has a known format; None if it is not valid."""
    if entry.state != CONSISTENT:
        return None
    read = StoredFile(store, entry).read
    try:
        what = fault(read, entry.size_bytes, entry.name)
        return None if what else is_judged(read, entry.size_bytes, entry.name)
    except (CorruptionError, UnknownFormatError):
        return None

"""Chooses what replaces broken files: of each, the newest version in a snapshot that is valid."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.catalog import list_snapshots
from ciuic.catalog.whose import of_host, of_this_machine
from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.formats.soundness import fault
from ciuic.guard.recovery.report import BrokenFile, Version
from ciuic.model import (
    CONSISTENT,
    EMERGENCY_TAG,
    SUSPECT_TAG,
    Entry,
    SnapshotSummary,
    covers,
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
        snapshots: Those of this machine, newest first, or else those of another one. Emergency
            snapshots of this machine come first in any case: they may hold what it has written.
        saved_ns: When the newest of them that no failure caused was taken; 0: there is none.
        remark: What to tell the user about the choice; see ``of_this_machine``.
    """

    root: bytes
    snapshots: Sequence[SnapshotSummary]
    saved_ns: int
    remark: str


def sources_of(store: Store, roots: Sequence[bytes], host: str | None) -> list[Source]:
    """Choose for each path the snapshots without the tag ``suspect`` that versions come from.

    Args:
        store: The open store.
        roots: The paths.
        host: The machine that a user has chosen; None: see ``of_this_machine``.

    Raises:
        UsageError: A user must choose a machine.
        SnapshotNotFoundError: The chosen one has no snapshot.
    """
    usable = [
        one
        for one in list_snapshots(store)
        if SUSPECT_TAG not in one.tags and not one.owner.is_library
    ]
    if host is not None:
        usable = of_host(usable, host)
    usable.sort(key=lambda one: one.taken_ns, reverse=True)
    found = [_source(usable, root) for root in roots]
    return found if host is None else [one._replace(remark="") for one in found]


def _source(usable: Sequence[SnapshotSummary], root: bytes) -> Source:
    about = [one for one in usable if _are_about(one.roots, root)]
    # A job that has moved to this machine, and failed, leaves an emergency snapshot of this machine
    # and broken files. That snapshot alone does not rule out those of the machine before.
    regular = [one for one in about if EMERGENCY_TAG not in one.tags]
    chosen, remark = of_this_machine(regular or about, what=f" of {path_text(root)}")
    here = this_machine()
    own = [one for one in about if one.owner.machine.is_same(here)]
    theirs = {one.owner.machine for one in chosen if not one.owner.machine.is_same(here)}
    others = [one for one in about if one.owner.machine in theirs]
    saved_ns = max((one.taken_ns for one in chosen if EMERGENCY_TAG not in one.tags), default=0)
    return Source(root, [*own, *others], saved_ns, remark)


def _are_about(roots: Sequence[bytes], path: bytes) -> bool:
    """Return whether a snapshot of ``roots`` holds a path, or something below it."""
    return covers(roots, [path]) or any(covers([path], [root]) for root in roots)


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
                    summary.id,
                    summary.taken_ns,
                    entry.content,
                    entry.size_bytes,
                    summary.owner.machine.name,
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

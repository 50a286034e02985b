"""Preview a snapshot with the same walk that takes one.

A preview reads names and metadata only. It freezes nothing, writes nothing and holds no lock. So it
works beside a running snapshot and on a read-only store. It does not know which files are being
written or which changed content the store already has. So the bytes that it announces are an upper
limit.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.documents import Document
from ciuic.errors import CorruptionError, SourceError
from ciuic.ids import ChunkId
from ciuic.model import UNREADABLE, Entry, PathWarning, path_text
from ciuic.progress import Progress
from ciuic.snapshot.plan import SnapshotPlan, TakeRequest, plan_snapshot
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.walk.directories import WalkRules
from ciuic.snapshot.walk.gather import Gatherer
from ciuic.snapshot.walk.unchanged import is_unchanged
from ciuic.snapshot.walk.walked_directory import FoundEntry, WalkedDirectory
from ciuic.source.directory import DirectoryHandle, entry_of
from ciuic.source.exclusions import BY_PATTERN
from ciuic.source.faults import source_faults
from ciuic.source.freeze.views import RootView
from ciuic.store.records.tree_nodes import iter_tree
from ciuic.store.store import Store
from ciuic.system.clock import Clock, rfc3339
from ciuic.system.hashing import ID_BYTES

__all__ = ["CHANGED", "GONE", "NEW", "UNCHANGED", "ExcludedName", "Preview", "preview_snapshot"]

NEW: Final = "new"
CHANGED: Final = "changed"
UNCHANGED: Final = "unchanged"
GONE: Final = "gone"

_NAMED_MAX: Final = 100_000
"""Paths of each list that are kept by name; the others are counted."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ExcludedName(NamedTuple):
    """An excluded path, and the rule that excludes it."""

    path: bytes
    why: str


class Preview:
    """The content of the next snapshot.

    Attributes:
        plan: The plan of the snapshot.
        counts: Number of files that are ``NEW``, ``CHANGED``, ``UNCHANGED`` or ``GONE`` since the
            last snapshot of their root.
        sizes: The bytes of these files; hard links count once.
        changes: The first files that are not unchanged: path and kind of change.
        excluded: The first excluded names.
        excluded_count: Number of excluded names; a directory counts once, with all its content.
        read_bytes: Upper limit of the bytes to read.
        warnings: The first warnings; ``warning_count`` counts those that are not harmless.
    """

    def __init__(self, plan: SnapshotPlan) -> None:
        self.plan = plan
        self.counts = dict.fromkeys((NEW, CHANGED, UNCHANGED, GONE), 0)
        self.sizes = dict.fromkeys((NEW, CHANGED, UNCHANGED, GONE), 0)
        self.changes: list[tuple[bytes, str]] = []
        self.excluded: list[ExcludedName] = []
        self.excluded_count = 0
        self.files = self.logical_bytes = self.read_bytes = 0
        self.total_s = 0.0
        self.warnings: list[PathWarning] = []
        self.warning_count = 0

    def note(self, path: bytes, what: str, size_bytes: int) -> None:
        """Count a file."""
        self.counts[what] += 1
        self.sizes[what] += size_bytes
        if what != UNCHANGED and len(self.changes) < _NAMED_MAX:
            self.changes.append((path, what))

    def add_warning(self, path: bytes, what: str, harmless: bool = False) -> None:
        """Add a warning about a path."""
        self.warning_count += not harmless
        if len(self.warnings) < _NAMED_MAX:
            self.warnings.append(PathWarning(path, what, harmless))

    def as_json(self) -> Document:
        """Return the document of ``ciuic snapshot --dry-run --json``."""
        plan = self.plan
        return {
            "dry_run": True,
            "id": None,
            "kind": "base" if plan.is_full else "delta",
            "parent": plan.parent.id if plan.parent is not None else None,
            "taken": rfc3339(plan.taken_ns),
            "roots": [path_text(root) for root in plan.roots],
            "files": self.files,
            "logical_bytes": self.logical_bytes,
            "read_bytes": self.read_bytes,
            **{f"{what}_files": count for what, count in self.counts.items()},
            **{f"{what}_file_bytes": size for what, size in self.sizes.items()},
            "changes": [{"path": path_text(path), "change": what} for path, what in self.changes],
            "excluded_count": self.excluded_count,
            "excluded": [{"path": path_text(path), "why": why} for path, why in self.excluded],
            "total_s": round(self.total_s, 6),
            "trouble": [warning.as_json() for warning in self.warnings],
            "trouble_count": self.warning_count,
        }


def preview_snapshot(
    store: Store,
    request: TakeRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Preview:
    """Return what ``take_snapshot`` would do with the same request.

    Raises:
        UsageError: As ``take_snapshot``.
        StoreError: The store cannot be read.
        CancelledError: ``cancelled`` returned true.
    """
    began_s = clock.monotonic_s()
    plan = plan_snapshot(store, request, clock)
    found = Preview(plan)
    for warning in request.trouble:
        found.add_warning(warning.path, warning.what)
    counter = _Counter(store, found)
    walk = Gatherer(
        store,
        _put_no_node,
        counter,
        rules=WalkRules(plan.exclusions, skip_unchanged=True, find_delta_bases=False),
        sinks=Sinks(found.add_warning, excluded=counter.note_excluded),
        cancelled=cancelled,
        progress=progress.update if progress is not None else lambda *_: None,
        handled=lambda _bytes: None,
    )
    walk.gather([(RootView(root), plan.old.get(root)) for root in plan.roots], lambda: None)
    found.files, found.logical_bytes = walk.tally.files, walk.tally.logical_bytes
    found.excluded_count = walk.tally.excluded
    found.read_bytes += found.logical_bytes if plan.is_full else 0
    found.total_s = clock.monotonic_s() - began_s
    return found


def _put_no_node(_kind: int, _plain: bytes) -> ChunkId:
    return ChunkId(bytes(ID_BYTES))


class _Counter:
    """The ``FileVisitor`` of a preview, which only counts files."""

    def __init__(self, store: Store, found: Preview) -> None:
        self._store = store
        self._found = found

    def enter(self, handle: DirectoryHandle, old: Entry | None) -> None:
        """Count the files of the last snapshot that are gone from a directory."""
        if old is not None and old.is_directory and old.content:
            present = frozenset(handle.names())
            for entry in self._old_entries(old):
                if entry.name not in present:
                    self._note_gone(handle.join(entry.name), entry)

    def visit(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> Entry:
        """Count a file; an unchanged file counts as stored, without a look at the store."""
        if self._note(parent, name, status, old, status.st_size) == UNCHANGED and old is not None:
            return old
        return self._changed(parent, name, status)

    def visit_other_name(
        self,
        parent: WalkedDirectory,
        name: bytes,
        status: os.stat_result,
        old: Entry | None,
        first: FoundEntry,  # noqa: ARG002 - the file's bytes are counted already
    ) -> Entry:
        """Count a file without its bytes."""
        self._note(parent, name, status, old, 0)
        return entry_of(name, status)

    def take_unchanged_bytes(self) -> int:
        """See ``FileVisitor``."""
        return 0

    def release(self) -> None:
        """See ``FileVisitor``."""

    def note_excluded(self, directory: DirectoryHandle, name: bytes, why: str) -> None:
        """Record the rule that excludes a name."""
        if len(self._found.excluded) == _NAMED_MAX:
            return
        if why == BY_PATTERN:
            why = f"matches {self._found.plan.exclusions.pattern_of(directory.path, name)}"
        self._found.excluded.append(ExcludedName(directory.join(name), why))

    def _note(
        self,
        parent: WalkedDirectory,
        name: bytes,
        status: os.stat_result,
        old: Entry | None,
        size_bytes: int,
    ) -> str:
        what = NEW
        if old is not None and old.is_file:
            what = UNCHANGED if is_unchanged(old, status, parent.old_taken_ns) else CHANGED
        self._found.note(parent.handle.join(name), what, size_bytes)
        return what

    def _changed(self, parent: WalkedDirectory, name: bytes, status: os.stat_result) -> Entry:
        """Return the entry of a new or changed file, after a check that it can be opened."""
        entry = entry_of(name, status)
        try:
            with source_faults():
                fd = os.open(name, _OPEN, dir_fd=parent.handle.fd)
                try:
                    is_file = stat.S_ISREG(os.fstat(fd).st_mode)
                finally:
                    os.close(fd)
        except SourceError as error:
            self._found.add_warning(parent.handle.join(name), error.message)
            entry.state, entry.size_bytes = UNREADABLE, 0
            return entry
        if is_file and not self._found.plan.is_full:
            self._found.read_bytes += status.st_size
        return entry

    def _old_entries(self, old: Entry) -> Iterator[Entry]:
        # If the old tree is damaged, the preview cannot tell which files are gone.
        with contextlib.suppress(CorruptionError):
            yield from iter_tree(self._store.reader.node, ChunkId(old.content), old.level)

    def _note_gone(self, path: bytes, entry: Entry) -> None:
        waiting = [(path, entry)]
        while waiting:
            at, gone = waiting.pop()
            if gone.is_directory and gone.content:
                waiting += [(at + b"/" + inner.name, inner) for inner in self._old_entries(gone)]
            elif gone.is_file:
                self._found.note(at, GONE, gone.size_bytes)

"""Take a snapshot of files that exist only in memory: the state of a training program.

The files get chunks, delta bases, trees and a manifest as files of a disk do, so every command
reads them. Their root is ``/state`` and its capture is ``memory``: the root is not a directory of
the machine, so a restore needs ``-d``.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import ciuic
from ciuic.catalog import remember
from ciuic.errors import UsageError
from ciuic.formats.headers import Span
from ciuic.ids import ChunkId, SnapshotId
from ciuic.model import (
    LIBRARY,
    MEMORY,
    Entry,
    ExcludeRules,
    Follow,
    PathWarning,
    Root,
    SnapshotSummary,
)
from ciuic.snapshot.after_commit import Step, run_after_commit
from ciuic.snapshot.bases.earlier_files import EarlierFiles
from ciuic.snapshot.bases.last_version import LastVersion
from ciuic.snapshot.memory_files import MemoryFile, MemoryFiles
from ciuic.snapshot.plan import SnapshotPlan, TakeRequest, full_due_ns, plan_snapshot
from ciuic.snapshot.read.parent_nodes import keep_content
from ciuic.snapshot.read.reader_context import ReaderContext
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.read.source_file import Recipe
from ciuic.snapshot.report import TakeReport
from ciuic.store.adding import new_writer
from ciuic.store.packs.writer import CHAIN_COST_DEFAULT, StoreWriter, WriteTotals
from ciuic.store.parity.shape import PARITY_DEFAULT
from ciuic.store.records.manifest import Manifest
from ciuic.store.records.tree_nodes import TreeBuilder
from ciuic.store.store import Store
from ciuic.system.buffers import prepare_for_bulk
from ciuic.system.clock import Clock

__all__ = [
    "FULL_KIND",
    "STATE_ROOT",
    "MemoryRequest",
    "StoredFile",
    "next_full_ns",
    "take_from_memory",
]

STATE_ROOT: Final = b"/state"
FULL_KIND: Final = "base"
"""The kind of a full snapshot."""
_DIRECTORY_MODE: Final = stat.S_IFDIR | 0o700
_QUEUE_BYTES: Final = 4 * 1024 * 1024
_CACHE_BYTES: Final = 4 * 1024 * 1024
"""Less than for files on a disk: the training beside this process needs the memory. Both together
took a third of what the process had."""
_NO_NAMES: Final = frozenset([b"", b".", b".."])


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an earlier snapshot, which the store has already.

    Attributes:
        path: As that of a ``MemoryFile``; its last name is that of the entry.
        entry: Its entry in the earlier snapshot.
    """

    path: bytes
    entry: Entry


_File = MemoryFile | StoredFile
_Tree = dict[bytes, "_File | _Tree"]


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """A request for a snapshot of files in memory.

    Attributes:
        files: The files; no path is inside another one.
        taken_ns: The moment of the state, in nanoseconds since 1970; 0: now.
        tags: Words to find the snapshot by.
        base_interval_s: Take a full snapshot if the last one is at least this old; 0: never.
        parity: Size of a pack's parity as a share of the pack; 0: no parity.
        chain_cost: See ``TakeRequest``.
        stored: Further files, which an earlier snapshot has. Their chunks must stay until this
            snapshot is committed.
        replaces: This snapshot gets the parent and the kind of that one, to stand in its place. If
            that one is incomplete, what it has added to the store counts for this one.
        is_complete: False: more files of the same state follow, in a snapshot that replaces this.
        follows: The snapshot from which the state in memory was loaded; None: not known. If it is
            the parent, there is nothing to say.
    """

    files: tuple[MemoryFile, ...]
    taken_ns: int = 0
    tags: tuple[str, ...] = ()
    base_interval_s: float = 43_200.0
    parity: float = PARITY_DEFAULT
    chain_cost: float = CHAIN_COST_DEFAULT
    stored: tuple[StoredFile, ...] = ()
    replaces: SnapshotSummary | None = None
    is_complete: bool = True
    follows: SnapshotId | None = None


def next_full_ns(store: Store, request: MemoryRequest, clock: Clock) -> int:
    """Return when ``take_from_memory`` would take the next full snapshot: see ``full_due_ns``."""
    return full_due_ns(store, _asked(request), clock.now_ns())


def take_from_memory(
    store: Store,
    request: MemoryRequest,
    *,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
) -> TakeReport:
    """Take a snapshot of files in memory into a store that is open for writing.

    When this returns, the snapshot is committed and durable. If it raises, the store has the same
    snapshots as before, except after CommitUncertainError.

    Raises:
        UsageError: There is no file, two files have one path, or a path or tag is invalid.
        CommitUncertainError: The snapshot is listed, but a power cut may still undo it.
        StoreError: The store failed.
        CancelledError: ``cancelled`` returned true.
    """
    prepare_for_bulk()
    tree = _tree_of((*request.files, *request.stored))
    run = _Run(store, request, clock, cancelled)
    try:
        root = run.gather(tree)
        manifest = run.make_durable(root)
        manifest = store.commit(manifest)
    except BaseException:
        run.give_up()
        raise
    return run.report(manifest, run.tidy(manifest.summary))


def _asked(request: MemoryRequest) -> TakeRequest:
    return TakeRequest(
        (STATE_ROOT,),
        base_interval_s=request.base_interval_s,
        tags=request.tags,
        origin=LIBRARY,
        schedule="",
    )


def _tree_of(files: Sequence[_File]) -> _Tree:
    """Arrange files by their directories.

    Raises:
        UsageError: There is no file, two files have one path, or a path is invalid.
    """
    if not files:
        raise UsageError("there is no file to take a snapshot of", hint="Give at least one file.")
    top: _Tree = {}
    for file in files:
        *above, name = file.path.split(b"/")
        if b"\0" in file.path or not _NO_NAMES.isdisjoint([*above, name]):
            raise UsageError(
                f"{file.path!r} cannot be the path of a file in a snapshot",
                hint="Use a relative path without '.', '..', empty names and NUL bytes.",
            )
        directory = top
        for step in above:
            inner = directory.setdefault(step, {})
            if not isinstance(inner, dict):
                raise UsageError(
                    f"{inner.path!r} is a file, so {file.path!r} cannot be in it",
                    hint="Give the file a different path.",
                )
            directory = inner
        if name in directory:
            raise UsageError(
                f"two files have the path {file.path!r}", hint="Give each file its own path."
            )
        directory[name] = file
    return top


class _Run:
    """A snapshot in progress."""

    def __init__(
        self, store: Store, request: MemoryRequest, clock: Clock, cancelled: Callable[[], bool]
    ) -> None:
        self._began_s = clock.monotonic_s()
        self._store, self._request, self._clock = store, request, clock
        self._plan: SnapshotPlan = plan_snapshot(
            store, _asked(request), clock, moment_ns=request.taken_ns
        )
        self._taken_ns = request.taken_ns or self._plan.taken_ns
        self._id = store.new_snapshot_id()
        self._writer: StoreWriter = new_writer(
            store,
            parity=request.parity,
            chain_cost=request.chain_cost,
            queue_bytes=_QUEUE_BYTES,
            cache_bytes=_CACHE_BYTES,
        )
        self._context = ReaderContext(
            store,
            self._writer,
            skip_unchanged=False,
            sinks=Sinks(lambda _path, _what, _harmless: None),
            cancelled=cancelled,
            clock=clock,
            handled=lambda _: None,
        )
        self._old = (
            EarlierFiles(store, STATE_ROOT, self._plan.snapshots) if self._makes_deltas else None
        )
        self._totals = WriteTotals()

    @property
    def _makes_deltas(self) -> bool:
        return self._writer.makes_deltas and self._kind != FULL_KIND

    @property
    def _kind(self) -> str:
        if self._request.replaces is not None:
            return self._request.replaces.kind
        return FULL_KIND if self._plan.is_full else "delta"

    def gather(self, tree: _Tree) -> Root:
        """Store the files and their trees."""
        files = MemoryFiles(self._context)
        try:
            top = self._entry(b".", _DIRECTORY_MODE)
            top.content, top.level = self._directory(files, tree, b"")
        finally:
            files.close()
        root = TreeBuilder(self._writer.put_node)
        root.add(top)
        return Root(STATE_ROOT, root.finish()[0], "", MEMORY)

    def make_durable(self, root: Root) -> Manifest:
        """Make everything that the manifest names durable; returns the manifest to commit."""
        # A server may create the manifest late, and others that add would wait for the index.
        self._totals = self._writer.finish(index_waits=self._store.bucket is None)
        parent = self._plan.parent.id if self._plan.parent is not None else None
        replaced, loaded = self._request.replaces, self._request.follows
        follows = (Follow(STATE_ROOT, loaded),) if loaded not in {None, parent} else ()
        machine = self._plan.owner.machine
        stored = [file.entry.size_bytes for file in self._request.stored]
        begun = replaced if replaced is not None and not replaced.is_complete else None
        summary = SnapshotSummary(
            id=self._id,
            kind=self._kind,
            parent=parent if replaced is None else replaced.parent,
            taken_ns=self._taken_ns,
            files=len(self._request.files) + len(stored),
            logical_bytes=sum([file.size_bytes for file in self._request.files]) + sum(stored),
            new_bytes=self._totals.new_bytes + (begun.new_bytes if begun else 0),
            stored_bytes=self._totals.stored_bytes + (begun.stored_bytes if begun else 0),
            tags=tuple(dict.fromkeys(self._request.tags)),
            trouble_count=0,
            roots=(STATE_ROOT,),
            host=machine.name,
            machine=machine.id,
            origin=LIBRARY,
            schedule="",
            is_complete=self._request.is_complete,
            follows=follows if replaced is None else replaced.follows,
            # What is replaced may be a copy, whose parent was never here.
            store=self._store.header.store_id if replaced is None else replaced.store,
        )
        return Manifest(
            summary=summary,
            roots=(root,),
            host=machine.name,
            writer=f"ciuic {ciuic.__version__}",
            read_bytes=self._context.read_bytes,
            capture_s=0.0,
            exclude=ExcludeRules(),
            trouble=(),
        )

    def tidy(self, summary: SnapshotSummary) -> tuple[PathWarning, ...]:
        """Copy the manifest and update the chunk index; returns a note for each failure."""
        index: Step = (
            "the chunk index could not be updated",
            partial(remember, self._store, summary),
        )
        if not self._request.parity or self._store.bucket is not None:
            return run_after_commit(self._store.path, summary.id, [index])
        keep = partial(self._store.manifests.copies.keep, summary.id, self._store.header)
        copy: Step = ("a copy of its manifest could not be written", keep)
        return run_after_commit(self._store.path, summary.id, [copy, index])

    def give_up(self) -> None:
        """End the run after an error."""
        self._writer.abort()

    def report(self, manifest: Manifest, notes: tuple[PathWarning, ...]) -> TakeReport:
        """Return the report of the snapshot."""
        return TakeReport.of(
            manifest, total_s=self._clock.monotonic_s() - self._began_s, notes=notes
        )

    def _directory(self, files: MemoryFiles, tree: _Tree, above: bytes) -> tuple[ChunkId, int]:
        builder = TreeBuilder(self._writer.put_node)
        for name, inner in sorted(tree.items()):
            if isinstance(inner, StoredFile):
                entry = inner.entry
                keep_content(self._store, self._writer, entry)
            elif isinstance(inner, MemoryFile):
                entry = self._entry(name, stat.S_IFREG | stat.S_IMODE(inner.mode))
                recipe = self._store_file(files, inner, above, name)
                entry.content, entry.level = recipe.content, recipe.level
                entry.size_bytes = recipe.size_bytes
            else:
                entry = self._entry(name, _DIRECTORY_MODE)
                entry.content, entry.level = self._directory(files, inner, above + name + b"/")
            builder.add(entry)
        return builder.finish()

    def _store_file(
        self, files: MemoryFiles, file: MemoryFile, above: bytes, name: bytes
    ) -> Recipe:
        def find_base(size_bytes: int, spans: tuple[Span, ...] | None) -> LastVersion | None:
            if self._old is None or size_bytes <= self._context.small_bytes:
                return None
            return self._old.find(above, name, size_bytes, spans)

        return files.store(file, find_base)

    def _entry(self, name: bytes, mode: int) -> Entry:
        return Entry(name, mode, os.geteuid(), os.getegid(), self._taken_ns, self._taken_ns, 0)

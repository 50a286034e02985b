"""Roots -> tree nodes: walk, compare with the parent snapshot, pass changed files to the readers.

If the file system supports it, the walk makes a reflink copy of each changed file. The readers read
the copies only after the walk, so that all files are captured as soon as possible.

The walk runs ahead of the readers. The entries of a directory wait in a queue, in the order of
their names, until their content is known; then they move into tree nodes. The number of waiting
entries is limited, so memory is bounded, whatever the size of the tree or of a directory.

When everything is stored, directories that may lack a name that was moved are listed again
(``listings``).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CancelledError, CorruptionError, SourceError
from ciuic.ids import ChunkId
from ciuic.model import NO_TREE, Entry, Root
from ciuic.snapshot.read.parent_nodes import parent_nodes
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.walk.directories import Directories, WalkRules
from ciuic.snapshot.walk.file_capture import FileVisitor
from ciuic.snapshot.walk.listings import NOT_LISTED, Listings
from ciuic.snapshot.walk.second_look import SecondLook
from ciuic.snapshot.walk.tally import Tally
from ciuic.snapshot.walk.visitor import Visitor
from ciuic.snapshot.walk.walked_directory import OldTree, WalkedDirectory
from ciuic.source.freeze.interface import IN_PLACE
from ciuic.source.freeze.methods import REFLINK, SUBVOLUME
from ciuic.source.freeze.views import RootView
from ciuic.source.stability import ATTEMPTS
from ciuic.store.records.nodes import GetNode, PutNode
from ciuic.store.records.tree_nodes import TreeBuilder, read_root
from ciuic.store.store import Store

__all__ = ["Gatherer"]

_RANK: Final = {REFLINK: 0, IN_PLACE: 1, SUBVOLUME: 2}
_REPORTED_FILES: Final = 256
"""The walk reports its progress each time it has seen this many more files."""
_WAITING_MAX: Final = 20_000
_MOVED: Final = "changed each time it was listed: what was moved into it meanwhile may be missing"

Visit = Callable[[WalkedDirectory, bytes, int], WalkedDirectory | None]


class _Started(NamedTuple):
    """A root that has been walked; its tree is complete when all its content is stored."""

    root: Root
    entry: Entry | None
    view: RootView
    old: OldTree | None
    listing: int = NOT_LISTED


class Gatherer:
    """Walks roots and writes their tree nodes.

    Args:
        store: Read for the parent's trees.
        put_node: Stores a node of a tree.
        files: Captures regular files.
        rules: The rules of the walk.
        sinks: Receive warnings, files being written, and excluded names.
        cancelled: Called for every directory entry; if it returns true, the walk ends.
        progress: Called from time to time with the number of files and bytes that the walk has
            seen, and the current path.
        handled: Called with numbers of bytes that need not be read.
        captured_nodes: Reads nodes that ``put_node`` has got; None: no directory is listed again.
        began_ns: When the snapshot began.

    Attributes:
        tally: The counts so far.
    """

    def __init__(
        self,
        store: Store,
        put_node: PutNode,
        files: FileVisitor,
        *,
        rules: WalkRules,
        sinks: Sinks,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int, bytes], None],
        handled: Callable[[int], None],
        captured_nodes: GetNode | None = None,
        began_ns: int = 0,
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._put_node = put_node
        self._files = files
        self._sinks = sinks
        self._cancelled = cancelled
        self._progress = progress
        self._handled = handled
        self._reported_files = 0
        self._closing: deque[WalkedDirectory] = deque()
        self._stack: list[WalkedDirectory] = []
        self._is_again = False
        listings = Listings(began_ns)
        # The first walk has given these.
        sinks = sinks._replace(warn=self._warn)
        self._directories = Directories(
            store, put_node, files, self.tally, rules=rules, sinks=sinks, listings=listings
        )
        self._visitor = Visitor(
            store, self._directories, files, self.tally, rules=rules, sinks=sinks
        )
        self._again = None
        if captured_nodes is not None:
            self._again = SecondLook(
                listings,
                self._directories,
                self._visitor,
                self.tally,
                captured_nodes,
                sinks=sinks,
            )

    def gather(
        self,
        roots: Sequence[tuple[RootView, OldTree | None]],
        walked: Callable[[], None],
    ) -> list[Root]:
        """Walk the roots and store their trees.

        Args:
            roots: The view of each root, and its tree in an older snapshot.
            walked: Called at the end of the walk: all reflink copies exist by then, and only files
                without a copy must still be captured.

        Returns:
            The roots' records, in order; a root that cannot be read is recorded as missing.

        Raises:
            CancelledError: ``cancelled`` returned true.
            StoreError: The store failed.
        """
        # Walk the roots that are not frozen yet before the frozen ones.
        order = sorted(range(len(roots)), key=lambda at: _RANK[roots[at][0].how])
        started = {at: self._start(*roots[at]) for at in order}
        walked()
        self._files.release()
        self._drain(wait=True)
        if self._again is not None:
            self._look_again(self._again, started, walked)
        self._visitor.close()
        return [self._finished(started[at]) for at in range(len(roots))]

    def _start(self, view: RootView, old: OldTree | None) -> _Started:
        path = view.path
        old_taken_ns = old.taken_ns if old is not None else 0
        try:
            directory = self._directories.root(view, self._old_root(old), old_taken_ns)
        except SourceError as error:
            self._sinks.warn(path, f"the root: {error.message}", False)
            return _Started(Root(path, NO_TREE, error.message), None, view, old)
        entry, listing = directory.entry, directory.listing
        self._stack.append(directory)
        self._walk(self._visitor.visit)
        return _Started(Root(path, NO_TREE, "", view.how), entry, view, old, listing)

    def _look_again(
        self, again: SecondLook, started: dict[int, _Started], walked: Callable[[], None]
    ) -> None:
        """List directories again that may lack a name, a bounded number of times."""
        excluded = self.tally.excluded
        self._is_again = True
        for attempt in range(ATTEMPTS):
            if not again.find(is_first=attempt == 0):
                break
            for at, before in started.items():
                started[at] = self._walk_again(again, before)
            walked()
            self._files.release()
            self._drain(wait=True)
        else:
            for path in again.unfinished():
                self._sinks.warn(path, _MOVED, False)
        self._is_again = False
        # The names that a rule excludes have been counted.
        self.tally.excluded = excluded

    def _walk_again(self, second: SecondLook, before: _Started) -> _Started:
        if before.entry is None:
            return before
        again = second.of(before.listing, before.entry)
        if again is None:
            return before
        old_taken_ns = before.old.taken_ns if before.old is not None else 0
        try:
            directory = self._directories.root(
                before.view, self._old_root(before.old), old_taken_ns, again
            )
        except SourceError as error:
            second.note_unlisted(before.listing, error)
            return before
        self._stack.append(directory)
        self._walk(second.visit)
        return before._replace(entry=directory.entry)

    def _warn(self, path: bytes, what: str, harmless: bool) -> None:
        if not (harmless and self._is_again):
            self._sinks.warn(path, what, harmless)

    def _finished(self, started: _Started) -> Root:
        if started.entry is None:
            return started.root
        top = TreeBuilder(self._put_node)
        top.add(started.entry)
        return Root(started.root.path, top.finish()[0], "", started.root.capture)

    def _old_root(self, old: OldTree | None) -> Entry | None:
        if old is None:
            return None
        try:
            return read_root(parent_nodes(self._store), ChunkId(old.tree))
        except CorruptionError:
            return None

    def _walk(self, visit: Visit) -> None:
        while self._stack:
            if self._cancelled():
                raise CancelledError("the snapshot was interrupted")
            top = self._stack[-1]
            name = next(top.names, None)
            if name is None:
                self.tally.has_vanished |= top.has_changed()
                self._closing.append(self._stack.pop())
                self._report(top.leave())
                self._drain(wait=False)
                continue
            inner = visit(top, name, len(self._stack))
            if inner is not None:
                self._stack.append(inner)
            elif self.tally.files >= self._reported_files + _REPORTED_FILES:
                self._report(top.handle.join(name))
            if self.tally.waiting > _WAITING_MAX:
                self._resolve_waiting(top)

    def _drain(self, *, wait: bool) -> None:
        """Finish directories whose content is completely stored, children before parents."""
        while self._closing:
            first = self._closing[0]
            self.tally.advance(first, wait=wait)
            if not first.pending.is_known:
                return
            self._closing.popleft()

    def _resolve_waiting(self, top: WalkedDirectory) -> None:
        """Wait for entries of the open directories, to reduce the number of waiting entries."""
        self._files.release()
        self._drain(wait=True)
        for directory in self._stack:
            if directory is not top:
                self.tally.advance(directory, wait=False)
        self.tally.advance(top, wait=True)

    def _report(self, path: bytes) -> None:
        """Report the progress of the walk, and the bytes that it found unchanged."""
        self._reported_files = self.tally.files
        self._handled(self._files.take_unchanged_bytes())
        self._progress(self.tally.files, self.tally.logical_bytes, path)

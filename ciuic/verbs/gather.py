"""Roots -> tree nodes: walk, compare with the parent snapshot, hand changed files to be read.

The walk freezes: it clones a changed file where it can, and leaves the reading of clones for when
it has come to the end, so that all files are captured as soon as can be.

The walk runs ahead of the reading. A directory's entries wait in a queue, in the order of their
names, until their content is known; then they move on into tree nodes. The number of waiting
entries is bounded, and with it the memory, whatever the size of the tree or of one directory.
"""

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from ciuic.capture import (
    AREA_NAME,
    IN_PLACE,
    REFLINK,
    SUBVOLUME,
    RootView,
    SubvolumeView,
    is_settled,
    source_faults,
)
from ciuic.errors import CancelledError, CorruptionError, SourceError, VanishedError
from ciuic.hashing import ID_BYTES
from ciuic.model import FLUX, GONE_MODE, SKIPPED, UNREADABLE, WHOLE, Entry, Root
from ciuic.scan import (
    DirectoryHandle,
    Exclusions,
    PseudoMounts,
    entry_of,
    read_symlink,
    read_xattrs,
    storable_ns,
)
from ciuic.store import Store
from ciuic.store.nodes import TreeBuilder, iter_pieces, iter_tree
from ciuic.store.writer import StoreWriter
from ciuic.verbs.earlier import EarlierDirectory
from ciuic.verbs.reading import ContentReader, FluxSink, Wanted

__all__ = ["Gatherer", "OldTree", "TroubleSink"]

TroubleSink = Callable[[bytes, str, bool], None]
"""Told a path, what happened to it, and whether that is harmless."""

_RANK: Final = {REFLINK: 0, IN_PLACE: 1, SUBVOLUME: 2}
_WAITING_MAX: Final = 20_000
_BATCH_BYTES: Final = 512 * 1024
_BATCH_FILES: Final = 256
_LOOKUP_FILES: Final = 500
_BATCH_DIRECTORIES: Final = 64
"""A batch keeps the directories of its files open."""
_HELD_DIRECTORIES: Final = 1000
"""So many directories stay open for files whose clones wait to be read, and for hard links."""
_DEPTH_MAX: Final = 900
"""Each level holds a descriptor; deeper trees than this are named and left out."""


class OldTree(NamedTuple):
    """What an earlier snapshot says of a root.

    Attributes:
        tree: ID of the root's tree node.
        taken_ns: When that snapshot began: it saw nothing of what was written later.
        snapshot_id: Which one it is.
    """

    tree: bytes
    taken_ns: int
    snapshot_id: str


class _Ticket:
    """What an entry waits for: content that is being stored, a subdirectory, a look-up."""

    __slots__ = ("done", "flush", "futures")

    def __init__(self, flush: Callable[[], None] | None = None) -> None:
        self.done = False
        self.flush = flush
        self.futures: list[Future[None]] = []

    def ready(self, *, wait: bool) -> bool:
        if self.done:
            return True
        if self.flush is not None:
            if not wait:
                return False
            self.flush()
        if self.done:
            return True
        if not wait and not all(future.done() for future in self.futures):
            return False
        if not self.futures:
            return False
        for future in self.futures:
            future.result()
        self.done = True
        return True


class _Directory:
    """A directory on its way into tree nodes."""

    def __init__(
        self,
        handle: DirectoryHandle,
        entry: Entry,
        builder: TreeBuilder,
        old: Iterator[Entry],
        view: RootView,
    ) -> None:
        self.handle = handle
        self.entry = entry
        self.view = view
        self.earlier: EarlierDirectory | None = None
        self.ticket = _Ticket()
        self.names: Iterator[bytes] = iter(())
        self._builder = builder
        self._old = old
        self._old_next: Entry | None = None
        self._queue: deque[tuple[Entry, _Ticket | None, int | None]] = deque()
        self.walked = False
        self.vanished = 0
        self.grown_bytes = 0

    def leave(self) -> bytes:
        """All names have been visited; what only that needed is given up. Returns the path."""
        path = self.handle.path
        del self.handle
        self.earlier = None
        self.walked = True
        return path

    def append(self, entry: Entry, ticket: _Ticket | None, listed_bytes: int | None) -> None:
        """Take an entry in; ``listed_bytes`` is what a file was counted with, None: it was not."""
        self._queue.append((entry, ticket, listed_bytes))

    def old_entry(self, name: bytes) -> Entry | None:
        """The parent snapshot's entry of this name; names must be asked for in order."""
        try:
            while self._old_next is None or self._old_next.name < name:
                self._old_next = next(self._old)
        except StopIteration:
            self._old = iter(())
            return None
        except CorruptionError:
            # A damaged parent costs reading the files again, which stores what is missing.
            self._old = iter(())
            return None
        return self._old_next if self._old_next.name == name else None

    def advance(self, *, wait: bool) -> int:
        """Move what is ready into the tree; returns how many entries moved."""
        moved = 0
        while self._queue:
            entry, ticket, listed_bytes = self._queue[0]
            if ticket is not None and not ticket.ready(wait=wait):
                break
            if entry.mode != GONE_MODE:
                self._builder.add(entry)
            if listed_bytes is not None:
                self.vanished += entry.mode == GONE_MODE
                kept_bytes = 0 if entry.mode == GONE_MODE else entry.size_bytes
                self.grown_bytes += kept_bytes - listed_bytes
            self._queue.popleft()
            moved += 1
        if self.walked and not self._queue and not self.ticket.done:
            self.entry.content, self.entry.level = self._builder.finish()
            self.ticket.done = True
        return moved


class _Started(NamedTuple):
    """A root that has been walked; its tree is whole when all content is stored."""

    root: Root
    top: TreeBuilder | None
    entry: Entry | None


class Gatherer:
    """Walks roots and spells them in tree nodes.

    Args:
        store: Open for writing; read for the parent's trees.
        writer: Where nodes and chunks go.
        content: Stores file contents.
        exclusions: What is left out.
        believe: What looks unchanged since the parent is not read again, and what has changed
            may be stored as a difference.
        keep_clones: Unchanged files are to have clones, too.
        trouble: Told of everything that is not as it should be.
        open_files: How many more files this process can open; a quarter is for batches, another
            for directories that are held.
        flux: Told of every file that somebody was writing.
        cancelled: Asked at every directory entry.
    """

    def __init__(
        self,
        store: Store,
        writer: StoreWriter,
        content: ContentReader,
        *,
        exclusions: Exclusions,
        believe: bool,
        keep_clones: bool,
        open_files: int,
        trouble: TroubleSink,
        flux: FluxSink,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int, bytes], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._content = content
        self._exclusions = exclusions
        self._believe = believe
        self._keep_clones = keep_clones
        self._trouble = trouble
        self._flux = flux
        self._cancelled = cancelled
        self._progress = progress
        self._old_taken_ns = 0
        self._pseudo = PseudoMounts()
        own = os.stat(store.path)
        self._store_inode = (own.st_dev, own.st_ino)
        self._links: dict[tuple[int, int], tuple[Entry, _Ticket | None, int]] = {}
        self._waiting = 0
        self._closing: deque[_Directory] = deque()
        self._stack: list[_Directory] = []
        self._small: list[Wanted] = []
        self._small_bytes = 0
        self._small_directories: set[int] = set()
        self._lookup_directories: set[int] = set()
        self._small_ticket = _Ticket(self._flush_small)
        self._clones: list[Wanted] = []
        self._clones_ticket = _Ticket()
        share = open_files // 4
        self._batch_directories = min(_BATCH_DIRECTORIES, share // content.batches_max)
        self._held_max = min(_HELD_DIRECTORIES, share)
        self._held: list[_Ticket] = []
        self._copies: list[_Ticket] = []
        self._held_directories: set[int] = set()
        self._lookups: list[Wanted] = []
        self._lookup_ticket = _Ticket(self._flush_lookups)
        self.files = 0
        self.logical_bytes = 0

    def gather(
        self,
        roots: Sequence[tuple[RootView, OldTree | None]],
        walked: Callable[[], None],
    ) -> list[Root]:
        """Spell roots.

        Args:
            roots: How to see each, and what an earlier snapshot says of it.
            walked: Called when everything has been looked at: clones have been made by then, and
                only what could not be frozen is still to be captured.

        Returns:
            The roots' records, in order; a root that can't be read is recorded as missing.
        """
        # What has to be captured by walking comes before what is frozen already.
        order = sorted(range(len(roots)), key=lambda at: _RANK[roots[at][0].how])
        started = {at: self._start(*roots[at]) for at in order}
        walked()
        self._release()
        self._drain(wait=True)
        return [self._finished(started[at]) for at in range(len(roots))]

    def _start(self, view: RootView, old: OldTree | None) -> _Started:
        path = view.path
        try:
            handle = view.open_top()
            with source_faults():
                status = os.fstat(handle.fd)
                entry = entry_of(b".", status)
                entry.xattrs = read_xattrs(handle.fd)
                names = handle.names()
        except SourceError as error:
            self._trouble(path, f"the root: {error.message}", False)
            return _Started(Root(path, b"", error.message), None, None)
        old_root = self._old_root(old)
        directory = self._directory(handle, entry, old_root, view)
        directory.names = iter(names)
        if self._believe and self._writer.makes_deltas:
            directory.earlier = EarlierDirectory(self._store.reader, old_root)
        self._stack.append(directory)
        self._walk()
        return _Started(Root(path, b"", "", view.how), TreeBuilder(self._writer.put_node), entry)

    def _finished(self, started: _Started) -> Root:
        if started.top is None or started.entry is None:
            return started.root
        started.top.add(started.entry)
        return Root(started.root.path, started.top.finish()[0], "", started.root.capture)

    def _old_root(self, old: OldTree | None) -> Entry | None:
        if old is None:
            return None
        self._old_taken_ns = old.taken_ns
        try:
            return next(iter_tree(self._store.reader.node, old.tree, 0), None)
        except CorruptionError:
            return None

    def _directory(
        self, handle: DirectoryHandle, entry: Entry, old: Entry | None, view: RootView
    ) -> _Directory:
        old_entries: Iterator[Entry] = iter(())
        if old is not None and old.is_directory and old.content:
            old_entries = iter_tree(self._store.reader.node, old.content, old.level)
        return _Directory(handle, entry, TreeBuilder(self._writer.put_node), old_entries, view)

    def _walk(self) -> None:
        while self._stack:
            if self._cancelled():
                raise CancelledError("the snapshot was interrupted")
            top = self._stack[-1]
            name = next(top.names, None)
            if name is None:
                self._closing.append(self._stack.pop())
                self._progress(self.files, self.logical_bytes, top.leave())
                self._drain(wait=False)
                continue
            if not (self._exclusions.any and self._exclusions.match(top.handle, name)):
                self._visit(top, name)
            if self._waiting > _WAITING_MAX:
                self._make_room(top)
            if len(self._held_directories) > self._held_max:
                self._release()

    def _drain(self, *, wait: bool) -> None:
        """Finish directories whose content is all there, children before parents."""
        while self._closing:
            first = self._closing[0]
            self._advance(first, wait=wait)
            if not first.ticket.done:
                return
            self._closing.popleft()

    def _release(self) -> None:
        """Have clones read, those that were made first first; see what hard links come to."""
        held, self._held = self._held, []
        copies, self._copies = self._copies, []
        self._held_directories = set()
        for ticket in (*held, *copies):
            if ticket.flush is not None:
                ticket.flush()

    def _make_room(self, top: _Directory) -> None:
        self._release()
        self._drain(wait=True)
        for directory in self._stack:
            if directory is not top:
                self._advance(directory, wait=False)
        self._advance(top, wait=True)

    def _visit(self, parent: _Directory, name: bytes) -> None:
        try:
            status = parent.handle.status(name)
        except FileNotFoundError:
            self._trouble(parent.handle.join(name), "vanished while the snapshot was taken", False)
            return
        except OSError as error:
            what = f"could not be read: {os.strerror(error.errno or 0)}"
            self._mark_unknown(parent, name, SourceError(what))
            return
        if storable_ns(status.st_mtime_ns) != status.st_mtime_ns:
            what = "its time lies outside the years 1677 to 2262: stored as the nearest of them"
            self._trouble(parent.handle.join(name), what, False)
        old = parent.old_entry(name)
        mode = status.st_mode
        if stat.S_ISREG(mode):
            self._visit_file(parent, name, status, old)
        elif stat.S_ISDIR(mode):
            self._visit_directory(parent, name, status, old)
        elif stat.S_ISSOCK(mode):
            self._trouble(parent.handle.join(name), "is a socket and was not stored", True)
        else:
            self._visit_special(parent, name, status, old)

    def _mark_unknown(self, parent: _Directory, name: bytes, error: SourceError) -> None:
        """Name what is there and can't be known; a name of no entry would be extra to a restore."""
        self._trouble(parent.handle.join(name), error.message, False)
        if not isinstance(error, VanishedError):
            self.files += 1
            entry = Entry(name, stat.S_IFREG, 0, 0, 0, 0, 0, state=UNREADABLE)
            self._append(parent, entry, None)

    def _append(
        self,
        parent: _Directory,
        entry: Entry,
        ticket: _Ticket | None,
        listed_bytes: int | None = None,
    ) -> None:
        parent.append(entry, ticket, listed_bytes)
        self._waiting += 1

    def _advance(self, directory: _Directory, *, wait: bool) -> None:
        """Move what is ready into its tree; from then on it counts with what was captured of it."""
        self._waiting -= directory.advance(wait=wait)
        self.files -= directory.vanished
        self.logical_bytes += directory.grown_bytes
        directory.vanished = directory.grown_bytes = 0

    def _visit_file(
        self, parent: _Directory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> None:
        self.files += 1
        if status.st_nlink > 1 and self._visit_link(parent, name, status):
            return
        self.logical_bytes += status.st_size
        link_dev = _link_dev(parent, status)
        if old is not None and self._believes(old, status):
            old.link_dev = link_dev
            self._keep_clone(parent, old, status)
            ticket = self._reuse(self._wanted(parent, old, status))
            entry = old
        else:
            entry = Entry(name, status.st_mode, 0, 0, 0, 0, status.st_ino, link_dev=link_dev)
            wanted = self._captured(self._wanted(parent, entry, status), old, parent.view)
            ticket = self._read(self._with_earlier(parent, wanted))
        # What has other names may be gone under this one and there under those.
        self._append(parent, entry, ticket, status.st_size if status.st_nlink == 1 else None)
        if status.st_nlink > 1:
            self._links[status.st_dev, status.st_ino] = (entry, ticket, status.st_nlink - 1)

    def _wanted(self, parent: _Directory, entry: Entry, status: os.stat_result) -> Wanted:
        is_frozen = isinstance(parent.view, SubvolumeView)
        return Wanted(parent.handle, entry, status, is_frozen)

    def _captured(self, wanted: Wanted, old: Entry | None, view: RootView) -> Wanted:
        """Freeze a changed file, if it is not frozen yet, and see whether somebody writes to it."""
        if view.previous is not None and old is not None and old.is_file:
            wanted = wanted._replace(old=old, previous=view.previous)
        status = wanted.status
        if isinstance(view, SubvolumeView):
            if view.is_written(wanted.path, status):
                wanted.entry.state = FLUX
                self._flux(wanted.path, (view.live_device, status.st_ino), "")
            return wanted
        if not view.can_clone(status):
            return wanted
        try:
            clone = view.clone(wanted.directory.fd, wanted.entry.name, status)
        except SourceError:
            return wanted  # the reader comes to the same end, and says so
        except OSError as error:
            what = f"captured in place: {os.strerror(error.errno or 0)}"
            self._trouble(wanted.path, what, True)
            return wanted
        if clone.is_flux:
            wanted.entry.state = FLUX
            self._flux(wanted.path, (status.st_dev, status.st_ino), "")
        return wanted._replace(clone=clone)

    def _with_earlier(self, parent: _Directory, wanted: Wanted) -> Wanted:
        """A large file with the way to its last version, which nobody takes during a freeze."""
        if parent.earlier is None or self._content.is_small(wanted.status):
            return wanted
        earlier = partial(parent.earlier.file, wanted.entry.name, wanted.status.st_size)
        return wanted._replace(earlier=earlier)

    def _keep_clone(self, parent: _Directory, old: Entry, status: os.stat_result) -> None:
        """Let an unchanged file go on having a clone, for rollbacks."""
        view = parent.view
        if self._keep_clones and view.can_clone(status) and not view.keep(old):
            with contextlib.suppress(OSError, SourceError):
                view.clone(parent.handle.fd, old.name, status)

    def _visit_link(self, parent: _Directory, name: bytes, status: os.stat_result) -> bool:
        """Another name of a file that was seen in this run: its content is not read again."""
        key = (status.st_dev, status.st_ino)
        known = self._links.get(key)
        if known is None:
            return False
        first, ticket, left = known
        self._links[key] = (first, ticket, left - 1)
        if left <= 1:
            del self._links[key]
        entry = entry_of(name, status)
        entry.link_dev = _link_dev(parent, status)
        wanted = self._wanted(parent, entry, status)
        self._append(parent, wanted.entry, self._copy_ticket(first, wanted, ticket))
        return True

    def _copy_ticket(self, first: Entry, wanted: Wanted, ticket: _Ticket | None) -> _Ticket:
        copy = _Ticket()

        def flush() -> None:
            if ticket is not None and not ticket.ready(wait=True):
                return
            copy.flush = None
            is_other = first.ino != wanted.entry.ino
            if first.mode == GONE_MODE or first.state == UNREADABLE or is_other:
                # The first name was no way to the content, or is another file's by now.
                copy.futures = [self._content.submit_large(wanted)]
                return
            _copy_content(first, wanted.entry)
            copy.done = True

        copy.flush = flush
        self._copies.append(copy)
        self._held_directories.add(wanted.directory.fd)
        return copy

    def _visit_directory(
        self, parent: _Directory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> None:
        if name == AREA_NAME or (_device(parent, status), status.st_ino) == self._store_inode:
            return
        view = parent.view
        entry = entry_of(name, status)
        if self._pseudo.holds(status):
            entry.state = SKIPPED
            self._append(parent, entry, None)
            return
        try:
            if len(self._stack) >= _DEPTH_MAX:
                raise SourceError(f"is more than {_DEPTH_MAX} directories deep")
            with source_faults():
                if view.is_elsewhere(parent.handle.join(name), status):
                    handle, view = self._elsewhere(parent, name)
                    status = os.fstat(handle.fd)
                    entry = entry_of(name, status)
                    if self._pseudo.holds(status):
                        entry.state = SKIPPED
                        self._append(parent, entry, None)
                        return
                else:
                    handle = parent.handle.child(name)
                if self._believe and old is not None and _same_inode(old, status):
                    entry.xattrs = old.xattrs
                else:
                    entry.xattrs = read_xattrs(handle.fd)
                names = handle.names()
        except SourceError as error:
            self._trouble(parent.handle.join(name), error.message, False)
            if not isinstance(error, VanishedError):
                entry.state = UNREADABLE
                self._append(parent, entry, None)
            return
        directory = self._directory(handle, entry, old, view)
        directory.names = iter(names)
        if parent.earlier is not None:
            directory.earlier = parent.earlier.directory(name, old)
        self._append(parent, entry, directory.ticket)
        self._stack.append(directory)

    def _elsewhere(self, parent: _Directory, name: bytes) -> tuple[DirectoryHandle, RootView]:
        """The live directory where a frozen root has a mount point or another subvolume."""
        path = parent.handle.join(name)
        self._trouble(path, "is a file system or subvolume of its own: captured in place", True)
        if isinstance(parent.view, SubvolumeView):
            return parent.view.open_live(path), RootView(path)
        return parent.handle.child(name), RootView(path)

    def _visit_special(
        self, parent: _Directory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> None:
        entry = entry_of(name, status)
        try:
            with source_faults():
                if stat.S_ISLNK(status.st_mode):
                    entry.content = read_symlink(parent.handle, name)
                if self._believe and old is not None and _same_inode(old, status):
                    entry.xattrs = old.xattrs
                else:
                    entry.xattrs = read_xattrs(b"/proc/self/fd/%d/" % parent.handle.fd + name)
        except SourceError as error:
            self._mark_unknown(parent, name, error)
            return
        self._append(parent, entry, None)

    def _believes(self, old: Entry, status: os.stat_result) -> bool:
        """The file is the one that the parent has, unchanged since."""
        return (
            self._believe
            and old.ctime_ns == status.st_ctime_ns
            and old.mtime_ns == status.st_mtime_ns
            and old.size_bytes == status.st_size
            and old.ino == status.st_ino
            and old.mode == status.st_mode
            and old.state == WHOLE
            and is_settled(old.mtime_ns, old.ctime_ns, self._old_taken_ns)
        )

    def _reuse(self, wanted: Wanted) -> _Ticket | None:
        """Take over the parent's content, once it is sure that the store still has it."""
        old = wanted.entry
        if not old.content:
            return None
        if old.level == 0 and len(old.content) == ID_BYTES:
            ticket = self._lookup_ticket
            self._lookups.append(wanted)
            self._lookup_directories.add(wanted.directory.fd)
            if (
                len(self._lookups) >= _LOOKUP_FILES
                or len(self._lookup_directories) >= self._batch_directories
            ):
                self._flush_lookups()
            return ticket
        if self._has_all_pieces(old):
            return None
        return self._large(wanted)

    def _has_all_pieces(self, old: Entry) -> bool:
        try:
            pieces = [piece.id for piece in iter_pieces(self._store.reader.node, old) if piece.id]
        except CorruptionError:
            return False
        return self._store.index.known(pieces) == set(pieces)

    def _flush_lookups(self) -> None:
        lookups, ticket = self._lookups, self._lookup_ticket
        self._lookups, self._lookup_ticket = [], _Ticket(self._flush_lookups)
        self._lookup_directories = set()
        known = self._store.index.known([wanted.entry.content for wanted in lookups])
        missing = [wanted for wanted in lookups if wanted.entry.content not in known]
        ticket.flush = None
        # One at a time, as large files are: this happens after damage, not every hour.
        ticket.futures = [self._content.submit_large(wanted) for wanted in missing]
        ticket.done = not missing

    def _read(self, wanted: Wanted) -> _Ticket:
        if not self._content.is_small(wanted.status):
            return self._large(wanted)
        if wanted.clone is not None:
            return self._small_clone(wanted)
        ticket = self._small_ticket
        self._small.append(wanted)
        self._small_bytes += wanted.status.st_size
        self._small_directories.add(wanted.directory.fd)
        if (
            self._small_bytes >= _BATCH_BYTES
            or len(self._small) >= _BATCH_FILES
            or len(self._small_directories) >= self._batch_directories
        ):
            self._flush_small()
        return ticket

    def _flush_small(self) -> None:
        files, ticket = self._small, self._small_ticket
        self._small, self._small_bytes, self._small_directories = [], 0, set()
        self._small_ticket = _Ticket(self._flush_small)
        ticket.flush = None
        ticket.futures = [self._content.submit_small(files)]

    def _small_clone(self, wanted: Wanted) -> _Ticket:
        """What is cloned can be read when all is: a freeze does not wait for readers."""
        files = self._clones
        if not files:
            self._clones_ticket = self._held_batch(files)
        ticket = self._clones_ticket
        files.append(wanted)
        self._held_directories.add(wanted.directory.fd)
        if (
            sum([one.status.st_size for one in files]) >= _BATCH_BYTES
            or len({one.directory.fd for one in files}) >= self._batch_directories
        ):
            self._clones = []
        return ticket

    def _held_batch(self, files: list[Wanted]) -> _Ticket:
        ticket = _Ticket()

        def flush() -> None:
            if files is self._clones:
                self._clones = []
            ticket.flush = None
            ticket.futures = [self._content.submit_small(files)]

        ticket.flush = flush
        self._held.append(ticket)
        return ticket

    def _large(self, wanted: Wanted) -> _Ticket:
        ticket = _Ticket()
        if wanted.clone is None and not wanted.is_frozen:
            ticket.futures = [self._content.submit_large(wanted)]
            return ticket

        def flush() -> None:
            ticket.flush = None
            ticket.futures = [self._content.submit_large(wanted)]

        ticket.flush = flush
        self._held.append(ticket)
        self._held_directories.add(wanted.directory.fd)
        return ticket


def _device(parent: _Directory, status: os.stat_result) -> int:
    """``st_dev`` of the live file: a frozen subvolume has another."""
    view = parent.view
    return view.live_device if isinstance(view, SubvolumeView) else status.st_dev


def _link_dev(parent: _Directory, status: os.stat_result) -> int:
    return _device(parent, status) if status.st_nlink > 1 else 0


def _same_inode(old: Entry, status: os.stat_result) -> bool:
    return old.ino == status.st_ino and old.ctime_ns == status.st_ctime_ns


def _copy_content(first: Entry, entry: Entry) -> None:
    entry.mode, entry.size_bytes, entry.state = first.mode, first.size_bytes, first.state
    entry.mtime_ns, entry.ctime_ns = first.mtime_ns, first.ctime_ns
    entry.content, entry.level, entry.xattrs = first.content, first.level, first.xattrs

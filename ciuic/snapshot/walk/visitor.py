"""Turn the names of a directory into entries, and find the directories to walk next."""

import os
import stat
from typing import Final

from ciuic.errors import SourceError, VanishedError
from ciuic.model import SKIPPED, UNREADABLE, Entry
from ciuic.snapshot.read.sinks import Sinks
from ciuic.snapshot.walk.directories import Directories, WalkRules, xattrs_of
from ciuic.snapshot.walk.file_capture import FileVisitor, live_device
from ciuic.snapshot.walk.hard_links import HardLinks
from ciuic.snapshot.walk.pending import PendingEntry
from ciuic.snapshot.walk.tally import Tally
from ciuic.snapshot.walk.walked_directory import WalkedDirectory
from ciuic.source.directory import DirectoryHandle, entry_of, read_symlink, storable_ns
from ciuic.source.exclusions import BY_PATTERN, BY_SIZE
from ciuic.source.faults import source_faults
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.store.records.tree_nodes import NAME_BYTES_MAX, TARGET_BYTES_MAX
from ciuic.store.store import Store

__all__ = ["Visitor"]

_DEPTH_MAX: Final = 900
"""Each level keeps a descriptor open; deeper directories are reported and skipped."""


class Visitor:
    """Turns names into entries.

    Args:
        store: The store, which is never part of a snapshot.
        directories: Opens subdirectories.
        files: Captures regular files.
        tally: Counts entries.
        rules: The rules of the walk.
        sinks: Receive warnings and excluded names.
    """

    def __init__(
        self,
        store: Store,
        directories: Directories,
        files: FileVisitor,
        tally: Tally,
        *,
        rules: WalkRules,
        sinks: Sinks,
    ) -> None:
        self._directories = directories
        self._files = files
        self._tally = tally
        self._rules = rules
        self._exclusions = rules.exclusions
        self._sinks = sinks
        self._pseudo = directories.pseudo
        self._links = HardLinks(store.path)
        own = os.stat(store.path)
        self._store_inode = (own.st_dev, own.st_ino)

    def close(self) -> None:
        """Remove the temporary file of the hard links."""
        self._links.close()

    def visit(self, parent: WalkedDirectory, name: bytes, depth: int) -> WalkedDirectory | None:
        """Add the entry of a name to its directory.

        Args:
            parent: The directory.
            name: The name in it.
            depth: The depth of the directory.

        Returns:
            The directory to walk next, if the name is a directory.
        """
        if self._exclusions.any and self._exclusions.match(parent.handle, name):
            self._exclude(parent.handle, name, BY_PATTERN)
            return None
        try:
            status = os.stat(name, dir_fd=parent.handle.fd, follow_symlinks=False)
        except FileNotFoundError:
            self._tally.has_vanished = True
            self._warn(parent, name, "vanished while the snapshot was taken")
            return None
        except OSError as error:
            what = f"could not be read: {os.strerror(error.errno or 0)}"
            self._add_unreadable(parent, name, SourceError(what))
            return None
        if storable_ns(status.st_mtime_ns) != status.st_mtime_ns:
            what = "its time is before 1677-09-21 or after 2262-04-11: stored as the nearest"
            self._warn(parent, name, what)
        if len(name) > NAME_BYTES_MAX:
            self._warn(parent, name, "has a name that is too long to store")
            return None
        return self._visit_by_type(parent, name, status, depth)

    def _visit_by_type(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, depth: int
    ) -> WalkedDirectory | None:
        old = parent.old.find(name)
        mode = status.st_mode
        if stat.S_ISREG(mode):
            if self._exclusions.is_too_large(status):
                self._exclude(parent.handle, name, BY_SIZE)
            else:
                self._visit_file(parent, name, status, old)
        elif stat.S_ISDIR(mode):
            return self._visit_directory(parent, name, status, old, depth)
        elif stat.S_ISSOCK(mode):
            self._warn(parent, name, "is a socket and was not stored", harmless=True)
        else:
            self._visit_special(parent, name, status, old)
        return None

    def _visit_file(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> None:
        self._tally.files += 1
        has_other_names = status.st_nlink > 1
        first = self._links.first(status) if has_other_names else None
        if first is not None:
            found = self._files.visit_other_name(parent, name, status, old, first)
            self._tally.append(parent, found)
            return
        self._tally.logical_bytes += status.st_size
        found = self._files.visit(parent, name, status, old)
        if isinstance(found, PendingEntry):
            found.listed_inode = status.st_ino
        # If this name vanishes, the file may still exist under its other names.
        self._tally.append(parent, found, None if has_other_names else status.st_size)
        if has_other_names:
            self._links.add(status, found)

    def _visit_directory(
        self,
        parent: WalkedDirectory,
        name: bytes,
        status: os.stat_result,
        old: Entry | None,
        depth: int,
    ) -> WalkedDirectory | None:
        inode = (live_device(parent.view, status), status.st_ino)
        if name == AREA_NAME or inode == self._store_inode:
            return None
        entry = entry_of(name, status)
        if self._pseudo.holds(status):
            self._skip(parent, entry, status)
            return None
        try:
            if depth >= _DEPTH_MAX:
                raise SourceError(f"is more than {_DEPTH_MAX} directories deep")
            opened = self._directories.open(parent, name, status)
            if opened.view is not parent.view:
                entry = entry_of(name, opened.status)
                if self._pseudo.holds(opened.status):
                    self._skip(parent, entry, opened.status)
                    return None
            directory = self._directories.child(parent, entry, opened, old)
        except SourceError as error:
            self._warn(parent, name, error.message)
            if isinstance(error, VanishedError):
                self._tally.has_vanished = True
            else:
                entry.state = UNREADABLE
                self._tally.append(parent, entry)
            return None
        self._tally.append(parent, directory.pending)
        return directory

    def _visit_special(
        self, parent: WalkedDirectory, name: bytes, status: os.stat_result, old: Entry | None
    ) -> None:
        entry = entry_of(name, status)
        try:
            with source_faults():
                if stat.S_ISLNK(status.st_mode):
                    entry.content = read_symlink(parent.handle, name)
                    if not 0 < len(entry.content) <= TARGET_BYTES_MAX:
                        raise SourceError("is a symlink with a target of an invalid length")
                path = b"/proc/self/fd/%d/" % parent.handle.fd + name
                entry.xattrs = xattrs_of(self._rules, old, status, path)
        except SourceError as error:
            self._add_unreadable(parent, name, error)
            return
        self._tally.append(parent, entry)

    def _skip(self, parent: WalkedDirectory, entry: Entry, status: os.stat_result) -> None:
        if self._pseudo.is_ciuic(status):  # users know /proc and /sys
            self._warn(parent, entry.name, self._pseudo.why_left_out(status), harmless=True)
        entry.state = SKIPPED
        self._tally.append(parent, entry)

    def _add_unreadable(self, parent: WalkedDirectory, name: bytes, error: SourceError) -> None:
        """Warn about a name that cannot be read, and add it: a restore removes names it lacks."""
        self._warn(parent, name, error.message)
        if isinstance(error, VanishedError):
            self._tally.has_vanished = True
        else:
            self._tally.files += 1
            entry = Entry(name, stat.S_IFREG, 0, 0, 0, 0, 0, state=UNREADABLE)
            self._tally.append(parent, entry)

    def _exclude(self, directory: DirectoryHandle, name: bytes, why: str) -> None:
        """Count and report a name that a rule excludes; its content is excluded, too."""
        self._tally.excluded += 1
        self._sinks.excluded(directory, name, why)

    def _warn(
        self, parent: WalkedDirectory, name: bytes, what: str, *, harmless: bool = False
    ) -> None:
        self._sinks.warn(parent.handle.join(name), what, harmless)

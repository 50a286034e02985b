"""Places entries of a snapshot in a directory, each complete or not at all.

A ``Placer`` walks a tree of the snapshot beside the target and creates directories, symlinks and
device nodes. ``filling.py`` writes files, ``barrier.py`` gives them their names.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import BEING_WRITTEN, NO_CONTENT, SKIPPED, UNREADABLE, Entry
from ciuic.restore.place.barrier import Barrier
from ciuic.restore.place.filling import Filler
from ciuic.restore.place.hard_links import HardLinks
from ciuic.restore.place.job import Job, Pass
from ciuic.restore.place.levels import Level, Place, is_directory
from ciuic.restore.place.removal import Removal
from ciuic.restore.place.target import (
    apply_special_metadata,
    make_special,
    raise_if_ending,
    same_metadata,
)
from ciuic.restore.selection import Selection, Verdict
from ciuic.source.directory import DirectoryHandle, read_xattrs
from ciuic.source.exclusions import Exclusions
from ciuic.system import durable
from ciuic.view.located import inner_path
from ciuic.view.tree_walk import KEPT_MAX, Cursor, PathBudget, relax

__all__ = ["Placer"]

_UNREADABLE: Final = "could not be read when the snapshot was taken"
_IN_THE_WAY: Final = (
    "not a directory in the target, and the filter does not replace it: nothing below it was"
    " restored"
)


class Placer:
    """Places entries; used in a ``with`` block, whose end is the last barrier.

    Args:
        run: The pass that the entries belong to.
        delete: Remove what the snapshot does not have from restored directories.
        sets_aside_being_written: Do not place files that were being written; name them.
        protected: What the snapshot left out; never removed.
        selection: Which paths to place.

    Attributes:
        set_aside: Files that were not placed because of ``sets_aside_being_written``.
    """

    def __init__(
        self,
        run: Pass,
        *,
        delete: bool,
        sets_aside_being_written: bool,
        protected: Exclusions,
        selection: Selection,
    ) -> None:
        self._run = run
        self._sets_aside_being_written = sets_aside_being_written
        self._selection = selection
        self._filler = Filler(run)
        self._links = HardLinks(run, self._filler.files)
        self._removal = Removal(run, delete=delete, protected=protected, selection=selection)
        self._barrier = Barrier(run, self._filler, self._links, self._removal)
        self._budget = PathBudget(run.store.pack_lengths)
        self._above: DirectoryHandle | None = None
        self._entered_paths: set[bytes] = set()
        self._takes: Callable[[bytes], bool] | None = None
        self.set_aside: list[bytes] = []

    def __enter__(self) -> "Placer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._barrier.finish()
        finally:
            self._filler.close()
            self._barrier.close()
            self._links.close()
            self._run.ledger.close()
            self._above = None

    def place(
        self,
        directory: DirectoryHandle | None,
        name: bytes,
        entry: Entry,
        path: bytes,
        *,
        above: DirectoryHandle | None = None,
        keeps_time: bool = False,
        takes: Callable[[bytes], bool] | None = None,
        is_made: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Place one entry, and everything below it.

        Args:
            directory: The directory that gets it; None in a dry run if it does not exist.
            name: Its name there.
            entry: The entry in the snapshot.
            path: Its path in the snapshot, for messages.
            above: A directory above ``directory`` that stays open for longer; in a dry run, the
                directory that ``directory`` would be created in.
            keeps_time: The directory was restored before, and its time is right.
            takes: Returns whether a name that is directly in the entry is placed; None: each is.
            is_made: This restore has just created it.
            is_kept: A directory does not replace what has the name.
        """
        self._takes = takes
        self._enter(directory, above, keeps_time=keeps_time)
        levels: list[Level] = []
        verdict = self._selection.verdict(path)
        if _is_wanted(entry, verdict):
            place = Place(directory, name, path, may_exist=True, is_made=is_made, is_kept=is_kept)
            self._place_one(place, entry, levels, verdict)
        while levels:
            self._run.check_cancelled()
            level = levels[-1]
            inner = self._next_entry(levels)
            if inner is not None:
                self._place_inner(inner, levels)
            elif level in levels:
                self._leave(levels.pop())

    def _enter(
        self, directory: DirectoryHandle | None, above: DirectoryHandle | None, *, keeps_time: bool
    ) -> None:
        self._budget = PathBudget(self._run.store.pack_lengths)
        self._above = directory or above
        self._links.enter(above or directory)
        self._barrier.enter(directory, keeps_time=keeps_time)
        if directory is not None and directory.path not in self._entered_paths:
            self._entered_paths.add(directory.path)
            self._removal.remove_leftovers(directory, directory.names())

    def _place_inner(self, entry: Entry, levels: list[Level]) -> None:
        """Place the next entry of the lowest directory."""
        level, name = levels[-1], entry.name
        path = inner_path(level.path, name)
        may_exist = name in level.present
        level.present.discard(name)
        if self._takes is not None and len(levels) == 1 and not self._takes(name):
            return
        verdict = self._selection.inner(level.path, name, level.verdict)
        if not _is_wanted(entry, verdict):
            return
        if verdict is Verdict.TAKEN and not self._make_passages(levels):
            return
        self._place_one(
            Place(level.handle, name, path, may_exist=may_exist), entry, levels, verdict
        )

    def _next_entry(self, levels: list[Level]) -> Entry | None:
        level = levels[-1]
        while level.entries is not None:
            try:
                return level.entries.next()
            except (CorruptionError, UnknownFormatError) as error:
                self._note_unread(levels, error.message)
            # An older snapshot may have the directory.
            if not self._make_passages(levels):
                break
        return None

    def _note_unread(self, levels: list[Level], why: str) -> None:
        """Note a node that cannot be read; the walk goes on behind it, if there is more to read."""
        level = levels[-1]
        # Too many paths: the directory that holds the last of them is not damaged.
        unread = levels if self._budget.is_spent else [level]
        if not unread[0].is_cut:
            part = "a part of the directory" if unread[0].entry.level else "the directory"
            self._run.ledger.lost(unread[0].path, f"{part} cannot be read: {why}")
        is_done = self._budget.is_spent or level.entries is None or not level.entries.go_past()
        for unread_level in unread:
            unread_level.is_cut = True
            if is_done:
                unread_level.entries = None

    def _make_passages(self, levels: list[Level]) -> bool:
        """Create the passages above a path that is placed; False if one cannot be created.

        That directory is reported, and the walk leaves it with everything below it.
        """
        if levels[-1].handle is not None:
            return True
        for number, level in enumerate(levels):
            if not level.is_awaited:
                continue
            above = levels[number - 1].handle if number else level.place.directory
            if above is None:
                continue  # a dry run
            place = level.place._replace(directory=above)
            try:
                if place.status() is not None:
                    self._run.ledger.failed(level.path, _IN_THE_WAY)
                    del levels[number:]
                    return False
                level.handle = self._open_directory(place)
            except OSError as error:
                raise_if_ending(error, place.where())
                self._run.ledger.failed(level.path, os.strerror(error.errno or 0))
                del levels[number:]
                return False
            level.is_awaited = False
        return True

    def _place_one(self, place: Place, entry: Entry, levels: list[Level], verdict: Verdict) -> None:
        try:
            if entry.is_file:
                self._place_file(place, entry)
            elif entry.is_directory:
                self._place_directory(place, entry, levels, verdict)
            else:
                self._place_special(place, entry)
        except OSError as error:
            raise_if_ending(error, place.where())
            self._run.ledger.failed(place.path, os.strerror(error.errno or 0))

    def _place_directory(
        self, place: Place, entry: Entry, levels: list[Level], verdict: Verdict
    ) -> None:
        if entry.state == UNREADABLE:
            self._run.ledger.lost(place.path, _UNREADABLE, damaged=False)
        is_passage = verdict is Verdict.PASSAGE
        status = place.status()
        is_there = is_directory(status)
        handle = None if is_passage and not is_there else self._open_directory(place)
        if entry.state in {UNREADABLE, SKIPPED}:
            if is_passage and levels:
                self._make_passages(levels)
            return
        entries: Cursor | None = None
        if entry.content:
            entries = Cursor(
                self._run.store.reader.node,
                entry,
                depth=len(levels),
                budget=self._budget,
            )
            relax([*[above.entries for above in levels[-KEPT_MAX:] if above.entries], entries])
        level = Level(handle, place, entry, entries, verdict)
        # Compared now: what is written in the directory changes its time.
        level.is_corrected = (
            handle is not None
            and status is not None
            and is_there
            and not (is_passage or place.is_made)
            and not (same_metadata(entry, status) and entry.xattrs == read_xattrs(handle.fd))
        )
        levels.append(level)

    def _open_directory(self, place: Place) -> DirectoryHandle | None:
        """Open the target's directory of this name; create it if needed. Follows no symlink."""
        status = place.status()
        if place.directory is None:
            return None
        if not is_directory(status):
            if status is not None and place.is_kept:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if self._run.dry_run:
                if status is not None:
                    self._run.ledger.would_delete(place.where())
                return None
            if status is not None:
                os.unlink(place.name, dir_fd=place.directory.fd)
                self._run.ledger.deleted(1)
            # Another restore may create it at the same moment; below, only a directory is opened.
            with contextlib.suppress(FileExistsError):
                os.mkdir(place.name, 0o700, dir_fd=place.directory.fd)
        handle = place.directory.child(place.name)
        self._barrier.add_file_system(handle)
        return handle

    def _place_file(self, place: Place, entry: Entry) -> None:
        if entry.state == UNREADABLE:
            self._run.ledger.lost(place.path, _UNREADABLE, damaged=False)
            return
        if entry.lacks_content:
            self._run.ledger.lost(place.path, NO_CONTENT)
            return
        if entry.state == BEING_WRITTEN and self._sets_aside_being_written:
            self.set_aside.append(place.path)
            return
        if entry.state == BEING_WRITTEN:
            self._run.ledger.in_flux(place.path)
        if place.directory is None:
            self._would_write_new(entry, place.path)
            return
        status = place.status()
        if is_directory(status) and not self._removal.clear(place):
            return
        present = status if status is not None and stat.S_ISREG(status.st_mode) else None
        job = Job(place.directory, place.name, entry, place.path, present)
        if not (entry.link_dev and self._links.is_further_name(job)):
            self._filler.add(job)
        self._barrier.pass_if_due()

    def _would_write_new(self, entry: Entry, path: bytes) -> None:
        """Count a file in a directory that does not exist (dry run)."""
        if entry.link_dev and self._links.is_further_new_name(entry, path):
            self._run.ledger.written(0)
            return
        above = self._above
        cloned_bytes = (
            0 if above is None else self._filler.present.clonable_bytes(path, entry, above)
        )
        self._run.ledger.written(entry.size_bytes, cloned_bytes=cloned_bytes)

    def _place_special(self, place: Place, entry: Entry) -> None:
        """Place a symlink, FIFO or device node: create it under a temporary name and rename it."""
        directory = place.directory
        if directory is None:
            self._run.ledger.written(0)
            return
        status = place.status()
        if is_directory(status) and not self._removal.clear(place):
            return
        if status is not None and _is_same_special(directory, place.name, entry, status):
            self._run.ledger.kept()
            return
        if self._run.dry_run:
            self._run.ledger.written(0)
            return
        temporary = self._filler.files.new_name()
        make_special(directory, temporary, entry)
        try:
            refused = apply_special_metadata(directory, temporary, entry)
            durable.publish_name(temporary, place.name, dir_fd=directory.fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory.fd)
            raise
        self._run.ledger.written(0)
        self._run.ledger.refused(place.path, refused)

    def _leave(self, level: Level) -> None:
        """Finish a directory that was walked, after the barrier that publishes its files."""
        level.entries = None
        if level.handle is None:
            return
        self._removal.leave(level, level.handle)
        self._barrier.add_directory(level)
        self._barrier.pass_if_due()


def _is_wanted(entry: Entry, verdict: Verdict) -> bool:
    """Return whether the entry is placed, or paths below it may be."""
    return verdict is Verdict.TAKEN or (verdict is Verdict.PASSAGE and entry.is_directory)


def _is_same_special(
    directory: DirectoryHandle, name: bytes, entry: Entry, status: os.stat_result
) -> bool:
    if not same_metadata(entry, status):
        return False
    if entry.is_symlink:
        return os.readlink(name, dir_fd=directory.fd) == entry.content
    device = os.major(status.st_rdev) << 32 | os.minor(status.st_rdev)
    return stat.S_ISFIFO(entry.mode) or device == entry.rdev

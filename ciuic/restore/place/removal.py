"""Removes names from the target of a restore, except protected ones."""

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import Final

from ciuic.restore.place.job import Pass
from ciuic.restore.place.levels import Level, Place
from ciuic.restore.place.target import is_leftover, list_files, remove_tree
from ciuic.restore.selection import Selection, Verdict
from ciuic.source.directory import DirectoryHandle
from ciuic.source.exclusions import Exclusions
from ciuic.source.freeze.interface import AREA_NAME

__all__ = ["Removal"]

_OCCUPIED: Final = "its place is taken by a directory that is not empty; --delete replaces it"


class Removal:
    """Removes names from the target, or counts them in a dry run.

    Args:
        run: The pass.
        delete: Remove what the snapshot does not have from restored directories.
        protected: What the snapshot left out; never removed.
        selection: Paths that it leaves out are never removed.
    """

    def __init__(
        self, run: Pass, *, delete: bool, protected: Exclusions, selection: Selection
    ) -> None:
        self._run = run
        self._delete = delete
        self._protected = protected
        self._selection = selection
        own = os.stat(run.store.path)
        self._store_inode = (own.st_dev, own.st_ino)

    def leave(self, level: Level, handle: DirectoryHandle) -> None:
        """Remove leftovers from a directory that was walked, and note its extra names."""
        self.remove_leftovers(handle, level.present)
        if self._delete and not level.is_cut:
            level.extra = sorted(name for name in level.present if not is_leftover(name))
        level.present = set()

    def delete_extra(self, level: Level, handle: DirectoryHandle) -> None:
        """Delete the names of a directory that the snapshot does not have."""
        # Read the mark only now: the mark itself may be among what was restored.
        if not level.extra or self._protected.mark(handle.fd) is not None:
            return
        ledger = self._run.ledger
        for name in level.extra:
            path = os.path.join(level.path, name)
            if self._run.dry_run:
                list_files(handle, name, path, self._is_protected, ledger.would_delete)
            else:
                remove_tree(handle, name, path, self._is_protected, ledger.deleted)

    def clear(self, place: Place) -> bool:
        """Remove a directory that has the place of a file; False if it must stay."""
        directory, name, path = place.directory, place.name, place.path
        if directory is None:
            return True
        if not self._delete and directory.child(name).names():
            self._run.ledger.failed(path, _OCCUPIED)
            return False
        if self._run.dry_run:
            list_files(directory, name, path, self._is_protected, self._run.ledger.would_delete)
            return True
        remove_tree(directory, name, path, self._is_protected, self._run.ledger.deleted)
        if place.status() is not None:
            self._run.ledger.failed(
                path, "its place is taken by a directory with files that are never deleted"
            )
            return False
        return True

    def remove_leftovers(self, handle: DirectoryHandle, names: Iterable[bytes]) -> None:
        """Remove temporary files of restores that were killed."""
        if self._run.dry_run:
            return
        for name in names:
            if is_leftover(name):
                # A file of another user, or a directory, does no harm.
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=handle.fd)

    def _is_protected(
        self, directory: DirectoryHandle, name: bytes, path: bytes, status: os.stat_result
    ) -> bool:
        """Return whether a path must stay: a socket, the store, or what the snapshot left out.

        Called for each path before it is removed, so an interrupt takes effect here.
        """
        self._run.check_cancelled()
        if stat.S_ISSOCK(status.st_mode) or os.path.basename(path) == AREA_NAME:
            return True
        if (status.st_dev, status.st_ino) == self._store_inode:
            return True
        if self._selection.any and self._selection.verdict(path) is not Verdict.TAKEN:
            return True  # the filter leaves it out
        if self._protected.any and self._protected.match_path(*os.path.split(path)):
            return True
        if self._protected.has_marks and stat.S_ISDIR(status.st_mode):
            inner = directory.child(name)
            return self._protected.mark(inner.fd) is not None
        return self._protected.is_too_large(status)

"""A directory of the store that holds small files: manifests, their copies, marks, retired IDs.

Every change has a name here, so that another kind of place can offer the same.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from ciuic.errors import UnreachableError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import read_regular, status_of
from ciuic.store.directory.listing import names_in, statuses_in
from ciuic.store.records import layout
from ciuic.system import durable, nofollow

__all__ = ["Folder"]

K = TypeVar("K")

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class Folder:
    """The files in one directory of a store. All methods raise StoreError if the store fails.

    Args:
        store_path: The store's directory.
        name: The directory in it; empty: the store's directory itself.
        is_unlocked: Processes write to it without a lock, so no unfinished file of theirs may be in
            ``tmp/``: a writer that is alone removes what it finds there.
        is_owners: The directory that ``make`` creates, and what ``mark`` creates in it, belong to
            the owner of the store's directory: root creates them, and he uses them.

    Attributes:
        path: The directory.
    """

    def __init__(
        self,
        store_path: str,
        name: str = "",
        *,
        is_unlocked: bool = False,
        is_owners: bool = False,
    ) -> None:
        self._is_owners = is_owners
        self.path = os.path.join(store_path, name) if name else store_path
        temporary = os.path.join(store_path, layout.TEMPORARY)
        self._temporary = self.path if is_unlocked else temporary

    def path_of(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return os.path.join(self.path, name)

    def exists(self) -> bool:
        """Return whether there is anything at the directory's path."""
        return nofollow.exists(self.path)

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name, damaged or not."""
        return nofollow.exists(self.path_of(name))

    def names(self, parse: Callable[[str], K | None]) -> set[K]:
        """Return the names that ``parse`` understands, parsed; empty if there is no directory."""
        return names_in(self.path, parse)

    def statuses(
        self, parse: Callable[[str], K | None]
    ) -> dict[K, os.stat_result | UnreachableError]:
        """Like ``names``, with the status of each file, or why the disk cannot give it."""
        return statuses_in(self.path, parse)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Read a file, at most its first ``bytes_max`` bytes.

        Raises:
            UnreachableError: The disk cannot read it.
        """
        path = self.path_of(name)
        with store_faults("read", path):
            return read_regular(path, bytes_max)

    def mtime_ns(self, name: str) -> int:
        """Return when a file was written, in nanoseconds since 1970.

        Raises:
            UnreachableError: The disk cannot read its status.
        """
        path = self.path_of(name)
        with store_faults("read", path):
            return status_of(path).st_mtime_ns

    def make(self) -> None:
        """Create the directory if it is missing: copying a store may lose empty ones."""
        with store_faults("make", self.path):
            self._make()

    def create(self, name: str, data: bytes) -> bool:
        """Durably write a new file; returns False, and changes nothing, if it exists.

        Raises:
            CommitUncertainError: The file is written, and a power cut may still undo that.
        """
        path = self.path_of(name)
        with store_faults("write", path):
            try:
                durable.create_whole(
                    path, data, temporary_directory=self._temporary, mode=_FILE_MODE
                )
            except FileExistsError:
                return False
        return True

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        """Write new files; ``sync`` makes their names durable.

        Args:
            files: The name and the content of each.

        Returns:
            The names that were free; the others are unchanged.
        """
        with store_faults("write to", self.path):
            return durable.create_named(
                self.path, files, temporary_directory=self._temporary, mode=_FILE_MODE
            )

    def replace(self, name: str, data: bytes) -> None:
        """Durably write a file; readers see the old file or the new one.

        Raises:
            CommitUncertainError: The file is written, and a power cut may still undo that.
        """
        path = self.path_of(name)
        with store_faults("write", path):
            durable.write_whole(path, data, temporary_directory=self._temporary, mode=_FILE_MODE)

    def make_and_replace(self, name: str, data: bytes) -> None:
        """Like ``replace``, and create the directory if it is missing."""
        with store_faults("write to", self.path):
            self._make()
            durable.write_whole(
                self.path_of(name), data, temporary_directory=self._temporary, mode=_FILE_MODE
            )

    def put_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Durably write files, all with one sync of the directory; create it if it is missing.

        Args:
            files: The name and the content of each.
        """
        with store_faults("write to", self.path):
            self._make()
            for name, data in files:
                durable.write_named(
                    self.path_of(name), data, temporary_directory=self._temporary, mode=_FILE_MODE
                )
            durable.sync_directory(self.path)

    def mark(self, name: str) -> None:
        """Durably create an empty file."""
        path = self.path_of(name)
        with store_faults("write", path):
            durable.make_empty(path, _FILE_MODE, like_above=self._is_owners)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; ``sync`` makes that durable."""
        path = self.path_of(name)
        with store_faults("remove", path):
            durable.remove_file(path)

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are skipped. ``sync`` makes that durable."""
        with store_faults("remove from", self.path):
            for name in names:
                durable.remove_file(self.path_of(name))

    def remove_durably(self, names: Iterable[str]) -> None:
        """Remove files durably; missing ones, and a missing directory, are skipped."""
        if not nofollow.is_directory(self.path):
            return
        with store_faults("remove from", self.path):
            for name in names:
                durable.remove_file(self.path_of(name))
            durable.sync_directory(self.path)

    def sync(self) -> None:
        """Make new names and removals durable."""
        with store_faults("sync", self.path):
            durable.sync_directory(self.path)

    def set_aside(self, name: str, other: "Folder") -> None:
        """Durably move a file to another directory; a file of the same name there stays."""
        with store_faults("write to", other.path):
            other._make()
            # An interrupted run may have linked this file, or a repair set aside another one.
            with contextlib.suppress(FileExistsError):
                durable.keep_as(self.path_of(name), other.path_of(name))
            durable.remove_file(self.path_of(name))
            durable.sync_directory(self.path)

    def _make(self) -> None:
        # A process may have died before it gave the directory to the owner.
        if self._is_owners or not nofollow.is_directory(self.path):
            durable.make_directory(self.path, _DIRECTORY_MODE, like_above=self._is_owners)

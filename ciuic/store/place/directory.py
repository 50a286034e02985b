"""A place in a directory: an object is a file, and its key is the file's path in the directory.

No symlink is followed, and only regular files are read (``store.directory.files``). A new object is
written to ``tmp/``, synced, and then gets its name: by rename(2), or by link(2) if the name must be
free. docs/format.md has the layout.
"""

import contextlib
import errno
import fcntl
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from ciuic.errors import (
    BusyError,
    CorruptionError,
    LostRaceError,
    MissingError,
    StoreError,
    UnsupportedError,
)
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import (
    fails_on_disk,
    open_regular,
    read_at,
    read_regular,
    status_of,
)
from ciuic.store.place.keys import check_folder, check_key, is_key
from ciuic.store.place.place import Body, ByteRange, Found, Listed, Version
from ciuic.store.records import layout
from ciuic.system import durable, nofollow
from ciuic.system.clock import Clock, SystemClock
from ciuic.system.hashing import data_id

__all__ = ["DirectoryPlace"]

T = TypeVar("T")

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""How file systems without hard links refuse link(2)."""
_NO_LOCKS: Final = {errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""How file systems refuse flock(2) on a directory; NFS gives EBADF."""
_LOCK_WAIT_S: Final = 30.0
_POLL_S: Final = 0.01


class DirectoryPlace:
    """The objects of one directory. See ``Place``.

    Attributes:
        path: The directory, symlinks resolved.
    """

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        with store_faults("find", path):
            self.path = nofollow.resolved(path)
        self._temporary = os.path.join(self.path, layout.TEMPORARY)
        self._clock = clock or SystemClock()
        self._staged: set[str] = set()
        """Directories with names that are not durable yet."""
        self._staged_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"DirectoryPlace({self.path!r})"

    @property
    def name(self) -> str:
        """See ``Place``."""
        return self.path

    def get(self, key: str, bytes_max: int) -> bytes:
        """See ``Place``."""
        path = self._path(key)
        with self._reading("read", path):
            return read_regular(path, bytes_max)

    def get_versioned(self, key: str, bytes_max: int) -> Found:
        """See ``Place``."""
        data = self.get(key, bytes_max + 1)
        if len(data) > bytes_max:
            raise CorruptionError(f"{self._path(key)} is larger than {bytes_max:,} bytes")
        return Found(data, _version(data))

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """See ``Place``."""
        path = self._path(key)
        parts: list[bytes | memoryview] = []
        with self._reading("read", path):
            fd = open_regular(path)
            try:
                for wanted in ranges:
                    part = read_at(fd, wanted.length_bytes, wanted.begin_bytes)
                    if len(part) != wanted.length_bytes:
                        raise CorruptionError(f"{path} ends before byte {wanted.end_bytes:,}")
                    parts.append(part)
            finally:
                os.close(fd)
        return parts

    def size_bytes(self, key: str) -> int:
        """See ``Place``."""
        path = self._path(key)
        with self._reading("look at", path):
            return status_of(path).st_size

    def list(self, folder: str = "", after: str = "") -> Iterator[Listed]:
        """See ``Place``."""
        check_folder(folder)
        for listed in self._walk(folder):
            if listed.key > after:
                yield listed

    def keys(self, folder: str = "") -> set[str]:
        """See ``Place``."""
        check_folder(folder)
        found: set[str] = set()
        folders = [folder]
        while folders:
            above = folders.pop()
            prefix = f"{above}/" if above else ""
            directory = os.path.join(self.path, above) if above else self.path
            with contextlib.suppress(MissingError), self._reading("list", directory):
                for name, is_directory in _names(directory):
                    key = prefix + name
                    if not is_key(key) or key == layout.TEMPORARY:
                        continue
                    if is_directory:
                        folders.append(key)
                    else:
                        found.add(key)
        return found

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See ``Place``."""
        path = self._path(key)
        with store_faults("write", path):
            self._with_folders(key, lambda: self._write(durable.write_whole, path, data))

    def put_file(self, key: str, body: Body) -> None:
        """See ``Place``."""
        self.put(key, body.read())

    def stage(self, key: str, data: bytes) -> None:
        """See ``Place``."""
        path = self._path(key)
        with store_faults("write", path):
            self._with_folders(key, lambda: self._write(durable.write_named, path, data))
        with self._staged_lock:
            self._staged.add(os.path.dirname(path))

    def make_durable(self) -> None:
        """See ``Place``."""
        with self._staged_lock:
            directories = sorted(self._staged)
        for directory in directories:
            # Taken out before the sync: a name that is staged meanwhile needs the next sync.
            with self._staged_lock:
                self._staged.discard(directory)
            try:
                with store_faults("sync", directory):
                    durable.sync_directory(directory)
            except StoreError:
                with self._staged_lock:
                    self._staged.add(directory)
                raise

    def create(self, key: str, data: bytes) -> Version:
        """See ``Place``."""
        path = self._path(key)
        try:
            with store_faults("create", path):
                create = functools.partial(durable.create_whole, is_locked=False)
                self._with_folders(key, lambda: self._write(create, path, data))
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, FileExistsError):
                self._check_own(key, data)
            elif isinstance(cause, OSError) and cause.errno in _NO_LINKS:
                raise UnsupportedError(
                    f"the file system of {self.path} refuses hard links",
                    hint="Put the store on ext4, XFS, btrfs or NFS.",
                ) from error
            else:
                raise
        return _version(data)

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        """See ``Place``."""
        path = self._path(key)
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(self._locked(os.path.dirname(path))):
                raise UnsupportedError(
                    f"the file system of {self.path} cannot lock a directory",
                    hint="Put the store on a local file system.",
                )
            with self._reading("read", path):
                # All of it, and a byte more in case it grows: a version is the hash of the whole.
                found = _version(read_regular(path, status_of(path).st_size + 1))
            if found == version:
                self.put(key, data)
            elif found != _version(data):
                raise _changed(path)
        return _version(data)

    def delete(self, keys: Iterable[str]) -> None:
        """See ``Place``."""
        paths = sorted({self._path(key) for key in keys})
        directories = sorted({os.path.dirname(path) for path in paths})
        for directory in directories:
            with contextlib.suppress(MissingError), self._locked(directory):
                for path in paths:
                    if os.path.dirname(path) == directory:
                        with store_faults("remove", path):
                            durable.remove_file(path)
                with store_faults("sync", directory):
                    durable.sync_directory(directory)

    def _path(self, key: str) -> str:
        check_key(key)
        if key.partition("/")[0] == layout.TEMPORARY:
            raise ValueError(f"{key!r} is a temporary file, not an object")
        return os.path.join(self.path, key)

    def _write(self, write: Callable[..., None], path: str, data: bytes | memoryview) -> None:
        write(path, data, temporary_directory=self._temporary, mode=_FILE_MODE)

    def _with_folders(self, key: str, write: Callable[[], None]) -> None:
        """Write; if a directory is missing, make it and write again."""
        try:
            write()
        except FileNotFoundError:
            self._make_folders(key)
            write()

    def _make_folders(self, key: str) -> None:
        """Make the directories of a key and of temporary files, never that of the place itself.

        If the disk of the place is not mounted, a new directory would be on the disk below.
        """
        durable.make_directory(self._temporary, _DIRECTORY_MODE)
        names = key.split("/")[:-1]
        for depth in range(1, len(names) + 1):
            durable.make_directory(os.path.join(self.path, *names[:depth]), _DIRECTORY_MODE)

    def _check_own(self, key: str, data: bytes) -> None:
        """Accept an object that holds exactly ``data``; see ``Place.create``."""
        path = self._path(key)
        if self.get(key, len(data) + 1) != data:
            raise LostRaceError(f"{path} is there already: another writer has created it")
        # The other process may not have synced the name yet.
        with store_faults("sync", path):
            durable.sync_directory(os.path.dirname(path))

    @contextlib.contextmanager
    def _locked(self, directory: str) -> Iterator[bool]:
        """Hold the lock of a directory for the duration of the block.

        Yields:
            Whether the file system can lock directories.

        Raises:
            BusyError: Another process holds the lock for too long.
        """
        with self._reading("lock", directory):
            fd = nofollow.open_directory(directory)
        try:
            yield self._take(fd, directory)
        finally:
            os.close(fd)

    def _take(self, fd: int, directory: str) -> bool:
        deadline_s = self._clock.monotonic_s() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_s() >= deadline_s:
                    raise BusyError(f"another process holds the lock of {directory}") from None
                self._clock.sleep(_POLL_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return False
            else:
                return True

    @contextlib.contextmanager
    def _reading(self, doing: str, path: str) -> Iterator[None]:
        """Like ``store_faults``, but a missing file is a MissingError.

        If the place itself is gone, its disk is not mounted, and no object counts as missing.
        """
        try:
            with store_faults(doing, path):
                yield
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError) and self._is_there():
                raise MissingError(f"there is no {path}") from error
            raise

    def _is_there(self) -> bool:
        return nofollow.is_directory(self.path)

    def _walk(self, folder: str) -> Iterator[Listed]:
        directory = os.path.join(self.path, folder) if folder else self.path
        try:
            with self._reading("list", directory):
                entries = _entries(directory)
        except MissingError:
            return
        for name, is_directory, size_bytes in entries:
            key = f"{folder}/{name}" if folder else name
            if not is_key(key) or key == layout.TEMPORARY:
                continue
            if is_directory:
                yield from self._walk(key)
            else:
                yield Listed(key, size_bytes)


def _entries(directory: str) -> list[tuple[str, bool, int | None]]:
    """Return name, whether it is a directory, and size of the entries, in the order of keys."""
    found: list[tuple[str, bool, int | None]] = []
    with nofollow.opened_directory(directory) as fd, os.scandir(fd) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                if not fails_on_disk(error):
                    raise
                found.append((entry.name, False, None))
                continue
            found.append((entry.name, stat.S_ISDIR(status.st_mode), status.st_size))
    # "a/b" comes after "a-b", because "/" comes after "-".
    return sorted(found, key=lambda entry: f"{entry[0]}/" if entry[1] else entry[0])


def _names(directory: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, and whether each is a directory, without their status."""
    with nofollow.opened_directory(directory) as fd, os.scandir(fd) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _version(data: bytes) -> Version:
    return Version(data_id(data).hex())


def _changed(path: str) -> LostRaceError:
    return LostRaceError(f"{path} has changed since it was read")

"""The packs of a store in a directory: one file each. See ``store.place.packs``."""

import contextlib
import os

from ciuic.errors import ChunkMissingError, StoreError, UnreachableError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at, status_within
from ciuic.store.directory.listing import names_in, pack_sizes
from ciuic.store.records import layout
from ciuic.store.records.damage import KnownDamage
from ciuic.system import nofollow

__all__ = ["FilePack", "PackFiles"]


class FilePack:
    """An open pack; closed when its last user drops it. See ``OpenPack``."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.fd = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    @property
    def size_bytes(self) -> int:
        """See ``OpenPack``."""
        with store_faults("read", self.name):
            return os.fstat(self.fd).st_size

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """See ``OpenPack``."""
        with store_faults("read", self.name):
            return read_at(self.fd, length_bytes, offset_bytes)

    def view(self, length_bytes: int, offset_bytes: int) -> bytes:
        """See ``OpenPack``."""
        return self.read(length_bytes, offset_bytes)

    def read_ahead(
        self,
        offset_bytes: int,
        length_bytes: int,
        *,
        is_in_turn: bool = False,  # noqa: ARG002 - the kernel decides
    ) -> None:
        """See ``OpenPack``: the kernel reads ahead."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.fd, offset_bytes, length_bytes, os.POSIX_FADV_WILLNEED)

    def pass_by(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: it leaves the page cache."""
        with store_faults("read", self.name):
            os.posix_fadvise(self.fd, offset_bytes, length_bytes, os.POSIX_FADV_DONTNEED)

    def done(self, offset_bytes: int, length_bytes: int) -> None:
        """See ``OpenPack``: nothing is kept of a file."""

    def doubt(self, offset_bytes: int, length_bytes: int) -> bool:  # noqa: ARG002 - of OpenPack
        """See ``OpenPack``."""
        return False


class _DirectoryOf:
    """The open directory of a path; closed when its last user drops it."""

    def __init__(self, path: str) -> None:
        with nofollow.opened_parent(path) as (directory, _):
            self.fd = os.dup(directory)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class PackFiles:
    """The files in ``packs/``. See ``Packs``.

    Args:
        store_path: The store's directory.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._directory = os.path.join(store_path, layout.PACKS)
        self._opened: _DirectoryOf | None = None

    def sizes(self) -> dict[PackId, int]:
        """See ``Packs``."""
        return pack_sizes(self._store_path)

    def damage(self) -> KnownDamage:
        """See ``Packs``; a directory has a folder for these records."""
        directory = os.path.join(self._store_path, layout.DAMAGED)
        with contextlib.suppress(StoreError):  # without them, snapshots rely on what the index says
            return KnownDamage(names_in(directory, lambda name: name))
        return KnownDamage()

    def listed(self) -> dict[PackId, int]:
        """See ``Packs``: a directory has no segments."""
        return {}

    def names(self) -> set[str]:
        """See ``Packs``; empty if the directory is missing."""
        with store_faults("list", self._directory):
            try:
                return set(nofollow.list_names(self._directory))
            except FileNotFoundError:
                return set()

    def size_bytes(self, pack_id: PackId) -> int | None:
        """See ``Packs``."""
        path = self._path(pack_id)
        try:
            with store_faults("look at", path):
                return self._status(path).st_size
        except UnreachableError:
            return None
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def open(self, pack_id: PackId) -> FilePack:
        """See ``Packs``."""
        path = self._path(pack_id)
        try:
            with store_faults("open", path):
                return FilePack(path)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise ChunkMissingError(f"pack {pack_id.hex()[:12]} is gone") from error
            raise

    def close(self) -> None:
        """See ``Packs``: an open directory would keep its file system from being unmounted."""
        self._opened = None

    def _status(self, path: str) -> os.stat_result:
        """Return the status of a pack.

        The directory stays open: every look-up of a chunk asks whether its pack still exists, and
        opening each part of the path takes longer than the question.
        """
        opened = self._opened
        if opened is not None:
            with contextlib.suppress(FileNotFoundError):
                return status_within(opened.fd, path)
        # The directory itself may have been replaced since it was opened.
        opened = self._opened = _DirectoryOf(path)
        return status_within(opened.fd, path)

    def _path(self, pack_id: PackId) -> str:
        return os.path.join(self._directory, layout.pack_name(pack_id))

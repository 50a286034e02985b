"""Opens a store, takes its locks, and commits snapshots.

Other modules have the parts of a store: ``snapshots`` (manifests, copies, trash), ``index_keeper``
(the chunk index), ``packs`` (chunks).
"""

import contextlib
import os
from collections.abc import Iterator

import msgspec

from ciuic.errors import CommitUncertainError, UnreachableError
from ciuic.ids import (
    SESSION_BYTES,
    PackId,
    SessionId,
    SnapshotId,
    random_snapshot_id,
    short_ids,
)
from ciuic.store.directory.faults import store_faults, uncertain_commit
from ciuic.store.directory.find import read_header, refuse_read_only
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.leftovers import remove_leftovers
from ciuic.store.directory.listing import pack_sizes, pack_statuses
from ciuic.store.directory.locks import Lock
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.directory.prune_mark import PruneMark
from ciuic.store.directory.reserve import renew_reserve, with_reserve
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index_keeper import IndexKeeper
from ciuic.store.packs.reader import StoreReader
from ciuic.store.records import layout
from ciuic.store.records.manifest import Manifest, encode_manifest
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.snapshots.marks import Marks
from ciuic.store.snapshots.trash import Trash
from ciuic.system import nofollow

__all__ = ["Store", "open_store"]


@contextlib.contextmanager
def open_store(
    path: str, *, write: bool = False, wait_s: float = 0.0, owner: int | None = None
) -> Iterator["Store"]:
    """Open the store at ``path`` for the duration of a ``with`` block.

    Args:
        path: The store's directory.
        write: Hold the write lock: no other process changes the store meanwhile.
        wait_s: How long to wait for the write lock.
        owner: Number of another user who may own a store that is opened for writing.

    Raises:
        StoreError: There is no store that can be used.
        BusyError: Another process holds the lock.
    """
    store = Store(path)
    try:
        store.lock(write=write, wait_s=wait_s, owner=owner)
        yield store
    except IndexDamagedError:
        store.index_keeper.discard()
        raise
    finally:
        store.close()


class Store:
    """An open store. See ``open_store``.

    Attributes:
        path: Its directory, symlinks resolved.
        header: The store's own record: format and parameters.
        manifests: Its snapshots' manifests.
        marks: Their marks: tags and pins that were changed after the commit.
        trash: Its forgotten snapshots.
        index_keeper: Its chunk index: rebuilding and dropping it.
        prune_mark: The mark of a prune that has not ended.
        reader: Reads its chunks.
        writable: It is open for writing.
        session_id: Random, drawn when the store is opened; new packs have it in their names.
        stuck: Files that a killed writer left in ``tmp/`` and that cannot be removed, by their
            path in the store, with the reason. Set only for a writer.
    """

    def __init__(self, path: str) -> None:
        with store_faults("find", path):
            # From here on, no symlink is followed.
            self.path = path = nofollow.resolved(path)
        self.header = read_header(path)
        self._write_lock = Lock(os.path.join(path, layout.WRITE_LOCK))
        self._read_lock = Lock(os.path.join(path, layout.READ_LOCK))
        is_read_only = bool(self.header.problem_for_writers)
        self.index_keeper = IndexKeeper(path, self._write_lock, is_read_only=is_read_only)
        self.manifests = Manifests(path)
        self.marks = Marks(path)
        self.trash = Trash(path, self.manifests, self.marks)
        self.prune_mark = PruneMark(path)
        self.stuck: dict[str, str] = {}
        self.writable = False
        self.session_id = SessionId(os.urandom(SESSION_BYTES))
        self.reader = self.new_reader(passing=False)

    def lock(self, *, write: bool, wait_s: float, owner: int | None = None) -> None:
        """Take the locks; a writer also brings the chunk index up to date with the packs."""
        if write:
            refuse_read_only(self.path, self.header)
            refuse_foreign(self.path, owner)
        self._read_lock.take_shared()
        if write:
            self._write_lock.take_alone(wait_s)
            self.writable = True
            self.manifests.files()
            with_reserve(self.path, self._make_directories)
            self.stuck = remove_leftovers(self.path)
            self.index_keeper.open_for_writer()

    def close(self) -> None:
        """Close everything and release the locks; harmless twice."""
        self.reader.close()
        self.index_keeper.close()
        if self.writable:
            renew_reserve(self.path)
        self._write_lock.release()
        self._read_lock.release()

    @property
    def index(self) -> ChunkIndex:
        """The chunk index, rebuilt if it is missing or damaged."""
        return self.index_keeper.index

    @property
    def existing_index(self) -> ChunkIndex | None:
        """The chunk index if it is there and undamaged; it is never rebuilt here."""
        return self.index_keeper.existing

    def pack_files(self) -> dict[PackId, int]:
        """Map every pack whose status can be read to its size in bytes."""
        return pack_sizes(self.path)

    def pack_lengths(self) -> list[int]:
        """Sizes in bytes of all packs whose status can be read."""
        return list(self.pack_files().values())

    def unreachable_packs(self) -> dict[PackId, UnreachableError]:
        """Map the packs whose status the file system cannot give to the reason.

        They count as gone, except that nothing may be removed because of that: their delta bases
        are unknown, and they may be back when the file system is repaired.
        """
        return {
            pack_id: status
            for pack_id, status in pack_statuses(self.path).items()
            if isinstance(status, UnreachableError)
        }

    def manifest(self, snapshot_id: SnapshotId, *, copy: bool = True) -> Manifest:
        """A snapshot's manifest, as it was committed: see ``Manifests.read``.

        Its tags and its pin may have changed since; ``catalog`` tells the present ones.
        """
        return self.manifests.read(snapshot_id, copy=copy)

    def new_snapshot_id(self) -> SnapshotId:
        """Return an ID that no snapshot of this store has or is known to have had."""
        taken = {*self.manifests.files(), *self.trash.used_ids()}
        taken |= self.manifests.remembered_ids() | self.marks.newest().keys()
        with contextlib.suppress(IndexDamagedError):
            taken.update(self.index.snapshots())
        while True:
            snapshot_id = random_snapshot_id()
            if snapshot_id not in taken:
                return snapshot_id

    def short_ids(self) -> dict[SnapshotId, str]:
        """Map each ID, listed or in the trash, to its shortest unique prefix: see ``short_ids``."""
        return short_ids([*self.manifests.ids(), *self.trash.ids()])

    def commit(self, manifest: Manifest) -> Manifest:
        """Durably write the manifest, which makes the snapshot exist.

        Everything that it refers to must be durable: call ``StoreWriter.finish`` before.

        Returns:
            The committed manifest. It has another ID if a snapshot of its ID was there already.

        Raises:
            CommitUncertainError: The snapshot is listed, and a power cut may still undo it.
            StoreError: It is not listed.
        """
        while not self._create(manifest.summary.id, encode_manifest(manifest)):
            other = msgspec.structs.replace(manifest.summary, id=self.new_snapshot_id())
            manifest = manifest.with_summary(other)
        return manifest

    def adopt(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Durably write the manifest of another store's snapshot, which makes it exist here.

        Everything that it refers to must be durable, as for ``commit``.

        Args:
            snapshot_id: The snapshot; it has this ID here as well.
            data: The file of its manifest, to the byte.

        Returns:
            False if the ID is taken; nothing is changed then.

        Raises:
            CommitUncertainError: The snapshot is listed, and a power cut may still undo it.
            StoreError: It is not listed.
        """
        return self._create(snapshot_id, data)

    def _create(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Create a manifest; return false if its ID is taken."""
        if self.manifests.is_listed(snapshot_id):
            return False
        try:
            return self.manifests.create(snapshot_id, data)
        except CommitUncertainError as error:
            raise uncertain_commit(snapshot_id, error.message) from error
        except KeyboardInterrupt as error:
            if self.manifests.is_listed(snapshot_id):
                raise uncertain_commit(snapshot_id, "it was interrupted") from error
            raise

    def new_reader(self, *, passing: bool) -> StoreReader:
        """Return another reader of this store.

        Args:
            passing: See ``StoreReader``.
        """
        keeper = self.index_keeper
        return StoreReader(
            self.path,
            lambda: keeper.index,
            keeper.from_packs,
            list_pack=keeper.list_pack,
            passing=passing,
        )

    def _make_directories(self) -> None:
        """Create missing directories: copying a store may lose empty ones."""
        for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
            Folder(self.path, name).make()

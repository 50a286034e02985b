"""Opens a store, takes its locks, and commits snapshots.

Other modules have the parts of a store: ``snapshots`` (manifests, copies, trash), ``index_keeper``
(the chunk index), ``packs`` (chunks).
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from ciuic.errors import (
    CommitUncertainError,
    StoreError,
    UnreachableError,
    UnsupportedError,
)
from ciuic.ids import (
    SESSION_BYTES,
    PackId,
    SessionId,
    SnapshotId,
    random_snapshot_id,
    short_ids,
)
from ciuic.store.directory.faults import store_faults, uncertain_commit
from ciuic.store.directory.find import read_header, refuse_other_store, refuse_read_only
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.leftovers import remove_leftovers
from ciuic.store.directory.listing import pack_statuses
from ciuic.store.directory.locks import Lock, WriteLocks
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.directory.pack_files import PackFiles
from ciuic.store.directory.prune_mark import PruneMark
from ciuic.store.directory.reserve import renew_reserve, with_reserve
from ciuic.store.index.chunk_index import ChunkIndex
from ciuic.store.index.database import IndexDamagedError
from ciuic.store.index_keeper import IndexKeeper
from ciuic.store.packs.frame_cache import CACHE_BYTES_DEFAULT
from ciuic.store.packs.reader import StoreReader
from ciuic.store.place.keys import is_url
from ciuic.store.place.packs import Bucket, Packs
from ciuic.store.records import layout
from ciuic.store.records.damage import KnownDamage
from ciuic.store.records.manifest import Manifest, encode_manifest
from ciuic.store.snapshots.manifests import Manifests
from ciuic.store.snapshots.marks import Marks, recorded_marks
from ciuic.store.snapshots.trash import Trash
from ciuic.system import nofollow

__all__ = ["Store", "open_in_bucket", "open_store"]

_LISTED_FOR_DAMAGE_MAX: Final = 10_000
"""Packs of a bucket: ten requests."""


@contextlib.contextmanager
def open_store(
    path: str,
    *,
    write: bool = False,
    only_adds: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
    owner: int | None = None,
) -> Iterator["Store"]:
    """Open the store at ``path`` for the duration of a ``with`` block.

    Args:
        path: The store's directory.
        write: Hold the write locks: no other process changes the store meanwhile.
        only_adds: With ``write``, other processes that only add may do so meanwhile.
        wait_s: How long to wait for the write locks.
        cancelled: Ends that wait once it turns true.
        owner: Number of another user who may own a store that is written to; a reader that finds
            damage does so as well.

    Raises:
        StoreError: There is no store that can be used.
        BusyError: Another process holds the lock.
        CancelledError: ``cancelled`` turned true while another process held the lock.
    """
    if is_url(path):
        raise UnsupportedError(
            "the store is in a bucket, and this cannot be done there yet",
            hint="All commands work there.",
        )
    access = _Access(write, only_adds, wait_s, cancelled, owner)
    with _locked(Store(path), access) as store:
        yield store


@contextlib.contextmanager
def open_in_bucket(
    bucket: Bucket,
    *,
    write: bool = False,
    only_adds: bool = False,
    removes: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator["Store"]:
    """Like ``open_store``, for a store in a bucket.

    Args:
        bucket: The store.
        write: See ``open_store``; processes of other machines may add and prune meanwhile.
        only_adds: See ``open_store``: processes of this machine that only add may do so meanwhile.
        removes: With ``write``, packs are removed and no snapshot is added.
        wait_s: How long to wait for other writers on this machine.
        cancelled: See ``open_store``.
    """
    store = Store(bucket.path, bucket)
    access = _Access(write, only_adds, wait_s, cancelled, removes=removes)
    with _locked(store, access):
        yield store


class _Access(NamedTuple):
    """How a store is opened: see ``open_store``."""

    write: bool
    only_adds: bool = False
    wait_s: float = 0.0
    cancelled: Callable[[], bool] = lambda: False
    owner: int | None = None
    removes: bool = False


@contextlib.contextmanager
def _locked(store: "Store", access: _Access) -> Iterator["Store"]:
    try:
        store.lock(access)
        yield store
    except IndexDamagedError:
        store.index_keeper.discard()
        raise
    finally:
        store.close()


class Store:
    """An open store. See ``open_store``.

    Attributes:
        path: Its directory, symlinks resolved; for a store in a bucket, the directory of this
            machine with the chunk index, locks and copies of manifests.
        name: Its directory or address, for messages.
        identity_path: A file of this machine that has the store's ID.
        bucket: The bucket that it is in; None: it is in the directory.
        packs: Its packs, for reading.
        header: The store's own record: format and parameters.
        manifests: Its snapshots' manifests.
        marks: Their marks: tags and pins that were changed after the commit.
        trash: Its forgotten snapshots, and the IDs of those that are gone for good.
        index_keeper: Its chunk index: rebuilding and dropping it.
        prune_mark: The mark of a prune that has not ended.
        reader: Reads its chunks.
        writable: It is open for writing.
        owner: The other user who may own it: see ``open_store``.
        session_id: Random, drawn when the store is opened; new packs have it in their names.
        stuck: Files that a killed writer left in ``tmp/`` and that cannot be removed, by their
            path in the store, with the reason. Set only for a writer.
    """

    def __init__(self, path: str, bucket: Bucket | None = None) -> None:
        with store_faults("find", path):
            # From here on, no symlink is followed.
            self.path = path = nofollow.resolved(path)
        self.bucket = bucket
        self.name = path if bucket is None else bucket.name
        self.identity_path = os.path.join(path, layout.HEADER if bucket is None else layout.CACHE)
        self.header = read_header(path) if bucket is None else bucket.header
        address = "" if bucket is None else bucket.name
        self._write_locks = WriteLocks(path, address)
        self._read_lock = Lock(os.path.join(path, layout.READ_LOCK), address)
        self.packs: Packs = PackFiles(path) if bucket is None else bucket.packs
        is_read_only = bool(self.header.problem_for_writers)
        self.index_keeper = IndexKeeper(
            path,
            self.packs,
            self._write_locks,
            self.header.store_id,
            is_read_only=is_read_only,
            others_remove=bucket is not None,
        )
        self.manifests = Manifests(path, bucket)
        self.marks = Marks(path, bucket)
        self.prune_mark = PruneMark(path)
        self.stuck: dict[str, str] = {}
        self.writable = False
        self.owner: int | None = None
        self.session_id = SessionId(os.urandom(SESSION_BYTES))
        self._leased_id = SnapshotId("")
        self.trash = Trash(
            path,
            self.manifests,
            self.marks,
            known_marks=self.known_marks,
            session_id=self.session_id,
            bucket=bucket,
        )
        self.reader = self.new_reader(passing=False)

    def lock(self, access: _Access) -> None:
        """Take the locks; a writer also brings the chunk index up to date with the packs."""
        self.owner = access.owner
        if access.write:
            refuse_read_only(self.name, self.header)
            refuse_foreign(self.path, self.owner)
        self._read_lock.take_shared()
        if access.write:
            is_alone = True
            shut_packs: frozenset[PackId] = frozenset()
            if access.only_adds:
                is_alone = self._write_locks.begin_adding(access.wait_s, access.cancelled)
            else:
                self._write_locks.take_alone(access.wait_s, access.cancelled)
            self.writable = True
            if self.bucket is not None:
                shut_packs = self._begin_in_bucket(self.bucket, removes=access.removes)
            self.manifests.files()
            with_reserve(self.path, self._make_directories)
            if is_alone:
                self.stuck = remove_leftovers(self.path)
            self.index_keeper.open_for_writer(is_alone=is_alone, shut_packs=shut_packs)
            if access.only_adds:
                self._write_locks.share()
                self.index_keeper.is_alone = False

    def close(self) -> None:
        """Close everything and release the locks; harmless twice."""
        try:
            self.reader.close()
            self.packs.close()
            self.index_keeper.close()
            if self.bucket is not None:
                self.bucket.end_writing()
            elif self.writable:
                with contextlib.suppress(StoreError):
                    refuse_other_store(self.path, self.header.store_id)
                    renew_reserve(self.path)
        finally:
            self._write_locks.release()
            self._read_lock.release()

    @property
    def index(self) -> ChunkIndex:
        """The chunk index, rebuilt if it is missing or damaged."""
        return self.index_keeper.index

    @property
    def existing_index(self) -> ChunkIndex | None:
        """The chunk index if it is there and undamaged; it is never rebuilt here."""
        return self.index_keeper.existing

    def refuse_other(self, store_id: str) -> None:
        """Refuse the store at this path, which may be another one by now, unless it has this ID.

        Raises:
            StoreError: It is another store.
        """
        if self.bucket is None:
            refuse_other_store(self.path, store_id)
        elif self.header.store_id != store_id:
            raise StoreError(
                f"a different store is now at {self.name}",
                hint="Restart ciuicd, if it is to serve that store.",
            )

    def pack_files(self) -> dict[PackId, int]:
        """Map every pack whose status can be read to its size in bytes."""
        return self.packs.sizes()

    def pack_lengths(self) -> list[int]:
        """Sizes in bytes of all packs whose status can be read."""
        return list(self.pack_files().values())

    def known_damage(self) -> KnownDamage:
        """Return the damage that records name, as the packs are now.

        A bucket with many packs is not listed for this: then it is what the last listing had, or
        nothing.
        """
        if self.bucket is not None and len(self.packs.listed()) <= _LISTED_FOR_DAMAGE_MAX:
            with contextlib.suppress(StoreError):
                self.packs.names()
        return self.packs.damage()

    def unreachable_packs(self) -> dict[PackId, UnreachableError]:
        """Map the packs whose status the file system cannot give to the reason.

        They count as gone, but nothing may be removed for that reason: their delta bases are
        unknown, and they may be back when the file system is repaired.
        """
        return {
            pack_id: status
            for pack_id, status in pack_statuses(self.path).items()
            if isinstance(status, UnreachableError)
        }

    def manifest(self, snapshot_id: SnapshotId, *, copy: bool = True) -> Manifest:
        """Return a snapshot's manifest, as it was committed: see ``Manifests.read``.

        Its tags and its pin may have changed since; ``catalog`` tells the present ones.
        """
        if self.bucket is not None:
            self.bucket.meet(snapshot_id)
        return self.manifests.read(snapshot_id, copy=copy)

    def new_snapshot_id(self) -> SnapshotId:
        """Return an ID that no snapshot of this store has or is known to have had.

        For a store in a bucket, it is the ID that the lease of this writer names.
        """
        if self._leased_id:
            return self._leased_id
        return self._free_id()

    def _free_id(self) -> SnapshotId:
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
        return short_ids(self.manifests.ids())

    def listed_ids(self) -> set[SnapshotId]:
        """Return the snapshots that have a manifest and are not forgotten."""
        return self.manifests.ids() - self.trash.unlisted()

    def known_marks(self) -> dict[SnapshotId, int]:
        """Map snapshots to the number of their newest mark, as the chunk index remembers it."""
        with contextlib.suppress(IndexDamagedError):
            index = self.existing_index
            if index is not None:
                return recorded_marks(index.snapshots())
        return {}

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
            if self._leased_id:
                raise self._revoked(manifest.summary.id)
            other = msgspec.structs.replace(manifest.summary, id=self.new_snapshot_id())
            manifest = manifest.with_summary(other)
        return manifest

    def announce(self, snapshot_ids: Collection[SnapshotId]) -> frozenset[SnapshotId]:
        """Announce snapshots of another store, before this writer relies on packs for ``adopt``.

        In a directory, the locks are enough: no process removes anything beside this writer.

        Returns:
            Those that were removed for good meanwhile: they must not be adopted.

        Raises:
            CorruptionError: The list of removed snapshots is damaged: it may have any.
            StoreError: The bucket failed.
        """
        if self.bucket is None or not snapshot_ids:
            return frozenset()
        self.bucket.announce(snapshot_ids, self.session_id)
        # After the leases: a purge retires an ID, then looks for leases, then deletes the manifest.
        # If it missed a lease, it leaves no tombstone, and ``adopt`` would succeed.
        gone = self.trash.retired.check().intersection(snapshot_ids)
        self.index_keeper.renew(self.bucket.shut_packs())
        return gone

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
        is_created = self._create(snapshot_id, data)
        if not is_created and not self.manifests.is_there(snapshot_id):
            raise self._revoked(snapshot_id)
        return is_created

    def _revoked(self, snapshot_id: SnapshotId) -> StoreError:
        return StoreError(
            f"the snapshot {snapshot_id} was revoked by a prune of {self.name}, because its writer"
            " seemed to be dead",
            hint="Run the command again soon: it uses again what was stored, until a prune removes"
            " that.",
        )

    def _create(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Create a manifest; return false if its ID is taken."""
        if self.bucket is None:
            # The packs are in the store that was opened. Another store must not name them.
            refuse_other_store(self.path, self.header.store_id)
        if self.manifests.has(snapshot_id):
            return False
        try:
            return self.manifests.create(snapshot_id, data)
        except CommitUncertainError as error:
            raise uncertain_commit(snapshot_id, error.message) from error
        except KeyboardInterrupt as error:
            if self.manifests.has(snapshot_id):
                raise uncertain_commit(snapshot_id, "it was interrupted") from error
            raise

    def new_reader(self, *, passing: bool, cache_bytes: int = CACHE_BYTES_DEFAULT) -> StoreReader:
        """Return another reader of this store. Arguments: see ``StoreReader``."""
        keeper = self.index_keeper
        return StoreReader(
            self.path,
            self.packs,
            lambda: keeper.index,
            keeper.from_packs,
            list_pack=keeper.list_pack,
            passing=passing,
            cache_bytes=cache_bytes,
        )

    def _begin_in_bucket(self, bucket: Bucket, *, removes: bool) -> frozenset[PackId]:
        """Take the lease, and then look at what other machines have committed and condemned.

        Returns:
            The packs that a prune has condemned. They are read before the packs are listed: when a
            condemnation is gone, its packs are gone too.
        """
        if removes:
            bucket.begin_pruning(self.session_id)
            bucket.fetch()
            return bucket.shut_packs()
        # Not from the chunk index: it must not be opened before it can be brought up to date. If
        # another machine has this ID, the commit finds its key taken.
        leased_id = random_snapshot_id()
        bucket.begin_writing(leased_id, self.session_id)
        bucket.fetch()
        self._leased_id = leased_id
        return bucket.shut_packs()

    def _make_directories(self) -> None:
        """Create missing directories: copying a store may lose empty ones."""
        for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
            Folder(self.path, name).make()

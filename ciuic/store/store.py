"""A store: opening, creating, and the one write that commits a snapshot."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

from ciuic import durable
from ciuic.clock import Clock, rfc3339
from ciuic.errors import (
    CiuicError,
    CorruptionError,
    SnapshotNotFoundError,
    StoreError,
    StoreFullError,
    UnknownFormatError,
    UnreachableError,
    UsageError,
)
from ciuic.model import SnapshotSummary
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import fails_on_disk, open_regular, read_regular, status_of
from ciuic.store.header import (
    CHUNK_BYTES_DEFAULT,
    CONTENT,
    FORMAT,
    Chunking,
    Header,
    read_header,
    refuse_shared,
)
from ciuic.store.index import Index, IndexDamagedError
from ciuic.store.inspect import healed_frames
from ciuic.store.leftovers import remove_leftovers
from ciuic.store.lock import Lock
from ciuic.store.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from ciuic.store.pack import PackedFrame, read_footer, walk_frames
from ciuic.store.parity import PARITY_DEFAULT
from ciuic.store.reader import StoreReader
from ciuic.store.trash import Forgotten, Trash
from ciuic.store.writer import CHAIN_COST_DEFAULT, StoreWriter

__all__ = ["Store", "create_store", "open_store"]

K = TypeVar("K")

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_ID_DIGITS: Final = 6


def create_store(
    path: str,
    clock: Clock,
    *,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    chunking: str = CONTENT,
    average_bytes: int = 0,
    least_bytes: int = 0,
) -> bool:
    """Make a store at ``path`` if there is none; returns whether it was made now.

    The header is written last, so that a store that was cut short while it was made is known
    as such, and finished by the next call. Lengths that are 0 follow from ``chunk_bytes``.

    Raises:
        UsageError: No store can be cut so.
        StoreError: It can't be made; or ``path`` is something else that is not empty.
    """
    cut = Chunking.of(chunking, chunk_bytes, average_bytes, least_bytes)
    if cut.problem:
        raise UsageError(cut.problem)
    if os.path.lexists(os.path.join(path, layout.HEADER)):
        read_header(path)
        return False
    with store_faults("create the store", path):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise StoreError(
                f"{path} is a file, not a directory", hint="Choose another place for the store."
            )
        _refuse_strangers(path)
        _refuse_headless(path)
        _make_parents(path)
        durable.make_directory(path, _DIRECTORY_MODE)
        with contextlib.suppress(PermissionError):  # another user's: whether it will do is next
            os.chmod(path, _DIRECTORY_MODE)
        refuse_shared(path)
        for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
            durable.make_directory(os.path.join(path, name), _DIRECTORY_MODE)
        for name in (layout.WRITE_LOCK, layout.READ_LOCK):
            os.close(os.open(os.path.join(path, name), os.O_RDWR | os.O_CREAT, _FILE_MODE))
        header = Header(
            format=FORMAT,
            required=[],
            store_id=os.urandom(16).hex(),
            created=rfc3339(clock.now_ns()),
            chunking=cut,
        )
        durable.write_whole(
            os.path.join(path, layout.HEADER),
            header.encode(),
            temporary_directory=os.path.join(path, layout.TEMPORARY),
            mode=_FILE_MODE,
        )
    return True


def _sizes(found: dict[bytes, os.stat_result | UnreachableError]) -> dict[bytes, int]:
    return {
        name: status.st_size
        for name, status in found.items()
        if not isinstance(status, UnreachableError)
    }


def _refuse_strangers(path: str) -> None:
    own = {"lost+found", layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY, layout.CONTROL_SOCKET}
    own |= {layout.WRITE_LOCK, layout.READ_LOCK, layout.DAEMON_LOCK}
    own |= {layout.CATALOG, f"{layout.CATALOG}-journal"}
    own |= {layout.PARITY, layout.QUARANTINE, layout.TRASH, layout.RETIRED, layout.PRUNING}
    if os.path.isdir(path):
        strangers = sorted(set(os.listdir(path)) - own)
        if strangers:
            raise StoreError(
                f"{path} is not empty: it holds '{strangers[0]}'",
                hint="Choose an empty or new directory for the store.",
            )


def _refuse_headless(path: str) -> None:
    """A header that is made anew over snapshots could cut files in another way than they were."""
    for name in (layout.PACKS, layout.SNAPSHOTS):
        inner = os.path.join(path, name)
        if os.path.isdir(inner) and os.listdir(inner):
            read_header(path)


def _make_parents(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        _make_parents(parent)
        durable.make_directory(parent, 0o755)


@contextlib.contextmanager
def open_store(path: str, *, write: bool = False, wait_s: float = 0.0) -> Iterator["Store"]:
    """Open the store at ``path`` for the duration of a ``with`` block.

    Args:
        path: The store's directory.
        write: Hold the write lock: nobody else adds to the store meanwhile.
        wait_s: How long to wait for the write lock.

    Raises:
        StoreError: There is no store that can be used.
        BusyError: Another process holds the lock.
    """
    store = Store(os.path.abspath(path))
    try:
        store.lock(write=write, wait_s=wait_s)
        yield store
    except IndexDamagedError:
        store.discard_catalog()
        raise
    finally:
        store.close()


class Store:
    """An open store. See ``open_store``.

    Attributes:
        stuck: What a killed writer left in ``tmp/`` and the file system can't remove, by its place
            in the store, and why; known to a writer.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.header = read_header(path)
        self._write_lock = Lock(os.path.join(path, layout.WRITE_LOCK))
        self._read_lock = Lock(os.path.join(path, layout.READ_LOCK))
        self._index: Index | None = None
        self._temporary_indexes: list[Index] = []
        self._trash = Trash(path)
        self._avoided: frozenset[bytes] = frozenset()
        self.stuck: dict[str, str] = {}
        self.writable = False
        self.reader = StoreReader(path, lambda: self.index, self._index_from_packs)

    def lock(self, *, write: bool, wait_s: float) -> None:
        """Take the locks; a writer also brings the catalog up to date with the packs."""
        self._read_lock.take_shared()
        if write:
            self._write_lock.take_alone(wait_s)
            self.writable = True
            self.snapshot_files()
            self._make_directories()
            self.stuck = remove_leftovers(self.path)
            self._bring_up_to_date(self.index)

    def close(self) -> None:
        """Let go of everything; harmless twice."""
        self.reader.close()
        for index in (self._index, *self._temporary_indexes):
            if index is not None:
                index.close()
        self._index = None
        self._temporary_indexes = []
        self._write_lock.release()
        self._read_lock.release()

    @property
    def index(self) -> Index:
        """The catalog database, made anew when it is missing or damaged."""
        if self._index is None:
            self._index = self._open_for_writing() if self.writable else self._open_for_reading()
        return self._index

    @property
    def existing_index(self) -> Index | None:
        """The catalog database if it is there and sound; never makes one."""
        if self._index is None and not self.writable:
            with contextlib.suppress(StoreError, sqlite3.Error):
                self._index = Index(self._catalog_path, write=False)
        return self._index

    def totals(self) -> tuple[int, int, int]:
        """Plain bytes of all file content, bytes of all packs, number of chunks."""
        try:
            return self.index.totals()
        except IndexDamagedError:
            self.discard_catalog()
            return self._index_from_packs().totals()

    def discard_catalog(self) -> None:
        """Remove a damaged catalog, so that the next to come makes it anew."""
        with contextlib.suppress(CiuicError, OSError):
            if not self.writable:
                self._write_lock.take_alone()
            self._remove_catalog()

    def drop_catalog(self) -> None:
        """Remove the catalog while the store is open for writing, so that its room is free."""
        if self._index is not None:
            self._index.close()
            self._index = None
        self._remove_catalog()

    def renew_catalog(self) -> None:
        """Make the catalog anew from the packs; to be called after ``drop_catalog``."""
        self._bring_up_to_date(self.index)

    def pack_files(self) -> dict[bytes, int]:
        """Size in bytes of every pack that is there and can be looked at, by its ID."""
        return _sizes(self._statuses(layout.PACKS, layout.parse_pack_name))

    def unreachable_packs(self) -> dict[bytes, UnreachableError]:
        """Packs that are there by name, and whose file system can't tell more; and why.

        They count as gone, except that nothing may be removed for it: what they build on is not
        known, and they may be back when the file system is mended.
        """
        found = self._statuses(layout.PACKS, layout.parse_pack_name)
        return {
            name: status for name, status in found.items() if isinstance(status, UnreachableError)
        }

    def _statuses(
        self, place: str, parse: Callable[[str], K | None]
    ) -> dict[K, os.stat_result | UnreachableError]:
        """The files of a directory whose names mean something; none if there is no directory."""
        directory = os.path.join(self.path, place)
        found: dict[K, os.stat_result | UnreachableError] = {}
        if not os.path.lexists(directory):
            return found  # all packs are gone: damage, which a verification names path by path
        with store_faults("list", directory), os.scandir(directory) as entries:
            for entry in entries:
                name = parse(entry.name)
                if name is not None:
                    try:
                        found[name] = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        if not fails_on_disk(error):
                            raise
                        found[name] = self._status_again(entry.path)
        return found

    def _status_again(self, path: str) -> os.stat_result | UnreachableError:
        try:
            return status_of(path)
        except UnreachableError as error:
            return error

    def writer(
        self, *, parity: float = PARITY_DEFAULT, chain_cost: float = CHAIN_COST_DEFAULT
    ) -> StoreWriter:
        """Begin to add chunks; the store must be open for writing.

        Args:
            parity: The share of each pack that its parity takes, 0 to 1; 0: none is written.
            chain_cost: How many times the stored bytes that a chunk takes alone may have to be
                read to have it; up to 1: every chunk stands alone.
        """
        reader = StoreReader(self.path, lambda: self.index, self._index_from_packs, passing=True)
        return StoreWriter(
            self.path,
            self.index,
            parity=parity,
            reader=reader,
            chain_cost=chain_cost,
            avoided=self._avoided,
        )

    def snapshot_files(self) -> dict[str, os.stat_result | None]:
        """Every committed snapshot: its ID and its manifest's file status.

        None of one whose file system can't tell: who reads that manifest is told why.
        """
        directory = os.path.join(self.path, layout.SNAPSHOTS)
        if not os.path.lexists(directory) and self.pack_files():
            raise CorruptionError(
                f"the store {self.path} has lost its directory '{layout.SNAPSHOTS}'",
                hint="'ciuic repair' tells which manifests have copies; or put it back.",
            )
        found = self._statuses(layout.SNAPSHOTS, layout.parse_manifest_name)
        return {
            name: None if isinstance(status, UnreachableError) else status
            for name, status in found.items()
        }

    def manifest(self, snapshot_id: str, *, copy: bool = True) -> Manifest:
        """Read a snapshot's manifest.

        Args:
            snapshot_id: Of the snapshot.
            copy: Where it is damaged, read the copy that is kept with the parity.

        Raises:
            SnapshotNotFoundError: There is none.
            UnreachableError: Its file system can't give it out.
            CorruptionError: It is damaged.
        """
        return self._read_manifest(snapshot_id, copy=copy)[0]

    def manifest_copy(self, snapshot_id: str) -> bytes | None:
        """The copy of a manifest's file that is kept with the parity; None without a sound one."""
        path = os.path.join(self.path, layout.PARITY, layout.manifest_name(snapshot_id))
        with contextlib.suppress(OSError, StoreError):
            data = read_regular(path, MANIFEST_BYTES_MAX)
            decode_manifest(data, snapshot_id)
            return data
        return None

    def manifest_written_ns(self, snapshot_id: str) -> int:
        """When a manifest's file was written, be it where it belongs or set aside; 0: not known."""
        name = layout.manifest_name(snapshot_id)
        for place in (layout.SNAPSHOTS, layout.QUARANTINE):
            with contextlib.suppress(OSError):
                return os.lstat(os.path.join(self.path, place, name)).st_mtime_ns
        return 0

    def keep_copies(self, snapshot_id: str) -> None:
        """Keep copies of a committed snapshot's manifest and of the header, with the parity.

        They are for the day that the originals are damaged. Nothing fails for their sake.
        """
        manifest = layout.manifest_name(snapshot_id)
        with contextlib.suppress(OSError, StoreError):
            path = os.path.join(self.path, layout.SNAPSHOTS, manifest)
            self.put_copy(manifest, read_regular(path, MANIFEST_BYTES_MAX))
            if not os.path.lexists(os.path.join(self.path, layout.PARITY, layout.HEADER)):
                self.put_copy(layout.HEADER, self.header.encode())

    def put_copy(self, name: str, data: bytes) -> None:
        """Keep ``data`` as the copy of a manifest or of the header, durably.

        Raises:
            StoreError: It can't be written; an older copy is as it was.
        """
        directory = os.path.join(self.path, layout.PARITY)
        with store_faults("write to", directory):
            if not os.path.isdir(directory):
                durable.make_directory(directory, _DIRECTORY_MODE)
            durable.write_whole(
                os.path.join(directory, name),
                data,
                temporary_directory=os.path.join(self.path, layout.TEMPORARY),
                mode=_FILE_MODE,
            )

    def new_snapshot_id(self) -> str:
        """An ID that no snapshot of this store has, or had as far as is known."""
        taken = {*self.snapshot_files(), *self._trash.ids(), *self._trash.retired()}
        taken |= self.remembered_ids()
        with contextlib.suppress(IndexDamagedError):
            taken.update(self.index.snapshots())
        while True:
            name = f"cs-{os.urandom(_ID_DIGITS // 2).hex()}"
            if name not in taken:
                return name

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from the moment this returns the snapshot exists, for good.

        Everything that it refers to must be durable: ``StoreWriter.finish`` comes before.
        """
        path = os.path.join(self.path, layout.SNAPSHOTS, layout.manifest_name(manifest.summary.id))
        if os.path.lexists(path):
            raise AssertionError("a snapshot's ID is never used again")
        self._write_manifest(manifest.summary.id, encode_manifest(manifest))

    def replace_summary(self, summary: SnapshotSummary) -> None:
        """Write a committed snapshot's manifest anew: its tags and its pin can change.

        Readers see the old one or the new one.

        Raises:
            SnapshotNotFoundError: There is none.
            CorruptionError: It is damaged.
            StoreError: It can't be written; the old one is as it was.
        """
        data = encode_manifest(self.manifest(summary.id).with_summary(summary))
        self._write_manifest(summary.id, data)
        self._renew_copy(summary.id, data)

    def trashed_ids(self) -> list[str]:
        """IDs of forgotten snapshots that are in the trash, whether they can be read or not."""
        listed = self.snapshot_files()
        return [name for name in self._trash.ids() if name not in listed]

    def trash(self) -> list[Forgotten]:
        """Forgotten snapshots that can be brought back, oldest first.

        Raises:
            CorruptionError: One of them can't be read.
            UnknownFormatError: A later version forgot it.
        """
        found, damaged = self.survey_trash()
        for error in damaged.values():
            raise error
        return found

    def survey_trash(
        self,
    ) -> tuple[list[Forgotten], dict[str, CorruptionError | UnknownFormatError]]:
        """Forgotten snapshots, oldest first, and what is wrong with those that can't be read."""
        found: list[Forgotten] = []
        damaged: dict[str, CorruptionError | UnknownFormatError] = {}
        for name in self.trashed_ids():
            try:
                found.append(self._forgotten(name))
            except (CorruptionError, UnknownFormatError) as error:
                damaged[name] = error
            except StoreError:
                # Whoever only looks may see a prune or somebody who brings snapshots back.
                if name in self._trash.ids():
                    raise
        found.sort(key=lambda one: (one.manifest.summary.taken_ns, one.id))
        return found, damaged

    def _forgotten(self, snapshot_id: str) -> Forgotten:
        return self._trash.read(snapshot_id, self.manifest_copy(snapshot_id))

    def lone_copies(self) -> dict[str, bool]:
        """Copies of manifests that are neither listed nor in the trash, by their snapshots' IDs.

        The value says whether the snapshot is gone for good. If not, its manifest is lost.
        """
        names = self._names_in(layout.PARITY, layout.parse_manifest_name)
        there = {*self.snapshot_files(), *self._trash.ids()}
        retired = self._trash.retired()
        return {name: name in retired for name in names if name not in there}

    def remembered_ids(self) -> set[str]:
        """Snapshots of whose manifests there are copies, or that a repair has set aside."""
        found = self._names_in(layout.PARITY, layout.parse_manifest_name)
        return found | self._names_in(layout.QUARANTINE, layout.parse_set_aside_name)

    def unaccounted_for(self, snapshot_ids: Collection[str]) -> set[str]:
        """Those that are neither listed, nor in the trash, nor gone for good.

        Raises:
            StoreError: The store can't be read.
        """
        # In the order in which they go from one to the next: none is missed on its way.
        left = set(snapshot_ids).difference(self.snapshot_files())
        left.difference_update(self._trash.ids())
        return left - self._trash.retired()

    def _names_in(self, place: str, parse: Callable[[str], str | None]) -> set[str]:
        directory = os.path.join(self.path, place)
        with store_faults("list", directory):
            if not os.path.isdir(directory):
                return set()
            names = [parse(name) for name in os.listdir(directory)]
        return {name for name in names if name is not None}

    def drop_copy(self, snapshot_id: str) -> None:
        """Remove the copy of a manifest."""
        path = os.path.join(self.path, layout.PARITY, layout.manifest_name(snapshot_id))
        with store_faults("remove", path):
            durable.remove_file(path)

    def forget(self, snapshot_ids: Sequence[str], now_ns: int) -> None:
        """Move snapshots to the trash, durably.

        What they need stays, and so do the copies of their manifests, until they go for good.

        Raises:
            SnapshotNotFoundError: There is none of that ID.
            CorruptionError: A manifest can't be read, so it could not be brought back.
            StoreError: It can't be done; unless the trash had all of them, each is listed as
                before.
        """
        files = {one: self._read_manifest(one)[1] for one in snapshot_ids}
        try:
            self._trash.put(files, now_ns)
        except StoreError:
            # They count for nothing beside the manifests, and take room on a disk that is full.
            with contextlib.suppress(StoreError):
                self._trash.remove(snapshot_ids)
            raise
        directory = os.path.join(self.path, layout.SNAPSHOTS)
        with store_faults("remove from", directory):
            for one in snapshot_ids:
                durable.remove_file(os.path.join(directory, layout.manifest_name(one)))
            durable.sync_directory(directory)

    def bring_back(self, snapshot_id: str) -> Manifest:
        """Take a snapshot out of the trash, durably: it is listed again, as it was.

        Raises:
            SnapshotNotFoundError: It is not there.
            CorruptionError: Its file in the trash is damaged.
            StoreError: It can't be written; it stays in the trash.
        """
        if snapshot_id not in self._trash.ids():
            if snapshot_id in self._trash.retired():
                raise SnapshotNotFoundError(
                    f"{snapshot_id} is gone for good: a prune has taken it from the trash",
                    hint="'ciuic list' and 'ciuic list --trash' show what is left.",
                )
            raise SnapshotNotFoundError(
                f"{snapshot_id} is not in the trash",
                hint="'ciuic list --trash' shows what can be brought back.",
            )
        if snapshot_id in self.snapshot_files():
            manifest = self.manifest(snapshot_id)  # somebody was interrupted who did this before
        else:
            _, _, manifest, data = self._forgotten(snapshot_id)
            self._write_manifest(snapshot_id, data)
            self._renew_copy(snapshot_id, data)
        self._trash.remove([snapshot_id])
        return manifest

    def empty_trash(self, snapshot_ids: Collection[str]) -> None:
        """Let forgotten snapshots go for good: no snapshot gets their IDs again.

        Raises:
            StoreError: It can't be done; those that are left can still be brought back.
        """
        listed = self.snapshot_files()
        gone = [name for name in snapshot_ids if name not in listed]
        self._trash.retire(gone)
        self._remove_copies(gone)
        self._trash.remove(snapshot_ids)

    @property
    def is_half_pruned(self) -> bool:
        """A prune was begun and did not come to its end, whoever began it."""
        return os.path.lexists(self._pruning_path)

    def begin_prune(self) -> None:
        """Remember durably that there is garbage, of which the trash soon tells nothing more.

        On a disk without room for it nothing is remembered: to make room comes first.

        Raises:
            StoreError: It can't be done.
        """
        if self.is_half_pruned:
            return
        with contextlib.suppress(StoreFullError), store_faults("write", self._pruning_path):
            durable.make_empty(self._pruning_path, _FILE_MODE)

    def end_prune(self) -> None:
        """A prune is through. What a power cut brings back of the mark costs one more, and no data.

        Raises:
            StoreError: It can't be done.
        """
        with store_faults("remove", self._pruning_path):
            durable.remove_file(self._pruning_path)

    def check_retired(self) -> None:
        """Make sure that it is known which snapshots are gone for good.

        Raises:
            CorruptionError: The list of them is damaged.
            UnknownFormatError: A later version wrote it.
        """
        self._trash.check_retired()

    def give_up(self, snapshot_ids: Collection[str]) -> None:
        """Let snapshots go for good whose manifests are lost: nothing they need is kept for them.

        Raises:
            StoreError: It can't be done; they are still missed.
        """
        self._trash.retire(snapshot_ids)
        self._remove_copies(snapshot_ids)

    def _remove_copies(self, snapshot_ids: Collection[str]) -> None:
        """Durably, before the trash lets go: a copy without anything else means a lost manifest."""
        directory = os.path.join(self.path, layout.PARITY)
        if snapshot_ids and os.path.isdir(directory):
            with store_faults("remove from", directory):
                for name in snapshot_ids:
                    durable.remove_file(os.path.join(directory, layout.manifest_name(name)))
                durable.sync_directory(directory)

    def _read_manifest(self, snapshot_id: str, *, copy: bool = True) -> tuple[Manifest, bytes]:
        """A manifest and its file; of a damaged one its copy, if there is a sound one."""
        path = os.path.join(self.path, layout.SNAPSHOTS, layout.manifest_name(snapshot_id))
        try:
            with store_faults("read", path):
                data = read_regular(path, MANIFEST_BYTES_MAX)
            return decode_manifest(data, snapshot_id), data
        except CorruptionError as error:
            kept = self.manifest_copy(snapshot_id) if copy else None
            if kept is None:
                message = f"the manifest of {snapshot_id}: {error.message}"
                if isinstance(error, UnreachableError):
                    raise UnreachableError(message) from error
                raise CorruptionError(
                    message, hint="'ciuic repair' tells what can be done."
                ) from error
            return decode_manifest(kept, snapshot_id), kept
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise SnapshotNotFoundError(f"there is no snapshot {snapshot_id}") from error
            raise

    def _renew_copy(self, snapshot_id: str, data: bytes) -> None:
        """Bring the copy of a manifest up to date, if one is kept. Nothing fails for its sake."""
        name = layout.manifest_name(snapshot_id)
        if os.path.lexists(os.path.join(self.path, layout.PARITY, name)):
            with contextlib.suppress(StoreError):
                self.put_copy(name, data)

    def _write_manifest(self, snapshot_id: str, data: bytes) -> None:
        path = os.path.join(self.path, layout.SNAPSHOTS, layout.manifest_name(snapshot_id))
        with store_faults("write", path):
            durable.write_whole(
                path,
                data,
                temporary_directory=os.path.join(self.path, layout.TEMPORARY),
                mode=_FILE_MODE,
            )

    @property
    def _pruning_path(self) -> str:
        return os.path.join(self.path, layout.PRUNING)

    @property
    def _catalog_path(self) -> str:
        return os.path.join(self.path, layout.CATALOG)

    def _open_for_reading(self) -> Index:
        """The catalog as it is; failing that one from the packs, kept if the store lets us."""
        existing = self.existing_index
        if existing is not None:
            return existing
        # A reader that happens to be alone mends the catalog for everybody after it.
        with contextlib.suppress(CiuicError, OSError):
            self._write_lock.take_alone()
            try:
                self._bring_up_to_date(made := self._open_for_writing())
                made.close()
                return Index(self._catalog_path, write=False)
            finally:
                self._write_lock.release()
        return self._index_from_packs()

    def _open_for_writing(self) -> Index:
        try:
            return Index(self._catalog_path, write=True)
        except IndexDamagedError:
            self._remove_catalog()
            return Index(self._catalog_path, write=True)

    def _remove_catalog(self) -> None:
        with store_faults("replace", self._catalog_path):
            durable.remove_file(self._catalog_path)
            durable.remove_file(self._catalog_path + "-journal")

    def _bring_up_to_date(self, index: Index) -> None:
        """Make the catalog say what the packs say: crashes and deletions may have parted them."""
        try:
            self._reconcile(index)
        except IndexDamagedError:
            index.close()
            self._remove_catalog()
            self._index = Index(self._catalog_path, write=True)
            self._reconcile(self._index)

    def _reconcile(self, index: Index) -> None:
        found = self._statuses(layout.PACKS, layout.parse_pack_name)
        present = _sizes(found)
        # The same chunks make a pack of the same name, which nothing can be renamed to.
        self._avoided = frozenset(found.keys() - present.keys())
        recorded = index.packs()
        if any(present.get(name) != size for name, size in recorded.items()):
            # A pack is gone or was cut. What it held may stand in another one as well, which an
            # index with one place for a chunk can't tell: begin anew.
            index.clear()
            recorded = {}
        new = {name: size for name, size in present.items() if name not in recorded}
        self._add_packs(index, new)
        index.commit()

    def _index_from_packs(self, without: bytes = b"") -> Index:
        """A private index from what the packs say of themselves, damaged footers included."""
        index = Index("", write=True)
        self._temporary_indexes.append(index)
        packs = self.pack_files()
        packs.pop(without, None)
        self._add_packs(index, packs, heal=True)
        return index

    def _add_packs(self, index: Index, packs: dict[bytes, int], *, heal: bool = False) -> None:
        """Record packs as they describe themselves; one that can't be understood is left out.

        Args:
            index: To be filled.
            packs: Size of each.
            heal: Also record what only parity can still give back. Whoever reads wants that;
                whoever writes stores such chunks again.
        """
        for name, size in sorted(packs.items()):
            with contextlib.suppress(CorruptionError, UnknownFormatError):
                index.add_pack(name, size, self._frames_of(name, heal=heal))

    def _frames_of(self, name: bytes, *, heal: bool) -> list[PackedFrame]:
        path = os.path.join(self.path, layout.PACKS, layout.pack_name(name))
        with store_faults("read", path):
            try:
                fd = open_regular(path)
            except FileNotFoundError as error:
                raise CorruptionError("a prune has removed it meanwhile") from error
            try:
                return read_footer(fd, name)
            except CorruptionError:
                if not heal:
                    return list(walk_frames(fd))  # up to what can't be read
                return healed_frames(self.path, name, fd)
            finally:
                os.close(fd)

    def _make_directories(self) -> None:
        """Copies of a store lose directories that are empty."""
        for name in (layout.PACKS, layout.SNAPSHOTS, layout.TEMPORARY):
            directory = os.path.join(self.path, name)
            if not os.path.isdir(directory):
                with store_faults("make", directory):
                    durable.make_directory(directory, _DIRECTORY_MODE)

"""A store in a bucket, seen from one machine.

The bucket is authoritative. The cache directory has what would be slow to fetch again: the chunk
index, and copies of manifests and of the newest marks, which are written once; in ``parity/`` are
those of manifests that the bucket has lost. A user may delete it at any time. It has no header, so
that no program takes it for a store.

Several machines can add and prune at once. Each session holds a lease, and a prune waits for those
that may rely on what it removes: docs/protocol.md, ``sessions``.
"""

import contextlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ciuic.errors import (
    CommitUncertainError,
    LostRaceError,
    MissingError,
    OfflineError,
    StoreError,
    UnknownFormatError,
)
from ciuic.ids import PackId, SessionId, SnapshotId
from ciuic.store.directory.cache import (
    StaleHeaderError,
    keep_header,
    only_kept_header,
    prepare_cache,
    refuse_vanished,
)
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.kept import forget_kept, keep_lost
from ciuic.store.place.pack_objects import PackObjects
from ciuic.store.place.place import Place, Version
from ciuic.store.place.records import (
    Records,
    decoded_header,
    document_or_none,
    header_data,
    read_document,
)
from ciuic.store.place.segments.segments import Segments
from ciuic.store.place.sessions.condemned import Condemned
from ciuic.store.place.sessions.damaged import keep_aside, replace_damaged
from ciuic.store.place.sessions.leases import (
    HeldLeases,
    copied_ids,
    copy_lease,
    prune_lease,
    repair_lease,
    snapshot_lease,
)
from ciuic.store.place.sessions.own import OwnSnapshots
from ciuic.store.records import layout
from ciuic.store.records.condemnation import TOMBSTONE_BYTES, is_tombstone, new_tombstone
from ciuic.store.records.header import Header
from ciuic.store.records.manifest import MANIFEST_BYTES_MAX
from ciuic.store.records.mark import MARK_BYTES_MAX
from ciuic.store.records.retired import RETIRED_BYTES_MAX, decode_retired

__all__ = ["StoreInBucket", "open_bucket"]

_REVOKED: Final = "revoked"
"""In the cache directory: copies of tombstones, so that ``fetch`` reads each only once."""
_REQUESTS_AT_ONCE: Final = 8


class StoreInBucket:
    """A store in a bucket that exists. See ``open_bucket``.

    Attributes:
        name: Its address, without credentials.
        path: The cache directory.
        header: The store's own record.
        packs: Its packs.
        segments: Its index segments.
        place: Has its objects.
        condemned: Its condemnations and verdicts.
        unread: The bytes of the header if this machine kept them, and did not read them yet.
    """

    def __init__(self, place: Place, path: str, header: Header) -> None:
        self.name = place.name
        self.path = path
        self.header = header
        self.segments = Segments(place, path)
        self.packs = PackObjects(place, self.segments, path)
        self.place = self._place = place
        self.condemned = Condemned(place, path)
        self._own = OwnSnapshots(path)
        self._leases = HeldLeases(place, path)
        self._replaced: dict[SnapshotId, Version] = {}
        self._met: set[SnapshotId] = set()
        self.unread: bytes | None = None

    def fetch(self, only: str = "") -> None:
        """Make the copies of marks and manifests here agree with the bucket: two listings.

        Args:
            only: Nothing is read of snapshots whose IDs do not begin with this.

        Raises:
            StoreError: The bucket cannot be read, or the directory cannot be written.
        """
        # The marks first. After the manifests, they could have the mark of a newer snapshot, whose
        # manifest then seems lost. They could also lack those of a snapshot that a prune deletes,
        # which then seems listed.
        self._fetch_marks(only)
        folder = Folder(self.path, layout.SNAPSHOTS)
        known = folder.names(layout.parse_manifest_name)
        revoked = Folder(self.path, _REVOKED)
        known_revoked = revoked.names(layout.parse_manifest_name)
        listed: set[SnapshotId] = set()
        revoked_ids: set[SnapshotId] = set()
        for found in self._place.list(layout.SNAPSHOTS):
            snapshot_id = layout.parse_manifest_name(found.name)
            if snapshot_id is not None:
                is_short = found.size_bytes == TOMBSTONE_BYTES
                (revoked_ids if is_short else listed).add(snapshot_id)
        self.packs.outdate()
        self._met = set(listed)
        revoked.remove_all(map(layout.manifest_name, known_revoked - revoked_ids))
        # A manifest that was cut to the length of a tombstone is damage, which must not be hidden.
        listed |= revoked_ids - known_revoked
        gone = (known - listed) | (known & revoked_ids)
        keep_lost(self.path, gone - revoked_ids, listed, self._retired)
        if gone:
            folder.remove_all(map(layout.manifest_name, gone))
            self._own.drop(gone)
        missing = sorted(one for one in listed - (known - gone) if one.startswith(only))
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "manifests") as pool:
            for snapshot_id, data in zip(missing, pool.map(self._manifest, missing), strict=True):
                if data is not None and is_tombstone(data):
                    revoked.make()
                    revoked.create(layout.manifest_name(snapshot_id), data)
                elif data is not None:
                    folder.create(layout.manifest_name(snapshot_id), data)

    def meet(self, snapshot_id: SnapshotId) -> None:
        """Say that this snapshot is read: its packs may have come after the last listing.

        Another process of this machine may have fetched its manifest.
        """
        if snapshot_id not in self._met:
            self._met.add(snapshot_id)
            self.packs.outdate()

    def put_back(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Put a sound manifest in the place of one that is lost or damaged.

        The damaged one is copied to ``quarantine/``. For a lost one, the caller holds a lease that
        ``announce`` has made, and has read the retired IDs after that.

        Returns:
            False if another session has changed it meanwhile.

        Raises:
            StoreError: The bucket failed.
        """
        try:
            if not replace_damaged(self._place, snapshot_id, data):
                return False
        except MissingError:
            if not self.create_manifest(snapshot_id, data):
                return False
        with contextlib.suppress(StoreError):  # the next run fetches it
            name = layout.manifest_name(snapshot_id)
            Folder(self.path, layout.SNAPSHOTS).replace(name, data)
            forget_kept(self.path, [snapshot_id])
        return True

    def create_manifest(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Commit a snapshot: create its manifest in the bucket; returns false if the key is taken.

        Raises:
            CommitUncertainError: The server has not answered, and the snapshot may be listed.
            StoreError: It is not listed.
        """
        key = layout.manifest_key(snapshot_id)
        tombstone = self._replaced.get(snapshot_id)
        self._own.add(snapshot_id)
        try:
            if tombstone is None:
                self._place.create(key, data)
            else:
                self._place.replace(key, data, tombstone)
        except (LostRaceError, MissingError):
            return False
        except OfflineError as error:
            # The request may still arrive, and the lease announces that.
            self._leases.keep()
            raise CommitUncertainError(error.message) from error
        except BaseException:
            # Interrupted, or refused: an attempt before the refusal may not have been answered.
            self._leases.keep()
            raise
        return True

    def committed_here(self, taken_ns: Mapping[SnapshotId, int]) -> set[SnapshotId]:
        """Return those of the snapshots that this machine has committed: see ``OwnSnapshots``.

        Raises:
            StoreError: That is not known.
        """
        return self._own.among(taken_ns)

    def has_manifest(self, snapshot_id: SnapshotId) -> bool:
        """Ask the bucket whether it has a snapshot's manifest, and no tombstone in its place.

        Raises:
            StoreError: It cannot be asked.
        """
        try:
            return self._place.size_bytes(layout.manifest_key(snapshot_id)) != TOMBSTONE_BYTES
        except MissingError:
            return False

    def manifest_ids(self) -> set[SnapshotId]:
        """List the snapshots that have a manifest in the bucket, and no tombstone in its place.

        Raises:
            StoreError: They cannot be listed.
        """
        listed = [
            one for one in self._place.list(layout.SNAPSHOTS) if one.size_bytes != TOMBSTONE_BYTES
        ]
        found = [layout.parse_manifest_name(one.name) for one in listed]
        return {snapshot_id for snapshot_id in found if snapshot_id is not None}

    def remove_manifests(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete manifests; missing ones are skipped.

        If a session that copied one of them may still be at work, a tombstone takes its place: the
        session could create it again, after what it relies on was removed.
        """
        copied = copied_ids(self._place).intersection(snapshot_ids) if snapshot_ids else set()
        for snapshot_id in sorted(copied):
            key = layout.manifest_key(snapshot_id)
            with contextlib.suppress(LostRaceError, MissingError):  # another purge was first
                found = self._place.get_versioned(key, MANIFEST_BYTES_MAX)
                self._place.replace(key, new_tombstone(), found.version)
        self._place.delete(layout.manifest_key(one) for one in snapshot_ids if one not in copied)
        with contextlib.suppress(StoreError):  # a longer record does no harm
            self._own.drop(snapshot_ids)

    def set_manifests_aside(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Copy damaged manifests to ``quarantine/``, then delete them; missing ones are skipped."""
        self.remove_manifests(keep_aside(self._place, sorted(snapshot_ids)))

    def remove_marks(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete all marks of snapshots that are gone for good."""
        marks = self.records(layout.MARKS).names(layout.parse_mark_name) if snapshot_ids else set()
        self._place.delete(
            f"{layout.MARKS}/{layout.mark_name(*mark)}" for mark in marks if mark[0] in snapshot_ids
        )

    def records(self, prefix: str) -> "Records":
        """Return the objects below a prefix, with the interface of a folder."""
        return Records(self._place, prefix)

    def shut_packs(self) -> frozenset[PackId]:
        """Return the shut packs. A session asks for them after it has its lease.

        Raises:
            StoreError: The condemnations and verdicts cannot be read.
        """
        return self.condemned.shut_packs()

    def mark(self, name: str) -> bytes:
        """Read a mark from the bucket.

        Raises:
            MissingError: It is gone.
            UnreachableError: This machine's key may not read it.
            StoreError: It cannot be read.
        """
        return read_document(self._place, f"{layout.MARKS}/{name}", MARK_BYTES_MAX)

    def create_marks(self, files: Mapping[str, bytes]) -> set[str]:
        """Create the marks whose names are free; if some are not, fetch the newest marks.

        Args:
            files: The name and the content of each.

        Returns:
            The names that were free, or whose marks have this content: the state is the wanted one.

        Raises:
            UnknownFormatError: Writers need a feature that this ciuic does not know.
            CommitUncertainError: The server has not answered, and some may be created.
            StoreError: One cannot be created; others may be.
        """
        self._refuse_unknown()
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "marks") as pool:
            answers = list(pool.map(self._create_mark, files, files.values()))
        created = {name for name, answer in zip(files, answers, strict=True) if answer is True}
        # They exist now. Without a copy on this machine, the next run fetches it.
        with contextlib.suppress(StoreError):
            folder = Folder(self.path, layout.MARKS)
            folder.make()
            folder.create_all({name: files[name] for name in created})
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
        if len(created) < len(files):
            self._fetch_marks()
        return created

    def begin_writing(self, snapshot_id: SnapshotId, session_id: SessionId) -> None:
        """Announce a writer that will commit a snapshot, before it relies on any pack.

        Raises:
            StoreError: The bucket cannot be written to.
            UnknownFormatError: Writers need a feature that this ciuic does not know.
        """
        self._hold({snapshot_lease(snapshot_id): f"{snapshot_id} {session_id.hex()}"})

    def begin_pruning(self, session_id: SessionId) -> None:
        """Announce a prune, before it reads what is needed; raises as ``begin_writing``."""
        self._hold({prune_lease(session_id): f"prune {session_id.hex()}"})

    def begin_repair(self, session_id: SessionId) -> None:
        """Announce that the session of ``begin_pruning`` is a repair, before it reads packs.

        Raises:
            StoreError: The bucket cannot be written to.
        """
        self._leases.hold({repair_lease(session_id): f"repair {session_id.hex()}"})

    def announce(self, snapshot_ids: Collection[SnapshotId], session_id: SessionId) -> None:
        """Announce that a writer copies snapshots, before it relies on any pack.

        Several writers may copy the same snapshot, so the name of a lease has the session's ID. If
        the snapshot has a tombstone that revoked an earlier copy, ``create_manifest`` replaces it,
        unless a prune changes it first: then this session is revoked too.

        Raises:
            StoreError: The bucket cannot be written to.
            UnknownFormatError: Writers need a feature that this ciuic does not know.
        """
        # Before the leases: a prune that revokes one of them then changes the tombstone after this
        # read. If this read came after such a prune had deleted the lease, the next prune would
        # find no lease to wait for, and the manifest would still replace the tombstone.
        for found in self._place.list(layout.SNAPSHOTS):
            snapshot_id = layout.parse_manifest_name(found.name)
            if snapshot_id is None or snapshot_id not in snapshot_ids:
                continue
            if found.size_bytes == TOMBSTONE_BYTES:
                with contextlib.suppress(MissingError):
                    there = self._place.get_versioned(found.key, MANIFEST_BYTES_MAX)
                    if is_tombstone(there.data):
                        self._replaced[snapshot_id] = there.version
        session = session_id.hex()
        self._hold({copy_lease(one, session_id): f"{one} {session}" for one in snapshot_ids})

    def _hold(self, leases: Mapping[str, str]) -> None:
        """Create leases, and then read the header, even if it was read before.

        Args:
            leases: The key of each, and what it says.

        Raises:
            StaleHeaderError: It is not what this machine kept.
        """
        self._leases.hold(leases)
        self.segments.learns = True
        # Read the header again: a removal first writes the features that it requires of writers
        # into the header, and then lists leases.
        data = header_data(self._place)
        self.header = decoded_header(self._place, data)
        kept, self.unread = self.unread, None  # compared once: later changes are read anyway
        if kept not in {None, data}:
            raise StaleHeaderError(f"the header of {self.name} has changed")
        self._refuse_unknown()

    def keep_leases(self) -> None:
        """Leave the leases: a request that was not answered may still arrive."""
        self._leases.keep()

    def end_writing(self) -> None:
        """Delete the leases; one that cannot be deleted only delays a removal of packs."""
        self._leases.end()
        # A session does not commit its segments, so no prune needs to wait for them.
        with contextlib.suppress(StoreError):
            self.segments.tidy()

    def count_refused_leases(self) -> int:
        """Count the leases left by ended sessions that these credentials may not delete."""
        return self._leases.count_refused()

    def manifest(self, snapshot_id: SnapshotId) -> bytes:
        """Read a manifest from the bucket.

        Raises:
            MissingError: It is gone; a purge may have left a tombstone in its place.
            UnreachableError: This machine's key may not read it.
            StoreError: It cannot be read.
        """
        key = layout.manifest_key(snapshot_id)
        data = read_document(self._place, key, MANIFEST_BYTES_MAX)
        if is_tombstone(data):
            raise MissingError(f"{key} is gone: a tombstone is in its place")
        return data

    def _retired(self) -> frozenset[SnapshotId]:
        records = self.records(layout.RETIRED)
        names = records.names(layout.parse_retired_name)
        found = [decode_retired(records.read(name, RETIRED_BYTES_MAX)) for name in names]
        return frozenset[SnapshotId]().union(*found)

    def _refuse_unknown(self) -> None:
        if self.header.problem_for_writers:
            raise UnknownFormatError(
                f"{self.name}/{layout.HEADER}: {self.header.problem_for_writers}",
                hint="Use a newer version of ciuic to change it; this version lists, verifies and"
                " restores.",
            )

    def _fetch_marks(self, only: str = "") -> None:
        """Fetch the newest mark of each snapshot, and remove the copies of older ones."""
        folder = Folder(self.path, layout.MARKS)
        # Before the listing: what another process of this machine fetches meanwhile may be newer.
        known = folder.names(layout.parse_mark_name)
        newest: dict[SnapshotId, int] = {}
        for found in self._place.list(layout.MARKS):
            parsed = layout.parse_mark_name(found.name)
            if parsed is not None:
                newest[parsed[0]] = max(parsed[1], newest.get(parsed[0], 0))
        wanted = sorted(mark for mark in newest.items() - known if mark[0].startswith(only))
        missing = [layout.mark_name(*mark) for mark in wanted]
        if missing:
            folder.make()
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "marks") as pool:
            files = zip(missing, pool.map(self._mark, missing), strict=True)
            folder.create_all({name: data for name, data in files if data is not None})
        # The copy of an older mark stays if the newer one was not fetched: ``only``.
        old = {
            one for one in known - newest.items() if one[0].startswith(only) or one[0] not in newest
        }
        if old:
            folder.remove_all(layout.mark_name(*mark) for mark in old)

    def _create_mark(self, name: str, data: bytes) -> bool | StoreError:
        """Create a mark; returns false if its name is taken, or the error."""
        try:
            self._place.create(f"{layout.MARKS}/{name}", data)
        except LostRaceError:
            return False
        except OfflineError as error:
            return CommitUncertainError(error.message)
        except StoreError as error:
            return error
        return True

    def _mark(self, name: str) -> bytes | None:
        return document_or_none(self._place, f"{layout.MARKS}/{name}", MARK_BYTES_MAX)

    def _manifest(self, snapshot_id: SnapshotId) -> bytes | None:
        return document_or_none(self._place, layout.manifest_key(snapshot_id), MANIFEST_BYTES_MAX)


def open_bucket(
    place: Place,
    environment: Mapping[str, str],
    *,
    write: bool = False,
    only: str = "",
    trusts_kept: bool = False,
) -> StoreInBucket:
    """Open the store in a bucket, and its directory on this machine.

    Args:
        place: The place of the store.
        environment: The environment variables.
        write: The caller will add snapshots, and calls ``fetch`` itself when it has its lease.
        only: See ``fetch``; the caller asks for no other snapshot.
        trusts_kept: Use the header that this machine kept. A writer reads it when it has its lease,
            and ``StaleHeaderError`` then means: open it again, without this.

    Raises:
        StoreError: There is no store, or it cannot be read.
        UnknownFormatError: The store has an unknown version, or needs an unknown feature.
    """
    kept = only_kept_header(environment, place.name) if trusts_kept else None
    try:
        data = kept or header_data(place)
    except StoreError as error:
        refuse_vanished(environment, place.name, error)
        raise
    header = decoded_header(place, data)
    path = prepare_cache(environment, place.name, header.store_id)
    if not kept:
        keep_header(path, data)
    bucket = StoreInBucket(place, path, header)
    bucket.unread = kept
    if not write:
        bucket.fetch(only)
    return bucket

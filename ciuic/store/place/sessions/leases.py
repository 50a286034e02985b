"""Leases: objects that announce sessions. docs/protocol.md, "Leases, condemnation, verdicts".

    leases/snapshot-<id>          a writer that will commit this snapshot
    leases/copy-<id>-<session>    a writer that copies this snapshot from another store
    leases/prune-<session>        a prune or a repair that will commit its condemnation
    leases/repair-<session>       the same session, if it is a repair
    leases/dismissed-<id>         a note, no lease: a prune stopped waiting for a copy of this, and
                                  the manifest of that session may still come

Each lease names the key at which its session commits. While its process runs, a thread changes the
lease's number every minute, so that a prune can tell a session at work from a dead one without
comparing the clocks of two machines.
"""

import contextlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ciuic.errors import LostRaceError, MissingError, StoreError
from ciuic.ids import SessionId, SnapshotId
from ciuic.store.place.place import Place
from ciuic.store.place.sessions.ended import EndedLeases
from ciuic.store.records import layout
from ciuic.store.records.condemnation import (
    CONDEMNATION_BYTES_MAX,
    TOMBSTONE_BYTES,
    is_tombstone,
    new_tombstone,
)

__all__ = [
    "HeldLeases",
    "Lease",
    "copied_ids",
    "copy_lease",
    "dismiss",
    "dismissed_ids",
    "drop_notes",
    "hint_about",
    "is_decided",
    "list_leases",
    "prune_lease",
    "repair_lease",
    "revoke",
    "snapshot_lease",
]

_RENEW_S: Final = 60.0
"""Seconds between two changes of each lease."""
_LEASE_BYTES_MAX: Final = 1024
_REQUESTS_AT_ONCE: Final = 8
_NAME: Final = re.compile(
    r"(?:snapshot-(?P<taken>cs-[0-9a-f]{6,64})|copy-(?P<copied>cs-[0-9a-f]{6,64})-[0-9a-f]{16}"
    r"|(?:prune|repair)-(?P<prune>[0-9a-f]{16}))"
)
_COPIED: Final = re.compile(
    r"(?:copy-(cs-[0-9a-f]{6,64})-[0-9a-f]{16}|dismissed-(cs-[0-9a-f]{6,64}))"
)
# This sorts behind the leases of copies. A listing arrives in pages, in the order of the keys, so a
# reader that misses a deleted lease comes to what was put before the deletion.
_DISMISSED: Final = "dismissed-"
_REPAIR: Final = "repair-"


class Lease(NamedTuple):
    """A session that was announced and has not ended.

    Attributes:
        key: The lease's key.
        content: Its content, which changes while the session's process runs.
        decided_at: The key of the manifest or condemnation that the session will create; empty:
            only a later version of ciuic knows it.
        shared_id: The snapshot that it copies. Another session may create the same manifest later,
            so a tombstone there does not decide this session.
    """

    key: str
    content: bytes
    decided_at: str
    shared_id: SnapshotId | None = None

    @property
    def is_shared(self) -> bool:
        """Another session may create the same manifest."""
        return self.shared_id is not None

    @property
    def about(self) -> str:
        """What the session does, for messages."""
        return self.key.partition("/")[2]

    @property
    def may_read_condemned(self) -> bool:
        """Even a session that began after a condemnation may read the packs.

        A repair reads what is damaged elsewhere from them. A session of a kind that only a later
        version knows may do so too.
        """
        return _may_read_condemned(self.key)


def snapshot_lease(snapshot_id: SnapshotId) -> str:
    """Return the key of the lease of a writer that takes a snapshot."""
    return f"{layout.LEASES}/snapshot-{snapshot_id}"


def copy_lease(snapshot_id: SnapshotId, session_id: SessionId) -> str:
    """Return the key of a lease of a writer that copies a snapshot."""
    return f"{layout.LEASES}/copy-{snapshot_id}-{session_id.hex()}"


def prune_lease(session_id: SessionId) -> str:
    """Return the key of the lease of a prune."""
    return f"{layout.LEASES}/prune-{session_id.hex()}"


def repair_lease(session_id: SessionId) -> str:
    """Return the key of the second lease of a repair."""
    return f"{layout.LEASES}/{_REPAIR}{session_id.hex()}"


def hint_about(lease: str) -> str:
    """Return what to do about a session that is waited for; empty: nothing in particular.

    Args:
        lease: See ``Lease.about``.
    """
    if _NAME.fullmatch(lease):
        return ""
    return (
        f"Only a later version of ciuic knows what {lease!a} does, so it is not revoked. Prune with"
        f" that version; or, if its process has ended, delete {layout.LEASES + '/' + lease!a} from"
        " the bucket."
    )


class HeldLeases:
    """The leases of this process.

    Args:
        place: The place of the store.
        path: The cache directory.
    """

    def __init__(self, place: Place, path: str) -> None:
        self._place = place
        self._ended = EndedLeases(place, path)
        self._leases: dict[str, str] = {}
        self._number = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leases: Mapping[str, str]) -> None:
        """Create leases, and delete those of ended sessions that could not be deleted before.

        Args:
            leases: The key of each, and what is written into it.

        Raises:
            StoreError: They cannot be created.
        """
        self._leases |= leases
        self._write(list(leases))
        self._ended.delete_earlier()
        if self._thread is None and leases:
            self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)
            self._thread.start()

    def keep(self) -> None:
        """End without deleting them: a request that was not answered may still arrive."""
        self._stop()
        self._leases = {}

    def end(self) -> None:
        """Delete the leases; the next session deletes what cannot be deleted. Harmless twice."""
        self._stop()
        leases, self._leases = self._leases, {}
        if leases:
            self._ended.delete(leases)

    def count_refused(self) -> int:
        """See ``EndedLeases``."""
        return self._ended.count_refused()

    def _write(self, keys: Sequence[str]) -> None:
        contents = [f"{self._leases[key]} {self._number}\n".encode() for key in keys]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "leases") as pool:
            for _ in pool.map(self._place.put, keys, contents):
                pass

    def _renew(self) -> None:
        while not self._ends.wait(_RENEW_S):
            self._number += 1
            with contextlib.suppress(StoreError):  # the next turn tries again
                self._write(list(self._leases))

    def _stop(self) -> None:
        """End the thread: it must not write a lease that was deleted."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ends.set()
            thread.join()
            self._ends = threading.Event()


def _may_read_condemned(key: str) -> bool:
    name = key.partition("/")[2]
    return name.startswith(_REPAIR) or _NAME.fullmatch(name) is None


def list_leases(place: Place, *, only_readers: bool = False) -> list[Lease]:
    """Return the leases of all sessions.

    Args:
        place: The place of the store.
        only_readers: Leave out those without ``may_read_condemned``: there are many of them, and
            each is read.

    Raises:
        StoreError: They cannot be read.
    """
    found = [listed.key for listed in place.list(layout.LEASES)]
    keys = [key for key in found if not key.startswith(f"{layout.LEASES}/{_DISMISSED}")]
    if only_readers:
        keys = list(filter(_may_read_condemned, keys))

    def read(key: str) -> Lease | None:
        try:
            content = place.get(key, _LEASE_BYTES_MAX)
        except MissingError:
            return None  # it has ended since the listing
        match = _NAME.fullmatch(key.partition("/")[2])
        if match is None:
            return Lease(key, content, "")
        if match["prune"]:
            return Lease(key, content, f"{layout.CONDEMNED}/{match['prune']}.json")
        snapshot_id = SnapshotId(match["taken"] or match["copied"])
        decided_at = layout.manifest_key(snapshot_id)
        return Lease(key, content, decided_at, snapshot_id if match["copied"] else None)

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "leases") as pool:
        return [lease for lease in pool.map(read, keys) if lease is not None]


def copied_ids(place: Place) -> set[SnapshotId]:
    """Return the snapshots that a session copies, or copied when a prune stopped waiting for it.

    Such a session may still create the manifest, unless something else is at its key.

    Raises:
        StoreError: The bucket cannot be read.
    """
    names = [found.key.partition("/")[2] for found in place.list(layout.LEASES)]
    matches = [match for match in map(_COPIED.fullmatch, names) if match is not None]
    return {SnapshotId(match[1] or match[2]) for match in matches}


def dismissed_ids(place: Place) -> set[SnapshotId]:
    """Return the snapshots with a note that a prune stopped waiting for a copy of them.

    Raises:
        StoreError: The bucket cannot be read.
    """
    names = [found.key.partition("/")[2] for found in place.list(layout.LEASES)]
    matches = [match for match in map(_COPIED.fullmatch, names) if match is not None]
    return {SnapshotId(match[2]) for match in matches if match[2]}


def drop_notes(place: Place, snapshot_ids: Iterable[SnapshotId]) -> None:
    """Delete such notes. The ID is retired, and a tombstone is where the manifest would come.

    Raises:
        StoreError: The bucket cannot be written to.
    """
    place.delete(f"{layout.LEASES}/{_DISMISSED}{one}" for one in snapshot_ids)


def dismiss(place: Place, lease: Lease) -> None:
    """Delete the lease of a session that no prune waits for now; it may still be at work.

    Raises:
        StoreError: The bucket cannot be written to.
    """
    if lease.shared_id is not None:
        # First: a purge of the snapshot must know that this session could create it again.
        place.put(f"{layout.LEASES}/{_DISMISSED}{lease.shared_id}", b"")
    place.delete([lease.key])


def is_decided(place: Place, lease: Lease) -> bool:
    """Return whether a session has committed, or can no longer commit.

    Raises:
        StoreError: The bucket cannot be read.
    """
    if not lease.decided_at:
        return False
    try:
        size_bytes = place.size_bytes(lease.decided_at)
    except MissingError:
        return False
    return not lease.is_shared or size_bytes != TOMBSTONE_BYTES


def revoke(place: Place, lease: Lease) -> bool:
    """Keep a session from committing: put a tombstone where it would commit.

    Returns:
        False if it has committed before, or if only a later version can do this.

    Raises:
        LostRaceError: Another prune revoked it at the same time: look at it again.
        StoreError: The bucket cannot be written to.
    """
    if not lease.decided_at:
        return False
    with contextlib.suppress(LostRaceError):
        place.create(lease.decided_at, new_tombstone())
        return True
    try:
        found = place.get_versioned(lease.decided_at, CONDEMNATION_BYTES_MAX)
    except MissingError as error:
        raise LostRaceError(f"{lease.decided_at} is gone again") from error
    if not is_tombstone(found.data):
        return False
    if lease.is_shared:
        # The session may have read this tombstone, and would then replace it with its manifest.
        place.replace(lease.decided_at, new_tombstone(), found.version)
    return True

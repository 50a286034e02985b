"""What the packs of a store offer to its readers, in a directory and in a bucket."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from ciuic.errors import CorruptionError, StoreError
from ciuic.ids import PackId, SessionId, SnapshotId
from ciuic.store.format import pack
from ciuic.store.format.pack import PackedFrame
from ciuic.store.records.damage import KnownDamage
from ciuic.store.records.header import Header

__all__ = [
    "Bucket",
    "OpenPack",
    "PackUploads",
    "Packs",
    "RecordFolder",
    "footer_of",
    "listed_frames",
    "walked_frames",
]

K = TypeVar("K")


class OpenPack(Protocol):
    """A pack that can be read. All methods may be called from any thread.

    Attributes:
        name: Its path or URL, for messages.
        fd: Its open file, which parity can restore; -1 for an object.
    """

    name: str
    fd: int

    @property
    def size_bytes(self) -> int:
        """Its length."""
        ...

    def read(self, length_bytes: int, offset_bytes: int) -> bytes:
        """Return a part of it; less at its end.

        Raises:
            CorruptionError: The part cannot be read, because of damage.
            StoreError: The store failed.
        """
        ...

    def view(self, length_bytes: int, offset_bytes: int) -> bytes | memoryview:
        """Like ``read``, without a copy where that is possible.

        It may keep far more in memory than it shows: drop it soon.
        """
        ...

    def read_ahead(self, offset_bytes: int, length_bytes: int, *, is_in_turn: bool = False) -> None:
        """Read a part ahead, if that is of use. Errors are left to the later read.

        Args:
            offset_bytes: Where it begins.
            length_bytes: Its length.
            is_in_turn: It is read after the parts that this was called for before, of any pack.
        """
        ...

    def pass_by(self, offset_bytes: int, length_bytes: int) -> None:
        """Drop from memory a part that was read."""
        ...

    def done(self, offset_bytes: int, length_bytes: int) -> None:
        """Say that a part is not read again: what was fetched of it need not be kept."""
        ...

    def doubt(self, offset_bytes: int, length_bytes: int) -> bool:
        """Say that a part is not sound; returns whether reading it again may differ."""
        ...


class Packs(Protocol):
    """The packs of one store. All methods may be called from any thread, and raise StoreError."""

    def sizes(self) -> dict[PackId, int]:
        """Map every pack whose status can be read to its size in bytes."""
        ...

    def damage(self) -> KnownDamage:
        """Return the damage that records name; in a bucket, as ``sizes`` has listed them last."""
        ...

    def listed(self) -> dict[PackId, int]:
        """Map packs to their lengths, as index segments list them; empty if there are none.

        That is enough for a reader, which looks further if a pack is gone or a chunk is in none of
        them. It costs far fewer requests than ``sizes``.
        """
        ...

    def names(self) -> set[str]:
        """Return the names of all packs; two equal sets mean that no pack came or went."""
        ...

    def size_bytes(self, pack_id: PackId) -> int | None:
        """Return a pack's length; None if the pack is gone or its status cannot be read."""
        ...

    def open(self, pack_id: PackId) -> OpenPack:
        """Open a pack; it is closed when its last user drops it.

        Raises:
            ChunkMissingError: The pack is gone.
        """
        ...

    def close(self) -> None:
        """Close the packs that are kept open; packs that are in use stay open."""
        ...


class PackUploads(Packs, Protocol):
    """The packs of a store in a bucket, to which packs can be added."""

    def publish(self, path: str, pack_id: PackId, *, is_direct: bool) -> None:
        """Begin to upload a completed pack, and remove its file; ``sync`` waits for the end.

        Args:
            path: The file.
            pack_id: The ID of the pack.
            is_direct: All of the file was written past the page cache.
        """
        ...

    def sync(self) -> None:
        """Wait until every pack is uploaded, which makes it durable."""
        ...


class RecordFolder(Protocol):
    """Write-once records, in a directory (``Folder``) or in a bucket.

    Attributes:
        path: The folder, for messages.
    """

    path: str

    def path_of(self, name: str) -> str:
        """Return the path of a record, for messages."""
        ...

    def make(self) -> None:
        """Make the folder if it is missing."""
        ...

    def names(self, parse: Callable[[str], K | None]) -> set[K]:
        """Return the names that ``parse`` understands, parsed."""
        ...

    def read(self, name: str, bytes_max: int) -> bytes:
        """Read a record."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Durably create a record; returns false if it exists."""
        ...

    def mark(self, name: str) -> None:
        """Durably create an empty record."""
        ...

    def remove_durably(self, names: Iterable[str]) -> None:
        """Durably remove records."""
        ...


class Bucket(Protocol):
    """What a store needs of its bucket; ``store.place.bucket`` implements it, but imports slowly.

    Attributes:
        name: Its address, without credentials.
        path: The cache directory.
        header: The store's own record.
        packs: Its packs.
    """

    name: str
    path: str
    header: Header

    @property
    def packs(self) -> PackUploads:
        """Its packs."""
        ...

    def fetch(self) -> None:
        """Make the copies of marks and manifests on this machine agree with the bucket."""
        ...

    def meet(self, snapshot_id: SnapshotId) -> None:
        """Say that this snapshot is read: its packs may have come after the last listing."""
        ...

    def manifest(self, snapshot_id: SnapshotId) -> bytes:
        """Read a manifest from the bucket."""
        ...

    def create_manifest(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Commit a snapshot: create its manifest; returns false if the key is taken."""
        ...

    def committed_here(self, taken_ns: Mapping[SnapshotId, int]) -> set[SnapshotId]:
        """Return those of the snapshots that this machine has committed: see ``OwnSnapshots``."""
        ...

    def has_manifest(self, snapshot_id: SnapshotId) -> bool:
        """Ask the bucket whether it has a snapshot's manifest, and no tombstone in its place."""
        ...

    def manifest_ids(self) -> set[SnapshotId]:
        """List the snapshots that have a manifest in the bucket, and no tombstone in its place."""
        ...

    def remove_manifests(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete manifests."""
        ...

    def put_back(self, snapshot_id: SnapshotId, data: bytes) -> bool:
        """Put a sound manifest in the place of one that is lost or damaged."""
        ...

    def set_manifests_aside(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Copy damaged manifests to ``quarantine/``, then delete them; missing ones are skipped."""
        ...

    def remove_marks(self, snapshot_ids: Collection[SnapshotId]) -> None:
        """Delete all marks of snapshots."""
        ...

    def records(self, prefix: str) -> RecordFolder:
        """Return the objects below a prefix."""
        ...

    def shut_packs(self) -> frozenset[PackId]:
        """Return the shut packs, deleted ones included: no session may rely on them."""
        ...

    def mark(self, name: str) -> bytes:
        """Read a mark from the bucket."""
        ...

    def create_marks(self, files: Mapping[str, bytes]) -> set[str]:
        """Create the marks whose names are free, and return those names."""
        ...

    def begin_writing(self, snapshot_id: SnapshotId, session_id: SessionId) -> None:
        """Announce a writer that will commit a snapshot, before it relies on any pack."""
        ...

    def begin_pruning(self, session_id: SessionId) -> None:
        """Announce a prune, before it reads what is needed."""
        ...

    def announce(self, snapshot_ids: Collection[SnapshotId], session_id: SessionId) -> None:
        """Announce that a writer copies snapshots, before it relies on any pack."""
        ...

    def end_writing(self) -> None:
        """Delete the leases."""
        ...

    def count_refused_leases(self) -> int:
        """Return how many leases of ended sessions may not be deleted with these credentials."""
        ...


def footer_of(opened: OpenPack, pack_id: PackId, *, strict: bool = True) -> list[PackedFrame]:
    """Return the frames that the footer of a pack lists: see ``footer_frames``.

    What was fetched from a bucket is kept on this machine, and fetched again if it is not sound.
    """
    size_bytes = opened.size_bytes
    try:
        return pack.footer_frames(opened.read, size_bytes, pack_id, strict=strict)
    except CorruptionError:
        if not opened.doubt(0, size_bytes):
            raise
    return pack.footer_frames(opened.read, size_bytes, pack_id, strict=strict)


def walked_frames(opened: OpenPack) -> Iterator[PackedFrame]:
    """Iterate over the frames of a pack without a footer, up to the first damaged frame."""
    return pack.walk_frames(opened.read, opened.size_bytes)


def listed_frames(packs: Packs, pack_id: PackId) -> list[PackedFrame]:
    """Return the frames that the footer of a pack lists, without those of a later version.

    The list is empty if the pack is gone or its footer is damaged.
    """
    with contextlib.suppress(StoreError):
        return footer_of(packs.open(pack_id), pack_id, strict=False)
    return []

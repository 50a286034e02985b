"""The nouns: what a snapshot is made of, and what the verbs report.

Values only: nothing here opens a file. ``Entry`` is also what a tree node stores, field by field
in this order (docs/format.md, "Tree nodes"); its fields may be added to, never moved.
"""

import stat
from collections.abc import Iterable
from typing import Any

import msgspec

from ciuic.clock import rfc3339

__all__ = [
    "FLUX",
    "GONE_MODE",
    "SKIPPED",
    "UNREADABLE",
    "WHOLE",
    "Entry",
    "RestoreReport",
    "Root",
    "SnapshotSummary",
    "TakeReport",
    "Trouble",
    "VerifyReport",
    "VerifySnapshot",
    "newest_first",
    "path_text",
]

WHOLE = 0
"""The entry is as it was at one moment."""
FLUX = 1
"""The content changed while it was read: stored as it came, never believed again."""
UNREADABLE = 2
"""The content could not be read: the entry has none."""
SKIPPED = 3
"""The content was left out on purpose: a mount point of a pseudo file system, the store."""
GONE_MODE = 0
"""Mode of an entry whose file vanished between listing and reading: it is left out."""


class Entry(msgspec.Struct, array_like=True):
    """One name in a directory, with all that a restore needs.

    Attributes:
        name: Raw bytes as the file system has them; ``b"."`` for a root itself.
        mode: ``st_mode``, type bits included.
        uid: Owner.
        gid: Group.
        mtime_ns: Nanoseconds since 1970, may be negative.
        ctime_ns: As above; with ``ino`` it tells an unchanged file from a replaced one.
        ino: Inode number on the day of the snapshot.
        size_bytes: Length of a regular file; 0 for everything else.
        state: ``WHOLE``, ``FLUX``, ``UNREADABLE`` or ``SKIPPED``.
        content: A file's chunk or recipe ID (empty: no bytes), a directory's tree ID, a
            symlink's target.
        level: Height of the recipe or tree that ``content`` names; 0 for a file of one chunk.
        link_dev: ``st_dev`` when the inode has several names, else 0: names with the same
            ``(link_dev, ino)`` are hard links to one file.
        rdev: A device node's ``major << 32 | minor``.
        xattrs: Extended attributes, POSIX ACLs among them, sorted by name.
    """

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    size_bytes: int = 0
    state: int = WHOLE
    content: bytes = b""
    level: int = 0
    link_dev: int = 0
    rdev: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_directory(self) -> bool:
        """It is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """It is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """It is a symbolic link."""
        return stat.S_ISLNK(self.mode)


class Trouble(msgspec.Struct, frozen=True):
    """One path that is not in the snapshot as it should be.

    Attributes:
        path: Absolute, raw bytes.
        what: What happened, in words.
        harmless: It costs nothing (a socket has no content), so the run still counts as clean.
    """

    path: bytes
    what: str
    harmless: bool = False

    def as_json(self) -> dict[str, str]:
        """The form that commands print."""
        return {"path": path_text(self.path), "what": self.what}


class Root(msgspec.Struct, frozen=True):
    """One configured directory as a snapshot has it.

    Attributes:
        path: Absolute, raw bytes.
        tree: ID of a tree node of one entry, ``b"."``: the root itself. Empty if there was
            no root to be read; then ``missing`` says why.
        missing: Empty, or why the root could not be read at all.
        capture: How its files were captured: "subvolume", "reflink", "in place"; empty in
            snapshots of versions that did not say.
    """

    path: bytes
    tree: bytes
    missing: str = ""
    capture: str = ""


class SnapshotSummary(msgspec.Struct, frozen=True):
    """What a list shows of a snapshot; all sizes in bytes.

    Attributes:
        trouble_count: Paths that are not as they should be.
        flux_count: How many of those were in flux.
        pinned: It is not forgotten, whatever the policy says.
    """

    id: str
    kind: str
    parent: str | None
    taken_ns: int
    files: int
    logical_bytes: int
    new_bytes: int
    stored_bytes: int
    tags: tuple[str, ...]
    trouble_count: int
    roots: tuple[bytes, ...]
    flux_count: int = 0
    pinned: bool = False

    def labelled(self, *, tags: tuple[str, ...], pinned: bool) -> "SnapshotSummary":
        """The same with other tags and another pin."""
        return msgspec.structs.replace(self, tags=tags, pinned=pinned)

    def as_json(self) -> dict[str, Any]:
        """One element of ``ciuic list --json``."""
        return {
            "id": self.id,
            "kind": self.kind,
            "parent": self.parent,
            "taken": rfc3339(self.taken_ns),
            "files": self.files,
            "logical_bytes": self.logical_bytes,
            "new_bytes": self.new_bytes,
            "stored_bytes": self.stored_bytes,
            "tags": list(self.tags),
            "pinned": self.pinned,
            "trouble_count": self.trouble_count,
            "flux_count": self.flux_count,
            "roots": [path_text(root) for root in self.roots],
        }


class TakeReport(msgspec.Struct, frozen=True):
    """What a snapshot did.

    Attributes:
        read_bytes: Read from the source.
        new_bytes: Plain bytes of file content that the store did not have before.
        stored_bytes: Added to the store's files, metadata included.
        freeze_s: How long the source was looked at: until its last byte was captured.
        trouble: The first of the paths with trouble; ``trouble_count`` counts them all.
        flux: The first of the files that somebody was writing.
    """

    id: str
    kind: str
    parent: str | None
    taken_ns: int
    files: int
    logical_bytes: int
    read_bytes: int
    new_bytes: int
    stored_bytes: int
    freeze_s: float
    total_s: float
    trouble: tuple[Trouble, ...]
    trouble_count: int
    flux: tuple[bytes, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic snapshot --json``."""
        return {
            "id": self.id,
            "kind": self.kind,
            "parent": self.parent,
            "taken": rfc3339(self.taken_ns),
            "files": self.files,
            "logical_bytes": self.logical_bytes,
            "read_bytes": self.read_bytes,
            "new_bytes": self.new_bytes,
            "stored_bytes": self.stored_bytes,
            "freeze_s": round(self.freeze_s, 6),
            "total_s": round(self.total_s, 6),
            "trouble": [one.as_json() for one in self.trouble],
            "trouble_count": self.trouble_count,
        }


class VerifySnapshot(msgspec.Struct, frozen=True):
    """What was found wrong with one snapshot; nothing when ``damaged`` is empty.

    Attributes:
        nearest_valid: The snapshot to take: the newest older one that can be restored whole, or
            else the oldest newer one; None if there is none, or none is needed. It is the damaged
            one itself where parity, or another pack, gives back all that is damaged.
        intact_in: For damaged paths the snapshot to take them from, if there is one: the newest
            that is not newer than this one and can give them back.
    """

    id: str
    damaged: tuple[Trouble, ...]
    nearest_valid: str | None = None
    intact_in: dict[bytes, str] = msgspec.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """The snapshot can be restored bit by bit."""
        return not self.damaged

    def as_json(self) -> dict[str, Any]:
        """One element of the document of ``ciuic verify --json``."""
        return {
            "id": self.id,
            "ok": self.ok,
            "nearest_valid": self.nearest_valid,
            "damaged": [
                {**bad.as_json(), "intact_in": self.intact_in.get(bad.path)} for bad in self.damaged
            ],
        }


class VerifyReport(msgspec.Struct, frozen=True):
    """The outcome of a verification.

    Attributes:
        bad: Chunks that were found not to be had.
        unreachable: Packs that their file system can't give out, whoever needs them.
    """

    snapshots: tuple[VerifySnapshot, ...]
    read_bytes: int
    chunks: int
    total_s: float
    bad: frozenset[bytes] = frozenset()
    unreachable: tuple[Trouble, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong with any of them."""
        return all(one.ok for one in self.snapshots) and not self.unreachable

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic verify --json``."""
        return {
            "ok": self.ok,
            "read_bytes": self.read_bytes,
            "chunks": self.chunks,
            "total_s": round(self.total_s, 6),
            "snapshots": [one.as_json() for one in self.snapshots],
            "unreachable": [one.as_json() for one in self.unreachable],
        }


class RestoreReport(msgspec.Struct):
    """What a restore did, or with ``dry_run`` would do.

    Attributes:
        cloned_bytes: Bytes of written files that share the blocks of a frozen copy, or came
            from the old file at the same place, instead of from the store.
        failed: Paths that are not as the snapshot has them, and why.
        flux: Files that were put back although somebody was writing them when the snapshot was
            taken.
        damaged_paths: Those that damage in the store, or a failed read when the snapshot was
            taken, kept from being restored; ``--fallback`` looks for older versions of them.
        damaged: There was damage in the store, even if an older version could be had.
    """

    dry_run: bool = False
    written_files: int = 0
    kept_files: int = 0
    deleted_files: int = 0
    written_bytes: int = 0
    cloned_bytes: int = 0
    total_s: float = 0.0
    failed: list[Trouble] = msgspec.field(default_factory=list)
    notes: list[Trouble] = msgspec.field(default_factory=list)
    flux: list[bytes] = msgspec.field(default_factory=list)
    damaged_paths: set[bytes] = msgspec.field(default_factory=set)
    damaged: bool = False

    def as_json(self) -> dict[str, Any]:
        """The document of ``ciuic restore --json``."""
        return {
            "dry_run": self.dry_run,
            "written_files": self.written_files,
            "kept_files": self.kept_files,
            "deleted_files": self.deleted_files,
            "written_bytes": self.written_bytes,
            "cloned_bytes": self.cloned_bytes,
            "total_s": round(self.total_s, 6),
            "failed": [one.as_json() for one in self.failed],
            "notes": [one.as_json() for one in self.notes],
            "flux": [path_text(one) for one in self.flux],
        }


def newest_first(snapshots: Iterable[SnapshotSummary]) -> list[SnapshotSummary]:
    """By the time taken, but none before one that names it as its parent.

    A parent was there first, whatever the clock said: so one that was taken while the clock was
    ahead comes behind those that were taken after it.
    """
    ordered = sorted(snapshots, key=lambda one: (one.taken_ns, one.id), reverse=True)
    children: dict[str | None, list[SnapshotSummary]] = {}
    for one in reversed(ordered):
        children.setdefault(one.parent, []).append(one)
    found: dict[str, SnapshotSummary] = {}
    for one in ordered:
        waiting = [one]
        while waiting:
            # Once for each snapshot: parents that go round in a circle are a lie that ends too.
            later = children.pop(waiting[-1].id, [])
            if later:
                waiting += later
            else:
                last = waiting.pop()
                found.setdefault(last.id, last)
    return list(found.values())


def path_text(path: bytes) -> str:
    """A path as text that can be turned back exactly: surrogates for bytes that are not UTF-8."""
    return path.decode("utf-8", "surrogateescape")

"""The parts of a snapshot, as values.

Nothing here opens a file. A tree node stores ``Entry`` field by field in this order
(docs/format.md, "Tree nodes"), so new fields go last and existing fields never move.
"""

import stat
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from ciuic.documents import Document
from ciuic.ids import DEFAULT_SCHEDULE, ChunkId, SnapshotId
from ciuic.system.clock import rfc3339
from ciuic.system.machine import Machine

__all__ = [
    "BEING_WRITTEN",
    "COMMAND",
    "CONSISTENT",
    "DAEMON",
    "EMERGENCY_TAG",
    "LIBRARY",
    "MEMORY",
    "NO_CONTENT",
    "NO_TREE",
    "SKIPPED",
    "SUSPECT_TAG",
    "UNCHANGED",
    "UNREADABLE",
    "Entry",
    "ExcludeRules",
    "Follow",
    "Owner",
    "PathWarning",
    "Root",
    "SnapshotSummary",
    "bash_quoted",
    "complete_ones",
    "covers",
    "holds_one",
    "holds_part",
    "newest_first",
    "path_text",
    "preferred",
]

NO_TREE = ChunkId(b"")
"""The tree of a root that could not be read."""

CONSISTENT = 0
"""The entry shows the file as it was at one moment (``whole`` in JSON)."""
BEING_WRITTEN = 1
"""The content may have changed while it was read; the next snapshot reads it again."""
UNREADABLE = 2
"""The content could not be read: the entry has no content."""
SKIPPED = 3
"""The content was skipped on purpose: a mount point of a pseudo file system, the store."""

MEMORY = "memory"
"""The capture of a root whose files a training program passed from its memory. They never existed
on a disk, so the root has no place to be restored to."""

UNCHANGED: Final = "unchanged"
"""The capture of a root that was not scanned: nothing in it had changed since the parent."""

DAEMON: Final = "daemon"
"""The origin of snapshots that the daemon takes by itself."""
COMMAND: Final = "command"
"""The origin of snapshots that ``ciuic snapshot`` asks for, also through the daemon."""
LIBRARY: Final = "library"
"""The origin of snapshots of a program's state."""
EMERGENCY_TAG: Final = "emergency"
"""The tag of a snapshot that was taken because a job failed."""
SUSPECT_TAG: Final = "suspect"
"""The tag of snapshots that were taken after a rule had fired."""

NO_CONTENT = "a file without content has a size"
"""What is wrong with an entry that ``lacks_content``."""


_Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Signed64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Unsigned63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""In msgpack, no number has more than 64 bits."""


class Entry(msgspec.Struct, array_like=True):
    """One name in a directory, with everything that a restore needs.

    Attributes:
        name: The file's name, raw bytes; ``b"."`` for a root.
        mode: ``st_mode``, including the type bits.
        uid: Owner.
        gid: Group.
        mtime_ns: Nanoseconds since 1970; may be negative.
        ctime_ns: As ``mtime_ns``; with ``ino`` it distinguishes an unchanged file from a new one.
        ino: Inode number when the snapshot was taken.
        size_bytes: Length of a regular file; 0 for other types.
        state: ``CONSISTENT``, ``BEING_WRITTEN``, ``UNREADABLE`` or ``SKIPPED``.
        content: A file's chunk or recipe ID (empty: no bytes), a directory's tree ID, a
            symlink's target.
        level: Height of the recipe or tree that ``content`` names; 0 for a file of one chunk.
        link_dev: ``st_dev`` if the inode has several names, else 0: names with the same
            ``(link_dev, ino)`` are hard links to one file.
        rdev: A device node's ``major << 32 | minor``.
        xattrs: Extended attributes, including POSIX ACLs, sorted by name.
    """

    name: bytes
    mode: int
    uid: _Unsigned32
    gid: _Unsigned32
    mtime_ns: _Signed64
    ctime_ns: _Signed64
    ino: _Unsigned
    size_bytes: _Unsigned63 = 0
    state: int = CONSISTENT
    content: bytes = b""
    level: int = 0
    link_dev: _Unsigned = 0
    rdev: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def file_type(self) -> int:
        """The type bits of the mode, as ``stat.S_IFREG``."""
        return stat.S_IFMT(self.mode)

    @property
    def is_directory(self) -> bool:
        """The entry is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """The entry is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """The entry is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def lacks_content(self) -> bool:
        """The entry is a file that was read and has a size, but it names no content: damage."""
        return (
            self.size_bytes > 0
            and not self.content
            and self.state != UNREADABLE
            and stat.S_ISREG(self.mode)
        )

    def with_content(self, content: bytes, level: int) -> "Entry":
        """Return the entry with other content."""
        return msgspec.structs.replace(self, content=content, level=level)


class PathWarning(msgspec.Struct, frozen=True):
    """A path that is not in the snapshot as it should be.

    Attributes:
        path: Absolute path, raw bytes.
        what: What happened, in words.
        harmless: Does not affect the exit code, because nothing is lost: a socket has no content.
    """

    path: bytes
    what: str
    harmless: bool = False

    def as_json(self) -> dict[str, str]:
        """Return the JSON form that commands print."""
        return {"path": path_text(self.path), "what": self.what}


class ExcludeRules(msgspec.Struct, frozen=True):
    """The rules that exclude paths from a snapshot; ``Exclusions`` applies them.

    Attributes:
        patterns: Globs for paths.
        larger_than_bytes: Regular files longer than this are excluded; 0: no limit.
        caches: In a directory that CACHEDIR.TAG marks as a cache, all but the tag is excluded.
        if_present: In a directory that holds one of these names, all but that name is excluded.
    """

    patterns: tuple[str, ...] = ()
    larger_than_bytes: int = 0
    caches: bool = False
    if_present: tuple[str, ...] = ()

    def with_more(self, more: "ExcludeRules") -> "ExcludeRules":
        """Return rules that exclude what either of the two excludes."""
        limits = [limit for limit in (self.larger_than_bytes, more.larger_than_bytes) if limit]
        return ExcludeRules(
            tuple(dict.fromkeys((*self.patterns, *more.patterns))),
            min(limits, default=0),
            self.caches or more.caches,
            tuple(dict.fromkeys((*self.if_present, *more.if_present))),
        )

    def is_within(self, other: "ExcludeRules") -> bool:
        """Return whether ``other`` excludes everything that these rules exclude."""
        return other.with_more(self) == other.with_more(other)

    def as_json(self) -> Document:
        """Return the fields of ``ciuic show --json``."""
        return {
            "exclude": list(self.patterns),
            "exclude_larger_than_bytes": self.larger_than_bytes,
            "exclude_caches": self.caches,
            "exclude_if_present": list(self.if_present),
        }


class Root(msgspec.Struct, frozen=True):
    """One root in a snapshot.

    Attributes:
        path: Absolute path, raw bytes.
        tree: ID of a tree node with one entry, ``b"."``: the root itself. Empty if the root could
            not be read.
        missing: Why the root could not be read, or empty.
        capture: How its files were captured: "subvolume", "unchanged", "reflink", "in place", or
            "memory"; empty in snapshots of versions that did not record it.
    """

    path: bytes
    tree: ChunkId
    missing: str = ""
    capture: str = ""


class Owner(NamedTuple):
    """Whose snapshots: no retention policy of one owner forgets those of another one."""

    machine: Machine
    is_library: bool

    def is_same(self, other: "Owner") -> bool:
        """Return whether both can be one owner."""
        return self.is_library == other.is_library and self.machine.is_same(other.machine)


class Follow(msgspec.Struct, frozen=True):
    """Where content came from that a restore had put in place before a snapshot.

    Attributes:
        path: What was restored: an absolute path.
        snapshot: The snapshot that it was restored from. It may be gone by now.
    """

    path: bytes
    snapshot: SnapshotId

    def as_json(self) -> Document:
        """Return an element of ``follows`` in ``ciuic list --json``."""
        return {"path": path_text(self.path), "snapshot": self.snapshot}


class SnapshotSummary(msgspec.Struct, frozen=True):
    """The facts about a snapshot that lists show; all sizes in bytes.

    Attributes:
        trouble_count: Number of warnings.
        flux_count: Number of files that were being written.
        pinned: The snapshot is kept, whatever the retention policy says.
        host: Name of the machine that took it.
        machine: Hash of that machine's ID; empty if it has none, or if an older version took it.
        origin: What asked for it: ``DAEMON``, ``COMMAND`` or ``LIBRARY``; empty: not recorded.
        schedule: The schedule that it belongs to; empty: none.
        mark: The number of the mark that the tags and the pin are from; 0: the manifest's.
        mark_problem: Why that mark cannot be read; the snapshot then counts as listed and pinned.
        forgotten_ns: When it was forgotten; None: it is listed.
        purged: It is being deleted for good.
        note: What a person has written about it; empty: nothing.
        is_complete: False: it holds the first parts of a state whose save has not ended.
        follows: What had been restored since the snapshot before it.
        store: ID of the store that it was taken in, and that had its parent; empty: not recorded.
    """

    id: SnapshotId
    kind: str
    parent: SnapshotId | None
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
    host: str = ""
    machine: str = ""
    origin: str = ""
    schedule: str = DEFAULT_SCHEDULE
    mark: int = 0
    mark_problem: str = ""
    forgotten_ns: int | None = None
    purged: bool = False
    note: str = ""
    is_complete: bool = True
    follows: tuple[Follow, ...] = ()
    store: str = ""

    def unmarked(self) -> "SnapshotSummary":
        """Return what is the same in every store: the other fields are each store's own."""
        return msgspec.structs.replace(
            self,
            tags=(),
            pinned=False,
            mark=0,
            mark_problem="",
            forgotten_ns=None,
            purged=False,
            note="",
        )

    def under(self, snapshot_id: SnapshotId) -> "SnapshotSummary":
        """Return the same facts under another ID."""
        return msgspec.structs.replace(self, id=snapshot_id)

    @property
    def owner(self) -> "Owner":
        """The machine, and whether the library took it: retention policies stay within both."""
        return Owner(Machine(self.host, self.machine), is_library=self.origin == LIBRARY)

    def as_json(self) -> Document:
        """Return an element of ``ciuic list --json``."""
        return {
            "id": self.id,
            "kind": self.kind,
            "parent": self.parent,
            "follows": [followed.as_json() for followed in self.follows],
            "taken": rfc3339(self.taken_ns),
            "files": self.files,
            "logical_bytes": self.logical_bytes,
            "new_bytes": self.new_bytes,
            "stored_bytes": self.stored_bytes,
            "tags": list(self.tags),
            "pinned": self.pinned,
            "note": self.note,
            "trouble_count": self.trouble_count,
            "flux_count": self.flux_count,
            "roots": [path_text(root) for root in self.roots],
            "host": self.host,
            "machine": self.machine,
            "origin": self.origin,
            "schedule": self.schedule,
            "complete": self.is_complete,
        }


def covers(roots: Iterable[bytes], wanted: Iterable[bytes]) -> bool:
    """Return whether a snapshot of ``roots`` contains all of ``wanted``.

    Args:
        roots: Absolute and normalized.
        wanted: The same.
    """
    taken = [root.rstrip(b"/") + b"/" for root in roots]
    return all(any((path + b"/").startswith(root) for root in taken) for path in wanted)


def holds_part(roots: Collection[bytes], path: bytes) -> bool:
    """Return whether a snapshot of ``roots`` contains a path, or something below it."""
    return covers(roots, [path]) or any(covers([path], [root]) for root in roots)


def preferred(
    snapshots: Sequence[SnapshotSummary], scopes: Collection[Collection[bytes]]
) -> Sequence[SnapshotSummary]:
    """Return the snapshots that contain all directories of one of the scopes; all, if none does.

    A snapshot that a user took of another directory must not count as the newest one.
    """
    return [one for one in snapshots if holds_one(one.roots, scopes)] or snapshots


def holds_one(roots: Collection[bytes], scopes: Iterable[Iterable[bytes]]) -> bool:
    """Return whether a snapshot of ``roots`` contains all directories of one of the scopes."""
    return any(covers(roots, scope) for scope in scopes)


def complete_ones(snapshots: Iterable[SnapshotSummary]) -> list[SnapshotSummary]:
    """Return the complete snapshots, in their order: no search for the newest finds another."""
    return [summary for summary in snapshots if summary.is_complete]


def newest_first(snapshots: Iterable[SnapshotSummary]) -> list[SnapshotSummary]:
    """Sort snapshots by the time taken, newest first, but every parent after its children.

    A parent is older than its children, whatever the clock said. So a snapshot that was taken
    while the clock was ahead comes after the snapshots that were taken later.
    """
    ordered = sorted(snapshots, key=lambda summary: (summary.taken_ns, summary.id), reverse=True)
    children: dict[SnapshotId | None, list[SnapshotSummary]] = {}
    for snapshot in reversed(ordered):
        children.setdefault(snapshot.parent, []).append(snapshot)
    found: dict[SnapshotId, SnapshotSummary] = {}
    for snapshot in ordered:
        waiting = [snapshot]
        while waiting:
            # pop: each list of children is taken once, so a cycle of false parents ends too.
            later = children.pop(waiting[-1].id, [])
            if later:
                waiting += later
            else:
                last = waiting.pop()
                found.setdefault(last.id, last)
    return list(found.values())


def path_text(path: bytes) -> str:
    """Decode a path reversibly: surrogates replace bytes that are not UTF-8."""
    return path.decode("utf-8", "surrogateescape")


def bash_quoted(argument: bytes) -> str:
    """Return any bytes as one word of a shell's command line; bash, zsh and ksh read it."""
    kept = {ord("'"): "\\'", ord("\\"): "\\\\"}
    parts = [
        kept.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
        for byte in argument
    ]
    # An escape ends at the second digit: what follows must not be read as a third one.
    return "$'" + "".join(parts) + "'"

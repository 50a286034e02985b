"""The report of a recovery."""

from dataclasses import dataclass, field

from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import PathWarning, path_text
from ciuic.system.clock import rfc3339

__all__ = ["BrokenFile", "RecoveryReport", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """A valid version of a broken file.

    Attributes:
        snapshot_id: The newest snapshot that has it.
        taken_ns: When that snapshot was taken.
        content: The ID of its content.
        size_bytes: Its length.
        host: The name of the machine that took the snapshot.
    """

    snapshot_id: SnapshotId
    taken_ns: int
    content: bytes
    size_bytes: int
    host: str


@dataclass(slots=True)
class BrokenFile:
    """A broken file, and how a recovery treats it.

    Attributes:
        path: Absolute.
        what: Why it is broken.
        identity: Device, inode, length and time of modification when it was found.
        is_suspected: Its format is unknown: it is broken only if a snapshot has it in a known one.
        version: What replaces it; None: no snapshot has a valid version.
        refused: Contents of versions that turned out to be broken as well.
        aside: Where it was moved; empty: it is still in its place.
        failure: Why it could not be moved or replaced; empty if it was, or in a dry run.
    """

    path: bytes
    what: str
    identity: tuple[int, int, int, int]
    is_suspected: bool = False
    version: Version | None = None
    refused: set[bytes] = field(default_factory=set)
    aside: bytes = b""
    failure: str = ""

    def as_json(self) -> Document:
        """Return one element of ``broken`` of ``ciuic recover --json``."""
        version = self.version
        return {
            "path": path_text(self.path),
            "what": self.what,
            "from": None if version is None else version.snapshot_id,
            "host": None if version is None else version.host,
            "taken": None if version is None else rfc3339(version.taken_ns),
            "size": None if version is None else version.size_bytes,
            "aside": path_text(self.aside) if self.aside else None,
            "failure": self.failure or None,
        }


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery found and did.

    Attributes:
        is_dry_run: Nothing was changed.
        checked: How many files were checked.
        not_judged: How many of them are in no known format, so that no fault can be seen.
        broken: The broken files.
        left_alone: Broken files that another program writes, and skipped paths, and why they stay.
        total_s: How long it took.
    """

    is_dry_run: bool = False
    checked: int = 0
    not_judged: int = 0
    broken: list[BrokenFile] = field(default_factory=list)
    left_alone: list[PathWarning] = field(default_factory=list)
    total_s: float = 0.0

    @property
    def failed(self) -> list[BrokenFile]:
        """The files that could not be moved or replaced."""
        return [found for found in self.broken if found.failure]

    @property
    def lost(self) -> list[BrokenFile]:
        """The files without a valid version in any snapshot."""
        return [found for found in self.broken if found.version is None]

    def as_json(self) -> Document:
        """Return the document of ``ciuic recover --json``."""
        return {
            "dry_run": self.is_dry_run,
            "checked": self.checked,
            "not_judged": self.not_judged,
            "broken": [found.as_json() for found in self.broken],
            "left_alone": [found.as_json() for found in self.left_alone],
            "total_s": round(self.total_s, 6),
        }

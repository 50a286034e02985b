"""The report of a drill."""

from dataclasses import dataclass, field

from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import PathWarning, path_text
from ciuic.system.clock import rfc3339

__all__ = ["DrillReport", "Loaded"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of loading a restored checkpoint.

    Attributes:
        path: Its path in the snapshot.
        kind: Its format, as ``safetensors``.
        by: The package that loaded it; empty: none did.
        tensors: How many tensors were read.
        what: Why no package loaded it; empty if one did.
        is_bad: It should have loaded: the package is there and refused it.
    """

    path: bytes
    kind: str
    by: str = ""
    tensors: int = 0
    what: str = ""
    is_bad: bool = False

    def as_json(self) -> Document:
        """Return one element of ``loaded`` of ``ciuic drill --json``."""
        return {
            "path": path_text(self.path),
            "kind": self.kind,
            "by": self.by or None,
            "tensors": self.tensors,
            "what": self.what or None,
            "ok": not self.is_bad,
        }


@dataclass(slots=True)
class DrillReport:
    """What a drill did and found.

    Attributes:
        snapshot_id: The snapshot that it restored from.
        taken_ns: When that snapshot was taken.
        is_full: It restored every path, not a sample.
        chosen: The paths that it restores, or would restore.
        files: Files that were restored and are as the snapshot has them.
        restored_bytes: The bytes of the restored files.
        restore_s: How long the restore took, without comparing and loading.
        total_s: How long the drill took.
        damaged: Paths that the store cannot return.
        different: Paths that were restored and differ from the snapshot.
        unrestored: Paths that the scratch directory could not take.
        loaded: The checkpoints among the restored files.
        problem: That the snapshot has no file, and an older one has some; empty: this is not so.
        not_recorded: Why the chunk index did not take the record; empty if it did.
    """

    snapshot_id: SnapshotId
    taken_ns: int
    is_full: bool = False
    is_dry_run: bool = False
    chosen: list[bytes] = field(default_factory=list)
    files: int = 0
    restored_bytes: int = 0
    restore_s: float = 0.0
    total_s: float = 0.0
    damaged: list[PathWarning] = field(default_factory=list)
    different: list[PathWarning] = field(default_factory=list)
    unrestored: list[PathWarning] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    problem: str = ""
    not_recorded: str = ""

    @property
    def unloadable(self) -> list[Loaded]:
        """The checkpoints that should have loaded."""
        return [found for found in self.loaded if found.is_bad]

    @property
    def ok(self) -> bool:
        """Every chosen path came back as the snapshot has it, and every checkpoint loaded.

        False also if nothing was chosen because all files are gone since an older snapshot.
        """
        bad = self.damaged or self.different or self.unrestored or self.unloadable
        return not (bad or self.problem)

    @property
    def outcome(self) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.damaged or self.different:
            return f"{len(self.damaged) + len(self.different)} damaged"
        if self.unrestored:
            return f"{len(self.unrestored)} not restored"
        return f"{len(self.unloadable)} not loadable" if self.unloadable else ""

    def as_json(self) -> Document:
        """Return the document of ``ciuic drill --json``."""
        return {
            "ok": self.ok,
            "snapshot": self.snapshot_id,
            "taken": rfc3339(self.taken_ns),
            "dry_run": self.is_dry_run,
            "full": self.is_full,
            "chosen": [path_text(path) for path in self.chosen],
            "files": self.files,
            "restored_bytes": self.restored_bytes,
            "restore_s": round(self.restore_s, 6),
            "total_s": round(self.total_s, 6),
            "damaged": [found.as_json() for found in self.damaged],
            "different": [found.as_json() for found in self.different],
            "unrestored": [found.as_json() for found in self.unrestored],
            "problem": self.problem or None,
            "loaded": [found.as_json() for found in self.loaded],
            "recorded": not self.not_recorded and not self.is_dry_run,
        }

"""The report of a restore."""

import msgspec

from ciuic.documents import Document
from ciuic.model import PathWarning, path_text

__all__ = ["RestoreReport"]


class RestoreReport(msgspec.Struct):
    """The report of a restore, or with ``dry_run`` of what it would do.

    Attributes:
        cloned_bytes: Bytes of written files that share the blocks of a reflink copy, or that were
            already at the same place in the old file, instead of read from the store.
        written_files: Files that were restored completely.
        failed: Paths that differ from the snapshot, and why.
        corrected: Kept files and directories whose owner, mode, time or extended attributes
            were not as in the snapshot.
        would_delete: Files that a dry run would remove, as far as it lists them.
        owner_refused: Restored paths that belong to the user who restores, because only root may
            change a file's owner.
        flux: Restored files that were being written when the snapshot was taken.
        damaged_paths: Paths that could not be restored because of damage in the store or of a
            failed read when the snapshot was taken; ``--fallback`` looks for older versions.
        damaged: The store is damaged, even if an older version was found.
        repaired_frames: Damaged frames of the store that were read with parity, or from another
            copy. What was restored from them is right.
        copies: What was read from other stores, as documents.
        unmatched: Options whose pattern matched nothing.
    """

    dry_run: bool = False
    written_files: int = 0
    kept_files: int = 0
    deleted_files: int = 0
    corrected: int = 0
    written_bytes: int = 0
    cloned_bytes: int = 0
    total_s: float = 0.0
    failed: list[PathWarning] = msgspec.field(default_factory=list)
    would_delete: list[bytes] = msgspec.field(default_factory=list)
    owner_refused: int = 0
    notes: list[PathWarning] = msgspec.field(default_factory=list)
    flux: list[bytes] = msgspec.field(default_factory=list)
    damaged_paths: set[bytes] = msgspec.field(default_factory=set)
    damaged: bool = False
    repaired_frames: int = 0
    copies: list[Document] = msgspec.field(default_factory=list)
    unmatched: list[str] = msgspec.field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether anything at the target was changed, or would be."""
        return bool(self.written_files or self.deleted_files or self.corrected)

    @property
    def unwritten(self) -> list[PathWarning]:
        """The failures whose cause is the target, not the snapshot."""
        return [failure for failure in self.failed if failure.path not in self.damaged_paths]

    def as_json(self) -> Document:
        """Return the document of ``ciuic restore --json``."""
        return {
            "dry_run": self.dry_run,
            "written_files": self.written_files,
            "kept_files": self.kept_files,
            "deleted_files": self.deleted_files,
            "corrected": self.corrected,
            "written_bytes": self.written_bytes,
            "cloned_bytes": self.cloned_bytes,
            "total_s": round(self.total_s, 6),
            "failed": [failure.as_json() for failure in self.failed],
            "would_delete": [path_text(path) for path in self.would_delete],
            "owner_refused": self.owner_refused,
            "notes": [note.as_json() for note in self.notes],
            "flux": [path_text(path) for path in self.flux],
            "unmatched": self.unmatched,
            "repaired_frames": self.repaired_frames,
            "copies": self.copies,
        }

"""The report of a snapshot."""

import msgspec

from ciuic.documents import Document
from ciuic.ids import SnapshotId
from ciuic.model import UNCHANGED, PathWarning
from ciuic.store.records.manifest import Manifest
from ciuic.system.clock import rfc3339

__all__ = ["TakeReport"]


class TakeReport(msgspec.Struct, frozen=True):
    """The report of a snapshot.

    Attributes:
        read_bytes: Bytes read from the source.
        new_bytes: Plain bytes of file content that the store did not have before.
        stored_bytes: Bytes added to the store's files, including metadata.
        freeze_s: Time from the first freeze until the last byte was captured.
        trouble: The first warnings; ``trouble_count`` counts all.
        flux: The first files that were being written.
        excluded: Number of excluded names; a directory counts once, with all its content. 0 if
            nothing was scanned.
        unscanned_why: Why nothing had to be scanned; empty: the roots were scanned.
        waited_s: How long the readers waited for other programs, as part of ``total_s``.
        phases_s: How long each phase took: ``gather`` (plan, walk, read, store), ``durable``,
            ``commit`` and ``tidy``.
        notes: Failures after the commit, which don't affect the snapshot.
    """

    id: SnapshotId
    kind: str
    parent: SnapshotId | None
    taken_ns: int
    files: int
    logical_bytes: int
    read_bytes: int
    new_bytes: int
    stored_bytes: int
    freeze_s: float
    total_s: float
    trouble: tuple[PathWarning, ...]
    trouble_count: int
    flux: tuple[bytes, ...] = ()
    excluded: int = 0
    notes: tuple[PathWarning, ...] = ()
    waited_s: float = 0.0
    phases_s: dict[str, float] = {}
    unscanned_why: str = ""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        total_s: float,
        notes: tuple[PathWarning, ...],
        flux: tuple[bytes, ...] = (),
        excluded: int = 0,
        waited_s: float = 0.0,
        phases_s: dict[str, float] | None = None,
    ) -> "TakeReport":
        """Return the report of the snapshot that a manifest describes."""
        summary = manifest.summary
        return cls(
            id=summary.id,
            kind=summary.kind,
            parent=summary.parent,
            taken_ns=summary.taken_ns,
            files=summary.files,
            logical_bytes=summary.logical_bytes,
            read_bytes=manifest.read_bytes,
            new_bytes=summary.new_bytes,
            stored_bytes=summary.stored_bytes,
            freeze_s=manifest.capture_s,
            total_s=total_s,
            trouble=manifest.trouble,
            trouble_count=summary.trouble_count,
            flux=flux,
            excluded=excluded,
            notes=notes,
            waited_s=waited_s,
            phases_s=phases_s or {},
            unscanned_why=_unscanned_why(manifest),
        )

    def with_warning(self, warning: PathWarning) -> "TakeReport":
        """Return the report with one more warning."""
        return msgspec.structs.replace(
            self, trouble=(*self.trouble, warning), trouble_count=self.trouble_count + 1
        )

    def as_json(self) -> Document:
        """Return the document of ``ciuic snapshot --json``."""
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
            "waited_s": round(self.waited_s, 6),
            "phases_s": {name: round(phase_s, 6) for name, phase_s in self.phases_s.items()},
            "trouble": [warning.as_json() for warning in self.trouble],
            "trouble_count": self.trouble_count,
            "excluded_count": self.excluded,
            "scanned": not self.unscanned_why,
            "unscanned_why": self.unscanned_why,
            "notes": [note.as_json() for note in self.notes],
        }


def _unscanned_why(manifest: Manifest) -> str:
    if not all(root.capture == UNCHANGED for root in manifest.roots):
        return ""
    return (
        "the btrfs subvolume of each root still has the generation at which it was frozen for the"
        f" parent, {manifest.summary.parent}"
    )

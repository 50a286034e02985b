"""Passes of one restore: each places paths of one snapshot into the target."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ciuic.errors import TargetError
from ciuic.model import MEMORY, path_text
from ciuic.progress import Progress
from ciuic.restore.place.job import Pass
from ciuic.restore.place.ledger import Ledger
from ciuic.restore.place.placing import Placer
from ciuic.restore.place.target import remedy
from ciuic.restore.report import RestoreReport
from ciuic.restore.selection import Selection
from ciuic.restore.targets import RestoreRequest, Target, root_above
from ciuic.source.directory import DirectoryHandle, open_directory_beneath
from ciuic.source.exclusions import Exclusions
from ciuic.source.freeze.interface import IN_PLACE, OpensCopies
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store

__all__ = ["PARENT_MODE", "Run", "copies_of", "open_directory", "target_errors"]

PARENT_MODE: Final = 0o755


class Run(NamedTuple):
    """What all passes of one restore share.

    Attributes:
        store: The store.
        manifest: The snapshot that the user named.
        request: What to restore.
        selection: The patterns of the request.
        report: Updated in place.
        cancelled: Turns true when the user interrupts.
        progress: The display; None for no display.
    """

    store: Store
    manifest: Manifest
    request: RestoreRequest
    selection: Selection
    report: RestoreReport
    cancelled: Callable[[], bool]
    progress: Progress | None

    def ledger(self) -> Ledger:
        """Return a ledger for one pass."""
        return Ledger(self.report, self.progress)

    @contextlib.contextmanager
    def placer(
        self,
        manifest: Manifest,
        ledger: Ledger,
        *,
        delete: bool,
        sets_aside_being_written: bool,
        protected: Exclusions,
    ) -> Iterator[Placer]:
        """Yield a ``Placer`` for one snapshot, with its reflink copies."""
        copies = copies_of(self.store, manifest) if self.request.hot else None
        this_pass = Pass(
            self.store,
            ledger,
            manifest.summary.taken_ns,
            copies,
            self.request.dry_run,
            self.cancelled,
        )
        try:
            with Placer(
                this_pass,
                delete=delete,
                sets_aside_being_written=sets_aside_being_written,
                protected=protected,
                selection=self.selection,
            ) as placer:
                yield placer
        finally:
            if copies is not None:
                copies.close()

    def open_parent(self, target: Target) -> DirectoryHandle | None:
        """Open the directory that gets a target; create it if needed.

        None in a dry run if it does not exist.

        Raises:
            TargetError: It cannot be opened or created.
        """
        path = target.parent
        with target_errors(target):
            if not os.path.isdir(path):
                if self.request.dry_run:
                    return None
                os.makedirs(path, PARENT_MODE, exist_ok=True)
            root = root_above(self.manifest, target.path) if self.request.stays_in_roots else b""
            if root in {b"", target.path}:
                return open_directory(path)
            # A symlink that has come since the check is not followed either.
            below = os.path.dirname(target.path)[len(root) :].strip(b"/")
            top = open_directory(root)
            return DirectoryHandle(open_directory_beneath(top.fd, below), path)


def copies_of(store: Store, manifest: Manifest) -> OpensCopies | None:
    """Return the reflink copies of a snapshot; None if it has made none."""
    if all(root.capture in {IN_PLACE, MEMORY} for root in manifest.roots):
        return None
    # Imported here because most file systems cannot make copies, and a small restore is short.
    from ciuic.view.reflinks import ReflinkCopies

    return ReflinkCopies(store, manifest)


def open_directory(path: bytes) -> DirectoryHandle:
    """Open a directory of the target by its path."""
    return DirectoryHandle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


@contextlib.contextmanager
def target_errors(target: Target) -> Iterator[None]:
    """Turn an OSError about a target's directory into a TargetError."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise TargetError(
            f"cannot restore to {path_text(target.place)}: {reason}",
            hint=remedy(error),
        ) from error

"""What the steps of a restore share: the pass, and the files to place."""

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from ciuic.errors import CancelledError
from ciuic.ids import ChunkId
from ciuic.model import Entry
from ciuic.restore.place.ledger import Ledger
from ciuic.restore.place.target import RUN_AGAIN
from ciuic.source.directory import DirectoryHandle
from ciuic.source.freeze.interface import OpensCopies
from ciuic.store.store import Store

__all__ = ["Job", "Pass", "open_present"]

_OPEN_PRESENT: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Pass(NamedTuple):
    """One walk over one snapshot: what all of its steps share.

    Attributes:
        store: The store that has the snapshot.
        ledger: Records what was done.
        taken_ns: When the snapshot began.
        copies: Reflink copies of the snapshot's files; None: do not use any.
        dry_run: Change nothing; count what would be done.
        cancelled: Turns true when the user interrupts.
    """

    store: Store
    ledger: Ledger
    taken_ns: int
    copies: OpensCopies | None
    dry_run: bool
    cancelled: Callable[[], bool]

    def check_cancelled(self) -> None:
        """Raise CancelledError if the user has interrupted."""
        if self.cancelled():
            raise CancelledError("the restore was interrupted", hint=RUN_AGAIN)


class Job(NamedTuple):
    """A regular file to place.

    Attributes:
        directory: The open directory of the target that gets the file.
        name: Its name there.
        entry: The file in the snapshot.
        path: Its path in the snapshot.
        present: Status of the regular file that has this name now; None if there is none.
    """

    directory: DirectoryHandle
    name: bytes
    entry: Entry
    path: bytes
    present: os.stat_result | None

    @property
    def chunk_id(self) -> ChunkId:
        """ID of the only chunk of a small file."""
        return ChunkId(self.entry.content)

    @property
    def place(self) -> bytes:
        """Path in the target."""
        return self.directory.join(self.name)


def open_present(job: Job) -> int:
    """Open the file that has the name now; -1 if there is none, or it is not readable."""
    if job.present is None:
        return -1
    try:
        return os.open(job.name, _OPEN_PRESENT, dir_fd=job.directory.fd)
    except OSError:
        return -1

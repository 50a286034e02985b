"""Commit the weights of a full state as a snapshot of their own, without reading any array."""

import json
import os

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.maintain.label import set_note
from ciuic.model import SnapshotSummary
from ciuic.snapshot.memory import STATE_ROOT, MemoryRequest, StoredFile, take_from_memory
from ciuic.snapshot.memory_files import MemoryFile
from ciuic.snapshot.report import TakeReport
from ciuic.store.store import Store
from ciuic.system.clock import Clock
from ciuic.training.files import STATE_FORMAT, STATE_NAME, encoded
from ciuic.training.loading.files import StateFiles
from ciuic.training.ranks.job import rank_directory
from ciuic.training.reducing import weights_alone
from ciuic.training.retention.planning import reduced_tags
from ciuic.training.values.structure import UNREADABLE
from ciuic.view.locator import Locator

__all__ = ["commit_weights"]


def commit_weights(store: Store, full: SnapshotSummary, clock: Clock) -> TakeReport:
    """Commit a snapshot with the weights of a full state, which stays listed.

    It has the same time, step, metrics, tags and note, and the tag ``reduced``. Its arrays are the
    chunks of the full state: only a new ``state.json`` and the trees are stored.

    Args:
        store: The store, open for writing.
        full: The full state.
        clock: Gives the time.

    Raises:
        CorruptionError: ``state.json`` of the full state, or a directory above it, is damaged.
        UnknownFormatError: A later version of ciuic wrote it, maybe with its weights elsewhere.
        StoreError: The store failed. If the new snapshot exists, it lacks its note.
    """
    files = StateFiles(store, full)
    directory = "" if files.has(STATE_NAME) else rank_directory(0)
    try:
        document = json.loads(files.bytes_of(directory + STATE_NAME).tobytes())
        version = document["format"]
        weights, names = weights_alone(document)
    except UNREADABLE as error:
        raise CorruptionError(f"{STATE_NAME} of {full.id} is not a state: {error!r}") from error
    if version != STATE_FORMAT:
        raise UnknownFormatError(
            f"{full.id} has a state of version {version}, and this ciuic knows {STATE_FORMAT}"
        )
    locator = Locator(store, store.manifest(full.id))
    paths = [os.fsencode(directory + name) for name in sorted(names)]
    request = MemoryRequest(
        (MemoryFile(os.fsencode(directory + STATE_NAME), (encoded(weights),)),),
        taken_ns=full.taken_ns,
        tags=reduced_tags(full.tags),
        stored=tuple(
            [StoredFile(path, locator.locate(STATE_ROOT + b"/" + path).entry) for path in paths]
        ),
        replaces=full,
    )
    report = take_from_memory(store, request, clock=clock)
    if full.note:
        set_note(store, report.id, full.note)
    return report

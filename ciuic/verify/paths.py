"""Reads what a restore of some paths would need, before anything is changed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciuic.errors import CancelledError, CorruptionError, UnknownFormatError
from ciuic.model import UNREADABLE, PathWarning
from ciuic.progress import Progress
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.content import read_file
from ciuic.view.listing import walk
from ciuic.view.locator import Locator

__all__ = ["Readable", "read_paths"]


class Readable(NamedTuple):
    """What was read, and what cannot be."""

    files: int
    read_bytes: int
    damaged: tuple[PathWarning, ...]


def read_paths(
    store: Store,
    manifest: Manifest,
    paths: Sequence[bytes],
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Readable:
    """Read, decode and hash every byte below some paths of a snapshot.

    Raises:
        PathNotFoundError: The snapshot does not have a path.
        CancelledError: ``cancelled`` turned true.
    """
    files = read_bytes = 0
    damaged: list[PathWarning] = []
    locator = Locator(store, manifest)
    for path in paths:
        top = locator.locate(path)
        try:
            for found in walk(store, top):
                if cancelled():
                    raise CancelledError("the verification was stopped", hint="")
                if not found.entry.is_file or found.entry.state == UNREADABLE:
                    continue
                try:
                    for part in read_file(store, found.entry):
                        read_bytes += len(part)
                except (CorruptionError, UnknownFormatError) as error:
                    damaged.append(PathWarning(found.path, error.message))
                files += 1
                if progress is not None:
                    progress.update(files, read_bytes, found.path)
        except (CorruptionError, UnknownFormatError) as error:
            damaged.append(PathWarning(path, error.message))
    return Readable(files, read_bytes, tuple(damaged))

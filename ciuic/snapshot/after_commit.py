"""Run the steps that follow the commit. None of them can make a snapshot fail that exists."""

import os
from collections.abc import Callable, Iterable

from ciuic.errors import CiuicError
from ciuic.ids import SnapshotId
from ciuic.model import PathWarning

__all__ = ["Step", "run_after_commit"]

Step = tuple[str, Callable[[], BaseException | None]]
"""What is missing if the step fails, and the step; it raises or returns its error."""


def run_after_commit(
    store_path: str, snapshot_id: SnapshotId, steps: Iterable[Step]
) -> tuple[PathWarning, ...]:
    """Run each step, whatever became of those before; returns a note for each that failed.

    An interrupt ends only the step: the caller must report a snapshot that is listed.
    """
    notes = []
    for what, step in steps:
        failure: BaseException | str | None
        try:
            failure = step()
        except (CiuicError, OSError, MemoryError) as error:
            failure = error
        except KeyboardInterrupt:
            failure = "interrupted"
        if failure is not None:
            note = f"{snapshot_id} was taken, but {what}: {failure}"
            notes.append(PathWarning(os.fsencode(store_path), note, harmless=True))
    return tuple(notes)

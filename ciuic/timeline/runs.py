"""Runs of a training: the snapshots of each, by its name or its directory.

The library gives a run's snapshots the tag ``run-NAME``. Any other tag that several snapshots have
can name a run as well, and so can a directory that snapshots hold.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ciuic.errors import SnapshotNotFoundError
from ciuic.model import SnapshotSummary, complete_ones, path_text
from ciuic.snapshot.memory import STATE_ROOT

__all__ = ["Run", "find_run", "known_runs"]

_TAG: Final = "run-"
_SUGGESTED_MAX: Final = 8


class Run(NamedTuple):
    """The snapshots of a run.

    Attributes:
        name: A name, or the directory.
        places: The directories of the run; those of its newest snapshot if it has a name.
        snapshots: The complete ones, newest first; at least one.
    """

    name: str
    places: tuple[bytes, ...]
    snapshots: list[SnapshotSummary]


def find_run(snapshots: Sequence[SnapshotSummary], name: str) -> Run:
    """Return the run of a name or of a directory.

    Args:
        snapshots: All snapshots, newest first.
        name: An absolute path, or the name of a run, or a tag.

    Raises:
        SnapshotNotFoundError: No snapshot belongs to it.
    """
    complete = complete_ones(snapshots)
    path = name.encode("utf-8", "surrogateescape")
    if name.startswith("/"):
        path = path.rstrip(b"/") or b"/"
        found = [
            snapshot for snapshot in complete if any(_is_in(path, root) for root in snapshot.roots)
        ]
        places: tuple[bytes, ...] = (path,)
    else:
        found = [snapshot for snapshot in complete if f"{_TAG}{name}" in snapshot.tags]
        found = found or [snapshot for snapshot in complete if name in snapshot.tags]
        places = found[0].roots if found else ()
    if not found:
        names = [path_text(run) for run in known_runs(snapshots)[:_SUGGESTED_MAX]]
        raise SnapshotNotFoundError(
            f"no snapshot belongs to a run {name!r}",
            hint=f"Give one of {', '.join(names)}, another tag, or a directory in a snapshot."
            if names
            else "Give a tag, or the absolute path of a directory in a snapshot.",
        )
    return Run(name, places, found)


def known_runs(snapshots: Sequence[SnapshotSummary]) -> list[bytes]:
    """Return the names of the library's runs, and the roots of other snapshots, sorted."""
    found: set[bytes] = set()
    for snapshot in complete_ones(snapshots):
        if STATE_ROOT in snapshot.roots:
            names = [tag.removeprefix(_TAG) for tag in snapshot.tags if tag.startswith(_TAG)]
            found.update(name.encode("utf-8", "surrogateescape") for name in names)
        else:
            found.update(snapshot.roots)
    return sorted(found)


def _is_in(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")

"""Refuses a restore that would replace or delete a file that a program is writing.

The program would go on writing to the old inode, which no longer has a name: what it writes is
lost. Only root sees the programs of other users. A program that sees a file under another path, as
one in a container may, is not found.
"""

import os

from ciuic.errors import CorruptionError, TargetError, UnknownFormatError
from ciuic.model import BEING_WRITTEN, SKIPPED, UNREADABLE, path_text
from ciuic.restore.passes import Run, open_directory
from ciuic.restore.selection import Verdict
from ciuic.restore.targets import Target
from ciuic.source.exclusions import Exclusions
from ciuic.source.freeze.interface import AREA_NAME
from ciuic.view.locator import Locator

__all__ = ["refuse_being_written"]


def refuse_being_written(run: Run, targets: list[Target], left_out: Exclusions) -> None:
    """Refuse to replace or delete a file that another program has open for writing.

    A file of the same size and time as in the snapshot is not replaced, and counts as no reason.
    What ``fallback`` looks for in older snapshots always counts: which version it finds shows only
    when it is placed.

    Args:
        run: The restore.
        targets: All targets.
        left_out: What the snapshot left out, which is never deleted.

    Raises:
        TargetError: The restore would replace or delete such a file; nothing was changed.
    """
    if not any(os.path.lexists(target.place) for target in targets):
        return
    # Imported here: most restores replace nothing, and psutil takes as long as a small restore.
    from ciuic.source.writers import files_being_written

    losses = _Losses(run, left_out)
    found: dict[bytes, str] = {}
    for writing in files_being_written():
        for target in targets:
            inside = _inside(target, writing.path)
            if inside is None or not _is_same(writing.path, writing.status):
                continue
            if losses.has(target, inside, writing.status):
                found.setdefault(writing.path, writing.holder)
    if found:
        first = min(found)
        others = "" if len(found) == 1 else ", and others are being written"
        raise TargetError(
            f"{found[first]} has {path_text(first)} open for writing{others}: what it writes would"
            " be lost; nothing was changed",
            hint="Stop the program, and try again. 'ciuic restore -s ID -p PATH --overwrite"
            " --force' replaces the file nevertheless.",
        )


def _inside(target: Target, path: bytes) -> bytes | None:
    """Return a path's relative path in a target; None if it is not there."""
    place = os.path.normpath(target.place)
    if path == place:
        return b""
    above = place.rstrip(b"/") + b"/"
    return path[len(above) :] if path.startswith(above) else None


def _is_same(path: bytes, status: os.stat_result) -> bool:
    """Return whether the path of a program means the same file here."""
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


class _Losses:
    """Tells which files lose their names in a restore.

    Args:
        run: The restore.
        left_out: What the snapshot left out, which is never deleted.
    """

    def __init__(self, run: Run, left_out: Exclusions) -> None:
        self._run = run
        self._left_out = left_out
        self._locator = Locator(run.store, run.manifest)

    def has(self, target: Target, inside: bytes, status: os.stat_result) -> bool:
        """Return whether the restore takes the name of a file away from it."""
        path = os.path.join(target.path, inside) if inside else target.path
        if self._run.selection.any and self._run.selection.verdict(path) is not Verdict.TAKEN:
            return False
        fallback = self._run.request.fallback
        try:
            located = self._locator.find(path)
            if located is None and not (fallback and self._is_unlisted(path)):
                return self._run.request.delete and not self._stays(target, inside, status)
        except (CorruptionError, UnknownFormatError):
            return fallback  # without one, the restore does not reach the file either
        except OSError:
            return False  # the file has just gone
        if located is None:
            return True
        entry = located.entry
        if not entry.is_file:
            return True
        if entry.state == UNREADABLE or entry.lacks_content:
            return fallback
        if entry.state == BEING_WRITTEN and fallback:
            return True
        return (entry.size_bytes, entry.mtime_ns) != (status.st_size, status.st_mtime_ns)

    def _is_unlisted(self, path: bytes) -> bool:
        """Return whether the directory that may hold a path could not be read at the time."""
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            located = self._locator.find(path)
            if located is not None:
                return located.entry.state == UNREADABLE
        return False

    def _stays(self, target: Target, inside: bytes, status: os.stat_result) -> bool:
        """Return whether ``--delete`` leaves a file that the snapshot does not have."""
        directory, path = target.place, target.path
        for name in inside.split(b"/"):
            located = self._locator.find(path)
            if located is not None and located.entry.state in {UNREADABLE, SKIPPED}:
                return True
            if name == AREA_NAME or os.path.samefile(directory, self._run.store.path):
                return True
            if (
                self._left_out.has_marks
                and self._left_out.mark(open_directory(directory).fd) is not None
            ):
                return True
            if self._left_out.any and self._left_out.match_path(path, name):
                return True
            directory, path = os.path.join(directory, name), os.path.join(path, name)
        return self._left_out.is_too_large(status)

"""The target of each path, and the requests that are refused before anything is changed."""

import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ciuic.errors import (
    CorruptionError,
    PathNotFoundError,
    TargetError,
    UnknownFormatError,
    UsageError,
)
from ciuic.model import MEMORY, Entry, path_text
from ciuic.restore.selection import Selection, Verdict
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.units import listed
from ciuic.view.listing import walk
from ciuic.view.located import Located

__all__ = [
    "RestoreRequest",
    "Target",
    "refuse_existing",
    "refuse_nothing",
    "refuse_outside_roots",
    "resolve",
    "root_above",
]


class RestoreRequest(NamedTuple):
    """What to restore, and where.

    Attributes:
        paths: Absolute paths in the snapshot.
        destination: Directory that gets each path under its last name; None: the original places.
        place: The new path of the only path; excludes ``destination``.
        include: A path is restored only if a pattern matches it or a directory above it; empty:
            all paths.
        exclude: A path is left out if a pattern matches it or a directory above it. Paths that
            ``include`` or ``exclude`` leave out are neither written nor deleted in the target.
        overwrite: Targets may exist: paths that differ are replaced.
        delete: Paths that the snapshot does not have are removed from restored directories.
        dry_run: Report what would be done, and change nothing.
        fallback: Take paths that are damaged or were being written from the newest older snapshot
            that has them intact.
        hot: Share the blocks of reflink copies where they exist.
        refuses_being_written: Refuse to replace or delete a file that a program is writing.
        is_noted: The next snapshot of the targets says where they come from.
        stays_in_roots: Follow no symlink below a root, and replace no root by a directory: all that
            is replaced is then in a snapshot of the roots.
    """

    paths: tuple[bytes, ...]
    destination: bytes | None = None
    place: bytes | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    overwrite: bool = False
    delete: bool = False
    dry_run: bool = False
    fallback: bool = False
    hot: bool = True
    refuses_being_written: bool = False
    is_noted: bool = False
    stays_in_roots: bool = False


class Target(NamedTuple):
    """One path and its place in the target.

    Attributes:
        path: In the snapshot.
        entry: In the snapshot.
        parent: The directory that gets it.
        name: Its name there.
    """

    path: bytes
    entry: Entry
    parent: bytes
    name: bytes

    @property
    def place(self) -> bytes:
        """Path in the target."""
        return os.path.join(self.parent, self.name)


def resolve(
    store: Store, manifest: Manifest, request: RestoreRequest, locate: Callable[[bytes], Located]
) -> list[Target]:
    """Find each path in the snapshot, and its place in the target.

    Args:
        store: The store.
        manifest: The snapshot.
        request: What to restore.
        locate: Returns the entry of a path.

    Raises:
        UsageError: The request contradicts itself.
        PathNotFoundError: The snapshot does not have a path.
        TargetError: A path cannot go to its place.
        CorruptionError: A directory above a path is damaged.
    """
    if not request.paths:
        raise UsageError("no path to restore was given", hint="Name a path with -p.")
    if request.place is not None and len(request.paths) > 1:
        raise UsageError(
            "--as takes one path only", hint="Restore the others with further commands."
        )
    targets: dict[bytes, Target] = {}
    for path in _outermost(request.paths, together=request.destination is None):
        located = locate(path)
        if request.destination is None and request.place is None:
            _refuse_memory(manifest, path)
        target = _target_of(manifest, located, request)
        _refuse_store(store, target)
        other = targets.setdefault(target.place, target)
        if other.path != target.path:
            raise UsageError(
                f"{path_text(other.path)} and {path_text(target.path)} would both become"
                f" {path_text(target.place)}",
                hint="Restore them with two commands into two directories.",
            )
    return list(targets.values())


def _outermost(paths: Iterable[bytes], *, together: bool) -> list[bytes]:
    """Return each path once.

    ``together``: without the paths inside another one, which restores them.
    """
    kept: list[bytes] = []
    for path in sorted({b"/" + os.path.normpath(path).lstrip(b"/") for path in paths}):
        if together and any(path.startswith(outer.rstrip(b"/") + b"/") for outer in kept):
            continue
        kept.append(path)
    return kept


def _target_of(manifest: Manifest, located: Located, request: RestoreRequest) -> Target:
    """Return the target of a path. Symlinks above the target are followed: the user has made them.

    A root that is a symlink is followed as well, as it was when the snapshot was taken.
    """
    path, entry = located
    destination = request.destination
    if request.place is not None:
        if not entry.is_directory and stat.S_ISDIR(_mode(request.place)):
            # cp and -d put the file into the directory. --delete would remove its content.
            raise TargetError(
                f"{path_text(request.place)} is a directory, and {path_text(path)} is not",
                hint="Use -d DIR to put a path into a directory.",
            )
        parent, name = os.path.split(os.path.abspath(request.place))
        if not name:
            raise UsageError("--as cannot replace /", hint="Name a path in a directory.")
    elif destination is None and path in manifest.summary.roots:
        parent, name = os.path.split(os.path.realpath(path))
    elif destination is None:
        parent, name = os.path.split(path)
    else:
        parent, name = os.path.abspath(destination), os.path.basename(path)
    if not name:
        return Target(path, entry, os.path.realpath(parent), b".")
    return Target(path, entry, os.path.realpath(parent), name)


def _mode(place: bytes) -> int:
    """Return the mode of a path, not following a symlink; 0 if it does not exist."""
    try:
        return os.lstat(place).st_mode
    except OSError:
        return 0


def _refuse_memory(manifest: Manifest, path: bytes) -> None:
    """Refuse to restore a path to its own place if that place was the memory of a program."""
    for root in manifest.roots:
        if root.capture == MEMORY and (path + b"/").startswith(root.path + b"/"):
            raise UsageError(
                f"{path_text(path)} has no place on this machine: a training program saved it from"
                " its memory",
                hint="Give 'ciuic restore' a directory with -d DIR.",
            )


def _refuse_store(store: Store, target: Target) -> None:
    own = os.fsencode(os.path.realpath(store.path))
    if (target.place + b"/").startswith(own + b"/"):
        raise TargetError(
            f"{path_text(target.place)} is inside the store", hint="Choose another place."
        )


def refuse_nothing(store: Store, targets: list[Target], selection: Selection) -> None:
    """Refuse patterns that leave out all paths. A damaged directory may hold paths that are left.

    Raises:
        PathNotFoundError: The patterns leave out all paths.
    """
    if not selection.any or any(_has_something(store, target, selection) for target in targets):
        return
    raise PathNotFoundError(
        f"{selection.text} leaves nothing of {listed([path_text(targets[0].path)], len(targets))}",
        hint="A pattern matches a name at any depth, the end of a path, or a path from its '/';"
        " 'ciuic restore --help' has examples, 'ciuic ls -R ID' shows the paths.",
    )


def _has_something(store: Store, target: Target, selection: Selection) -> bool:
    verdict = selection.verdict(target.path)
    if verdict is not Verdict.PASSAGE:
        return verdict is Verdict.TAKEN
    top = Located(target.path, target.entry)

    def verdict_of(found: Located) -> Verdict:
        # All directories above are passages.
        return verdict if found is top else selection.inner(*os.path.split(found.path), verdict)

    def skips(found: Located) -> bool:
        return verdict_of(found) not in {Verdict.PASSAGE, Verdict.TAKEN}

    try:
        return any(verdict_of(found) is Verdict.TAKEN for found in walk(store, top, skips=skips))
    except (CorruptionError, UnknownFormatError):
        return True


def refuse_existing(targets: list[Target], *, overwrite: bool) -> None:
    """Refuse targets that exist, and targets below a path that is not a directory.

    Raises:
        TargetError: A target is refused.
    """
    for target in targets:
        above = target.parent
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise TargetError(
                f"{path_text(above)} is not a directory",
                hint="Give 'ciuic restore' another directory with -d DIR.",
            )
    if overwrite:
        return
    existing = [target for target in targets if os.path.lexists(target.place)]
    if existing:
        first = path_text(existing[0].place)
        raise TargetError(
            f"{listed([first], len(existing))} exists already; nothing was changed",
            hint="Add --overwrite to replace what differs, or choose another place with -d.",
        )


def refuse_outside_roots(
    manifest: Manifest, request: RestoreRequest, targets: list[Target]
) -> None:
    """With ``stays_in_roots``, refuse to replace what a snapshot of the roots would not have.

    Raises:
        TargetError: Something else has the place of a root, or a symlink below a root leads to a
            target.
    """
    for target in targets if request.stays_in_roots else ():
        root = root_above(manifest, target.path)
        if target.path == root:
            if os.path.lexists(target.place) and not os.path.isdir(target.place):
                raise TargetError(
                    f"{path_text(root)} is not a directory now, so a snapshot cannot save what is"
                    " there; nothing was changed",
                    hint="Move it away, and try again. 'ciuic restore -s ID -p PATH --overwrite'"
                    " replaces it without saving it.",
                )
            continue
        above = root
        for name in _names_between(root, target.path):
            above = os.path.join(above, name)
            if os.path.islink(above):
                raise TargetError(
                    f"{path_text(above)} is a symlink now, so a snapshot of {path_text(root)}"
                    f" cannot save {path_text(target.place)}; nothing was changed",
                    hint=f"Remove the symlink, or name {path_text(above)}: then it is replaced.",
                )


def root_above(manifest: Manifest, path: bytes) -> bytes:
    """Return the innermost root of a snapshot that holds a path of it."""
    return max(
        (
            root
            for root in manifest.summary.roots
            if (path + b"/").startswith(root.rstrip(b"/") + b"/")
        ),
        key=len,
    )


def _names_between(root: bytes, path: bytes) -> list[bytes]:
    """Return the names of the directories below a root on the way to a path."""
    return [name for name in os.path.dirname(path)[len(root) :].split(b"/") if name]

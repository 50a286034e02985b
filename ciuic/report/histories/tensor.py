"""The history of one tensor of a file: the versions of the file in which it changed."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import SnapshotId
from ciuic.report.earlier_steps import has_content
from ciuic.report.histories.changes import ADDED, CHANGED, GONE, Change
from ciuic.report.tensors import TensorChange, compare_tensor, relative
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.located import Located

__all__ = ["TensorVersion", "tensor_history"]

_WHAT: Final = {"+": ADDED, "-": GONE, "M": CHANGED, "?": "damaged"}


class TensorVersion(NamedTuple):
    """A version of a file that changed a tensor.

    Attributes:
        change: The version of the file.
        what: ``added``, ``changed``, ``gone`` or ``damaged``: what became of the tensor.
        distance: How far it moved from the version that this one comes from, as a share of its
            length (L2); None: it is unknown.
        why: Why it cannot be read.
        before: The first snapshot of the version of the tensor that this one comes from.
    """

    change: Change
    what: str
    distance: float | None = None
    why: str = ""
    before: SnapshotId | None = None


def tensor_history(
    store: Store, changes: Sequence[Change], path: bytes, name: str
) -> list[TensorVersion]:
    """Return the versions in which a tensor changed, newest first.

    Each version is compared with the one that it comes from.

    Args:
        store: An open store.
        changes: The history of the file, newest first.
        path: The file.
        name: The tensor's name, as ``ciuic diff --tensors`` shows it.
    """
    files = {change.first.id: _file(store, change, path) for change in changes}
    found = []
    for change in changes:
        new = files[change.first.id]
        old = files.get(change.before) if change.before is not None else None
        version = _version(store, change, old, new, name)
        if version is not None:
            found.append(version)
    above = {change.first.id: change.before for change in changes}
    kept = {one.change.first.id for one in found}
    return [one._replace(before=_nearest(one.change.before, above, kept)) for one in found]


def _nearest(
    at: SnapshotId | None, above: Mapping[SnapshotId, SnapshotId | None], kept: set[SnapshotId]
) -> SnapshotId | None:
    """Return ``at`` if it is kept, else the nearest version before it that is."""
    while at is not None and at not in kept:
        at = above.get(at)
    return at


_File = tuple[Manifest, Located]


def _file(store: Store, change: Change, path: bytes) -> _File | None:
    """Return the file of a version; None if it holds no content."""
    entry = None if change.version is None else change.version.entry
    if entry is None or not has_content(entry):
        return None
    try:
        return store.manifest(change.first.id), Located(path, entry)
    except (CorruptionError, UnknownFormatError):
        return None


def _version(
    store: Store, change: Change, old: _File | None, new: _File | None, name: str
) -> TensorVersion | None:
    """Return what a version of the file did to the tensor; None: nothing."""
    if new is None and old is None:
        return None
    # Compared with itself, a file says whether it has the tensor.
    is_alone = old is None or new is None
    one = old or new
    assert one is not None  # noqa: S101 - for the type checker
    found = compare_tensor(store, old or one, new or one, name)
    if found is None:
        return None
    if found.what:
        return TensorVersion(change, "damaged", why=found.what)
    if is_alone:
        has_it = found.same or found.changes
        return TensorVersion(change, GONE if new is None else ADDED) if has_it else None
    return _changed(change, found.changes[0]) if found.changes else None


def _changed(change: Change, tensor: TensorChange) -> TensorVersion:
    distance = None if tensor.distance is None else relative(tensor.distance)
    return TensorVersion(change, _WHAT[tensor.sign], distance, tensor.what)

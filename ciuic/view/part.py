"""A directory of a snapshot, seen as the only root of a snapshot of its own."""

from ciuic.errors import PathNotFoundError
from ciuic.model import path_text
from ciuic.store.records.manifest import Manifest
from ciuic.store.store import Store
from ciuic.view.located import PartRoot
from ciuic.view.locator import locate

__all__ = ["part_of"]


def part_of(store: Store, manifest: Manifest, path: bytes, shown_as: bytes) -> Manifest:
    """Return a manifest with one directory as its only root.

    It has no rules: what is missing in the directory is not there, whatever the reason.

    Args:
        store: An open store.
        manifest: The snapshot.
        path: The directory.
        shown_as: The path that the root gets, so that two directories can be compared.

    Raises:
        PathNotFoundError: The snapshot does not have it, or it is not a directory.
        CorruptionError: A directory above it is damaged.
    """
    entry = locate(store, manifest, path).entry
    if not entry.is_directory:
        raise PathNotFoundError(
            f"{path_text(path)} is not a directory in snapshot {manifest.summary.id}",
            hint="Name the directory of a run.",
        )
    held = next(root for root in manifest.roots if _is_in(path, root.path))
    root = PartRoot(path=shown_as, tree=held.tree, capture=held.capture, entry=entry)
    return manifest.with_root(root)


def _is_in(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")

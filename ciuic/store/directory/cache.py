"""The directory that a machine keeps for a store in a bucket.

It has the chunk index, copies of manifests, marks and index segments, locks, unfinished packs and
the control socket of a daemon. It may be deleted at any time. It has no header, so that no program
takes it for a store.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.folder import Folder
from ciuic.store.directory.locks import WriteLocks
from ciuic.store.records import layout
from ciuic.system import durable, nofollow
from ciuic.system.hashing import derived_hash

__all__ = ["cache_directory", "prepare_cache"]

_SYSTEM_CACHE: Final = "/var/cache"
_NAME_DIGITS: Final = 8


def cache_directory(environment: Mapping[str, str]) -> str:
    """Return the directory for what this machine keeps of stores in buckets."""
    asked = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(asked):
        return os.path.join(asked, "ciuic")
    if os.geteuid() == 0:
        return os.path.join(_SYSTEM_CACHE, "ciuic")
    return os.path.join(os.path.expanduser("~"), ".cache", "ciuic")


def prepare_cache(environment: Mapping[str, str], name: str, store_id: str) -> str:
    """Make the directory of a store; what belongs to another store is removed.

    Two buckets that claim the same ID, such as one and its clone, have a directory each.

    Args:
        environment: The environment variables.
        name: The address of the store.
        store_id: Its ID.

    Returns:
        The directory.

    Raises:
        BusyError: It belongs to another store, and a process of this machine writes to that.
        StoreError: The directory can't be made.
    """
    digits = derived_hash("ciuic cache of a bucket", name.encode()).hex()[:_NAME_DIGITS]
    path = os.path.join(cache_directory(environment), f"{store_id}-{digits}")
    with store_faults("make", path):
        path = nofollow.resolved(path)
        parent = os.path.dirname(path)
        for each in _missing_parents(parent):
            durable.make_directory(each, 0o700)
        for each in (
            path,
            *(os.path.join(path, inner) for inner in (layout.TEMPORARY, layout.SNAPSHOTS)),
        ):
            if not nofollow.is_directory(each):
                durable.make_directory(each, 0o700)
    about = f"{store_id} {name}\n".encode()
    folder = Folder(path)
    # Also if only the address differs: another bucket can claim the ID of this store.
    if folder.has(layout.CACHE) and folder.read(layout.CACHE, 4096) != about:
        _clear(path)
    if not folder.has(layout.CACHE):
        folder.replace(layout.CACHE, about)
    return path


def _missing_parents(directory: str) -> Iterator[str]:
    if not nofollow.is_directory(directory):
        yield from _missing_parents(os.path.dirname(directory))
        yield directory


def _clear(path: str) -> None:
    lock = WriteLocks(path)
    lock.take_alone()
    try:
        snapshots = Folder(path, layout.SNAPSHOTS)
        snapshots.remove_all(map(layout.manifest_name, snapshots.names(layout.parse_manifest_name)))
        marks = Folder(path, layout.MARKS)
        marks.remove_all(layout.mark_name(*mark) for mark in marks.names(layout.parse_mark_name))
        segments = Folder(path, layout.SEGMENTS)
        segments.remove_all(segments.names(layout.parse_segment_name))
        top = Folder(path)
        top.remove_all(
            [layout.CACHE, layout.CATALOG, *(layout.CATALOG + s for s in layout.CATALOG_SUFFIXES)]
        )
    finally:
        lock.release()

"""What killed writers leave in ``tmp/``: unfinished files that nothing refers to."""

import os
from collections.abc import Iterator

from ciuic import durable
from ciuic.errors import UnreachableError
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import fails_on_disk, status_of

__all__ = ["remove_leftovers", "unreachable_leftovers"]


def remove_leftovers(store_path: str) -> dict[str, str]:
    """Remove them all; whoever calls holds the write lock, so nobody else is writing.

    What the disk keeps from being removed is in nobody's way: no name is used a second time.

    Returns:
        Those that stay, by their place in the store, and why.

    Raises:
        StoreError: One can't be removed for another reason.
    """
    stuck: dict[str, str] = {}
    directory = os.path.join(store_path, layout.TEMPORARY)
    with store_faults("clean", directory):
        for place, path in _listed(directory):
            try:
                durable.remove_file(path)
            except OSError as error:
                if not fails_on_disk(error):
                    raise
                stuck[place] = f"{path} can't be removed: {error.strerror}"
    return stuck


def unreachable_leftovers(store_path: str) -> dict[str, UnreachableError]:
    """Those of which the file system has only the name, by their place in the store; and why.

    Raises:
        StoreError: They can't be listed.
    """
    found: dict[str, UnreachableError] = {}
    directory = os.path.join(store_path, layout.TEMPORARY)
    with store_faults("list", directory):
        for place, path in _listed(directory) if os.path.isdir(directory) else ():
            try:
                status_of(path)
            except UnreachableError as error:
                found[place] = error
            except FileNotFoundError:
                continue  # somebody is writing beside us
    return found


def _listed(directory: str) -> Iterator[tuple[str, str]]:
    for name in os.listdir(directory):
        yield f"{layout.TEMPORARY}/{name}", os.path.join(directory, name)

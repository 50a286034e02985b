"""Removes unfinished files that killed writers left in ``tmp/``. Nothing refers to them."""

import os
from collections.abc import Iterator
from typing import Final

from ciuic.errors import UnreachableError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import fails_on_disk, status_of
from ciuic.store.records import layout
from ciuic.system import durable, nofollow

__all__ = ["IS_DIRECTORY", "remove_leftovers", "unreachable_leftovers"]

IS_DIRECTORY: Final = "is a directory that ciuic did not create"
"""How a message ends about a directory in ``tmp/``, which is left alone."""


def remove_leftovers(store_path: str) -> dict[str, str]:
    """Remove all leftovers; the caller holds the write locks alone, so no other process writes.

    A file that the disk refuses to remove does no harm: no name is used a second time.

    Returns:
        The files that stay, by their path in the store, each with the reason.

    Raises:
        StoreError: A file cannot be removed for another reason.
    """
    stuck: dict[str, str] = {}
    directory = os.path.join(store_path, layout.TEMPORARY)
    with store_faults("clean", directory):
        for place, path in _listed(directory):
            try:
                durable.remove_file(path)
            except IsADirectoryError:
                stuck[place] = f"{path} {IS_DIRECTORY}"
            except OSError as error:
                if not fails_on_disk(error):
                    raise
                stuck[place] = f"{path} cannot be removed: {error.strerror}"
    return stuck


def unreachable_leftovers(store_path: str) -> dict[str, UnreachableError]:
    """Map the leftovers whose status cannot be read, by their path in the store, to the reason.

    Raises:
        StoreError: The directory cannot be listed.
    """
    found: dict[str, UnreachableError] = {}
    directory = os.path.join(store_path, layout.TEMPORARY)
    with store_faults("list", directory):
        for place, path in _listed(directory) if nofollow.is_directory(directory) else ():
            try:
                status_of(path)
            except UnreachableError as error:
                found[place] = error
            except FileNotFoundError:
                continue  # a writer has just removed it
    return found


def _listed(directory: str) -> Iterator[tuple[str, str]]:
    for name in nofollow.list_names(directory):
        yield f"{layout.TEMPORARY}/{name}", os.path.join(directory, name)

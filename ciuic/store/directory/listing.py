"""Lists a directory of the store: names that ciuic understands, and file statuses."""

import os
from collections.abc import Callable
from typing import TypeVar

from ciuic.errors import UnreachableError
from ciuic.ids import PackId
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import fails_on_disk, status_of
from ciuic.store.records import layout
from ciuic.system import nofollow

__all__ = ["names_in", "pack_sizes", "pack_statuses", "sizes_of", "statuses_in"]

K = TypeVar("K")


def statuses_in(
    directory: str, parse: Callable[[str], K | None]
) -> dict[K, os.stat_result | UnreachableError]:
    """Map the files whose names ``parse`` understands to their statuses.

    The value is an error if the file system cannot give the status. The result is empty if there
    is not a directory.

    Raises:
        StoreError: The directory cannot be listed.
    """
    found: dict[K, os.stat_result | UnreachableError] = {}
    if not nofollow.exists(directory):
        return found  # all packs are gone: damage, which a verification reports path by path
    with (
        store_faults("list", directory),
        nofollow.opened_directory(directory) as fd,
        os.scandir(fd) as entries,
    ):
        for entry in entries:
            key = parse(entry.name)
            if key is None:
                continue
            try:
                found[key] = entry.stat(follow_symlinks=False)
            except OSError as error:
                if not fails_on_disk(error):
                    raise
                found[key] = _status_again(os.path.join(directory, entry.name))
    return found


def _status_again(path: str) -> os.stat_result | UnreachableError:
    try:
        return status_of(path)
    except UnreachableError as error:
        return error


def sizes_of(found: dict[K, os.stat_result | UnreachableError]) -> dict[K, int]:
    """Map the files whose status could be read to their sizes in bytes."""
    return {
        key: status.st_size
        for key, status in found.items()
        if not isinstance(status, UnreachableError)
    }


def names_in(directory: str, parse: Callable[[str], K | None]) -> set[K]:
    """Return the parsed names in a directory; empty if there is no directory.

    Raises:
        StoreError: The directory cannot be listed.
    """
    with store_faults("list", directory):
        if not nofollow.is_directory(directory):
            return set()
        keys = [parse(name) for name in nofollow.list_names(directory)]
    return {key for key in keys if key is not None}


def pack_statuses(store_path: str) -> dict[PackId, os.stat_result | UnreachableError]:
    """Like ``statuses_in``, for all packs of a store."""
    return statuses_in(os.path.join(store_path, layout.PACKS), layout.parse_pack_name)


def pack_sizes(store_path: str) -> dict[PackId, int]:
    """Map every pack whose status can be read to its size in bytes."""
    return sizes_of(pack_statuses(store_path))

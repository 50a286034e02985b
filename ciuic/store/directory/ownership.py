"""Checks who owns a store before it is written to.

The owner of a store can change its content at any moment. Root may read a store of another user,
because ciuic follows and trusts nothing in it (``ciuic.system.nofollow``). Root writes to it only
if the configuration names the owner. No process opens the chunk index of another user: SQLite
replays a journal that it finds beside a database, and a journal can name any file for removal.
"""

import os
import stat
from typing import Final

from ciuic.errors import StoreError
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.find import ALLOW_SHARED
from ciuic.store.records import layout
from ciuic.system import nofollow
from ciuic.system.trust import is_trusted_owner, user_text

__all__ = ["has_safe_catalog", "is_foreign", "refuse_foreign"]

_DIRECTORIES: Final = (
    layout.DAMAGED,
    layout.MARKS,
    layout.PACKS,
    layout.PARITY,
    layout.QUARANTINE,
    layout.RESTORED,
    layout.RETIRED,
    layout.SNAPSHOTS,
    layout.TEMPORARY,
)


def is_foreign(store_path: str) -> bool:
    """Return whether the store belongs to a user whom this process does not trust.

    Raises:
        StoreError: The status of the directory cannot be read.
    """
    with store_faults("look at", store_path):
        return not _is_trusted(nofollow.status(store_path).st_uid)


def refuse_foreign(store_path: str, owner: int | None) -> None:
    """Refuse to write to a store of another user; does nothing if there is no store yet.

    Args:
        store_path: The store's directory.
        owner: The number of the owner that the configuration names; None: it names no user.

    Raises:
        StoreError: The store belongs to another user, or one of its directories is replaced by
            something else.
    """
    if nofollow.exists(store_path) and not nofollow.is_directory(store_path):
        return  # not a store: opening it reports that
    for place in (store_path, *(os.path.join(store_path, name) for name in _DIRECTORIES)):
        if not nofollow.exists(place):
            continue
        with store_faults("look at", place):
            status = nofollow.status(place)
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(
                f"{place} should be a directory of the store, but is not a directory",
                hint="Find out who put it there. ciuic follows no symlink inside a store; a part of"
                " a store on another disk needs a bind mount.",
            )
        if not _is_trusted(status.st_uid) and status.st_uid != owner:
            raise _foreign(store_path, place, status.st_uid)


def has_safe_catalog(catalog_path: str) -> bool:
    """Return whether the chunk index, and each file that SQLite uses beside it, may be opened."""
    try:
        with nofollow.opened_parent(catalog_path) as (directory, name):
            return all(
                _is_safe(directory, name + suffix) for suffix in ("", *layout.CATALOG_SUFFIXES)
            )
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_safe(directory: int, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and _is_trusted(status.st_uid)


def _is_trusted(uid: int) -> bool:
    # Ordinary users may share a store if each of them allows it. Root may not.
    is_shared = os.geteuid() != 0 and os.environ.get(ALLOW_SHARED) == "1"
    return is_shared or is_trusted_owner(uid)


def _foreign(store_path: str, place: str, uid: int) -> StoreError:
    what = "the store" if place == store_path else "in a store,"
    return StoreError(
        f"{what} {place} belongs to user {user_text(uid)}, so ciuic (running as"
        f" {user_text(os.geteuid())}) can read the store but refuses to write to it",
        hint=f"Run ciuic as that user; or, to write there as this user, name the owner in the"
        f" configuration: 'snapshot_dir = {store_path}' and 'store_owner = {_name(uid)}'.",
    )


def _name(uid: int) -> str:
    return user_text(uid).partition(" ")[0]

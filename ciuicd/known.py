"""Which store a path holds, so that none is made anew below a mount that is missing.

A new store on the disk below would take every snapshot, fill that disk, and look as if all were
well. Two things tell that none is wanted (decision 0017):

    remembered   the service manager's directory for the daemon's state ($STATE_DIRECTORY) has a
                 file ``stores.json`` with the ID of the store that each path held
    fstab        /etc/fstab has a mount point at the path or above it, and nothing is mounted there

Without either, a path that holds nothing gets a new store: the first start has to.
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Final

from ciuic import durable
from ciuic.clock import Clock
from ciuic.errors import CorruptionError, StoreError
from ciuic.scan import mount_points_of, mounts
from ciuic.store import create_store
from ciuic.store.header import read_header
from ciuic.store.layout import HEADER

__all__ = ["KnownStores"]

_log = logging.getLogger(__name__)

_FILE: Final = "stores.json"
_FSTAB: Final = "/etc/fstab"
_BYTES_MAX: Final = 1024 * 1024


class KnownStores:
    """What is known of the stores that this daemon has served, and of the mounts below them.

    Args:
        environ: The daemon's environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
        self._file = os.path.join(directory, _FILE) if directory else ""
        # As mount(8) reads it: libmount has this name for another table.
        self._fstab = environ.get("LIBMOUNT_FSTAB", _FSTAB)

    def prepare(self, path: str, clock: Clock) -> str:
        """Make a store at ``path`` if there is none and none is missing; returns its ID.

        Raises:
            StoreError: The store that ought to be there is not, or none can be made or used.
        """
        wanted = self._remembered().get(path)
        found = self._found(path, wanted)
        if not found:
            self._refuse_unmounted(path)
            create_store(path, clock)
            found = read_header(path).store_id
        if wanted is not None and wanted != found:
            raise StoreError(
                f"{path} holds another store than it did: {found[:8]}, and not {wanted[:8]}",
                hint=f"Mount the file system of that one; or, if this one is to be served from now"
                f" on, remove {self._file} and start the daemon again.",
            )
        if wanted is None:
            self._remember(path, found)
        return found

    def _found(self, path: str, wanted: str | None) -> str:
        """The ID of the store that is there; empty if there is none and one may be made."""
        if wanted is None and not os.path.lexists(os.path.join(path, HEADER)):
            return ""
        try:
            return read_header(path).store_id
        except CorruptionError:
            raise
        except StoreError as error:
            if wanted is None or os.path.lexists(os.path.join(path, HEADER)):
                raise
            raise StoreError(
                f"{path} holds no store, and held store {wanted[:8]} before",
                hint="Mount its file system; or, if a new store is to be made there, remove"
                f" {self._file} and start the daemon again.",
            ) from error

    def _refuse_unmounted(self, path: str) -> None:
        real = os.path.realpath(path)
        mounted = {os.fsdecode(one.point) for one in mounts()}
        for point in _points(self._fstab):
            is_above = real == point or real.startswith(f"{point}/")
            if is_above and point not in mounted:
                raise StoreError(
                    f"there is no store at {path}, and nothing is mounted on {point}, which"
                    f" {self._fstab} says is a mount point",
                    hint="Mount it first: a new store would lie on the disk below.",
                )

    def _remembered(self) -> dict[str, str]:
        """The IDs of stores by their paths."""
        if not self._file:
            return {}
        try:
            with open(self._file, "rb") as file:
                found = json.loads(file.read(_BYTES_MAX))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("%s can't be read, and a lost mount may go unseen: %s", self._file, error)
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {path: store for path, store in pairs if isinstance(store, str)}

    def _remember(self, path: str, store_id: str) -> None:
        if not self._file:
            return
        known = {**self._remembered(), path: store_id}
        data = json.dumps(known, indent=2).encode() + b"\n"
        directory = os.path.dirname(self._file)
        try:
            durable.write_whole(self._file, data, temporary_directory=directory, mode=0o600)
        except OSError as error:
            _log.warning("%s can't be written: a lost mount may go unseen: %s", self._file, error)


def _points(fstab: str) -> list[str]:
    """Mount points in a table of file systems, fstab(5), but for the root's; none without one."""
    with contextlib.suppress(OSError), open(fstab, "rb") as file:
        found = [os.path.realpath(os.fsdecode(one)) for one in mount_points_of(file.read())]
        return [one for one in found if one != "/"]
    return []

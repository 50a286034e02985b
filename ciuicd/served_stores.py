"""Which store a path holds, so that the daemon never makes a new store below a lost mount.

A new store on the disk below would take every snapshot, fill that disk, and look healthy. The
daemon makes no store if one of these says so (decision 0017):

    memory   ``stores.json`` in the directory for the daemon's state ($STATE_DIRECTORY) has the ID
             of the store that each path held
    fstab    /etc/fstab has a mount point at the path or above it, and nothing is mounted there

For a bucket, the memory tells a bucket that was emptied or replaced from a new one.

Otherwise an empty path gets a new store, as on the first start.
"""

import errno
import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from ciuic.config.settings import Settings
from ciuic.errors import ConfigError, CorruptionError, MissingError, StoreError
from ciuic.source.mounts import FSTAB, unmounted_point
from ciuic.store.addressed import create_at_address, local_directory, short_limits
from ciuic.store.directory.cache import kept_headers
from ciuic.store.directory.create import create_store
from ciuic.store.directory.find import read_header, refuse_unmounted
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.place.location import bucket_name, split_address
from ciuic.store.records.header import CHUNK_BYTES_DEFAULT, CONTENT, Chunking, decode_header
from ciuic.store.records.layout import HEADER
from ciuic.system import durable
from ciuic.system.clock import Clock

__all__ = ["ServedStores"]

_log = logging.getLogger(__name__)

_FILE: Final = "stores.json"
_BYTES_MAX: Final = 1024 * 1024
_DROP_IN: Final = (
    "Give it the network: 'install -D -m 644 systemd/bucket.conf"
    " /etc/systemd/system/ciuicd.service.d/bucket.conf', then 'systemctl daemon-reload' and"
    " 'systemctl restart ciuicd'."
)


class ServedStores:
    """The stores that this daemon has served, and the mounts that they need.

    Args:
        environ: The daemon's environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
        self._file = os.path.join(os.path.realpath(directory), _FILE) if directory else ""
        self._environ = environ

    def prepare(self, path: str, clock: Clock, *, owner: int | None = None) -> str:
        """Return the ID of the store at ``path``; make the store on the first start.

        Args:
            path: The store.
            clock: Tells the time, for a new store.
            owner: The other user who may own the store.

        Raises:
            StoreError: The known store is missing, or the store cannot be made or used.
        """
        refuse_foreign(os.path.realpath(path), owner)
        wanted = self._remembered().get(path)
        found = self._found(path, wanted)
        if not found:
            refuse_unmounted(path, self._environ)
            create_store(path, clock, owner=owner)
            if self._file:
                _log.info("created the store %s", path)
            else:
                _log.warning(
                    "created the store %s, but ciuicd has no state directory to record that: if"
                    " the store's disk is not mounted at a later start, ciuicd will create a second"
                    " store there. Set STATE_DIRECTORY, as the systemd unit does",
                    path,
                )
            found = read_header(path).store_id
        if wanted is not None and wanted != found:
            raise self._different(path, wanted, found, f"Mount the file system of {wanted[:8]}.")
        if wanted is None:
            self._remember(path, found)
        return found

    def prepare_bucket(self, settings: Settings, clock: Clock, *, waits: bool = True) -> str:
        """Like ``prepare``, for the bucket of a configuration.

        Args:
            settings: The configuration.
            clock: Tells the time, for a new store.
            waits: For a server that cannot be reached, as long as a command does. A unit that
                starts has less time than that, and systemd would end it without a reason.

        Raises:
            ConfigError: This process may not use a network.
            StoreError: The known store is missing, or the store cannot be made or used.
        """
        address, options = settings.snapshot_dir, settings.place_options
        if not _may_use_network():
            raise ConfigError(
                f"the store is {address}, and this process may not use the network", hint=_DROP_IN
            )
        if not waits:
            options = short_limits(options)
        wanted = self._remembered().get(address)
        try:
            _, found = local_directory(address, self._environ, options)
        except StoreError as error:
            if not isinstance(error.__cause__, MissingError):
                raise
            if wanted is not None:
                raise StoreError(
                    f"{address} no longer holds a store; it used to hold store {wanted[:8]}",
                    hint=f"If that store no longer exists, remove {self._file} and start the daemon"
                    " again: it creates a new store.",
                ) from error
            known = next(kept_headers(self._environ, bucket_name(split_address(address))), None)
            if known is not None:
                raise StoreError(
                    f"{address} no longer holds a store; it used to hold store"
                    f" {decode_header(known.data).store_id[:8]}",
                    hint=f"If that store no longer exists, remove {known.path}, and start the"
                    " daemon again: it creates a new store.",
                ) from error
            cut = Chunking.of(CONTENT, CHUNK_BYTES_DEFAULT)
            if create_at_address(address, self._environ, clock, cut, options)[0]:
                _log.info("created the store %s", address)
            _, found = local_directory(address, self._environ, options)
        if wanted is not None and wanted != found:
            raise self._different(address, wanted, found, "Correct snapshot_dir.")
        if wanted is None:
            self._remember(address, found)
        return found

    def _different(self, path: str, wanted: str, found: str, advice: str) -> StoreError:
        return StoreError(
            f"{path} holds a different store than before: {found[:8]} instead of {wanted[:8]}",
            hint=f"{advice} To serve the new store instead, remove {self._file} and start the"
            " daemon again.",
        )

    def _found(self, path: str, wanted: str | None) -> str:
        """Return the ID of the store at ``path``; empty if a store may be made there."""
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
                f"{path} no longer holds a store; it used to hold store {wanted[:8]}",
                hint=f"{self._mount_first(path)} If that store no longer exists, remove"
                f" {self._file} and start the daemon again: it creates a new store.",
            ) from error

    def _mount_first(self, path: str) -> str:
        point = unmounted_point(path, self._environ)
        if point:
            return f"Mount {point} first: {FSTAB} names it, and nothing is mounted there."
        return "Mount the store's disk first."

    def _remembered(self) -> dict[str, str]:
        """Return the remembered store IDs by path."""
        if not self._file:
            return {}
        try:
            with open(self._file, "rb") as file:
                found = json.loads(file.read(_BYTES_MAX))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning(
                "%s cannot be read, so a lost mount may go unnoticed: %s", self._file, error
            )
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
            _log.warning(
                "%s cannot be written, so a lost mount may go unnoticed: %s", self._file, error
            )


def _may_use_network() -> bool:
    """Return whether this process can make a socket for IP: the unit of the daemon forbids that."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(family, socket.SOCK_DGRAM).close()
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
        return True
    return False

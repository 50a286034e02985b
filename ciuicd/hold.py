"""The daemon's hold on its store: the lock that keeps other daemons out, and the control socket."""

import contextlib
import os

from ciuic.config.settings import Settings
from ciuic.errors import BusyError, CiuicError, StoreError
from ciuic.source.mounts import FSTAB, unmounted_point
from ciuic.store.addressed import local_directory, short_limits
from ciuic.store.directory.find import read_header
from ciuic.store.directory.locks import Lock
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.place.keys import is_url
from ciuic.store.records.layout import DAEMON_LOCK, HEADER
from ciuic.system.clock import Clock
from ciuicd.control import Server, Services

__all__ = ["StoreHold"]


class StoreHold:
    """Takes the hold, takes it again after the store's disk was away, and releases it.

    Args:
        services: What the control socket offers.
        clock: Tells the time.
        store_id: The store to serve. A store with another ID at the same path is refused.
    """

    def __init__(self, services: Services, clock: Clock, store_id: str) -> None:
        self.store_id = store_id
        self._services = services
        self._clock = clock
        self._lock: Lock | None = None
        self._server: Server | None = None

    def take(self, settings: Settings) -> None:
        """Lock the store and listen on its socket, unless both are in place already.

        Raises:
            BusyError: Another daemon serves the store.
            StoreError: The store is missing, or a different store is at its path.
        """
        if self._server is not None and self._server.intact:
            return
        self.release()
        path = self._directory(settings)
        address = settings.snapshot_dir
        lock = Lock(os.path.join(path, DAEMON_LOCK), address if is_url(address) else "")
        try:
            lock.take_alone()
        except BusyError as error:
            raise BusyError(
                f"{error.message}: another ciuicd serves it",
                hint="Stop the other daemon, or give this one a snapshot_dir of its own.",
            ) from error
        self._lock = lock
        self._server = Server(path, self._services, self._clock)

    def _directory(self, settings: Settings) -> str:
        """Return the directory for the lock and the socket: the store or the cache directory.

        Raises:
            StoreError: The store is missing, or a different store is at its path.
        """
        if is_url(settings.snapshot_dir):
            # The main thread asks, which must not wait long for a server that is away.
            options = short_limits(settings.place_options)
            path, store_id = local_directory(settings.snapshot_dir, os.environ, options)
            if store_id != self.store_id:
                raise StoreError(
                    f"a different store is now at {settings.snapshot_dir}",
                    hint="Put the first store back, or restart the daemon.",
                )
            return path
        path = os.path.realpath(settings.snapshot_dir)
        if not os.path.lexists(os.path.join(path, HEADER)):
            raise StoreError(f"the store {path} is gone", hint=_hint_to_mount(path))
        if read_header(path).store_id != self.store_id:
            raise StoreError(
                f"a different store is now at {path}",
                hint="Mount the file system of the first store again, or restart the daemon.",
            )
        refuse_foreign(path, settings.store_owner)
        return path

    def admit_group(self) -> None:
        """Let the configured group connect, after the configuration has changed."""
        # The main thread may release the hold meanwhile.
        server = self._server
        if server is not None:
            server.admit_group()

    def can_take(self, settings: Settings) -> bool:
        """Take the hold and return True; return False if the store cannot be served now."""
        with contextlib.suppress(CiuicError):
            self.take(settings)
            return True
        return False

    def release(self) -> None:
        """Close the socket and release the lock. Harmless without a hold."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _hint_to_mount(store_path: str) -> str:
    """Return how to get a missing store back, never by making a new one on the disk below."""
    point = unmounted_point(store_path, os.environ)
    if point:
        mount = f"Mount {point}: {FSTAB} names it, and nothing is mounted there."
    else:
        mount = "Mount the store's disk, or put the store's directory back."
    return f"{mount} The daemon then resumes on its own."

"""Opens the store that a configuration names."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from ciuic.config.settings import Settings
from ciuic.store.addressed import (
    control_directory,
    open_at_address,
    refuse_unreachable,
    short_limits,
)
from ciuic.store.place.keys import is_url
from ciuic.store.store import Store

__all__ = ["configured_control_directory", "open_configured"]


def open_configured(
    settings: Settings,
    *,
    write: bool = False,
    only_adds: bool = False,
    removes: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
    patient: bool = True,
) -> AbstractContextManager[Store]:
    """Open the store of a configuration for the duration of a ``with`` block.

    Args:
        settings: The configuration.
        write: See ``open_store``. In a bucket, others may write meanwhile.
        only_adds: See ``open_store``.
        removes: In a bucket: packs are removed, and no snapshot is added.
        wait_s: How long to wait for another writer on this machine.
        cancelled: Ends that wait once it turns true.
        patient: Wait for a server that may be away as long as a command does, not some seconds.

    Raises:
        OfflineError: ``patient`` is false, and the server of the bucket does not answer.
    """
    address = settings.snapshot_dir
    options = settings.place_options if is_url(address) else None
    if not patient and is_url(address):
        refuse_unreachable(address, os.environ, options)
        options = short_limits(options)
    return open_at_address(
        address,
        os.environ,
        options,
        write=write,
        only_adds=only_adds,
        removes=removes,
        wait_s=wait_s,
        cancelled=cancelled,
        owner=settings.store_owner,
    )


def configured_control_directory(settings: Settings) -> str | None:
    """Return where a daemon of the store has its control socket: see ``control_directory``."""
    address = settings.snapshot_dir
    options = settings.place_options if is_url(address) else None
    return control_directory(address, os.environ, options)

"""Opens or creates the store at an address: a directory, or a bucket of an object store.

The clients of object stores are imported when a bucket is opened: they are heavy.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ciuic.errors import MissingError, StoreError, UnknownFormatError
from ciuic.store.directory.cache import (
    StaleHeaderError,
    cache_directory,
    explained_faults,
    kept_headers,
    refuse_others,
    refuse_vanished,
)
from ciuic.store.directory.create import create_store
from ciuic.store.place.keys import is_url, refuse_cut_url
from ciuic.store.place.location import PlaceOptions, bucket_name, bucket_url, split_address
from ciuic.store.records import layout
from ciuic.store.records.header import CHUNK_BYTES_DEFAULT, CONTENT, Chunking
from ciuic.store.store import Store, open_in_bucket, open_store
from ciuic.system import nofollow
from ciuic.system.clock import Clock

__all__ = [
    "NO_SNAPSHOT",
    "absolute_address",
    "control_directory",
    "create_at_address",
    "ensure_store",
    "local_directory",
    "open_at_address",
    "refuse_unreachable",
    "refuse_unusable",
    "short_limits",
]

NO_SNAPSHOT: Final = "-"
"""No ID begins with this: for callers of ``open_at_address`` that only read chunks."""
_CONNECT_S: Final = 3.0
_QUICK_S: Final = 5.0
_PATIENCE_S: Final = 2.0
"""The time limits for a server that may be away, if the caller does not wait long."""


@contextlib.contextmanager
def open_at_address(
    address: str,
    environment: Mapping[str, str],
    options: PlaceOptions | None = None,
    *,
    write: bool = False,
    only_adds: bool = False,
    removes: bool = False,
    wait_s: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
    owner: int | None = None,
    only: str = "",
) -> Iterator[Store]:
    """Open a store for the duration of a ``with`` block: see ``open_store``.

    Args:
        address: Its directory, or the URL of its bucket.
        environment: The environment variables: credentials, and the directory for caches.
        options: How to reach the object store.
        write: See ``open_store``. In a bucket, other machines may write meanwhile.
        only_adds: See ``open_store``.
        removes: In a bucket: packs are removed, and no snapshot is added.
        wait_s: How long to wait for another writer on this machine.
        cancelled: Ends that wait once it turns true.
        owner: See ``open_store``; unused for a bucket.
        only: In a bucket that is only read: the caller asks for no snapshot whose ID does not
            begin with this, so nothing is fetched of others.
    """
    if not is_url(address):
        with open_store(
            address,
            write=write,
            only_adds=only_adds,
            wait_s=wait_s,
            cancelled=cancelled,
            owner=owner,
        ) as store:
            yield store
        return
    from ciuic.store.place.address import open_place
    from ciuic.store.place.bucket import open_bucket

    place = open_place(address, environment, options)

    def opened(*, trusts_kept: bool) -> Store:
        bucket = open_bucket(place, environment, write=write, only=only, trusts_kept=trusts_kept)
        return stack.enter_context(
            open_in_bucket(
                bucket,
                write=write,
                only_adds=only_adds,
                removes=removes,
                wait_s=wait_s,
                cancelled=cancelled,
            )
        )

    with explained_faults(environment), contextlib.ExitStack() as stack:
        try:
            store = opened(trusts_kept=write)
        except (StaleHeaderError, UnknownFormatError):
            if not write:
                raise
            # The header in the bucket may no longer require what the kept one does.
            store = opened(trusts_kept=False)
        except StoreError as error:
            # With the header that this machine kept, only the lease shows that there is none.
            refuse_vanished(environment, place.name, error)
            raise
        yield store


def create_at_address(
    address: str,
    environment: Mapping[str, str],
    clock: Clock,
    chunking: Chunking,
    options: PlaceOptions | None = None,
) -> tuple[bool, Chunking]:
    """Create a store in a bucket if there is none: see ``create_in_bucket``."""
    from ciuic.store.place.address import open_place
    from ciuic.store.place.records import create_in_bucket

    return create_in_bucket(open_place(address, environment, options), clock, chunking)


def absolute_address(address: str) -> str:
    """Return the absolute path of a store's directory, or the URL of its bucket as ciuic writes it.

    Raises:
        UsageError: It is another URL, or one that lacks a slash.
    """
    if not is_url(address):
        refuse_cut_url(address)
        return os.path.abspath(address)
    url = split_address(address)
    return os.path.abspath(url.path) if url.scheme == "file" else bucket_url(address)


def refuse_unreachable(
    address: str, environment: Mapping[str, str], options: PlaceOptions | None = None
) -> None:
    """Ask the server of a bucket for one small answer, with short time limits.

    A directory is not looked at, and whether there is a store is not told.

    Raises:
        OfflineError: The server does not answer.
        StoreError: It refuses the request.
    """
    if not is_url(address):
        return
    from ciuic.store.place.address import open_place

    short = replace(short_limits(options), quick_s=_QUICK_S)
    place = open_place(address, environment, short)
    with contextlib.suppress(MissingError):
        place.size_bytes(layout.HEADER)


def refuse_unusable(
    address: str, environment: Mapping[str, str], options: PlaceOptions | None = None
) -> None:
    """Refuse options and credentials with which no request can be sent; none is sent.

    Raises:
        UsageError: The store is in a bucket, and they cannot be used.
    """
    if is_url(address):
        from ciuic.store.place.address import open_place

        open_place(address, environment, options)


def short_limits(options: PlaceOptions | None) -> PlaceOptions:
    """Return options for a caller that does not wait long for a server that may be away.

    A server that is there, and slow, has as much time for each answer as without them.
    """
    return replace(options or PlaceOptions(), connect_s=_CONNECT_S, patience_s=_PATIENCE_S)


def ensure_store(address: str, environment: Mapping[str, str], clock: Clock) -> None:
    """Create a store, which cuts files as ``ciuic init`` does, if there is none at the address.

    Raises:
        StoreError: It cannot be created, or something else is there.
    """
    if is_url(address):
        cut = Chunking.of(CONTENT, CHUNK_BYTES_DEFAULT)
        create_at_address(address, environment, clock, cut)
    else:
        create_store(address, clock)


def local_directory(
    address: str, environment: Mapping[str, str], options: PlaceOptions | None = None
) -> tuple[str, str]:
    """Return this machine's directory for the store in a bucket, and the store's ID.

    A missing directory is created. It has the locks and the control socket of a daemon.

    Raises:
        StoreError: There is no store, or it cannot be read.
        UnknownFormatError: The store has an unknown version, or needs an unknown feature.
    """
    from ciuic.store.place.address import open_place
    from ciuic.store.place.bucket import open_bucket

    with explained_faults(environment):
        bucket = open_bucket(open_place(address, environment, options), environment, write=True)
    return bucket.path, bucket.header.store_id


def control_directory(
    address: str, environment: Mapping[str, str], options: PlaceOptions | None = None
) -> str | None:
    """Return the directory where a daemon of the store would have its control socket.

    The bucket is asked only if a daemon of this user serves a bucket, and this machine did not keep
    which store is at the address: credentials may have expired, and the server may be away.

    Returns:
        None: no daemon of this user serves a bucket.

    Raises:
        StoreError: There is no store in the bucket, or it cannot be read.
    """
    if not is_url(address):
        return address
    name = bucket_name(split_address(address))
    served = [kept.path for kept in kept_headers(environment, name) if _has_socket(kept.path)]
    if len(served) == 1:
        refuse_others(served[0])
        return served[0]
    caches = cache_directory(environment)
    with contextlib.suppress(OSError):
        for each in nofollow.list_names(caches):
            if _has_socket(os.path.join(caches, each)):
                return local_directory(address, environment, options)[0]
    return None


def _has_socket(path: str) -> bool:
    return os.path.lexists(os.path.join(path, layout.CONTROL_SOCKET))

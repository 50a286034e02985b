"""Writes the header of a store in a bucket again, if it is gone or damaged."""

import contextlib
import os
from collections.abc import Mapping
from typing import Final

from ciuic.errors import CorruptionError, LostRaceError, MissingError, StoreError
from ciuic.store.directory.cache import kept_headers
from ciuic.store.place.place import Place, Version
from ciuic.store.place.records import decoded_header
from ciuic.store.records import layout
from ciuic.store.records.header import FORMAT, HEADER_BYTES_MAX, Header
from ciuic.system.clock import Clock, rfc3339

__all__ = ["repair_header"]

_NO_COPY: Final = (
    "Run this on a machine that has used the store and still has its cache, or name a copy of the"
    " store with --from: the new header takes the chunking of that copy."
)


def repair_header(
    place: Place, environment: Mapping[str, str], other: Header | None, clock: Clock, *, apply: bool
) -> tuple[str, ...]:
    """Write the header of a store again.

    It comes from what this machine keeps of the store. If it keeps nothing, the header is a new
    one, with another ID and the chunking of a store that the user names.

    Args:
        place: The place of the store.
        environment: The environment variables.
        other: The header of the store that the user names.
        clock: Tells when a new header is made.
        apply: Write it; otherwise only report the damage.

    Returns:
        The damage, one sentence; empty for a store whose header is sound, and where there is none.

    Raises:
        StoreError: There is nothing that the header could be written from, or the bucket failed.
    """
    version: Version | None = None
    damaged = b""
    try:
        found = place.get_versioned(layout.HEADER, HEADER_BYTES_MAX)
        decoded_header(place, found.data)
    except MissingError:
        if not (place.keys(layout.SNAPSHOTS) or place.keys(layout.PACKS)):
            return ()
        what = f"the header {layout.HEADER} of {place.name} is gone"
    except CorruptionError as error:
        version, damaged = found.version, found.data
        what = error.message
    else:
        return ()
    data = _kept(place, environment) or _like(other, clock)
    if not data:
        raise StoreError(what, hint=_NO_COPY)
    if apply:
        _write(place, data, damaged, version)
    return (what,)


def _write(place: Place, data: bytes, damaged: bytes, version: Version | None) -> None:
    with contextlib.suppress(LostRaceError):  # another repair was first
        if version is None:
            place.create(layout.HEADER, data)
        else:
            place.put(f"{layout.QUARANTINE}/{layout.HEADER}", damaged)
            place.replace(layout.HEADER, data, version)


def _kept(place: Place, environment: Mapping[str, str]) -> bytes:
    """Return what this machine keeps; of several stores, that which has most of the snapshots."""
    there = {key.rpartition("/")[2] for key in place.keys(layout.SNAPSHOTS)}
    best, most = b"", -1
    for kept in kept_headers(environment, place.name):
        shared = len(there & kept.manifests)
        if shared > most:
            best, most = kept.data, shared
    return best


def _like(other: Header | None, clock: Clock) -> bytes:
    if other is None:
        return b""
    return Header(
        format=FORMAT,
        required=[],
        store_id=os.urandom(16).hex(),
        created=rfc3339(clock.now_ns()),
        chunking=other.chunking,
    ).encode()

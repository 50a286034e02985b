"""Repair what a store needs to be opened: its header and the directory of manifests."""

import contextlib
import os
from typing import Final

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.maintain.quarantine import keep_aside
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import read_regular
from ciuic.store.directory.find import read_header, refuse_read_only
from ciuic.store.directory.locks import WriteLocks
from ciuic.store.directory.ownership import refuse_foreign
from ciuic.store.records import layout
from ciuic.store.records.header import HEADER_BYTES_MAX, Header, decode_header
from ciuic.store.records.sealed import unseal
from ciuic.system import durable, nofollow

__all__ = ["repair_entrance"]

_NO_COPY: Final = (
    f"There is no sound copy of it in {layout.PARITY}/. Create a store with the same chunking"
    " elsewhere with 'ciuic --store DIR init', and copy its header."
)


def repair_entrance(store_path: str, *, apply: bool, owner: int | None = None) -> tuple[str, ...]:
    """Restore the header of a store from its copy, and a missing directory ``snapshots/``.

    Args:
        store_path: The store's directory.
        apply: Repair; otherwise only report the damage.
        owner: ID of another user who may own the store.

    Returns:
        The damage, one sentence each; empty for a store that can be opened.

    Raises:
        StoreError: There is no store, or no sound copy of its header.
    """
    found = []
    with store_faults("find", store_path):
        store_path = nofollow.resolved(store_path)
    if apply:
        refuse_foreign(store_path, owner)
    try:
        read_header(store_path)
    except UnknownFormatError as error:
        # One flipped bit can make another version. A header that a later ciuic wrote is sound.
        data = (
            None
            if _is_sealed(os.path.join(store_path, layout.HEADER))
            else _header_copy(store_path)
        )
        if data is None:
            raise
        found.append(error.message)
        if apply:
            _put_back_header(store_path, data)
    except CorruptionError as error:
        data = _header_copy(store_path)
        if data is None:
            raise CorruptionError(error.message, hint=_NO_COPY) from error
        found.append(error.message)
        if apply:
            _put_back_header(store_path, data)
    snapshots = os.path.join(store_path, layout.SNAPSHOTS)
    if not nofollow.exists(snapshots) and nofollow.is_directory(
        os.path.join(store_path, layout.PARITY)
    ):
        found.append(f"the store {store_path} has lost its directory '{layout.SNAPSHOTS}'")
        if apply:
            with store_faults("make", snapshots):
                durable.make_directory(snapshots, 0o700)
    return tuple(found)


def _header_copy(store_path: str) -> bytes | None:
    path = os.path.join(store_path, layout.PARITY, layout.HEADER)
    with contextlib.suppress(OSError, CorruptionError, UnknownFormatError):
        data = read_regular(path, HEADER_BYTES_MAX)
        decode_header(data)
        return data
    return None


def _is_sealed(path: str) -> bool:
    """Return whether a header matches its own checksum, whatever its version."""
    with contextlib.suppress(OSError, CorruptionError):
        unseal(read_regular(path, HEADER_BYTES_MAX), Header)
        return True
    return False


def _put_back_header(store_path: str, data: bytes) -> None:
    refuse_read_only(store_path, decode_header(data))
    path = os.path.join(store_path, layout.HEADER)
    lock = WriteLocks(store_path)
    lock.take_alone()
    try:
        with store_faults("write", path):
            if nofollow.exists(path):
                directory = os.path.join(store_path, layout.QUARANTINE)
                durable.make_directory(directory, 0o700)
                with contextlib.suppress(FileExistsError):
                    keep_aside(path, os.path.join(directory, layout.HEADER))
            temporary = os.path.join(store_path, layout.TEMPORARY)
            durable.make_directory(temporary, 0o700)
            durable.write_whole(path, data, temporary_directory=temporary, mode=0o600)
    finally:
        lock.release()

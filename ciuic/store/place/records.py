"""Records of a store in a bucket: its header, and those with the interface of a folder."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from ciuic.errors import (
    AccessDeniedError,
    CorruptionError,
    LostRaceError,
    MissingError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
    UnsupportedError,
    UsageError,
)
from ciuic.store.place.place import Place
from ciuic.store.place.probe import probe
from ciuic.store.records import layout
from ciuic.store.records.header import (
    FORMAT,
    HEADER_BYTES_MAX,
    Chunking,
    Header,
    decode_header,
)
from ciuic.system.clock import Clock, rfc3339

__all__ = [
    "Records",
    "create_in_bucket",
    "decoded_header",
    "document_or_none",
    "header_data",
    "read_document",
    "read_header",
    "refuse_lost_header",
]

_REPAIR: Final = (
    "'ciuic --store {} repair' shows whether it can be written again, and --apply does so: from the"
    " cache of this machine, or like that of a copy that --from names."
)

K = TypeVar("K")


class Records:
    """The objects below a prefix, with the methods of ``Folder``.

    Args:
        place: The place of the store.
        prefix: The name of the folder.
    """

    def __init__(self, place: Place, prefix: str) -> None:
        self._place = place
        self._prefix = prefix
        self.path = f"{place.name}/{prefix}"

    def path_of(self, name: str) -> str:
        """See ``Folder``."""
        return f"{self.path}/{name}"

    def make(self) -> None:
        """See ``Folder``; a bucket has no directories."""

    def names(self, parse: Callable[[str], K | None]) -> set[K]:
        """See ``Folder``."""
        found = [parse(one.name) for one in self._place.list(self._prefix)]
        return {name for name in found if name is not None}

    def read(self, name: str, bytes_max: int) -> bytes:
        """See ``Folder``: an object that is missing raises what a missing file does."""
        try:
            return self._place.get(f"{self._prefix}/{name}", bytes_max)
        except MissingError as error:
            raise StoreError(error.message) from FileNotFoundError(name)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Folder``."""
        try:
            self._place.create(f"{self._prefix}/{name}", data)
        except LostRaceError:
            return False
        return True

    def mark(self, name: str) -> None:
        """See ``Folder``."""
        self._place.create(f"{self._prefix}/{name}", b"")

    def remove_durably(self, names: Iterable[str]) -> None:
        """See ``Folder``."""
        self._place.delete(f"{self._prefix}/{name}" for name in names)


def create_in_bucket(place: Place, clock: Clock, chunking: Chunking) -> tuple[bool, Chunking]:
    """Create a store in a bucket if there is none.

    Returns:
        Whether it was created, and how the store cuts files.

    Raises:
        UsageError: No store can have this chunking.
        UnsupportedError: The object store ignores the conditions of writes.
        StoreError: The store cannot be created, or the prefix holds something else.
    """
    if chunking.problem:
        raise UsageError(chunking.problem, hint="'ciuic init --help' has the limits.")
    with contextlib.suppress(MissingError):
        # Not its size: the answer to that request does not say why it is refused.
        return False, decoded_header(place, place.get(layout.HEADER, HEADER_BYTES_MAX)).chunking
    for found in place.list():
        # A writer that knew an earlier store here leaves its lease if it is killed.
        if not found.key.startswith(("probe/", f"{layout.LEASES}/")):
            refuse_lost_header(place)
            raise StoreError(
                f"{place.name} is not empty: it holds '{found.key}'",
                hint="Choose an unused prefix for the store.",
            )
    if not probe(place).allows_many_writers:
        raise UnsupportedError(
            f"the object store of {place.name} ignores the conditions of writes, so two writers"
            " could overwrite each other's snapshots",
            hint="Use an object store that supports If-None-Match, or a directory.",
        )
    header = Header(
        format=FORMAT,
        required=[],
        store_id=os.urandom(16).hex(),
        created=rfc3339(clock.now_ns()),
        chunking=chunking,
    )
    try:
        place.create(layout.HEADER, header.encode())
    except LostRaceError:
        return False, read_header(place).chunking
    return True, chunking


def read_document(place: Place, key: str, bytes_max: int) -> bytes:
    """Read an object of one snapshot: if it is closed to this machine, other snapshots are not.

    Raises:
        MissingError: It is gone.
        UnreachableError: The key of this machine may not read it. Another account wrote it, if the
            key may read the rest of the store.
        StoreError: It cannot be read.
    """
    try:
        return place.get(key, bytes_max)
    except AccessDeniedError as error:
        raise UnreachableError(error.message, hint=error.hint) from error


def document_or_none(place: Place, key: str, bytes_max: int) -> bytes | None:
    """Return what a machine keeps of an object; None: it was removed since the listing.

    Nothing is kept of one that is closed to this machine. An empty copy counts as damaged, so each
    reader asks the bucket again, and gets the reason or, once it is opened, the object.
    """
    try:
        return read_document(place, key, bytes_max)
    except MissingError:
        return None
    except UnreachableError:
        return b""


def read_header(place: Place) -> Header:
    """Read the header: see ``header_data`` and ``decoded_header``."""
    return decoded_header(place, header_data(place))


def header_data(place: Place) -> bytes:
    """Return the bytes of the header.

    Raises:
        StoreError: There is no store, or it has lost its header.
    """
    try:
        return place.get(layout.HEADER, HEADER_BYTES_MAX)
    except MissingError as error:
        refuse_lost_header(place)
        raise StoreError(
            f"there is no store at {place.name}",
            hint=f"Create it with 'ciuic --store {shlex.quote(place.name)} init'.",
        ) from error


def refuse_lost_header(place: Place) -> None:
    """Refuse a place that has a manifest or a pack of a store; it is known to have no header.

    Raises:
        StoreError: It has one, or it cannot be listed.
    """
    parsers = (
        (layout.SNAPSHOTS, layout.parse_manifest_name),
        (layout.PACKS, layout.parse_pack_name),
    )
    for folder, parse in parsers:
        if any(parse(found.name) is not None for found in place.list(folder)):
            raise StoreError(
                f"the store at {place.name} has lost its header {layout.HEADER}",
                hint=_REPAIR.format(shlex.quote(place.name)),
            )


def decoded_header(place: Place, data: bytes) -> Header:
    """Decode the header.

    Raises:
        CorruptionError: It is damaged.
        UnknownFormatError: A later version wrote it.
    """
    path = f"{place.name}/{layout.HEADER}"
    try:
        return decode_header(data)
    except CorruptionError as error:
        hint = _REPAIR.format(shlex.quote(place.name))
        raise CorruptionError(f"{path}: {error.message}", hint=hint) from error
    except UnknownFormatError as error:
        raise UnknownFormatError(f"{path}: {error.message}", hint=error.hint) from error

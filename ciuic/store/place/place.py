"""What a place offers to a store: the interface of directories and object stores.

A place maps keys to objects. An object is a byte string that is written as a whole: a reader sees
all of it or nothing. After a write has returned, every later read and listing sees it.

Errors, by what the caller must do:

    MissingError        there is no object: look again, or report damage
    LostRaceError       another writer was first: read the object, then decide
    AccessDeniedError   correct the permissions or the credentials
    StoreFullError      free some space
    OfflineError        try later; a write may have happened, or may still happen
    CommitUncertainError  the object is written, but a power cut may still undo that
    CorruptionError     the answer is shorter than the object, or a disk cannot read it
    UnsupportedError    the place lacks conditional writes
    BusyError           another process holds the lock of a directory: try later
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Body", "ByteRange", "Found", "Listed", "Place", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """Tells one content of an object from another.

    Attributes:
        tag: The entity tag of an object store; in a directory, a hash of the content.
        number: The version's number in a store that numbers versions; else empty.
    """

    tag: str
    number: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it was read.

    Attributes:
        data: Its content.
        version: Its version, for ``Place.replace``.
    """

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a listing.

    Attributes:
        key: Its key.
        size_bytes: Its size; None: the disk cannot tell, and reading it says why.
    """

    key: str
    size_bytes: int | None

    @property
    def name(self) -> str:
        """The key without its folder."""
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of an object."""

    begin_bytes: int
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        """The first byte behind it."""
        return self.begin_bytes + self.length_bytes


class Body(Protocol):
    """The content of a file: see ``FileBody``.

    Attributes:
        size_bytes: Its length.
    """

    size_bytes: int

    def pieces(self) -> Iterator[memoryview]:
        """Yield the content in pieces. Each is valid until the next one is asked for.

        Raises:
            StoreError: The file cannot be read, or was cut.
        """
        ...

    def read(self) -> memoryview:
        """Return the content; raises as ``pieces`` does."""
        ...


class Place(Protocol):
    """Holds the objects of a store. All methods may be called from several threads.

    Every method raises StoreError, of the classes above, and ValueError for a text that is not a
    key.
    """

    @property
    def name(self) -> str:
        """The place in messages: a path, or a URL without credentials."""
        ...

    def get(self, key: str, bytes_max: int) -> bytes:
        """Return an object's content, at most its first ``bytes_max`` bytes.

        Raises:
            MissingError: There is no object.
        """
        ...

    def get_versioned(self, key: str, bytes_max: int) -> Found:
        """Like ``get``, and return the version as well.

        Raises:
            MissingError: There is no object.
            CorruptionError: It is larger than ``bytes_max``.
        """
        ...

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """Return parts of an object, in the order of ``ranges``.

        Ranges may overlap. An object store reads ranges that are near to each other with one
        request.

        Raises:
            MissingError: There is no object.
            CorruptionError: The object ends before the end of a range.
        """
        ...

    def size_bytes(self, key: str) -> int:
        """Return an object's size.

        Raises:
            MissingError: There is no object.
        """
        ...

    def list(self, folder: str = "", after: str = "") -> Iterator[Listed]:
        """Yield the objects below a folder, in the order of their keys as bytes.

        The objects are listed in pages, while the caller iterates: an object that exists during the
        whole iteration appears in it, and another object may.

        Args:
            folder: A key without its last names; empty: the whole place.
            after: Only keys that come after this key.
        """
        ...

    def keys(self, folder: str = "") -> set[str]:
        """Return the keys below a folder; in a directory, this is faster than ``list``."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace an object; it is durable when this returns.

        Raises:
            OfflineError: The object may have been written.
            CommitUncertainError: The object is written, and a power cut may still undo that.
        """
        ...

    def put_file(self, key: str, body: Body) -> None:
        """Like ``put``, with the content of a file.

        Raises:
            StoreError: The file cannot be read, or was cut.
        """
        ...

    def stage(self, key: str, data: bytes) -> None:
        """Like ``put``, but the object may be lost in a power cut until ``make_durable``.

        Its content is never lost without its name: after a power cut, it is whole or absent.
        """
        ...

    def make_durable(self) -> None:
        """Make every object that this process has staged durable.

        Raises:
            StoreError: Some may not be durable; the next call tries again.
        """
        ...

    def create(self, key: str, data: bytes) -> Version:
        """Create an object if the key is free; it is durable when this returns.

        Of several writers at once, exactly one succeeds. An unanswered request may have been
        carried out, so an object that holds exactly ``data`` counts as created by this call:
        ``data`` must name its writer.

        Raises:
            LostRaceError: The key holds another content.
            UnsupportedError: The place has no way to do this.
            OfflineError: The object may have been created, or may still be.
        """
        ...

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        """Replace an object if it still is the version that was read.

        Like ``create``, it succeeds if the object holds exactly ``data``. Nothing else may ``put``
        or ``stage`` under this key.

        Returns:
            The new version.

        Raises:
            LostRaceError: The object has changed.
            MissingError: The object is gone.
            UnsupportedError: The place has no way to do this.
            OfflineError: The object may have been replaced, or may still be.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Durably delete objects; keys without an object are skipped."""
        ...

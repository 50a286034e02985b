"""Condemnations and verdicts of a bucket. docs/protocol.md, "Leases, condemnation, verdicts".

    condemned/<session>.json   packs on which no session may rely from now on
    verdicts/<session>.json    which of them are deleted

A session creates each if its key is free, and none changes, so this machine keeps copies. A
condemnation is deleted when its packs are gone; its verdict stays.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from ciuic.errors import (
    CorruptionError,
    LostRaceError,
    MissingError,
    StoreError,
    UnknownFormatError,
)
from ciuic.ids import PackId, SessionId
from ciuic.store.directory.folder import Folder
from ciuic.store.place.place import Place
from ciuic.store.records import layout
from ciuic.store.records.condemnation import (
    CONDEMNATION_BYTES_MAX,
    decode_condemnation,
    decode_verdict,
    encode_condemnation,
    encode_verdict,
)

__all__ = ["Condemnation", "Condemned"]

_REQUESTS_AT_ONCE: Final = 16

T = TypeVar("T")

_HINT: Final = "No snapshot can be added and nothing removed until it is put back or deleted."


class Condemnation(NamedTuple):
    """A condemnation whose packs may still be there.

    Attributes:
        session: The session that created it.
        packs: The packs that it names.
        deleted: Those that its verdict says are deleted; None: it has no verdict yet.
        damaged: A repair created it: see ``CondemnedPacks``.
    """

    session: SessionId
    packs: frozenset[PackId]
    deleted: frozenset[PackId] | None
    damaged: bool = False

    @property
    def shut_packs(self) -> frozenset[PackId]:
        """The packs on which no session may rely."""
        return self.packs if self.deleted is None else self.deleted


class Condemned:
    """The condemnations of one store.

    Args:
        place: The place of the store.
        path: The cache directory.
    """

    def __init__(self, place: Place, path: str) -> None:
        self._place = place
        self._copies = {name: Folder(path, name) for name in (layout.CONDEMNED, layout.VERDICTS)}

    def read(self) -> list[Condemnation]:
        """Return the condemnations that are there, in the order of their sessions.

        The caller holds its lease: a condemnation that is created later waits for the caller.

        Raises:
            StoreError: They cannot be read.
        """
        listed = [found.name for found in self._place.list(layout.CONDEMNED)]
        names = {name: layout.parse_session_name(name) for name in listed}
        copies = self._copies[layout.CONDEMNED]
        with contextlib.suppress(StoreError):
            copies.remove_all(copies.names(lambda name: name) - names.keys())
        found = []
        for name, session_id in sorted(names.items()):
            if session_id is None:
                raise UnknownFormatError(f"{self._url(layout.CONDEMNED, name)} is not known")
            said = self._read(layout.CONDEMNED, name, decode_condemnation)
            if said is not None and said.packs:
                deleted = self._read(layout.VERDICTS, name, decode_verdict)
                found.append(Condemnation(session_id, said.packs, deleted, said.damaged))
        return found

    def shut_packs(self, *, besides: SessionId | None = None) -> frozenset[PackId]:
        """Return the packs on which no session may rely. A session asks after it has its lease.

        Args:
            besides: The session whose condemnation does not count.

        Raises:
            StoreError: They cannot be read.
        """
        # Condemnations first: when one has been deleted meanwhile, its verdict is there already.
        found = [one.shut_packs for one in self.read() if one.session != besides]
        return self.deleted().union(*found)

    def deleted(self) -> frozenset[PackId]:
        """Return every pack that some verdict deletes.

        They are shut for good: the upload of a session that was paused can bring one back, and a
        prune that was paused can delete it once more.

        Raises:
            StoreError: The verdicts cannot be read.
        """
        listed = [one.name for one in self._place.list(layout.VERDICTS)]
        names = [name for name in listed if layout.parse_session_name(name) is not None]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "verdicts") as pool:
            read = functools.partial(self._read, layout.VERDICTS, decode=decode_verdict)
            found = [packs for packs in pool.map(read, names) if packs is not None]
        return frozenset[PackId]().union(*found)

    def condemn(
        self, session_id: SessionId, packs: Collection[PackId], *, damaged: bool = False
    ) -> bool:
        """Condemn packs; returns false if the session was revoked.

        Args:
            session_id: The session.
            packs: The packs.
            damaged: See ``CondemnedPacks``.

        Raises:
            OfflineError: They may be condemned now or later; the next prune sees it.
            StoreError: They are not.
        """
        key = f"{layout.CONDEMNED}/{layout.session_name(session_id)}"
        try:
            self._place.create(key, encode_condemnation(packs, damaged=damaged))
        except LostRaceError:
            return False
        return True

    def judge(self, session_id: SessionId, deleted: Collection[PackId]) -> frozenset[PackId]:
        """Create the verdict on a condemnation, unless it has one; returns the packs that go.

        Raises:
            StoreError: The bucket failed. The next prune judges.
        """
        key = f"{layout.VERDICTS}/{layout.session_name(session_id)}"
        with contextlib.suppress(LostRaceError):
            self._place.create(key, encode_verdict(deleted))
            return frozenset(deleted)
        return decode_verdict(self._place.get(key, CONDEMNATION_BYTES_MAX))

    def delete(self, packs: Iterable[PackId]) -> None:
        """Delete the packs of a verdict."""
        self._place.delete(f"{layout.PACKS}/{layout.pack_name(pack_id)}" for pack_id in packs)

    def close(self, session_id: SessionId) -> None:
        """Delete a condemnation whose packs are deleted."""
        self._place.delete([f"{layout.CONDEMNED}/{layout.session_name(session_id)}"])

    def _read(self, prefix: str, name: str, decode: Callable[[bytes], T]) -> T | None:
        """Read an object, from its copy if there is one; None if it is gone."""
        folder = self._copies[prefix]
        if folder.has(name):
            with contextlib.suppress(StoreError):
                return decode(folder.read(name, CONDEMNATION_BYTES_MAX))
        try:
            data = self._place.get(f"{prefix}/{name}", CONDEMNATION_BYTES_MAX)
            decoded = decode(data)
        except MissingError:
            return None
        except CorruptionError as error:
            message = f"{self._url(prefix, name)}: {error.message}"
            raise CorruptionError(message, hint=_HINT) from error
        with contextlib.suppress(StoreError):  # without a copy, the next run reads it again
            folder.make_and_replace(name, data)
        return decoded

    def _url(self, prefix: str, name: str) -> str:
        return f"{self._place.name}/{prefix}/{name}"

"""Reads chunks that a store has lost from its copies, while a snapshot is read.

A copy is opened when the first chunk is missing, and not before: it may be a bucket, or a disk that
is asleep. Whatever is wrong with a copy is one sentence, and the error of the store stands.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from ciuic.documents import Document
from ciuic.errors import (
    CancelledError,
    ChunkMissingError,
    CiuicError,
    CorruptionError,
    OfflineError,
    UnknownFormatError,
)
from ciuic.ids import ChunkId
from ciuic.store.records.copy_record import CopyRecord
from ciuic.store.store import Store
from ciuic.system.clock import Clock, SystemClock

__all__ = ["CopySource", "ReadThrough", "Taken", "reading_through", "source_of"]

_AWAY_S: Final = 300.0
"""A copy that could not be read is asked again after this time: a mount lasts for days."""
_unreachable: Final[dict[tuple[str, Any], tuple[float, str]]] = {}
"""Copies whose server did not answer this process, by address and options: when it was asked, on
the monotonic clock, and the sentence. Each attempt takes seconds, and a process may load often."""
_LISTED_S: Final = 60.0
"""A copy that lacks chunks is looked through for new packs this often."""
_COUNTED_MAX: Final = 100_000
"""More chunks are not told apart, so that memory does not grow with what is lost."""


class CopySource(NamedTuple):
    """A copy that may have what is lost.

    Attributes:
        name: Its name in the configuration, or its address.
        address: Its directory or URL.
        options: ``PlaceOptions``: how to reach it; None: as the environment says.
    """

    name: str
    address: str
    # Any: every restore imports this module, and only copies in buckets need that class.
    options: Any = None


def source_of(record: CopyRecord) -> CopySource:
    """Return a copy that this machine has made, reached as it was then."""
    # Imported here: most stores are not damaged.
    from ciuic.store.place.location import PlaceOptions

    options = PlaceOptions(
        endpoint=record.endpoint,
        region=record.region,
        credentials_file=record.credentials_file,
        path_style=record.path_style,
    )
    return CopySource(record.address, record.address, options)


class Taken(NamedTuple):
    """What a copy gave.

    Attributes:
        address: Its directory or URL.
        chunks: Chunks that were read from it.
        has_more: There were more of them than were counted.
        problem: Why it did not give every chunk that it was asked for; empty: it did.
        is_away: It cannot be read now, whatever it is asked for.
    """

    address: str
    chunks: int
    has_more: bool
    problem: str
    is_away: bool

    def as_json(self) -> Document:
        """Return an element of ``copies`` of ``ciuic restore --json``."""
        return {"address": self.address, "chunks": self.chunks, "problem": self.problem or None}


@contextlib.contextmanager
def reading_through(
    store: Store,
    sources: Callable[[], Iterable[CopySource]],
    on_first: Callable[[str], None] = lambda _address: None,
) -> "Iterator[ReadThrough]":
    """Have a store's reader take what it cannot read from copies, during a ``with`` block.

    The arguments are those of ``ReadThrough``.
    """
    through = ReadThrough(store, sources, on_first)
    store.reader.elsewhere = through
    try:
        yield through
    finally:
        store.reader.elsewhere = None
        through.close()


class ReadThrough:
    """Asks copies for chunks, one copy after the other. May be used from any thread.

    Args:
        store: The store that has lost chunks.
        sources: Returns its copies, in the order in which they are asked; called when the first
            chunk is missing.
        on_first: Receives the address of a copy when the first chunk came from there.
        clock: Tells when a copy that could not be read is asked again.
    """

    def __init__(
        self,
        store: Store,
        sources: Callable[[], Iterable[CopySource]],
        on_first: Callable[[str], None] = lambda _address: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._store_name = store.name
        self._sources = sources
        self._on_first = on_first
        self._lock = threading.Lock()
        self._copies: list[_Copy] | None = None

    def chunk(self, chunk_id: ChunkId, kind: int) -> bytes | memoryview | None:
        """Return the plain bytes of a chunk from the first copy that has it; None if none has."""
        with self._lock:
            if self._copies is None:
                name, on_first = self._store_name, self._on_first
                self._copies = [
                    _Copy(name, source, on_first, self._clock) for source in self._known_sources()
                ]
        for copy in self._copies:
            found = copy.chunk(chunk_id, kind)
            if found is not None:
                return found
        return None

    def _known_sources(self) -> list[CopySource]:
        """Return the copies; none if they cannot be found out.

        The chunk is damaged, and that is what the caller must hear.
        """
        try:
            return list(self._sources())
        except CancelledError:
            raise
        except CiuicError:
            return []

    def taken(self) -> tuple[Taken, ...]:
        """Return what each copy gave, of those that were asked."""
        return tuple([copy.taken() for copy in self._copies or () if copy.is_asked])

    def close(self) -> None:
        """Close the copies."""
        for copy in self._copies or ():
            copy.close()


class _Copy:
    """One copy: opened when it is first asked, and given up for a while when it fails."""

    def __init__(
        self, store_name: str, source: CopySource, on_first: Callable[[str], None], clock: Clock
    ) -> None:
        self._clock = clock
        self._away_s = 0.0
        self._store_name = store_name
        self._source = source
        self._on_first = on_first
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._store: Store | None = None
        self._given: set[ChunkId] = set()
        self._has_more = False
        self._problem = ""
        self._is_away = False
        self.is_asked = False

    def chunk(self, chunk_id: ChunkId, kind: int) -> bytes | memoryview | None:
        """Return the plain bytes of a chunk; None if the copy cannot give it."""
        store = self._opened()
        if store is None:
            return None
        try:
            found = store.reader.chunk(chunk_id, kind=kind)
        except ChunkMissingError:
            self._note("it does not have all that is lost here")
        except (CorruptionError, UnknownFormatError) as error:
            self._note(f"it is damaged too: {error.message}")
        except CancelledError:
            raise
        except CiuicError as error:
            self._give_up(error)
        else:
            self._count(chunk_id)
            return found
        return None

    def taken(self) -> Taken:
        """Return what this copy gave."""
        given = len(self._given)
        return Taken(self._source.address, given, self._has_more, self._problem, self._is_away)

    def close(self) -> None:
        """Close the store; a failure here takes nothing back."""
        with self._lock, contextlib.suppress(CiuicError):
            self._store = None
            self._stack.close()

    def _opened(self) -> Store | None:
        with self._lock:
            if not self.is_asked or self._is_asked_again():
                self.is_asked = True
                try:
                    self._open()
                except CancelledError:
                    raise
                except CiuicError as error:
                    self._note_away(error)
            return self._store

    def _open(self) -> None:
        # Imported here: most stores are not damaged.
        from ciuic.store.addressed import NO_SNAPSHOT, open_at_address, refuse_unreachable

        _, address, options = self._source
        since_s, problem = _unreachable.get((address, options), (-_AWAY_S, ""))
        if problem and self._clock.monotonic_s() - since_s < _AWAY_S:
            self._problem, self._is_away, self._away_s = problem, True, since_s
            return
        refuse_unreachable(address, os.environ, options)
        # It may have thousands of manifests, and only its chunks are read.
        store = self._stack.enter_context(
            open_at_address(address, os.environ, options, only=NO_SNAPSHOT)
        )
        if store.name == self._store_name:
            self._problem = "it is the store itself"
        else:
            store.reader.list_packs_rarely(_LISTED_S)
            self._store = store

    def _is_asked_again(self) -> bool:
        if not self._is_away or self._clock.monotonic_s() - self._away_s < _AWAY_S:
            return False
        self._is_away = False
        with contextlib.suppress(CiuicError):
            self._stack.close()
        return True

    def _note_away(self, error: CiuicError) -> None:
        self._problem = error.message
        self._is_away = True
        self._away_s = self._clock.monotonic_s()
        if isinstance(error, OfflineError):
            _, address, options = self._source
            _unreachable[address, options] = self._away_s, error.message

    def _note(self, problem: str) -> None:
        with self._lock:
            self._problem = self._problem or problem

    def _give_up(self, error: CiuicError) -> None:
        """Ask it no more for a while: each request to a server that is away takes long."""
        with self._lock:
            self._note_away(error)
            self._store = None

    def _count(self, chunk_id: ChunkId) -> None:
        with self._lock:
            is_first = not self._given
            if len(self._given) < _COUNTED_MAX:
                self._given.add(chunk_id)
            elif chunk_id not in self._given:
                self._has_more = True
        if is_first:
            self._on_first(self._source.address)

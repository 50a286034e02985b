"""Reading chunks back: locate, read, decode, check.

Nothing leaves this module that does not hash to the ID it was asked for. When the catalog does
not know a chunk, or points at something else, the packs themselves are asked once: the catalog
is a cache, and no restore may fail for a fault in it. Whoever reads without one has an index of his
own, of which nobody keeps him informed: it is made anew before a chunk that a prune has moved, or a
snapshot has added, is called missing. What is damaged is read with the help of the pack's parity;
that mends nothing on the disk.
"""

import contextlib
import itertools
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from ciuic.errors import (
    ChunkMissingError,
    CorruptionError,
    StoreError,
    UnknownFormatError,
    UnreachableError,
)
from ciuic.hashing import data_id
from ciuic.store import layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_at, status_of
from ciuic.store.frame import (
    CHAIN_MAX,
    DATA,
    Frame,
    check_chunk,
    decode_frame,
    header_bytes_needed,
    parse_header,
)
from ciuic.store.index import ChunkPlace, IndexDamagedError
from ciuic.store.mending import opened_mender

__all__ = ["Places", "StoreReader"]

_CACHE_BYTES: Final = 24 * 1024 * 1024
_CACHED_FRAME_MAX: Final = 2 * 1024 * 1024
_OPEN_PACKS_MAX: Final = 64
_EXPECTED_SHARE: Final = 2
"""Frames that fill less than half of the stretch that they lie in are read one by one."""
_HEADER_BYTES: Final = 512
"""Read of a frame whose header is wanted: that of one chunk, or of a few."""
_EXPECTED_BYTES_MAX: Final = 64 * 1024 * 1024


class Places(Protocol):
    """What an ``Index`` is asked here."""

    def places(self, ids: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        """Where chunks lie; those that are not known are left out."""

    def stored_again(self) -> set[bytes]:
        """Chunks that lie in several places."""


class _Pack:
    """An open pack; closed when the last user has dropped it."""

    def __init__(self, path: str) -> None:
        self.fd = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class _Descent:
    """The way from a chunk down to what stands alone; nothing is looked for in vain twice.

    Attributes:
        depth: How many deltas lie above.
        lost: Chunks that were not to be had.
        is_below: It was a frame's reference that could not be had: the frame may be sound.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.lost: set[bytes] = set()
        self.is_below = False


class StoreReader:
    """Reads chunks of one store. All methods may be called from any thread.

    Args:
        store_path: The store's directory.
        index: Opens the catalog, when first needed.
        rebuilt: Makes an index from the packs alone, leaving out the one that it is told.
        passing: What is read is not to stay in the page cache.

    Attributes:
        healed: Packs of which something damaged was read with the help of their parity.
        lost: Chunks that could not be had, and why, for whoever goes on without them: they are not
            tried again. None, as long as nobody asks for that with a dictionary: they are.
    """

    def __init__(
        self,
        store_path: str,
        index: Callable[[], Places],
        rebuilt: Callable[[bytes], Places],
        *,
        passing: bool = False,
    ) -> None:
        self.healed: set[bytes] = set()
        self.lost: dict[bytes, str] | None = None
        self._store_path = store_path
        self._packs_path = os.path.join(store_path, layout.PACKS)
        self._open_index = index
        self._rebuild = rebuilt
        self._passing = passing
        self._rebuilt: dict[bytes, Places] = {}
        self._listed: dict[bytes, set[str]] = {}
        self._lock = threading.RLock()
        self._packs: OrderedDict[bytes, _Pack] = OrderedDict()
        self._frames: OrderedDict[tuple[bytes, int], bytes | memoryview] = OrderedDict()
        self._mended_frames: set[tuple[bytes, int]] = set()
        self._cached_bytes = 0

    def close(self) -> None:
        """Let go of open packs and of what is cached."""
        with self._lock:
            self._packs.clear()
            self._frames.clear()
            self._cached_bytes = 0

    def node(self, kind: int, name: bytes) -> bytes:
        """A tree or recipe node, checked.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        return bytes(self.chunk(name, kind=kind))

    def chunk(self, name: bytes, *, kind: int, heal: bool = True) -> bytes | memoryview:
        """The plain bytes of a chunk, checked.

        Args:
            name: Its ID.
            kind: ``DATA``, ``RECIPE`` or ``TREE``.
            heal: Where it is damaged everywhere, have it from the parity.

        Raises:
            CorruptionError: It is missing or damaged, or something that it is a difference from.
        """
        try:
            return self._chunk(name, kind, heal=heal, descent=_Descent())
        except CorruptionError as error:
            # Not of what lies below: that may only be too far down from here.
            if self.lost is not None and heal:
                self.lost[name] = error.message
            raise

    def chain(self, name: bytes) -> list[ChunkPlace] | None:
        """Where a chunk lies, then what it is a difference from, and so on.

        None if something of it is missing, or it has no end.
        """
        found: list[ChunkPlace] = []
        while name and len(found) <= CHAIN_MAX:
            place = None
            with contextlib.suppress(IndexDamagedError):
                place = self._asked().places([name]).get(name)
            if place is None:
                return None
            found.append(place)
            name = place.reference
        return found if not name else None

    def unchained(
        self, places: Mapping[bytes, ChunkPlace], is_sound: Callable[[bytes, ChunkPlace], bool]
    ) -> dict[bytes, bytes]:
        """Those chunks that are a difference from what is not there, directly or not; and that.

        Args:
            places: Where they lie.
            is_sound: Whether another chunk can be had from the place that it is said to be at.
        """
        below = {name: place.reference for name, place in places.items() if place.reference}
        lost: dict[bytes, bytes] = {}
        for _ in range(CHAIN_MAX):
            if not below:
                break
            found = self.places(list(dict.fromkeys(below.values())))
            sound = {name: place for name, place in found.items() if is_sound(name, place)}
            lost |= {name: base for name, base in below.items() if base not in sound}
            below = {
                name: sound[reference].reference
                for name, reference in below.items()
                if reference in sound and sound[reference].reference
            }
        lost |= below
        # What was stored again lies elsewhere, too, which the index does not say.
        again = self._stored_again() if lost else set()
        if again:
            lost = {name: base for name, base in lost.items() if not self._is_mended(name, again)}
        return lost

    def _stored_again(self) -> set[bytes]:
        try:
            return self._asked().stored_again()
        except IndexDamagedError:
            return self._from_packs().stored_again()

    def _is_mended(self, name: bytes, again: set[bytes]) -> bool:
        """Something in a chunk's chain was stored again, and with that the chunk can be read."""
        chain = [name]
        while len(chain) <= CHAIN_MAX:
            place = self.places(chain[-1:]).get(chain[-1])
            if place is None or not place.reference:
                break
            chain.append(place.reference)
        # A store that fails is no damage of this chunk.
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            return not again.isdisjoint(chain) and bool(self.chunk(name, kind=DATA, heal=False))
        return False

    def _chunk(
        self, name: bytes, kind: int, *, heal: bool, descent: _Descent
    ) -> bytes | memoryview:
        if self.lost is not None and name in self.lost:
            raise CorruptionError(self.lost[name])
        place = self.places([name]).get(name)
        if place is None:
            raise ChunkMissingError(f"chunk {name.hex()[:12]} is in no pack")
        tried: list[ChunkPlace] = []
        while True:
            try:
                return self._checked(name, kind, place, heal=heal, descent=descent)
            except CorruptionError:
                tried.append(place)
                again = self.another_place(name, place)
                if again is None or again in tried:
                    raise
                place = again

    def places(self, names: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        """Where chunks lie; those that are in no pack are left out.

        A pack that is gone is named only where nothing better is known.
        """
        try:
            found = self._asked().places(names)
        except IndexDamagedError:
            found = self._from_packs().places(names)
        doubtful = self._doubtful(names, found)
        if doubtful:
            # A prune beside us may have moved them, and has told the catalog first.
            with contextlib.suppress(IndexDamagedError):
                found.update(self._open_index().places(doubtful))
                doubtful = self._doubtful(doubtful, found)
            found.update(self.places_in_packs(doubtful))
        return found

    def places_in_packs(self, names: Sequence[bytes]) -> dict[bytes, ChunkPlace]:
        """As ``places``, by what the packs that are there say of themselves and not the catalog."""
        return self._places_in_packs(names, without=b"")

    def another_place(self, name: bytes, place: ChunkPlace) -> ChunkPlace | None:
        """Another place of a chunk that can't be had at ``place``; None if there is none.

        An index keeps one place for a chunk. What a crash or a healed loss stored twice is found
        by asking the packs without the one that failed.
        """
        # As in ``places``.
        with contextlib.suppress(IndexDamagedError):
            found = self._open_index().places([name]).get(name)
            if found is not None and found != place:
                return found
        for without in (b"", place.pack):
            found = self._places_in_packs([name], without=without).get(name)
            if found is not None and found != place:
                return found
        return None

    def _places_in_packs(
        self, names: Sequence[bytes], *, without: bytes
    ) -> dict[bytes, ChunkPlace]:
        if not names:
            return {}
        with self._lock:
            found = self._from_packs(without).places(names)
            doubtful = self._doubtful(names, found)
            is_gone = any(name in found for name in doubtful)
            if is_gone or (doubtful and self._listed[without] != self._pack_names()):
                del self._rebuilt[without]
                found = self._from_packs(without).places(names)
            return found

    def _doubtful(self, names: Sequence[bytes], found: Mapping[bytes, ChunkPlace]) -> list[bytes]:
        """Those that were not found, or were in a pack that is gone."""
        packs = {place.pack for place in found.values()}
        gone = {pack for pack in packs if self.pack_size(pack) is None}
        return [name for name in names if name not in found or found[name].pack in gone]

    def frame(
        self, place: ChunkPlace, *, heal: bool = True, keep: bool = False, header_id: bytes = b""
    ) -> tuple[Frame, bytes | memoryview]:
        """A whole frame, decoded; its chunks are not checked yet.

        Args:
            place: Where it lies.
            heal: Where it is damaged, have it from the parity.
            keep: Something that is a difference from it is read next.
            header_id: What its header and table must hash to, if that is known.

        Raises:
            CorruptionError: It is not there, or is damaged, or what it is a difference from.
        """
        descent = _Descent()
        frame, plain = self._frame(place, heal=heal, descent=descent, header_id=header_id)
        if keep:
            self._keep((place.pack, place.offset_bytes), plain)
        return frame, plain

    def _frame(
        self, place: ChunkPlace, *, heal: bool, descent: _Descent, header_id: bytes = b""
    ) -> tuple[Frame, bytes | memoryview]:
        where = f"pack {place.pack.hex()[:12]} at byte {place.offset_bytes}"
        descent.is_below = False
        try:
            try:
                raw = self._read(place)
                if header_id:
                    _check_header(raw, header_id)
                return self._decoded(place, raw, heal=heal, descent=descent)
            except CorruptionError:
                can_mend = heal and not descent.is_below
                mended = self._mended(place, descent=descent) if can_mend else None
                if mended is None:
                    raise
                return mended
        except ChunkMissingError:
            raise
        except CorruptionError as error:
            raise CorruptionError(f"{where}: {error.message}") from error

    def _decoded(
        self, place: ChunkPlace, raw: bytes, *, heal: bool, descent: _Descent
    ) -> tuple[Frame, bytes | memoryview]:
        """The frame that these bytes are, if they are one."""
        if len(raw) != place.frame_bytes:
            raise CorruptionError("the pack is cut short")
        data = memoryview(raw)
        frame = parse_header(data)
        if frame.total_bytes != place.frame_bytes:
            raise CorruptionError("the frame is not as long as the catalog says")
        reference: bytes | memoryview = b""
        if frame.is_delta:
            reference = self._reference(frame.reference, heal=heal, descent=descent)
        return frame, decode_frame(frame, data[frame.header_bytes :], reference)

    def expect(self, places: Iterable[ChunkPlace]) -> None:
        """These will be read soon: the disk may begin while other things are made ready.

        Loading what decodes the first frame takes longer than reading a hundred of them. Nothing
        that goes wrong here matters: whoever reads is told.
        """
        left = _EXPECTED_BYTES_MAX
        ranges = sorted({(one.pack, one.offset_bytes, one.frame_bytes) for one in places})
        for name, group in itertools.groupby(ranges, key=operator.itemgetter(0)):
            frames = list(group)
            begin = frames[0][1]
            end = frames[-1][1] + frames[-1][2]
            wanted = sum([length for _, _, length in frames])
            if wanted * _EXPECTED_SHARE < end - begin or left <= 0:
                continue
            length = min(end - begin, left)
            left -= length
            with contextlib.suppress(StoreError, CorruptionError, OSError):
                os.posix_fadvise(self._pack(name).fd, begin, length, os.POSIX_FADV_WILLNEED)

    def pack_size(self, name: bytes) -> int | None:
        """Length of a pack's file; None if there is none that can be reached."""
        path = os.path.join(self._packs_path, layout.pack_name(name))
        try:
            with store_faults("look at", path):
                return status_of(path).st_size
        except UnreachableError:
            return None
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def header(self, place: ChunkPlace) -> Frame:
        """What a frame says of itself; its payload is not read.

        Raises:
            CorruptionError: It is not there, or its header is damaged.
        """
        pack = self._pack(place.pack)
        with store_faults("read", os.path.join(self._packs_path, layout.pack_name(place.pack))):
            raw = read_at(pack.fd, min(place.frame_bytes, _HEADER_BYTES), place.offset_bytes)
            needed = header_bytes_needed(raw)
            if needed > len(raw):
                raw = read_at(pack.fd, needed, place.offset_bytes)
        frame = parse_header(raw)
        if frame.total_bytes != place.frame_bytes:
            raise CorruptionError("the frame is not as long as the catalog says")
        return frame

    def _checked(
        self, name: bytes, kind: int, place: ChunkPlace, *, heal: bool, descent: _Descent
    ) -> bytes | memoryview:
        key = (place.pack, place.offset_bytes)
        with self._lock:
            # What parity has given back is no answer to whoever asks what the pack itself holds.
            plain = self._frames.get(key) if heal or key not in self._mended_frames else None
            if plain is not None:
                self._frames.move_to_end(key)
        if plain is None:
            _, plain = self._frame(place, heal=heal, descent=descent)
            self._keep(key, plain)
        part = memoryview(plain)[place.start_bytes : place.start_bytes + place.length_bytes]
        check_chunk(kind, name, part)
        return part

    def _keep(self, key: tuple[bytes, int], plain: bytes | memoryview) -> None:
        if len(plain) > _CACHED_FRAME_MAX:
            return
        with self._lock:
            if key not in self._frames:
                self._frames[key] = plain
                self._cached_bytes += len(plain)
            while self._cached_bytes > _CACHE_BYTES:
                _, old = self._frames.popitem(last=False)
                self._cached_bytes -= len(old)

    def _read(self, place: ChunkPlace) -> bytes:
        pack = self._pack(place.pack)
        with store_faults("read", os.path.join(self._packs_path, layout.pack_name(place.pack))):
            data = read_at(pack.fd, place.frame_bytes, place.offset_bytes)
            if self._passing:
                os.posix_fadvise(
                    pack.fd, place.offset_bytes, place.frame_bytes, os.POSIX_FADV_DONTNEED
                )
            return data

    def _reference(self, name: bytes, *, heal: bool, descent: _Descent) -> bytes | memoryview:
        """What a delta is a difference from."""
        descent.depth += 1
        try:
            if descent.depth > CHAIN_MAX:
                raise CorruptionError(f"it is the end of a chain of more than {CHAIN_MAX} deltas")
            if name in descent.lost:
                raise ChunkMissingError(f"chunk {name.hex()[:12]} is lost")
            return self._chunk(name, DATA, heal=heal, descent=descent)
        except CorruptionError as error:
            descent.lost.add(name)
            descent.is_below = True
            raise CorruptionError(f"without its reference: {error.message}") from error
        finally:
            descent.depth -= 1

    def _mended(
        self, place: ChunkPlace, *, descent: _Descent
    ) -> tuple[Frame, bytes | memoryview] | None:
        """A damaged frame as it was written, if the pack's parity gives it back."""
        pack = self._pack(place.pack)
        path = os.path.join(self._packs_path, layout.pack_name(place.pack))
        # Whatever keeps the parity from being read, the damage is what is to be told.
        with contextlib.suppress(StoreError):
            with (
                store_faults("read", path),
                opened_mender(self._store_path, place.pack, pack.fd) as mender,
            ):
                raw = mender.read(place.frame_bytes, place.offset_bytes)
                found = self._decoded(place, raw, heal=True, descent=descent)
            self.healed.add(place.pack)
            self._mended_frames.add((place.pack, place.offset_bytes))
            return found
        return None

    def _pack(self, name: bytes) -> _Pack:
        with self._lock:
            pack = self._packs.get(name)
            if pack is not None:
                self._packs.move_to_end(name)
                return pack
            path = os.path.join(self._packs_path, layout.pack_name(name))
            try:
                with store_faults("open", path):
                    pack = self._packs[name] = _Pack(path)
            except Exception as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise ChunkMissingError(f"pack {name.hex()[:12]} is gone") from error
                raise
            while len(self._packs) > _OPEN_PACKS_MAX:
                self._packs.popitem(last=False)
            return pack

    def _asked(self) -> Places:
        """The catalog; once it had no answer, an index made from the packs."""
        return self._rebuilt.get(b"") or self._open_index()

    def _from_packs(self, without: bytes = b"") -> Places:
        with self._lock:
            if without not in self._rebuilt:
                # Listed before: what comes or goes meanwhile is a reason to do it once more.
                self._listed[without] = self._pack_names()
                self._rebuilt[without] = self._rebuild(without)
            return self._rebuilt[without]

    def _pack_names(self) -> set[str]:
        with store_faults("list", self._packs_path):
            try:
                return set(os.listdir(self._packs_path))
            except FileNotFoundError:
                return set()


def _check_header(raw: bytes, header_id: bytes) -> None:
    if data_id(memoryview(raw)[: header_bytes_needed(raw)]) != header_id:
        raise CorruptionError("the frame's header is not the one that its pack's footer has")

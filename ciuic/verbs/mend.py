"""Do what a plan of repair says, each step durably before the next one needs it.

mend       packs that parity gives back whole are written again, under their own name
store      chunks that were found elsewhere go to new packs
rewrite    what is sound in a pack that stays damaged goes to a new one
set aside  each damaged file keeps a name in ``quarantine/`` before anything takes its place

Nothing is ever deleted. Whatever ends the run, the store is no worse than it was, and the next
run goes on.
"""

import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable
from typing import Final

from ciuic import durable
from ciuic.clock import Clock
from ciuic.errors import CancelledError, CorruptionError, UnreachableError
from ciuic.store import Store, layout
from ciuic.store.faults import store_faults
from ciuic.store.files import open_regular, read_at, read_regular
from ciuic.store.frame import DATA
from ciuic.store.header import Header, read_header
from ciuic.store.inspect import salvage_frames
from ciuic.store.lock import Lock
from ciuic.store.mending import opened_mender
from ciuic.store.pack import PackedFrame, footer_frames, read_footer
from ciuic.store.packfile import PackFile
from ciuic.store.parity import inspect_parity, make_parity, parity_path, write_parity
from ciuic.store.sealed import unseal
from ciuic.store.trash import Trash
from ciuic.store.writer import publish_pack, sync_packs
from ciuic.verbs.repair import (
    PARITY,
    BadManifest,
    BadPack,
    OnProgress,
    RepairPlan,
    is_sound,
    is_whole,
)
from ciuic.verbs.sources import Origin, read_origin

__all__ = ["apply_repair", "mend_entrance"]

_WINDOW_BYTES: Final = 1024 * 1024
_HEADER_BYTES_MAX: Final = 1024 * 1024
_NO_COPY: Final = (
    f"There is no sound copy of it in {layout.PARITY}/. The header of any store with the same"
    " chunking serves: make one elsewhere with 'ciuic --store DIR init' and copy it."
)


def apply_repair(
    store: Store,
    plan: RepairPlan,
    *,
    parity: float,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
) -> tuple[str, ...]:
    """Do what a plan says, in a store that is open for writing.

    Can be ended at any moment: a new plan finds what is left to do.

    Returns:
        The names in ``quarantine/`` of what was set aside.

    Raises:
        StoreError: The store failed, or is full; what was mended so far stays mended.
        CancelledError: ``cancelled`` turned true.
    """
    hands = _Hands(store, parity, clock)
    whole = [one for one in plan.packs if one.whole]
    broken = [one for one in plan.packs if not one.whole]
    steps: list[Callable[[], None]] = [
        *[functools.partial(hands.mend_manifest, one) for one in plan.manifests if one.has_remedy],
        *[hands.set_retired_aside for _ in range(bool(plan.retired))],
        *[functools.partial(hands.mend_pack, one.pack) for one in whole],
        functools.partial(hands.store_chunks, broken, plan.origins),
        # All of them first: one may hold what belongs under the name of another.
        *[functools.partial(hands.set_pack_aside, one.pack) for one in broken],
        *[functools.partial(hands.rewrite_pack, one.pack) for one in broken],
        *[functools.partial(hands.take_pack_away, one.pack) for one in broken],
        functools.partial(hands.renew_catalog, plan.lost),
        *[functools.partial(hands.add_parity, pack) for pack in plan.bare],
        *[functools.partial(store.keep_copies, name) for name in plan.uncopied],
    ]
    for number, step in enumerate(steps):
        if cancelled():
            raise CancelledError("the repair was stopped")
        step()
        if progress is not None:
            progress("repair", number + 1, len(steps))
    return tuple(hands.quarantined)


class _Hands:
    """Does the steps of a repair, each of them durably."""

    def __init__(self, store: Store, parity: float, clock: Clock) -> None:
        self._store = store
        self._parity = parity
        self._clock = clock
        self._trash = Trash(store.path)
        self._packs = os.path.join(store.path, layout.PACKS)
        self._temporary = os.path.join(store.path, layout.TEMPORARY)
        self.quarantined: list[str] = []
        self._aside: dict[bytes, str] = {}
        self._made: set[bytes] = set()

    def mend_manifest(self, bad: BadManifest) -> None:
        """The copy of a manifest takes its place; without one it is only set aside.

        That it lies there keeps a prune from taking what its snapshot needs.
        """
        name = layout.manifest_name(bad.id)
        place = layout.TRASH if bad.in_trash else layout.SNAPSHOTS
        path = os.path.join(self._store.path, place, name)
        self._set_aside(path, f"{layout.TRASH}-{name}" if bad.in_trash else name)
        data = self._store.manifest_copy(bad.id)
        if data is None:
            self._take_away(path)
        elif bad.in_trash:
            forgotten = self._trash.read(bad.id, data)
            self._trash.put({bad.id: data}, forgotten.forgotten_ns)
        else:
            with store_faults("write", path):
                durable.write_whole(path, data, temporary_directory=self._temporary, mode=0o600)

    def set_retired_aside(self) -> None:
        """A damaged list of retired IDs gives way to a new one."""
        path = os.path.join(self._store.path, layout.RETIRED)
        self._set_aside(path, layout.RETIRED)
        self._take_away(path)

    def mend_pack(self, pack: bytes) -> None:
        """Write a pack that its parity gives back whole."""
        path = os.path.join(self._packs, layout.pack_name(pack))
        temporary = os.path.join(self._temporary, durable.temporary_name("mended-"))
        with store_faults("write", temporary):
            source = open_regular(path)
            try:
                target = os.open(
                    temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
                try:
                    with opened_mender(self._store.path, pack, source) as mender:
                        size = mender.size_bytes
                        for at in range(0, size, _WINDOW_BYTES):
                            _write_all(target, mender.read(_WINDOW_BYTES, at))
                    read = functools.partial(read_at, target)
                    if not is_whole(read, size, pack):
                        raise CorruptionError("a mended pack is not what it was")
                    frames = footer_frames(read, size, pack)
                    self._set_aside(path, layout.pack_name(pack))
                    durable.publish(target, temporary, path)
                finally:
                    os.close(target)
                    durable.remove_file(temporary)
            finally:
                os.close(source)
        sync_packs(self._store.path)
        self._record(pack, size, frames)
        with contextlib.suppress(UnreachableError):  # the next repair tells of it
            if self._parity and inspect_parity(self._store.path, pack):
                self.add_parity(pack)

    def store_chunks(self, broken: list[BadPack], origins: dict[bytes, Origin]) -> None:
        """What was found of damaged and lost chunks goes to new packs."""
        again = {
            name: kind
            for bad in broken
            for name, (kind, how) in bad.healed.items()
            if how == PARITY
        }
        if not again and not origins:
            return
        # Where they are said to lie they are not: they count as new.
        self._store.index.drop_chunks([*again, *origins])
        writer = self._store.writer(parity=self._parity)
        try:
            for name, kind in again.items():
                plain = self._store.reader.chunk(name, kind=kind)
                if kind == DATA:
                    writer.add_data([(name, plain)])
                else:
                    writer.put_node(kind, bytes(plain))
            for origin in origins.values():
                data = read_origin(self._store, origin)
                if data is not None:
                    writer.add_data([(origin.chunk, data)])
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    def set_pack_aside(self, pack: bytes) -> None:
        """A pack that stays damaged, and its parity, get names in ``quarantine/``."""
        name = layout.pack_name(pack)
        self._aside[pack] = self._set_aside(os.path.join(self._packs, name), name)
        self._set_aside(parity_path(self._store.path, pack), f"{name}.parity")

    def rewrite_pack(self, pack: bytes) -> None:
        """What is sound in a pack that was set aside goes to a new one."""
        if self._aside[pack] and stat.S_ISREG(os.lstat(self._aside[pack]).st_mode):
            self._write_sound_frames(pack, self._aside[pack])

    def take_pack_away(self, pack: bytes) -> None:
        """Remove a damaged pack from its place, unless a sound one has taken that meanwhile.

        That is so where only what the frames say again was damaged.
        """
        if pack in self._made:
            return
        self._store.index.remove_pack(pack)
        self._store.index.commit()
        self._take_away(os.path.join(self._packs, layout.pack_name(pack)))
        self._take_away(parity_path(self._store.path, pack))

    def renew_catalog(self, lost: Iterable[bytes]) -> None:
        """The catalog says what the packs do, and which chunks nobody has."""
        index = self._store.index
        index.clear()
        self._store.renew_catalog()
        index.drop_chunks(list(lost))
        index.commit()

    def add_parity(self, pack: bytes) -> None:
        """Give a sound pack the parity that it lacks."""
        path = os.path.join(self._packs, layout.pack_name(pack))
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                maker = make_parity(fd, self._parity)
            finally:
                os.close(fd)
        write_parity(self._store.path, pack, maker)
        sync_packs(self._store.path)

    def _write_sound_frames(self, pack: bytes, path: str) -> None:
        """Copy the sound frames of a damaged pack to a new one."""
        with store_faults("write to", self._packs):
            fd = open_regular(path)
            made: PackFile | None = None
            try:
                read = functools.partial(read_at, fd)
                for one in _frames(fd, pack):
                    with contextlib.suppress(CorruptionError):
                        if is_sound(read, one):
                            made = made or PackFile(self._temporary, parity=self._parity)
                            at = one.offset_bytes + len(one.header)
                            made.add(one.frame, read(one.frame.stored_bytes, at))
                if made is None:
                    return
                name = made.complete()
                publish_pack(self._store.path, made, name)
                sync_packs(self._store.path)
                self._record(name, made.size_bytes, made.frames)
                self._made.add(name)
            except BaseException:
                if made is not None:
                    made.discard()
                raise
            finally:
                os.close(fd)
                if made is not None:
                    made.close()

    def _record(self, pack: bytes, size_bytes: int, frames: Iterable[PackedFrame]) -> None:
        index = self._store.index
        index.add_pack(pack, size_bytes, frames)
        index.put_check(pack, self._clock.now_ns(), size_bytes, "")
        index.commit()

    def _take_away(self, path: str) -> None:
        """Remove a name of what was set aside, durably."""
        with store_faults("take away", path):
            if os.path.lexists(path):
                durable.remove_file(path)
                durable.sync_directory(os.path.dirname(path))

    def _set_aside(self, path: str, name: str) -> str:
        """Give a file a name in ``quarantine/``, before another one takes its place.

        Returns:
            Its path there; empty if there is no such file.
        """
        if not os.path.lexists(path):
            return ""
        directory = os.path.join(self._store.path, layout.QUARANTINE)
        with store_faults("write to", directory):
            if not os.path.isdir(directory):
                durable.make_directory(directory, 0o700)
            for number in itertools.count():
                candidate = f"{name}.{number}" if number else name
                target = os.path.join(directory, candidate)
                if os.path.lexists(target):
                    # A run that was ended here has done it.
                    if os.path.samestat(os.lstat(target), os.lstat(path)):
                        break
                    continue
                _keep(path, target)
                break
        self.quarantined.append(candidate)
        return target


def _keep(path: str, target: str) -> None:
    """Keep what lies at ``path`` under another name; a directory can't have two."""
    if os.path.isdir(path) and not os.path.islink(path):
        durable.move_directory(path, target)
    else:
        durable.keep_as(path, target)


def _frames(fd: int, pack: bytes) -> list[PackedFrame]:
    """What a pack says that it holds: by its footer, or by whatever else tells."""
    try:
        return read_footer(fd, pack)
    except CorruptionError:
        return salvage_frames(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def mend_entrance(store_path: str, *, apply: bool) -> tuple[str, ...]:
    """Put back what a store can't be opened without, from its copy: the header, ``snapshots/``.

    Args:
        store_path: The store's directory.
        apply: Do it; otherwise only say so.

    Returns:
        What was damaged, one sentence each; empty for a store that opens.

    Raises:
        StoreError: There is no store, or nothing to mend it with.
    """
    found = []
    try:
        read_header(store_path)
    except CorruptionError as error:
        data = _header_copy(store_path)
        if data is None:
            raise CorruptionError(error.message, hint=_NO_COPY) from error
        found.append(error.message)
        if apply:
            _put_back_header(store_path, data)
    snapshots = os.path.join(store_path, layout.SNAPSHOTS)
    if not os.path.lexists(snapshots) and os.path.isdir(os.path.join(store_path, layout.PARITY)):
        found.append(f"the store {store_path} has lost its directory '{layout.SNAPSHOTS}'")
        if apply:
            with store_faults("make", snapshots):
                durable.make_directory(snapshots, 0o700)
    return tuple(found)


def _header_copy(store_path: str) -> bytes | None:
    path = os.path.join(store_path, layout.PARITY, layout.HEADER)
    with contextlib.suppress(OSError, CorruptionError):
        data = read_regular(path, _HEADER_BYTES_MAX)
        unseal(data, Header)
        return data
    return None


def _put_back_header(store_path: str, data: bytes) -> None:
    path = os.path.join(store_path, layout.HEADER)
    lock = Lock(os.path.join(store_path, layout.WRITE_LOCK))
    lock.take_alone()
    try:
        with store_faults("write", path):
            if os.path.lexists(path):
                directory = os.path.join(store_path, layout.QUARANTINE)
                durable.make_directory(directory, 0o700)
                with contextlib.suppress(FileExistsError):
                    _keep(path, os.path.join(directory, layout.HEADER))
            temporary = os.path.join(store_path, layout.TEMPORARY)
            durable.make_directory(temporary, 0o700)
            durable.write_whole(path, data, temporary_directory=temporary, mode=0o600)
    finally:
        lock.release()

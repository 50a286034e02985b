"""Carry out a repair plan. Each step is durable before the next one needs it.

repair     write packs again that parity restores in full, under their own names
store      write chunks that were found elsewhere to new packs
rewrite    write the sound frames of packs that stay damaged to new packs
set aside  give each damaged file a name in ``quarantine/`` before its place is taken

Nothing is ever deleted. A repair can be stopped at any moment: the store is no worse than before,
and the next repair continues.
"""

import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable
from typing import Final

from ciuic.errors import (
    CancelledError,
    CorruptionError,
    UnknownFormatError,
    UnreachableError,
    UsageError,
)
from ciuic.ids import ChunkId, PackId
from ciuic.maintain.bad_marks import BadMark, repair_mark
from ciuic.maintain.quarantine import keep_aside
from ciuic.maintain.repair.known_damage import forget_repaired
from ciuic.maintain.repair.report import PARITY, BadManifest, BadPack, RepairPlan
from ciuic.maintain.repair.sources import Origin
from ciuic.maintain.repair.storing import store_again
from ciuic.maintain.watch import OnProgress
from ciuic.store.damage_records import forget_gone_packs, note_read
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at
from ciuic.store.health.salvage import listed_or_salvaged
from ciuic.store.health.soundness import sound_frames, sound_payload
from ciuic.store.packs.pack_writer import PackFile, publish_pack
from ciuic.store.packs.writer import sync_packs
from ciuic.store.parity.parity_file import inspect_parity, parity_path
from ciuic.store.parity.parity_writer import make_parity, write_parity
from ciuic.store.parity.rebuild import open_parity_reader
from ciuic.store.records import layout
from ciuic.store.store import Store
from ciuic.system import durable, nofollow
from ciuic.system.clock import Clock

__all__ = ["apply_repair"]

_WINDOW_BYTES: Final = 1024 * 1024


def apply_repair(
    store: Store,
    plan: RepairPlan,
    *,
    parity: float,
    clock: Clock,
    cancelled: Callable[[], bool] = lambda: False,
    progress: OnProgress | None = None,
) -> tuple[RepairPlan, tuple[str, ...]]:
    """Carry out a plan in a store that is open for writing.

    It can be stopped at any moment: a new plan has the remaining steps.

    Returns:
        The plan, with the marks that could not be repaired; and the names in ``quarantine/`` of the
        files that were set aside.

    Raises:
        StoreError: The store failed, or is full; what was repaired by then stays repaired.
        CancelledError: ``cancelled`` turned true.
    """
    worker = _Steps(store, parity, clock)
    steps = _steps(store, plan, worker)
    for number, step in enumerate(steps):
        if cancelled():
            raise CancelledError("the repair was stopped")
        step()
        if progress is not None:
            progress("repair", number + 1, len(steps))
    return plan.with_left(worker.left), tuple(worker.quarantined)


def _steps(store: Store, plan: RepairPlan, worker: "_Steps") -> list[Callable[[], object]]:
    """Return the steps of a plan, in order."""
    manifests = [manifest for manifest in plan.manifests if manifest.has_remedy]
    repairable = [pack.pack_id for pack in plan.packs if pack.is_repairable]
    broken = [pack for pack in plan.packs if not pack.is_repairable]
    broken_ids = [pack.pack_id for pack in broken if not pack.stays]
    steps: list[Callable[[], object]] = []
    steps += [functools.partial(worker.repair_manifest, manifest) for manifest in manifests]
    steps += [functools.partial(worker.repair_mark, mark) for mark in plan.marks.damaged]
    steps += [functools.partial(worker.set_retired_aside, name) for name in plan.retired]
    steps += [functools.partial(worker.repair_pack, pack_id) for pack_id in repairable]
    steps.append(functools.partial(worker.store_chunks, broken, plan.origins))
    # Set all packs aside first: a pack may contain the frames that belong under another name.
    steps += [functools.partial(worker.set_pack_aside, pack_id) for pack_id in broken_ids]
    steps += [functools.partial(worker.rewrite_pack, pack_id) for pack_id in broken_ids]
    steps += [functools.partial(worker.take_pack_away, pack_id) for pack_id in broken_ids]
    steps.append(functools.partial(worker.renew_index, plan.lost))
    steps.append(functools.partial(forget_repaired, store, plan, worker.left))
    steps += [functools.partial(worker.add_parity, pack_id) for pack_id in plan.bare]
    copies = store.manifests.copies
    steps += [functools.partial(copies.keep, missing, store.header) for missing in plan.uncopied]
    steps += [functools.partial(store.marks.copy, *key) for key in plan.marks.uncopied]
    return steps


class _Steps:
    """The steps of a repair. Each is durable when it returns.

    Attributes:
        quarantined: Names in ``quarantine/`` of the files that were set aside.
        left: Marks that could not be repaired, by path in the store, and why.
    """

    def __init__(self, store: Store, parity: float, clock: Clock) -> None:
        self._store = store
        self._parity = parity
        self._clock = clock
        self._packs = os.path.join(store.path, layout.PACKS)
        self._temporary = os.path.join(store.path, layout.TEMPORARY)
        self.quarantined: list[str] = []
        self.left: dict[str, str] = {}
        self._aside: dict[PackId, str] = {}

    def repair_manifest(self, bad: BadManifest) -> None:
        """Replace a manifest by its copy, or only set it aside if there is no copy.

        Its place in the store keeps a prune from removing what the snapshot needs.
        """
        name = layout.manifest_name(bad.id)
        path = os.path.join(self._store.path, layout.SNAPSHOTS, name)
        self._set_aside(path, name)
        data = self._store.manifests.copies.read(bad.id)
        if data is None:
            self._take_away(path)
        else:
            with store_faults("write", path):
                durable.write_whole(path, data, temporary_directory=self._temporary, mode=0o600)

    def repair_mark(self, bad: BadMark) -> None:
        """Set a damaged mark aside, and give the snapshot its state back, or a pin.

        One that cannot be repaired stays: it pins its snapshot.
        """
        name = layout.mark_name(bad.id, bad.number)
        path = os.path.join(self._store.path, layout.MARKS, name)
        if bad.stays:
            self.left[f"{layout.MARKS}/{name}"] = bad.stays
            return
        try:
            if not bad.has_copy:
                repair_mark(self._store, bad)  # the pin is there before the damaged mark goes
            self._set_aside(path, name)
            self._take_away(path)
            if bad.has_copy:
                repair_mark(self._store, bad)
        except (CorruptionError, UnknownFormatError, UsageError) as error:
            self.left[f"{layout.MARKS}/{name}"] = error.message

    def set_retired_aside(self, name: str) -> None:
        """Replace a damaged record of retired IDs by one with those that can be read in it."""
        trash = self._store.trash
        trash.retired.renew(name, self._store.manifests.ids())
        path = os.path.join(self._store.path, layout.RETIRED, name)
        self._set_aside(path, f"{layout.RETIRED}-{name}")
        self._take_away(path)

    def repair_pack(self, pack_id: PackId) -> None:
        """Write a pack again that its parity restores in full."""
        path = os.path.join(self._packs, layout.pack_name(pack_id))
        temporary = os.path.join(self._temporary, durable.temporary_name("repaired-"))
        with store_faults("write", temporary):
            source = open_regular(path)
            try:
                target = nofollow.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                try:
                    with open_parity_reader(self._store.path, pack_id, source) as repaired:
                        size = repaired.size_bytes
                        for at in range(0, size, _WINDOW_BYTES):
                            _write_all(target, repaired.read(_WINDOW_BYTES, at))
                    read = functools.partial(read_at, target)
                    frames = sound_frames(read, size, pack_id)
                    if frames is None:
                        raise CorruptionError("the repaired pack does not match its ID")
                    self._set_aside(path, layout.pack_name(pack_id))
                    durable.publish(target, temporary, path)
                finally:
                    os.close(target)
                    durable.remove_file(temporary)
            finally:
                os.close(source)
        sync_packs(self._store.path)
        checked_ns = self._clock.now_ns()
        self._store.index.add_checked_pack(pack_id, size, frames, checked_ns)
        note_read(self._store, pack_id, (), self._store.packs.damage())
        with contextlib.suppress(UnreachableError):  # the next repair reports it
            if self._parity and inspect_parity(self._store.path, pack_id):
                self.add_parity(pack_id)

    def store_chunks(self, broken: list[BadPack], origins: dict[ChunkId, Origin]) -> None:
        """Write chunks that parity restores, or that were found elsewhere, to new packs."""
        again = {
            chunk_id: saved.kind
            for bad in broken
            for chunk_id, saved in bad.saved.items()
            if saved.source == PARITY
        }
        store_again(self._store, again, origins.values(), parity=self._parity)

    def set_pack_aside(self, pack_id: PackId) -> None:
        """Set a pack that stays damaged and its parity aside."""
        name = layout.pack_name(pack_id)
        self._aside[pack_id] = self._set_aside(os.path.join(self._packs, name), name)
        self._set_aside(parity_path(self._store.path, pack_id), f"{name}.parity")

    def rewrite_pack(self, pack_id: PackId) -> None:
        """Write the sound frames of a pack that was set aside to a new pack."""
        if self._aside[pack_id] and stat.S_ISREG(nofollow.status(self._aside[pack_id]).st_mode):
            self._write_sound_frames(pack_id, self._aside[pack_id])

    def take_pack_away(self, pack_id: PackId) -> None:
        """Remove a damaged pack from its place, after its sound frames are in a new pack."""
        self._store.index.remove_pack(pack_id)
        self._store.index.commit()
        self._take_away(os.path.join(self._packs, layout.pack_name(pack_id)))
        self._take_away(parity_path(self._store.path, pack_id))

    def renew_index(self, lost: Iterable[ChunkId]) -> None:
        """Build the chunk index from the packs again, without the chunks that are lost."""
        index = self._store.index
        index.clear()
        self._store.index_keeper.renew()
        index.drop_chunks(list(lost))
        index.commit()
        forget_gone_packs(self._store)

    def add_parity(self, pack_id: PackId) -> None:
        """Write the missing parity of a sound pack."""
        path = os.path.join(self._packs, layout.pack_name(pack_id))
        with store_faults("read", path):
            fd = open_regular(path)
            try:
                maker = make_parity(fd, self._parity)
            finally:
                os.close(fd)
        write_parity(self._store.path, pack_id, maker)
        sync_packs(self._store.path)

    def _write_sound_frames(self, pack_id: PackId, path: str) -> None:
        """Copy the sound frames of a damaged pack to a new pack."""
        with store_faults("write to", self._packs):
            fd = open_regular(path)
            made: PackFile | None = None
            try:
                read = functools.partial(read_at, fd)
                for packed in listed_or_salvaged(fd, pack_id):
                    with contextlib.suppress(CorruptionError):
                        # A damaged header in front of it is replaced by the list's copy.
                        payload = sound_payload(read, packed)
                        if payload is not None:
                            made = made or self._new_pack()
                            made.add(packed.frame, payload)
                if made is None:
                    return
                new_id = made.complete()
                publish_pack(self._store.path, made, new_id)
                sync_packs(self._store.path)
                checked_ns = self._clock.now_ns()
                self._store.index.add_checked_pack(new_id, made.size_bytes, made.frames, checked_ns)
            except BaseException:
                if made is not None:
                    made.discard()
                raise
            finally:
                os.close(fd)
                if made is not None:
                    made.close()

    def _new_pack(self) -> PackFile:
        return PackFile(self._temporary, self._store.session_id, parity=self._parity)

    def _take_away(self, path: str) -> None:
        """Remove the old name of a file that was set aside, durably."""
        with store_faults("take away", path):
            if nofollow.exists(path):
                durable.remove_file(path)
                durable.sync_directory(os.path.dirname(path))

    def _set_aside(self, path: str, name: str) -> str:
        """Give a file a name in ``quarantine/``, before its place is taken.

        Returns:
            Its path there; empty if the file does not exist.
        """
        if not nofollow.exists(path):
            return ""
        directory = os.path.join(self._store.path, layout.QUARANTINE)
        with store_faults("write to", directory):
            if not nofollow.is_directory(directory):
                durable.make_directory(directory, 0o700)
            for number in itertools.count():
                candidate = f"{name}.{number}" if number else name
                target = os.path.join(directory, candidate)
                if nofollow.exists(target):
                    # A repair that was stopped here has given it this name.
                    if os.path.samestat(nofollow.status(target), nofollow.status(path)):
                        break
                    continue
                keep_aside(path, target)
                break
        self.quarantined.append(candidate)
        return target


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

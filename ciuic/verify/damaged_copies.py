"""Names frames that cannot be used although every chunk in them can be read from elsewhere.

A restore works: it reads the other copy of the header or of the chunk. The damage is named,
because further damage may hit that copy. Reads only after something failed, or if two packs
hold the same chunk.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Set

from ciuic.errors import CorruptionError, StoreError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.model import PathWarning
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at
from ciuic.store.health.salvage import frame_fault
from ciuic.store.health.window import Window
from ciuic.store.index.places import ChunkPlace
from ciuic.store.place.packs import listed_frames
from ciuic.store.records import layout
from ciuic.store.records.kinds import DATA
from ciuic.store.store import Store
from ciuic.system.hashing import checksum
from ciuic.verify.frame_worker import task_fault
from ciuic.verify.tasks import Needed, Task

__all__ = ["damaged_copies", "tasks_of_copies"]


def damaged_copies(
    store: Store, bad: Set[ChunkId], suspects: Iterable[Task] = ()
) -> tuple[PathWarning, ...]:
    """Return the frames that cannot be used, and whose chunks can be read from elsewhere.

    Args:
        store: The store; what its reader noticed is included.
        bad: Chunks that cannot be read at all: they are named with the paths that need them.
        suspects: Frames that were not sound when they were read.
    """
    found = dict(store.reader.damaged)
    for task in suspects:
        key = (task.place.pack_id, task.place.offset_bytes)
        if key not in found and not _holds_bad(store, task, bad):
            why = task_fault(store.reader, task)
            if why:
                found[key] = why
    # A prune may have removed a pack since it was read: what is needed of it is in others.
    there = store.pack_files().keys() | store.unreachable_packs().keys() if found else set()
    return tuple(
        [_warning(store, key, why) for key, why in sorted(found.items()) if key[0] in there]
    )


def tasks_of_copies(store: Store, chunk_ids: Set[ChunkId]) -> Iterator[Task]:
    """Yield a task for each copy of chunks of file content, in whatever pack it is."""
    for pack_id in sorted(store.pack_files()) if chunk_ids else ():
        for packed in listed_frames(store.packs, pack_id):
            frame, start = packed.frame, 0
            needed = []
            for chunk_id, length in frame.chunks:
                if chunk_id in chunk_ids and frame.kind == DATA:
                    needed.append(Needed(chunk_id, DATA, start, length))
                start += length
            if needed:
                place = ChunkPlace(pack_id, packed.offset_bytes, frame.total_bytes, 0, 0, DATA)
                yield Task(place, needed, keep=False)


def _holds_bad(store: Store, task: Task, bad: Collection[ChunkId]) -> bool:
    if task.needed:
        return any(chunk.chunk_id in bad for chunk in task.needed)
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        return any(chunk_id in bad for chunk_id, _ in store.reader.header(task.place).chunks)
    return True


def _warning(store: Store, key: tuple[PackId, int], why: str) -> PathWarning:
    pack_id, offset = key
    path = os.fsencode(f"{layout.PACKS}/{layout.pack_name(pack_id)}")
    is_written, is_payload_sound = _state(store, pack_id, offset)
    if is_payload_sound and not is_written:
        what = f"the header at byte {offset} cannot be used ({why}); restore reads its second copy"
        return PathWarning(path, f"{what} in the footer, and 'ciuic repair --apply' repairs it")
    what = f"a copy at byte {offset} cannot be used ({why}); restore reads another copy"
    if not is_written:
        what = f"{what}, and 'ciuic repair --apply' repairs this one"
    return PathWarning(path, what)


def _state(store: Store, pack_id: PackId, offset: int) -> tuple[bool, bool]:
    """Return whether a frame matches its checksums, and whether its payload does.

    A repair finds nothing to do in a frame that matches them.
    """
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(pack_id))
    packed = {packed.offset_bytes: packed for packed in listed_frames(store.packs, pack_id)}.get(
        offset
    )
    if packed is None:
        return False, False
    with contextlib.suppress(StoreError, FileNotFoundError), store_faults("read", path):
        fd = open_regular(path)
        try:
            with Window(fd) as window:
                is_written = not frame_fault(window, packed)
            payload = read_at(fd, packed.frame.stored_bytes, offset + len(packed.header))
            return is_written, checksum(payload) == packed.frame.payload_checksum
        finally:
            os.close(fd)
    return False, False

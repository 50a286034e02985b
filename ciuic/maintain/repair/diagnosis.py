"""Diagnosis of a damaged pack: whether parity restores it, and where its chunks can be read."""

import contextlib
import functools
import os

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.ids import ChunkId, PackId
from ciuic.maintain.repair.report import OTHER_PACK, PARITY, SAME_PACK, BadPack, SavedChunk
from ciuic.store.directory.faults import store_faults
from ciuic.store.directory.files import open_regular, read_at
from ciuic.store.health.inspect import PackCheck, pack_frames
from ciuic.store.health.salvage import repaired_frames
from ciuic.store.health.soundness import sound_frames, sound_payload
from ciuic.store.parity.rebuild import open_parity_reader
from ciuic.store.records import layout
from ciuic.store.store import Store

__all__ = ["diagnose", "source_of"]


def diagnose(store: Store, check: PackCheck) -> BadPack:
    """Find out whether parity restores a damaged pack; if not, where its chunks can be read."""
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(check.pack_id))
    is_repairable = False
    with contextlib.suppress(CorruptionError), store_faults("read", path):
        fd = open_regular(path)
        try:
            with open_parity_reader(store.path, check.pack_id, fd) as repaired:
                frames = sound_frames(repaired.read, repaired.size_bytes, check.pack_id)
                is_repairable = frames is not None
        finally:
            os.close(fd)
    saved: dict[ChunkId, SavedChunk] = {}
    lost: dict[ChunkId, int] = {}
    damaged = {} if is_repairable else _damaged_chunks(store, check)
    same_pack = _chunks_of_sound_payloads(store, check) if damaged else set()
    for chunk_id, kind in damaged.items():
        source = SAME_PACK if chunk_id in same_pack else source_of(store, chunk_id, kind)
        if source:
            saved[chunk_id] = SavedChunk(kind, source)
        else:
            lost[chunk_id] = kind
    return BadPack(check.pack_id, check.what, is_repairable, saved, lost)


def _damaged_chunks(store: Store, check: PackCheck) -> dict[ChunkId, int]:
    """Return the chunks in damaged frames, with kinds, by the pack, its parity and the index."""
    named = {chunk_id: bad.kind for bad in check.bad for chunk_id in bad.chunks}
    if not check.footer_ok:
        named |= _chunks_by_parity(store, check.pack_id)
    named |= store.index_keeper.recorded_in(check.pack_id)
    damaged = {bad.offset_bytes for bad in check.bad}
    with contextlib.suppress(CorruptionError, UnknownFormatError):
        for packed in pack_frames(store.path, check.pack_id):
            if packed.offset_bytes not in damaged:
                for chunk_id, _ in packed.frame.chunks:
                    named.pop(chunk_id, None)
    return named


def _chunks_of_sound_payloads(store: Store, check: PackCheck) -> set[ChunkId]:
    """Return the chunks of frames that are damaged only in the header in front of the payload."""
    damaged = {bad.offset_bytes for bad in check.bad}
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(check.pack_id))
    found: set[ChunkId] = set()
    with contextlib.suppress(CorruptionError, UnknownFormatError), store_faults("read", path):
        fd = open_regular(path)
        try:
            for packed in pack_frames(store.path, check.pack_id):
                with contextlib.suppress(CorruptionError):
                    read = functools.partial(read_at, fd)
                    is_damaged = packed.offset_bytes in damaged
                    if is_damaged and sound_payload(read, packed) is not None:
                        found.update([chunk_id for chunk_id, _ in packed.frame.chunks])
        finally:
            os.close(fd)
    return found


def _chunks_by_parity(store: Store, pack_id: PackId) -> dict[ChunkId, int]:
    """Return the chunks in the footer that parity restores: the chunk index may lack this pack."""
    path = os.path.join(store.path, layout.PACKS, layout.pack_name(pack_id))
    with contextlib.suppress(CorruptionError, UnknownFormatError), store_faults("read", path):
        fd = open_regular(path)
        try:
            frames = repaired_frames(store.path, pack_id, fd)
        finally:
            os.close(fd)
        return {
            chunk_id: packed.frame.kind for packed in frames for chunk_id, _ in packed.frame.chunks
        }
    return {}


def source_of(store: Store, chunk_id: ChunkId, kind: int) -> str:
    """Return where in the store a damaged chunk can be read; empty if nowhere."""
    for repair, how in ((False, OTHER_PACK), (True, PARITY)):
        with contextlib.suppress(CorruptionError, UnknownFormatError):
            store.reader.chunk(chunk_id, kind=kind, repair=repair)
            return how
    return ""

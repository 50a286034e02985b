"""Damage to a store, of the kinds that disks, cables and people do."""

import os
from pathlib import Path

from ciuic.hashing import data_id
from ciuic.store import open_store
from ciuic.store.index import ChunkPlace
from ciuic.store.layout import pack_name

__all__ = ["flip_byte", "flip_content", "pack_of", "packs", "place_of"]


def packs(store: Path) -> list[Path]:
    """The packs, the largest first."""
    return sorted((store / "packs").iterdir(), key=lambda one: one.stat().st_size, reverse=True)


def flip_byte(path: Path, offset: int) -> None:
    """Turn all bits of one byte round; a negative offset counts from the end."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


def place_of(store: Path, content: bytes) -> ChunkPlace:
    """Where the chunk with this plain content lies."""
    name = data_id(content)
    with open_store(str(store)) as opened:
        return opened.reader.places([name])[name]


def pack_of(store: Path, content: bytes) -> Path:
    """The pack that holds the chunk with this plain content."""
    return store / "packs" / pack_name(place_of(store, content).pack)


def flip_content(store: Path, content: bytes) -> None:
    """Flip one bit field in the stored bytes of the frame that holds this content."""
    place = place_of(store, content)
    flip_byte(pack_of(store, content), place.offset_bytes + place.frame_bytes - 1)

"""Damage to a store, as by disks, cables and people."""

import os
import struct
from pathlib import Path

from ciuic.ids import ChunkId
from ciuic.store.index.places import ChunkPlace
from ciuic.store.records.layout import pack_name
from ciuic.store.store import open_store
from ciuic.system.hashing import data_id

__all__ = ["erase_headers", "flip_byte", "flip_content", "pack_of", "packs", "place_of"]


def packs(store: Path) -> list[Path]:
    """Return the packs, the largest first."""
    return sorted((store / "packs").iterdir(), key=lambda path: path.stat().st_size, reverse=True)


def flip_byte(path: Path, offset: int) -> None:
    """Invert all bits of a byte; a negative offset counts from the end."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


def place_of(store: Path, content: bytes) -> ChunkPlace:
    """Return the place of the chunk with this plain content."""
    name = data_id(content)
    with open_store(str(store)) as opened:
        return opened.reader.places([name])[name]


def pack_of(store: Path, content: bytes) -> Path:
    """Return the pack of the chunk with this plain content."""
    return store / "packs" / pack_name(place_of(store, content).pack_id)


def flip_content(store: Path, content: bytes) -> None:
    """Invert the last byte of the frame of this content."""
    place = place_of(store, content)
    flip_byte(pack_of(store, content), place.offset_bytes + place.frame_bytes - 1)


def flip_node(store: Path, node_id: ChunkId) -> int:
    """Invert the last byte of the frame of a tree or recipe node; return how many nodes it has."""
    with open_store(str(store)) as opened:
        place = opened.reader.places([node_id])[node_id]
    pack = store / "packs" / pack_name(place.pack_id)
    flip_byte(pack, place.offset_bytes + place.frame_bytes - 1)
    (count,) = struct.unpack_from("<I", pack.read_bytes(), place.offset_bytes + 8)
    return int(count)


def erase_headers(store: Path, content: bytes) -> None:
    """Erase the header before a chunk's frame, and the pack's footer."""
    pack, place = pack_of(store, content), place_of(store, content)
    data = bytearray(pack.read_bytes())
    (footer_offset,) = struct.unpack_from("<Q", data, len(data) - 32)
    data[footer_offset:] = bytes(len(data) - footer_offset)
    end = place.offset_bytes + place.frame_bytes - len(content)
    data[place.offset_bytes : end] = bytes(end - place.offset_bytes)
    pack.write_bytes(data)

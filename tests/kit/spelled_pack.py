"""Packs as another program writes them: with frames that ciuic does not know, or never writes."""

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from ciuic.ids import ChunkId, PackId
from ciuic.store.directory.pack_file import read_footer
from ciuic.store.format.pack import PackedFrame
from ciuic.store.records.kinds import chunk_id_of
from ciuic.system.hashing import checksum, pack_id_of

__all__ = ["Spelled", "footer_of"]

NONE: Mapping[str, int] = {}


def footer_of(pack: Path) -> list[PackedFrame]:
    """Return the frames that a pack's footer lists."""
    with pack.open("rb") as opened:
        return read_footer(opened.fileno(), PackId(bytes.fromhex(pack.name)))


class Spelled:
    """Frames as another program writes them; ``write`` makes a pack of them."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []

    def add(
        self,
        kind: int,
        plain: bytes,
        payload: bytes | None = None,
        codec: int = 0,
        odd: Mapping[str, int] = NONE,
    ) -> ChunkId:
        """Append a frame that lists the chunk ``plain``, whatever its payload is."""
        payload = plain if payload is None else payload
        chunk_id = chunk_id_of(kind, plain)
        head = struct.pack(
            "<4sBBHIIII32sQ",
            b"CiF1",
            odd.get("kind", kind),
            codec,
            odd.get("flags", 0),
            1,
            odd.get("plain", odd.get("length", len(plain))),
            odd.get("stored", len(payload)),
            odd.get("reserved", 0),
            bytes(32),
            checksum(payload),
        )
        table = chunk_id + struct.pack("<I", odd.get("length", len(plain)))
        header = head + struct.pack("<Q", checksum(head + table)) + table
        self.frames.append((header, payload))
        return chunk_id

    def add_pack(self, pack: Path) -> None:
        """Append the frames of a pack as they are."""
        data = pack.read_bytes()
        for packed in footer_of(pack):
            start = packed.offset_bytes + len(packed.header)
            self.frames.append((packed.header, data[start : start + packed.frame.stored_bytes]))

    def write(self, store: Path, listed_at: Sequence[int] = ()) -> Path:
        """Write the pack; return its path.

        Args:
            store: The store's directory.
            listed_at: The offsets that the footer states; empty: the right ones.
        """
        data, footer = b"CIUICPK1", b""
        for number, (header, payload) in enumerate(self.frames):
            at = listed_at[number] if listed_at else len(data)
            footer += at.to_bytes(8, "little") + header
            data += header + payload
        footer += os.urandom(16)
        end = len(data), len(footer), len(self.frames), checksum(footer), b"CIUICEND"
        path = store / "packs" / pack_id_of(footer).hex()
        path.write_bytes(data + footer + struct.pack("<QIIQ8s", *end))
        return path

"""A reader of ciuic stores that knows nothing of ciuic: docs/format.md, version 1, and no more.

    python reader.py STORE SNAPSHOT TARGET

restores every root of a snapshot below TARGET: the root /data/run to TARGET/data/run. This program
proves that the page is complete. To get data out of a store without ciuic, copy it. Section numbers
are those of docs/format.md. It is written to be understood, not to be fast, and it needs the three
packages below.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash
import zstandard
from blake3 import blake3

DATA, RECIPE, TREE = 1, 2, 3
CONTEXTS = {
    RECIPE: "ciuic store format 1 recipe node",
    TREE: "ciuic store format 1 tree node",
}
PACK_CONTEXT = "ciuic store format 1 pack footer"
WHOLE, BEING_WRITTEN, UNREADABLE, SKIPPED = 0, 1, 2, 3
FRAME = struct.Struct("<4sBBHIIII32sQQ")
TRAILER = struct.Struct("<QIIQ8s")
SEGMENT = struct.Struct("<8sII")
SEGMENT_ROW = struct.Struct("<32sQII")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
LEVEL_MAX = 8
NAME_MAX = 1023
TARGET_MAX = 4095
DEPTH_MAX = 1024
CHAIN_MAX = 64
PLAIN_MAX = 67_108_864
MANIFEST_MAX = 64 * 1024 * 1024
MARK_MAX = 1024 * 1024


class FormatError(Exception):
    """The bytes are damaged, or need a newer reader."""


# Section 3: hashes, checksums, msgpack, paths


def identify(kind: int, plain: bytes) -> bytes:
    """Return the ID of a chunk."""
    if kind == DATA:
        return blake3(plain).digest()
    return blake3(plain, derive_key_context=CONTEXTS[kind]).digest()


def pack_identity(footer: bytes) -> bytes:
    """Return the ID of a pack."""
    return footer[-16:-8] + blake3(footer, derive_key_context=PACK_CONTEXT).digest()[:24]


def xxh3(data: bytes) -> int:
    """Return a checksum, which detects bit rot."""
    return xxhash.xxh3_64_intdigest(data)


def unpack_msgpack(data: bytes) -> Any:
    """Return the value in ``data``, which may have arrays, integers and binaries."""
    value, end = _msgpack_value(data, 0, 0)
    if end != len(data):
        raise FormatError("bytes behind the end of a node")
    return value


_INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_INTEGERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_BINARIES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}


def _msgpack_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data) or depth > 8:
        raise FormatError("a node is cut short, or nested too deep")
    tag, at = data[at], at + 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in _INTEGERS:
        return _msgpack_number(data, at, _INTEGERS[tag])
    if tag in _BINARIES:
        length, at = _msgpack_number(data, at, _BINARIES[tag])
        if at + length > len(data):
            raise FormatError("a node is cut short")
        return data[at : at + length], at + length
    if 0x90 <= tag < 0xA0:
        count = tag - 0x90
    elif tag in _ARRAYS:
        count, at = _msgpack_number(data, at, _ARRAYS[tag])
    else:
        raise FormatError(f"a node holds the msgpack type {tag:#x}, which nodes do not have")
    items = []
    for _ in range(count):
        item, at = _msgpack_value(data, at, depth + 1)
        items.append(item)
    return items, at


def _msgpack_number(data: bytes, at: int, form: str) -> tuple[int, int]:
    try:
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    except struct.error as error:
        raise FormatError("a node is cut short") from error


def unescape_path(text: str) -> bytes:
    """Return the bytes of a path in JSON."""
    if re.search(r"\\(?!x[0-9a-f]{2})", text):
        raise FormatError(f"{text!r} is not an escaped path")
    parts = re.split(r"\\x([0-9a-f]{2})", text)
    plain, escaped = parts[::2], [bytes.fromhex(digits) for digits in parts[1::2]] + [b""]
    try:
        return b"".join([part.encode() + byte for part, byte in zip(plain, escaped, strict=True)])
    except UnicodeEncodeError as error:
        raise FormatError(f"{text!r} holds half of a surrogate pair") from error


# Sections 5, 6, 13: sealed documents


def unseal(data: bytes) -> dict[str, Any]:
    """Return a JSON document, whose checksum is in itself."""
    head, digits, tail = data[:-68], data[-68:-4], data[-4:]
    if tail != b'"\n}\n' or not head.endswith(b'"checksum": "blake3:'):
        raise FormatError("not a sealed document, or cut short")
    if blake3(head + b"0" * 64 + tail).hexdigest().encode() != digits:
        raise FormatError("a document does not match its checksum")
    document = json.loads(data, object_pairs_hook=_object)
    if not isinstance(document, dict):
        raise FormatError("a document is not an object")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("a document repeats a key")
    return found


def read_header(data: bytes) -> dict[str, Any]:
    """Return the store's header, unless it needs a feature that this reader does not have."""
    try:
        document = json.loads(data)
        version, required = document["format"], document["required"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("the header cannot be read") from error
    if version != 1:
        raise FormatError(f"the store has format {version}, this reader knows 1")
    if required:
        raise FormatError(f"the store needs the feature {required[0]!r}")
    return unseal(data)


# Sections 7, 8: frames, packs


@dataclass(frozen=True)
class Frame:
    """A frame's header and table."""

    kind: int
    codec: int
    usable: bool
    plain_length: int
    stored_length: int
    payload_checksum: int
    chunks: list[tuple[bytes, int]]
    header_length: int
    delta_bases: list[bytes]


def parse_frame(data: bytes) -> Frame:
    """Return the header and table at the start of ``data``."""
    if len(data) < FRAME.size or data[:4] != b"CiF1":
        raise FormatError("no frame starts here")
    _, kind, codec, flags, count, plain, stored, further, delta_base, payload_sum, own_sum = (
        FRAME.unpack_from(data)
    )
    end = FRAME.size + 36 * count
    if not 1 <= count <= 65_536 or end > len(data):
        raise FormatError("a frame's table is cut short or too long")
    table = data[FRAME.size : end]
    if xxh3(data[:64] + table) != own_sum:
        raise FormatError("a frame's header does not match its checksum")
    chunks = list(struct.iter_unpack("<32sI", table))
    # A second delta base has the last slot of the table, with a length of 0.
    delta_bases, usable = [delta_base] if any(delta_base) else [], True
    if further == 1:
        second, length = chunks.pop()
        usable = bool(delta_bases and chunks) and not length
        delta_bases.append(second)
    lengths = [length for _, length in chunks]
    usable &= 0 not in lengths and sum(lengths) == plain <= PLAIN_MAX and stored <= plain
    usable &= kind in {DATA, RECIPE, TREE} and not flags and further < 2
    usable &= codec > 4 or len(delta_bases) == (codec in {3, 4})
    usable &= not delta_bases or (kind == DATA and len(chunks) == 1)
    return Frame(kind, codec, usable, plain, stored, payload_sum, chunks, end, delta_bases)


def frames_of_pack(data: bytes, name: str) -> list[tuple[int, Frame]]:
    """Yield the offset and header of each frame, from the footer or, if it is lost, by a walk."""
    try:
        return _frames_of_footer(data, name)
    except FormatError:
        return list(_walked(data))


def _frames_of_footer(data: bytes, name: str) -> list[tuple[int, Frame]]:
    if len(data) < 8 + TRAILER.size:
        raise FormatError("a pack is cut short")
    offset = TRAILER.unpack(data[-TRAILER.size :])[0]
    return frames_of_end(data[offset:], len(data), name)


def frames_of_end(end: bytes, size: int, name: str) -> list[tuple[int, Frame]]:
    """Return the offset and header of each frame, from a pack's footer, trailer and size."""
    if len(end) < TRAILER.size:
        raise FormatError("a pack has no footer")
    offset, length, count, own_sum, magic = TRAILER.unpack(end[-TRAILER.size :])
    footer = end[:length]
    is_all = length + TRAILER.size == len(end) and offset + len(end) == size
    if magic != b"CIUICEND" or not is_all:
        raise FormatError("a pack has no footer")
    if xxh3(footer) != own_sum or pack_identity(footer).hex() != name:
        raise FormatError("a pack's footer is damaged, or another pack's")
    frames: list[tuple[int, Frame]] = []
    at = 0
    while at < len(footer) - 16:
        frame_offset = int.from_bytes(footer[at : at + 8], "little")
        frame = parse_frame(footer[at + 8 :])
        frame_end = frame_offset + frame.header_length + frame.stored_length
        if frame.usable and not 8 <= frame_offset <= frame_end <= offset:
            raise FormatError("a footer lists a frame that lies outside of its pack")
        frames.append((frame_offset, frame))
        at += 8 + frame.header_length
    if len(frames) != count:
        raise FormatError("a footer lists another number of frames than it says")
    end = 0
    for frame_offset, frame in sorted(frames, key=lambda found: found[0]):
        if frame.usable and frame_offset < end:
            raise FormatError("a footer lists frames that overlap")
        if frame.usable:
            end = frame_offset + frame.header_length + frame.stored_length
    return frames


def _walked(data: bytes) -> Iterator[tuple[int, Frame]]:
    at = 8
    while (at := data.find(b"CiF1", at)) >= 0:
        try:
            frame = parse_frame(data[at : at + FRAME.size + 36 * 65_536])
        except FormatError:
            at += 1
            continue
        if at + frame.header_length + frame.stored_length > len(data):
            return
        yield at, frame
        at += frame.header_length + frame.stored_length


# Section 22: index segments


def ends_of_segment(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the size, footer and trailer of each pack that an index segment lists."""
    magic, count, flags = SEGMENT.unpack(data[: SEGMENT.size])
    if magic != b"CIUICSG1" or flags:
        raise FormatError("not an index segment, or one of a later version")
    found = {}
    for row in range(count):
        name, size, begin, length = SEGMENT_ROW.unpack_from(
            data, SEGMENT.size + row * SEGMENT_ROW.size
        )
        found[name.hex()] = (size, data[begin : begin + length])
    return found


# Section 9: codecs


def decode_payload(codec: int, stored: bytes, plain_length: int, delta_base: bytes = b"") -> bytes:
    """Return the plain bytes of a payload."""
    if codec == 0:
        plain = stored
    elif codec == 1:
        plain = _unzstd(stored, plain_length)
    elif codec == 2:
        plain = _join_planes(stored, plain_length)
    elif codec == 3:
        plain = _add_delta(stored, plain_length, delta_base)
    elif codec == 4:
        plain = _add_sparse_delta(stored, plain_length, delta_base)
    else:
        raise FormatError(f"codec {codec} is not known to this reader")
    if len(plain) != plain_length:
        raise FormatError("a payload does not have the length that its frame says")
    return plain


def _unzstd(stored: bytes, plain_length: int) -> bytes:
    try:
        if zstandard.frame_content_size(stored) != plain_length:
            raise FormatError("a zstd frame does not have the length that it should have")
        if plain_length:
            return zstandard.ZstdDecompressor().decompress(
                stored, max_output_size=plain_length, allow_extra_data=False
            )
        # The function above does not look into a frame of 0 bytes.
        if not _is_empty_frame(stored):
            raise FormatError("a zstd payload of 0 bytes is not exactly one frame")
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame cannot be decoded: {error}") from error
    return b""


def _is_empty_frame(stored: bytes) -> bool:
    frame = zstandard.ZstdDecompressor().decompressobj()
    at = 0
    while at < len(stored) and not frame.eof:
        # Decode in small pieces, because a few bytes may decode to millions.
        if frame.decompress(stored[at : at + 64]):
            return False
        at += 64
    return frame.eof and at >= len(stored) and not frame.unused_data and stored[:4] == ZSTD_MAGIC


def _join_planes(stored: bytes, plain_length: int) -> bytes:
    if len(stored) < 2 or stored[0] not in {2, 4, 8} or stored[1] >= stored[0]:
        raise FormatError("byte planes without a valid header")
    width, skip = stored[0], stored[1]
    count = max(plain_length - skip, 0) // (2 * width) * 2
    columns: list[tuple[int, int, int]] = []
    at = 2
    while sum([size for size, _, _ in columns]) < width:
        columns.append(struct.unpack("<BBI", _taken(stored, at, 6)))
        if columns[-1][0] not in {1, 2, 4}:
            raise FormatError("byte planes without a valid header")
        at += 6
    sizes = [size for size, _, _ in columns]
    if sum(sizes) != width or sizes[-2:] != [1, 1]:
        raise FormatError("byte planes whose columns make no element")
    elements = bytearray(count * width)
    place = 0
    for size, coding, length in columns:
        column = _column(coding, _taken(stored, at, length), count * size, size)
        at += length
        for byte in range(size):
            elements[place + byte :: width] = column[byte::size]
        place += size
    for end in range(width, len(elements) + 1, width):
        top = int.from_bytes(elements[end - 2 : end], "little")
        top = (top & 0x80) << 8 | top >> 8 << 7 | top & 0x7F
        elements[end - 2 : end] = top.to_bytes(2, "little")
    others = stored[at:]
    if len(others) != plain_length - len(elements):
        raise FormatError("byte planes with too few bytes behind them, or too many")
    return others[:skip] + bytes(elements) + others[skip:]


def _taken(stored: bytes, at: int, length: int) -> bytes:
    """Return exactly this number of bytes."""
    if at + length > len(stored):
        raise FormatError("a payload is cut short")
    return stored[at : at + length]


def _add_delta(stored: bytes, plain_length: int, delta_base: bytes) -> bytes:
    if len(delta_base) != plain_length:
        raise FormatError("a delta from something of another length")
    if len(stored) < 3 or stored[0] not in {2, 4, 8} or stored[1] >= stored[0] or stored[2] > 7:
        raise FormatError("a delta without a valid header")
    width, skip = stored[0], stored[1]
    cuts = _taken(stored, 3, stored[2])
    if skip > plain_length or list(cuts) != sorted(set(cuts)):
        raise FormatError("a delta with an impossible skip or impossible cuts")
    count = (plain_length - skip) // width
    at = 3 + len(cuts)
    others = _taken(stored, at, plain_length - count * width)
    at += len(others)
    old = [
        int.from_bytes(delta_base[skip + number * width :][:width], "little")
        for number in range(count)
    ]
    bits = 8 * width
    classes = [sum([cut <= element >> bits - 9 & 255 for cut in cuts]) for element in old]
    folded = [0] * count
    for number in range(len(cuts) + 1):
        members = [element for element in range(count) if classes[element] == number]
        length, shift = struct.unpack("<IB", _taken(stored, at, 5))
        if shift >= bits:
            raise FormatError("a delta is rotated by more bits than its elements have")
        body = _join_planes(_taken(stored, at + 5, length), len(members) * width)
        at += 5 + length
        for place, element in enumerate(members):
            value = int.from_bytes(body[place * width :][:width], "little")
            folded[element] = (value >> shift | value << bits - shift) % (1 << bits)
    if at != len(stored):
        raise FormatError("a delta with something behind its classes")
    new = b""
    for before, value in zip(old, folded, strict=True):
        difference = value // 2 if value % 2 == 0 else -(value + 1) // 2
        new += ((before + difference) % (1 << bits)).to_bytes(width, "little")
    return others[:skip] + new + others[skip:]


def _add_sparse_delta(stored: bytes, plain_length: int, delta_base: bytes) -> bytes:
    if len(delta_base) != plain_length:
        raise FormatError("a sparse delta from something of another length")
    if len(stored) < 7 or stored[0] not in {1, 2, 4, 8} or stored[1] >= stored[0]:
        raise FormatError("a sparse delta without a valid header")
    width, skip, changed, gap_bytes = struct.unpack_from("<BBIB", stored)
    if skip > plain_length:
        raise FormatError("a sparse delta with a skip beyond its end")
    count = (plain_length - skip) // width
    if not 1 <= gap_bytes <= 4 or changed > count // 2:
        raise FormatError("a sparse delta of too many elements")
    others = _taken(stored, 7, plain_length - count * width)
    at = 7 + len(others)

    def column() -> bytes:
        nonlocal at
        coding, length = struct.unpack("<BI", _taken(stored, at, 5))
        at += 5 + length
        if coding not in {0, 1}:
            raise FormatError(f"a column has the coding {coding}, which is not known")
        return _column(coding, _taken(stored, at - length, length), changed, 1)

    columns = [column() for _ in range(gap_bytes)]
    places, place = [], skip - width
    for gap in zip(*columns, strict=True):
        place += width * (int.from_bytes(bytes(gap), "little") + 1)
        places.append(place)
    if places and place + width > skip + count * width:
        raise FormatError("a sparse delta goes beyond its end")
    new = bytearray(others[:skip] + delta_base[skip : skip + count * width] + others[skip:])
    old = b"".join([delta_base[place : place + width] for place in places])
    if width == 1:
        values = bytes(
            [
                (before + (value // 2 if value % 2 == 0 else -(value + 1) // 2)) % 256
                for before, value in zip(old, column(), strict=True)
            ]
        )
    else:
        if changed and stored[at : at + 2] != bytes([width, 0]):
            raise FormatError("a sparse delta with new values of another width or skip")
        values = _add_delta(stored[at:], len(old), old) if changed else b""
        at = len(stored) if changed else at
    for number, place in enumerate(places):
        new[place : place + width] = values[number * width : (number + 1) * width]
    if at != len(stored):
        raise FormatError("a sparse delta with something behind its end")
    return bytes(new)


def _column(coding: int, stored: bytes, length: int, size: int) -> bytes:
    if coding == 0:
        column = stored
    elif coding == 1:
        column = _unzstd(stored, length)
    elif coding == 2 and size == 1 and len(stored) >= 5:
        low_end = 5 + int.from_bytes(stored[1:5], "little")
        low = _unzstd(stored[5:low_end], length // 2)
        high = _unzstd(stored[low_end:], length // 2) if low_end < len(stored) else bytes(len(low))
        first = [(a & 15) + 16 * (b & 15) for a, b in zip(low, high, strict=True)]
        second = [(a >> 4) + 16 * (b >> 4) for a, b in zip(low, high, strict=True)]
        column = bytes([(value + stored[0]) % 256 for value in first + second])
    else:
        raise FormatError(f"a byte plane has the coding {coding}, which is not known")
    if len(column) != length:
        raise FormatError("a byte plane does not have the length of the others")
    return column


# Sections 10 to 12: nodes


@dataclass
class Entry:
    """A name in a directory. The fields are in the order of the table in section 12."""

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    ctime: int
    inode: int
    size: int = 0
    state: int = WHOLE
    content: bytes = b""
    level: int = 0
    link_device: int = 0
    device: int = 0
    xattrs: list[tuple[bytes, bytes]] = field(default_factory=list)


_INTEGER_BITS = {"mode": 32, "uid": 32, "gid": 32, "inode": 64, "size": 63, "state": 63}
_INTEGER_BITS |= {"level": 63, "link_device": 64, "device": 64}


def make_entry(record: Any) -> Entry:
    """Return an entry, from its array."""
    try:
        entry = Entry(*record[:14])
        entry.xattrs = [(name, value) for name, value in entry.xattrs]
    except (TypeError, ValueError) as error:
        raise FormatError("an entry has too few fields, or one of a wrong type") from error
    for name, bits in _INTEGER_BITS.items():
        value = getattr(entry, name)
        if not isinstance(value, int) or not 0 <= value < 1 << bits:
            raise FormatError(f"an entry's {name} is out of range")
    for value in (entry.mtime, entry.ctime):
        if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise FormatError("an entry's time is out of range")
    if not isinstance(entry.name, bytes) or not isinstance(entry.content, bytes):
        raise FormatError("an entry's name or content is not binary")
    check_content(entry)
    check_xattrs([name for name, _ in entry.xattrs])
    return entry


def check_content(entry: Entry) -> None:
    """Refuse fields that an entry of its type does not have."""
    kind, length = stat.S_IFMT(entry.mode), len(entry.content)
    if entry.mode >> 16 or entry.state > SKIPPED or (entry.size and kind != stat.S_IFREG):
        raise FormatError("an entry's mode, state or size is not allowed")
    if kind in {stat.S_IFREG, stat.S_IFDIR}:
        fits = length in {0, 32} and entry.level <= LEVEL_MAX + (kind == stat.S_IFREG)
    elif kind == stat.S_IFLNK:
        fits = 0 < length <= TARGET_MAX and b"\0" not in entry.content and not entry.level
    elif kind in {stat.S_IFIFO, stat.S_IFBLK, stat.S_IFCHR}:
        fits = not length and not entry.level
    else:
        raise FormatError("an entry is of an unknown type")
    if not fits:
        raise FormatError("an entry's content does not fit its type")


def check_xattrs(names: list[Any]) -> None:
    """Refuse names of extended attributes that have a NUL, are not sorted, or are repeated."""
    if any(not isinstance(name, bytes) or b"\0" in name for name in names):
        raise FormatError("the name of an extended attribute is not binary, or has a NUL")
    if any(name <= last for last, name in itertools.pairwise(names)):
        raise FormatError("the names of extended attributes are out of order")


def check_name(name: bytes, last: bytes) -> None:
    """Refuse a name that no directory has, and one that does not follow ``last``."""
    if name in {b".", b".."} or b"/" in name or b"\0" in name or len(name) > NAME_MAX:
        raise FormatError(f"{name!r} cannot be a name")
    if name <= last:
        raise FormatError(f"the name {name!r} is out of order")


def is_same_file(first: Entry, other: Entry) -> bool:
    """Return whether two entries of one inode can be names of one file."""
    return replace(first, name=b"", ctime=0) == replace(other, name=b"", ctime=0)


def check_roots(paths: list[bytes]) -> None:
    """Refuse roots that no snapshot has."""
    for path in paths:
        if not path.startswith(b"/") or path != b"/" + os.path.normpath(path).lstrip(b"/"):
            raise FormatError(f"the root {path!r} is not in its plain form")
        if b"\0" in path:
            raise FormatError(f"the root {path!r} cannot be a path")
        others = list(paths)
        others.remove(path)
        if any((other + b"/").startswith(path.rstrip(b"/") + b"/") for other in others):
            raise FormatError(f"a root lies inside the root {path!r}")


@dataclass(frozen=True)
class Place:
    """The place of a chunk: the frame at ``offset`` of a pack, and the range of its plain bytes."""

    pack: str
    offset: int
    frame: Frame
    start: int
    length: int


class Store:
    """A store, open for reading."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(os.path.join(path, "ciuic-store.json"), "rb") as file:
            self.header = read_header(file.read())
        self._lock = _shared_lock(os.path.join(path, "lock.read"))
        self._places: dict[bytes, list[Place]] = {}
        self._depth = 0
        self._last: tuple[tuple[str, int], bytes] = (("", 0), b"")
        for name in self._names("packs", "[0-9a-f]{64}"):
            self._index_pack(name)

    def _index_pack(self, name: str) -> None:
        with open(os.path.join(self.path, "packs", name), "rb") as file:
            data = file.read()
        for offset, frame in frames_of_pack(data, name):
            start = 0
            for chunk, length in frame.chunks:
                place = Place(name, offset, frame, start, length)
                self._places.setdefault(chunk, []).append(place)
                start += length

    def snapshots(self) -> list[str]:
        """Return the IDs of all snapshots, including forgotten ones."""
        return [name[:-5] for name in self._names("snapshots", r"cs-[0-9a-f]{6,64}\.json")]

    def latest(self) -> str | None:
        """Return the ID of the snapshot that was committed last; None if there is none."""
        manifests = {}
        for snapshot in self.snapshots():
            with contextlib.suppress(FormatError):
                if not self.is_forgotten(snapshot):
                    manifest = self.manifest(snapshot)
                    if manifest.get("complete", True):
                        manifests[snapshot] = manifest
        return latest_of(manifests)

    def _names(self, directory: str, form: str) -> list[str]:
        # Copying a store may lose empty directories.
        path = os.path.join(self.path, directory)
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []
        return [
            name
            for name in names
            if re.fullmatch(form, name) and os.path.isfile(os.path.join(path, name))
        ]

    def manifest(self, snapshot: str) -> dict[str, Any]:
        """Return a snapshot's manifest."""
        with open(os.path.join(self.path, "snapshots", f"{snapshot}.json"), "rb") as file:
            data = file.read(MANIFEST_MAX + 1)
        if len(data) > MANIFEST_MAX:
            raise FormatError("a manifest is too large")
        document = unseal(data)
        if document["format"] != 1 or document["id"] != snapshot:
            raise FormatError("a manifest of another format, or of another snapshot")
        if document.get("required"):
            raise FormatError(f"a manifest needs the feature {document['required'][0]!r}")
        return document

    def labels(self, snapshot: str) -> tuple[list[str], bool]:
        """Return the tags and pin in the newest mark; an unreadable mark is a pin."""
        mark = self._newest_mark(snapshot)
        if mark is None:
            manifest = self.manifest(snapshot)
            return manifest["tags"], manifest.get("pinned", False)
        return mark.get("tags", self.manifest(snapshot)["tags"]), mark["pinned"]

    def is_forgotten(self, snapshot: str) -> bool:
        """Return whether the newest mark says so; the snapshot is then not listed. Section 25."""
        return (self._newest_mark(snapshot) or {}).get("forgotten_ns") is not None

    def lost(self) -> list[str]:
        """Return the lost snapshots: without a manifest, and not purged. Sections 13 and 25."""
        with open(os.path.join(self.path, "ciuic-store.json"), "rb") as file:
            store = read_header(file.read())["store_id"]
        form = r"(cs-[0-9a-f]{6,64})"
        known = {name[:-5] for name in self._names("parity", form + r"\.json")}
        for directory, rest in (("marks", r"-[0-9]+\.json"), ("quarantine", r"\.json(\.[0-9]+)?")):
            for name in self._names(directory, form + rest):
                known |= set(re.findall("^" + form, name))
        there = set(self.snapshots())
        for snapshot in there:
            with contextlib.suppress(FormatError):
                manifest = self.manifest(snapshot)
                parent = manifest["parent"] or ""
                if manifest.get("store") == store and re.fullmatch(form, parent):
                    known.add(parent)
        retired: set[str] = set()
        for name in self._names("retired", r"[0-9a-f]{16}-[1-9][0-9]*\.json"):
            with open(os.path.join(self.path, "retired", name), "rb") as file:
                retired |= set(unseal(file.read())["ids"])
        return sorted(known - there - retired)

    def _newest_mark(self, snapshot: str) -> dict[str, Any] | None:
        path = os.path.join(self.path, "marks")
        form = re.compile(re.escape(snapshot) + r"-([1-9][0-9]{0,17})\.json")
        there = os.listdir(path) if os.path.isdir(path) else []
        numbers = [int(match[1]) for match in map(form.fullmatch, there) if match]
        if not numbers:
            return None
        for number in sorted(numbers, reverse=True)[:100]:
            for directory in ("marks", "parity"):
                with contextlib.suppress(FormatError, OSError):
                    mark = self._mark(directory, snapshot, number)
                    if number == max(numbers):
                        return mark
                    return {"pinned": True, "tags": mark["tags"], "note": mark.get("note", "")}
        return {"pinned": True}

    def _mark(self, directory: str, snapshot: str, number: int) -> dict[str, Any]:
        with open(os.path.join(self.path, directory, f"{snapshot}-{number}.json"), "rb") as file:
            data = file.read(MARK_MAX + 1)
        if len(data) > MARK_MAX:
            raise FormatError("a mark is too large")
        document = unseal(data)
        if document["format"] != 1 or (document["id"], document["number"]) != (snapshot, number):
            raise FormatError("a mark of another format, or of another name")
        when = document.get("forgotten_ns")
        if (when is None and document.get("purged")) or not 0 <= (when or 0) < 1 << 63:
            raise FormatError("a mark of a time that cannot be, or of none")
        return document

    def chunk(self, kind: int, name: bytes) -> bytes:
        """Return the bytes of a chunk, from any pack that has them intact."""
        problem = f"chunk {name.hex()[:12]} is in no pack"
        for place in self._places.get(name, []):
            try:
                if not place.frame.usable or place.frame.kind != kind:
                    raise FormatError("a frame that this reader cannot use")
                part = self._payload(place)[place.start : place.start + place.length]
                if identify(kind, part) != name:
                    raise FormatError(f"chunk {name.hex()[:12]} does not hash to its ID")
            except FormatError as error:
                problem = str(error)
            else:
                return part
        raise FormatError(problem)

    def _payload(self, place: Place) -> bytes:
        frame = place.frame
        if self._last[0] == (place.pack, place.offset):
            return self._last[1]
        # The header comes from the footer, because the header in front of the payload may be
        # damaged.
        with open(os.path.join(self.path, "packs", place.pack), "rb") as file:
            file.seek(place.offset + frame.header_length)
            payload = file.read(frame.stored_length)
        if xxh3(payload) != frame.payload_checksum:
            raise FormatError("a payload does not match its checksum")
        # No codec that this reader knows has two delta bases.
        delta_base = self._delta_base(frame.delta_bases[0]) if frame.delta_bases else b""
        plain = decode_payload(frame.codec, payload, frame.plain_length, delta_base)
        self._last = ((place.pack, place.offset), plain)
        return plain

    def _delta_base(self, name: bytes) -> bytes:
        if self._depth == CHAIN_MAX:
            raise FormatError("a chain of too many deltas")
        self._depth += 1
        try:
            return self.chunk(DATA, name)
        finally:
            self._depth -= 1

    def _node(self, kind: int, name: bytes, level: int) -> list[Any]:
        if not 0 <= level <= LEVEL_MAX:
            raise FormatError(f"no node can be at level {level}")
        node = unpack_msgpack(self.chunk(kind, name))
        if not isinstance(node, list) or len(node) < 2 or node[0] != level:
            raise FormatError(f"a node is not of level {level}, where it should be")
        if not isinstance(node[1], list):
            raise FormatError("a node has no items")
        return node[1]

    def _leaves(self, kind: int, name: bytes, level: int) -> Iterator[Any]:
        items = self._node(kind, name, level)
        if level == 0:
            yield from items
            return
        for child in items:
            yield from self._leaves(kind, child[2], level - 1)

    def entries(self, content: bytes, level: int) -> Iterator[Entry]:
        """Yield a directory's entries."""
        last = b""
        for entry in map(make_entry, self._leaves(TREE, content, level)):
            check_name(entry.name, last)
            last = entry.name
            yield entry

    def root(self, tree: str) -> Entry:
        """Return the entry of a root's own directory."""
        if not re.fullmatch("[0-9a-f]{64}", tree):
            raise FormatError("a root's node is not an ID in lower-case hex digits")
        records = self._node(TREE, bytes.fromhex(tree), 0)
        if len(records) != 1 or not stat.S_ISDIR(records[0][1]) or records[0][0] != b".":
            raise FormatError("the node of a root is not that of a directory")
        return make_entry(records[0])

    def pieces(self, entry: Entry) -> Iterator[tuple[int, bytes, int | None]]:
        """Yield the length, chunk ID and start in the chunk of each piece of a file.

        A hole has an empty ID. A piece without a start must be the entire chunk.
        """
        if not entry.content:
            if entry.size:
                raise FormatError("a file without content has a size")
            return
        if entry.level == 0:
            yield entry.size, entry.content, None
            return
        total = 0
        for record in self._leaves(RECIPE, entry.content, entry.level - 1):
            length, name = record[:2]
            start = record[2] if len(record) > 2 else 0
            total += length
            if length <= 0 or total > entry.size:
                raise FormatError("a file's pieces are longer than the file")
            if start and not (name and 0 < start < 1 << 63):
                raise FormatError("a piece begins where no chunk does")
            yield length, name, start
        if total != entry.size:
            raise FormatError("a file's pieces are shorter than the file")


def latest_of(manifests: dict[str, dict[str, Any]]) -> str | None:
    """Return the snapshot that was committed last. Section 13."""

    def later(names: Iterable[str]) -> str | None:
        return max(names, key=lambda name: (manifests[name]["taken_ns"], name), default=None)

    present = later(manifests)
    reached = set()
    while present is not None and present not in reached:
        reached.add(present)
        child = later([name for name, what in manifests.items() if what["parent"] == present])
        if child is None:
            break
        present = child
    return present


def _shared_lock(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


# Section 14: restoring


class Restorer:
    """Writes entries into directories that no other program may change meanwhile.

    Attributes:
        problems: The path of everything that differs from the snapshot, with the reason.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first_names: dict[tuple[int, int], tuple[bytes, Entry]] = {}
        self._depth = 0
        self.problems: list[tuple[bytes, str]] = []

    def restore(self, snapshot: str, target: bytes) -> None:
        """Restore every root of a snapshot into the directory ``target``."""
        roots = self._store.manifest(snapshot)["roots"]
        check_roots([unescape_path(root["path"]) for root in roots])
        for root in roots:
            path = unescape_path(root["path"])
            if not root["tree"]:
                self.problems.append((path, root["missing"]))
                continue
            place = os.path.join(target, path.strip(b"/") or b"root")
            os.makedirs(os.path.dirname(place), exist_ok=True)
            self.place(self._store.root(root["tree"]), place)

    def place(self, entry: Entry, path: bytes) -> None:
        """Restore an entry and everything below it."""
        try:
            kind = stat.S_IFMT(entry.mode)
            key = (entry.link_device, entry.inode)
            if kind == stat.S_IFDIR:
                self._place_directory(entry, path)
                return
            first = self._first_names.get(key) if entry.link_device else None
            if first is not None and is_same_file(first[1], entry):
                os.link(first[0], path, follow_symlinks=False)
                return
            self._place_other(kind, entry, path)
            if entry.link_device:
                self._first_names.setdefault(key, (path, entry))
        except (FormatError, OSError) as error:
            self.problems.append((path, str(error)))

    def _place_directory(self, entry: Entry, path: bytes) -> None:
        if self._depth == DEPTH_MAX:
            raise FormatError(f"is more than {DEPTH_MAX} directories deep")
        os.mkdir(path, 0o700)
        if entry.state == UNREADABLE:
            raise FormatError("could not be read when the snapshot was taken")
        if entry.state == SKIPPED:
            return
        self._depth += 1
        try:
            for inner in self._store.entries(entry.content, entry.level):
                self.place(inner, os.path.join(path, inner.name))
        finally:
            self._depth -= 1
        self._set_metadata(entry, path)

    def _place_other(self, kind: int, entry: Entry, path: bytes) -> None:
        if kind == stat.S_IFREG:
            self._write_file(entry, path)
        elif kind == stat.S_IFLNK:
            os.symlink(entry.content, path)
        elif kind == stat.S_IFIFO:
            os.mkfifo(path)
        elif kind in {stat.S_IFBLK, stat.S_IFCHR}:
            device = os.makedev(entry.device >> 32, entry.device & 0xFFFFFFFF)
            os.mknod(path, kind | 0o600, device)
        else:
            raise FormatError(f"an entry of the kind {kind:#o} cannot be made")
        self._set_metadata(entry, path)

    def _write_file(self, entry: Entry, path: bytes) -> None:
        if entry.state == UNREADABLE:
            raise FormatError("could not be read when the snapshot was taken")
        if entry.state == BEING_WRITTEN:
            self.problems.append((path, "was being written when the snapshot was taken"))
        with open(path, "xb") as file:
            file.truncate(entry.size)
            for length, name, start in self._store.pieces(entry):
                if not name:
                    file.seek(length, os.SEEK_CUR)
                    continue
                data = self._store.chunk(DATA, name)
                end = len(data) if start is None else start + length
                if end > len(data) or end - (start or 0) != length:
                    raise FormatError("a chunk does not have the length of its piece")
                file.write(data[end - length : end])

    def _set_metadata(self, entry: Entry, path: bytes) -> None:
        try:
            os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
        except PermissionError as error:
            self.problems.append((path, str(error)))
        if not stat.S_ISLNK(entry.mode):
            os.chmod(path, stat.S_IMODE(entry.mode))
        for name, value in entry.xattrs:
            try:
                os.setxattr(path, name, value, follow_symlinks=False)
            except OSError as error:
                self.problems.append((path, str(error)))
        os.utime(path, ns=(entry.mtime, entry.mtime), follow_symlinks=False)


def main() -> int:
    """Restore as the command line says; return 1 if anything differs from the snapshot."""
    parser = argparse.ArgumentParser(description="Restore a snapshot of a ciuic store.")
    parser.add_argument("store")
    parser.add_argument("snapshot", help="its ID, or 'latest'")
    parser.add_argument("target", help="an empty directory")
    arguments = parser.parse_args()
    store = Store(arguments.store)
    snapshot = arguments.snapshot
    if snapshot == "latest":
        snapshot = store.latest()
        if snapshot is None:
            parser.error("the store has no snapshot that can be read")
    restorer = Restorer(store)
    restorer.restore(snapshot, os.fsencode(arguments.target))
    for path, problem in restorer.problems:
        print(f"{path!r}: {problem}", file=sys.stderr)
    return 1 if restorer.problems else 0


if __name__ == "__main__":
    sys.exit(main())

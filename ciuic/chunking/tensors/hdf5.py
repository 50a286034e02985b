"""HDF5: what h5py and Keras write, groups of datasets that lie in one piece.

The specification of the HDF Group, version 3: superblocks 0 to 3, object headers 1 and 2, groups
as symbol tables or as links in their headers. Names are not read. Of a dataset that is cut into
chunks of its own, or compressed, nothing is told; a group whose links lie in a heap makes the file
one of unknown layout.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.chunking.tensors.headers import SPANS_MAX, Headers, NoLayoutError, Span

__all__ = ["begins", "spans", "spans_within"]

_MAGIC: Final = b"\x89HDF\r\n\x1a\n"
_ADDRESS_BYTES: Final = 8
_NOWHERE: Final = 2**64 - 1
_OBJECT_BYTES: Final = 640
"""Read of an object or a tree at once: most are shorter."""
_BLOCK_BYTES_MAX: Final = 64 * 1024
_BLOCKS_MAX: Final = 64
"""Of one object's header; attributes have them grow."""

_ITEMS_MAX: Final = 1_000_000
"""Messages and members of groups: an object has ten or so."""

_LINK_INFO: Final = 0x02
_DATATYPE: Final = 0x03
_LINK: Final = 0x06
_LAYOUT: Final = 0x08
_CONTINUATION: Final = 0x10
_SYMBOL_TABLE: Final = 0x11
_CONTIGUOUS: Final = 1
_NUMBERS: Final = (0, 1)
"""Classes of types: integers, floating-point numbers."""
_TREE: Final = struct.Struct("<4sBBHQQ")
_SYMBOL: Final = struct.Struct("<QQII16s")


class _Message(NamedTuple):
    kind: int
    data: bytes


class _File:
    """An HDF5 file that may lie within another one."""

    def __init__(self, headers: Headers, start: int, size_bytes: int) -> None:
        self._headers = headers
        self._start = start
        self._left_items = _ITEMS_MAX
        self.size_bytes = size_bytes

    def at(self, offset: int, length: int) -> bytes:
        """Exactly these bytes."""
        if offset + length > self.size_bytes:
            raise NoLayoutError("beyond the file's end")
        return self._headers.at(self._start + offset, length)

    def count(self, items: int) -> None:
        """So many more of what must not be without end; what was read once is read for nothing."""
        self._left_items -= items
        if self._left_items < 0:
            raise NoLayoutError("too many messages")

    def some(self, offset: int, length: int) -> bytes:
        """These bytes, or what there is of them."""
        return self.at(offset, max(0, min(length, self.size_bytes - offset)))


def begins(magic: bytes) -> bool:
    """The magic is there."""
    return magic.startswith(_MAGIC)


def spans(headers: Headers) -> list[Span]:
    """The datasets of a file that ``begins`` like this one, in any order."""
    return spans_within(headers, 0, headers.size_bytes)


def spans_within(headers: Headers, start: int, size_bytes: int) -> list[Span]:
    """The same for a file that begins at ``start`` of another one."""
    file = _File(headers, start, size_bytes)
    found = []
    seen = set()
    left = [_root(file)]
    while left:
        address = left.pop()
        if address in seen or address == _NOWHERE:
            continue
        seen.add(address)
        messages = list(_messages(file, address))
        left += [child for one in messages for child in _children(file, one, seen)]
        span = _span(messages)
        if span is not None:
            found.append(span._replace(offset_bytes=start + span.offset_bytes))
        if len(seen) + len(left) > SPANS_MAX:
            raise NoLayoutError("too many objects")
    return found


def _root(file: _File) -> int:
    """Address of the root group's object header."""
    head = file.some(0, 128)
    if not begins(head) or len(head) < 96:
        raise NoLayoutError("no superblock")
    version = head[8]
    widths, base_at = {0: (head[13:15], 24), 1: (head[13:15], 28)}.get(version, (head[9:11], 12))
    if version > 3 or widths != bytes([_ADDRESS_BYTES]) * 2 or _number(head, base_at):
        raise NoLayoutError("not of a known version")
    return _number(head, base_at + (40 if version < 2 else 24))


def _messages(file: _File, address: int) -> Iterator[_Message]:
    """What an object's header says, of either version."""
    head = file.some(address, _OBJECT_BYTES)
    if head[:4] == b"OHDR":
        blocks = [_first_block(head, address)]
        prefix_bytes = 6 if head[5] & 0x04 else 4
        pair = struct.Struct("<BH")
    elif head[:1] == b"\x01" and len(head) > 16:
        blocks = [(address + 16, int.from_bytes(head[8:12], "little"))]
        prefix_bytes, pair = 8, struct.Struct("<HH")
    else:
        raise NoLayoutError("no object header")
    for count, (at, length) in enumerate(blocks):  # which grow meanwhile
        if length > _BLOCK_BYTES_MAX or count >= _BLOCKS_MAX:
            raise NoLayoutError("an object header without end")
        block = file.at(at, length)
        place = 0
        while place + prefix_bytes <= length:
            kind, size = pair.unpack_from(block, place)
            place += prefix_bytes + size
            file.count(1)
            if place > length:
                raise NoLayoutError("a message that is cut short")
            data = block[place - size : place]
            if kind == _CONTINUATION:
                blocks.append(_next_block(data, is_newer=prefix_bytes < 8))
            yield _Message(kind, data)


def _first_block(head: bytes, address: int) -> tuple[int, int]:
    """Where the messages of a header of version 2 lie."""
    if len(head) < 36 or head[4] != 2:
        raise NoLayoutError("no such object header")
    flags = head[5]
    at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return address + at + width, int.from_bytes(head[at : at + width], "little")


def _next_block(data: bytes, *, is_newer: bool) -> tuple[int, int]:
    """Where a continuation lies; the newer ones stand between a magic and a checksum."""
    at, length = _number(data, 0), _number(data, 8)
    if not is_newer:
        return at, length
    if length < 8:
        raise NoLayoutError("a continuation that is cut short")
    return at + 4, length - 8


def _children(file: _File, message: _Message, seen: set[int]) -> Iterator[int]:
    """Addresses of the objects that a message of a group leads to."""
    kind, data = message
    if kind == _SYMBOL_TABLE:
        yield from _members(file, _number(data, 0), seen)
    elif kind == _LINK_INFO:
        if _number(data, 10 if data[1:2] and data[1] & 1 else 2) != _NOWHERE:
            raise NoLayoutError("links that lie in a heap")
    elif kind == _LINK:
        yield _linked(data)


def _linked(data: bytes) -> int:
    """What a hard link leads to."""
    if len(data) < 4 or data[0] != 1:
        raise NoLayoutError("no such link")
    flags = data[1]
    if flags & 0x08 and data[2]:
        return _NOWHERE
    at = 2 + (1 if flags & 0x08 else 0) + (8 if flags & 0x04 else 0) + (1 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return _number(data, at + width + int.from_bytes(data[at : at + width], "little"))


def _members(file: _File, root: int, seen: set[int]) -> Iterator[int]:
    """A group's objects, by its B-tree."""
    left = [root]
    while left:
        address = left.pop()
        if address in seen:
            raise NoLayoutError("a tree that leads back")
        seen.add(address)
        head = file.some(address, _OBJECT_BYTES)  # what follows is then mostly there
        if len(head) < _TREE.size:
            raise NoLayoutError("no tree of a group")
        magic, kind, _, count, _, _ = _TREE.unpack_from(head)
        file.count(1 + count)
        if magic == b"TREE" and kind == 0:
            table = file.at(address + _TREE.size, count * 16 + 8)
            left += [_number(table, 16 * one + 8) for one in range(count)]
        elif magic == b"SNOD":
            table = file.at(address + 8, count * _SYMBOL.size)
            yield from [at for _, at, *_ in _SYMBOL.iter_unpack(table)]
        else:
            raise NoLayoutError("no tree of a group")
        if len(seen) + len(left) > SPANS_MAX:
            raise NoLayoutError("too many objects")


def _span(messages: list[_Message]) -> Span | None:
    """Where a dataset lies, if it lies in one piece."""
    layout = next((one.data for one in messages if one.kind == _LAYOUT), b"")
    if len(layout) < 18 or layout[0] not in {3, 4} or layout[1] != _CONTIGUOUS:
        return None
    at, length = _number(layout, 2), _number(layout, 10)
    if at == _NOWHERE or not length:
        return None
    kind = next((one.data for one in messages if one.kind == _DATATYPE), b"") + bytes(8)
    width = int.from_bytes(kind[4:8], "little") if kind[0] & 0x0F in _NUMBERS else 0
    return Span(at, length, width if width <= 8 else 0)


def _number(data: bytes, at: int) -> int:
    """An address or a length."""
    if at + _ADDRESS_BYTES > len(data):
        raise NoLayoutError("a record that is cut short")
    return int.from_bytes(data[at : at + _ADDRESS_BYTES], "little")

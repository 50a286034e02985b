"""HDF5 as h5py and Keras write it: groups of contiguous datasets.

The specification is that of the HDF Group, version 3: superblocks 0 to 3, object headers 1 and 2,
groups as symbol tables or as links in their headers. A dataset's name is its path, with slashes.
Datasets that are chunked or compressed are not found. A group whose links are in a fractal heap
makes the layout of the file unknown.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ciuic.formats.headers import (
    HEADER_BYTES_MAX,
    NAME_BYTES_MAX,
    SPANS_MAX,
    CutShortError,
    Headers,
    NoLayoutError,
    Span,
    named,
)

__all__ = ["begins", "end_bytes", "spans", "spans_within"]

_MAGIC: Final = b"\x89HDF\r\n\x1a\n"
_ADDRESS_BYTES: Final = 8
_NOWHERE: Final = 2**64 - 1
_OBJECT_BYTES: Final = 640
"""Bytes of an object or a tree that are read at once: most are shorter."""
_BLOCK_BYTES_MAX: Final = 64 * 1024
_BLOCKS_MAX: Final = 64
"""The most blocks of an object's header; attributes add blocks."""

_ITEMS_MAX: Final = 1_000_000
"""The most messages and members of groups: an object has about ten."""

_HEAP_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of names in a group; with more, its members have no names."""
_DATASPACE: Final = 0x01
_ITEM_BYTES: Final = 64
"""Many groups may name one heap, so each of these many bytes counts as a message."""
_LINK_INFO: Final = 0x02
_DATATYPE: Final = 0x03
_LINK: Final = 0x06
_LAYOUT: Final = 0x08
_CONTINUATION: Final = 0x10
_SYMBOL_TABLE: Final = 0x11
_CONTIGUOUS: Final = 1
_NUMBERS: Final = (0, 1)
"""Classes of types: integers and floating-point numbers."""
_FLOAT: Final = 1
_NUMBER_BYTES: Final = (1, 2, 4, 8)
_FLOATS: Final = {(2, 5, 10): "F16", (2, 8, 7): "BF16", (4, 8, 23): "F32", (8, 11, 52): "F64"}
"""Bytes per element, bits of exponent and of fraction."""
_BIG_ENDIAN: Final = 0x41
_SIGNED: Final = 0x08
_HEAP: Final = struct.Struct("<4sB3xQQQ")
_TREE: Final = struct.Struct("<4sBBHQQ")
_SYMBOL: Final = struct.Struct("<QQII16s")


class _Message(NamedTuple):
    kind: int
    data: bytes


class _Object(NamedTuple):
    """The address of an object's header, and its name; None if the name is too long."""

    address: int
    name: bytes | None


class _File:
    """An HDF5 file, possibly inside another file."""

    def __init__(self, headers: Headers, start: int, size_bytes: int) -> None:
        self.headers = headers
        self._start = start
        self._left_items = _ITEMS_MAX
        self._left_name_bytes = HEADER_BYTES_MAX
        self.size_bytes = size_bytes

    def at(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""
        if offset + length > self.size_bytes:
            raise CutShortError("beyond the file's end")
        return self.headers.at(self._start + offset, length)

    def count(self, items: int) -> None:
        """Count items, and enforce their maximum: repeated reads cost no bytes, but take time."""
        self._left_items -= items
        if self._left_items < 0:
            raise NoLayoutError("too many messages")

    def some(self, offset: int, length: int) -> bytes:
        """Return these bytes, fewer at the end of the file."""
        return self.at(offset, max(0, min(length, self.size_bytes - offset)))

    def below(self, group: bytes | None, name: bytes | None) -> bytes | None:
        """Return the path of a group's member; None if it, or all paths together, are too long."""
        if group is None or not name:
            return None
        whole = group + b"/" + name if group else name
        self._left_name_bytes -= len(whole)
        return whole if len(whole) <= NAME_BYTES_MAX and self._left_name_bytes >= 0 else None


def begins(magic: bytes) -> bool:
    """Return whether the magic matches."""
    return magic.startswith(_MAGIC)


def spans(headers: Headers) -> list[Span]:
    """Return the datasets of a file in this format, in any order."""
    return spans_within(headers, 0, headers.size_bytes)


def end_bytes(headers: Headers) -> int:
    """Return the length that the superblock of a file says it has."""
    file = _File(headers, 0, headers.size_bytes)
    _root(file)
    head = file.some(0, 128)
    base_at = {0: 24, 1: 28}.get(head[8], 12)
    return _number(head, base_at + 16)


def spans_within(headers: Headers, start: int, size_bytes: int) -> list[Span]:
    """Like ``spans``, for a file that begins at ``start`` of another file."""
    file = _File(headers, start, size_bytes)
    found = []
    seen: set[int] = set()
    left = [_Object(_root(file), b"")]
    while left:
        at = left.pop()
        if at.address in seen or at.address == _NOWHERE:
            continue
        seen.add(at.address)
        messages = list(_messages(file, at.address))
        left += [child for message in messages for child in _children(file, at.name, message, seen)]
        span = _span(messages)
        if span is not None:
            name = named(at.name or b"")
            _keep_shape(file, name, messages)
            found.append(span._replace(offset_bytes=start + span.offset_bytes, name=name))
        if len(seen) + len(left) > SPANS_MAX:
            raise NoLayoutError("too many objects")
    return found


def _root(file: _File) -> int:
    """Return the address of the root group's object header."""
    head = file.some(0, 128)
    if not begins(head):
        raise NoLayoutError("no superblock")
    if len(head) < 96:
        raise CutShortError("the superblock is cut short")
    version = head[8]
    widths, base_at = {0: (head[13:15], 24), 1: (head[13:15], 28)}.get(version, (head[9:11], 12))
    if version > 3 or widths != bytes([_ADDRESS_BYTES]) * 2 or _number(head, base_at):
        raise NoLayoutError("not of a known version")
    return _number(head, base_at + (40 if version < 2 else 24))


def _messages(file: _File, address: int) -> Iterator[_Message]:
    """Iterate over the messages of an object's header, version 1 or 2."""
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
    for count, (at, length) in enumerate(blocks):  # continuations are appended
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
    """Return the offset and length of the messages in a header of version 2."""
    if len(head) < 36 or head[4] != 2:
        raise NoLayoutError("no such object header")
    flags = head[5]
    at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return address + at + width, int.from_bytes(head[at : at + width], "little")


def _next_block(data: bytes, *, is_newer: bool) -> tuple[int, int]:
    """Return the offset and length of a continuation; newer ones have a magic and a checksum."""
    at, length = _number(data, 0), _number(data, 8)
    if not is_newer:
        return at, length
    if length < 8:
        raise NoLayoutError("a continuation that is cut short")
    return at + 4, length - 8


def _children(
    file: _File, group: bytes | None, message: _Message, seen: set[int]
) -> Iterator[_Object]:
    """Yield the objects that a message of a group refers to."""
    kind, data = message
    if kind == _SYMBOL_TABLE:
        heap = _heap(file, _number(data, 8)) if len(data) >= 16 else b""
        for address, at in _members(file, _number(data, 0), seen):
            name = heap[at : at + NAME_BYTES_MAX + 1].partition(b"\0")[0]
            yield _Object(address, file.below(group, name))
    elif kind == _LINK_INFO:
        if _number(data, 10 if data[1:2] and data[1] & 1 else 2) != _NOWHERE:
            raise NoLayoutError("links in a heap")
    elif kind == _LINK:
        address, name = _linked(data)
        yield _Object(address, file.below(group, name))


def _heap(file: _File, address: int) -> bytes:
    """Return the names of a group's members, each followed by a zero; empty if there is no heap."""
    if address + _HEAP.size > file.size_bytes:
        return b""
    head = file.some(address, _OBJECT_BYTES)  # the names mostly follow
    magic, version, length, _, at = _HEAP.unpack_from(head)
    if magic != b"HEAP" or version or length > _HEAP_BYTES_MAX:
        return b""
    file.count(length // _ITEM_BYTES)
    return file.at(at, length)


def _linked(data: bytes) -> tuple[int, bytes]:
    """Return the target and the name of a hard link."""
    if len(data) < 4 or data[0] != 1:
        raise NoLayoutError("no such link")
    flags = data[1]
    if flags & 0x08 and data[2]:
        return _NOWHERE, b""
    at = 2 + (1 if flags & 0x08 else 0) + (8 if flags & 0x04 else 0) + (1 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    end = at + width + int.from_bytes(data[at : at + width], "little")
    return _number(data, end), data[at + width : end]


def _members(file: _File, root: int, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the addresses of a group's objects from its B-tree, and the offsets of their names."""
    left = [root]
    while left:
        address = left.pop()
        if address in seen:
            raise NoLayoutError("a tree with a cycle")
        seen.add(address)
        head = file.some(address, _OBJECT_BYTES)  # the table mostly follows
        if len(head) < _TREE.size:
            raise NoLayoutError("no tree of a group")
        magic, kind, _, count, _, _ = _TREE.unpack_from(head)
        file.count(1 + count)
        if magic == b"TREE" and kind == 0:
            table = file.at(address + _TREE.size, count * 16 + 8)
            left += [_number(table, 16 * number + 8) for number in range(count)]
        elif magic == b"SNOD":
            table = file.at(address + 8, count * _SYMBOL.size)
            yield from [(at, name) for name, at, *_ in _SYMBOL.iter_unpack(table)]
        else:
            raise NoLayoutError("no tree of a group")
        if len(seen) + len(left) > SPANS_MAX:
            raise NoLayoutError("too many objects")


def _span(messages: list[_Message]) -> Span | None:
    """Return a dataset's range; None if it is not contiguous."""
    layout = next((message.data for message in messages if message.kind == _LAYOUT), b"")
    if len(layout) < 18 or layout[0] not in {3, 4} or layout[1] != _CONTIGUOUS:
        return None
    at, length = _number(layout, 2), _number(layout, 10)
    if at == _NOWHERE or not length:
        return None
    kind = next((message.data for message in messages if message.kind == _DATATYPE), b"")
    kind += bytes(20)
    width = int.from_bytes(kind[4:8], "little") if kind[0] & 0x0F in _NUMBERS else 0
    return Span(at, length, width if width in _NUMBER_BYTES else 0, element=_element(kind))


def _element(kind: bytes) -> str:
    """Return the element type in a message; empty if it is not a little-endian number."""
    width = int.from_bytes(kind[4:8], "little")
    if kind[0] & 0x0F not in _NUMBERS or kind[1] & _BIG_ENDIAN:
        return ""
    if kind[0] & 0x0F == _FLOAT:
        return _FLOATS.get((width, kind[13], kind[15]), "")
    if width not in _NUMBER_BYTES or int.from_bytes(kind[8:12], "little") != 8 * width << 16:
        return ""
    return f"{'I' if kind[1] & _SIGNED else 'U'}{8 * width}"


def _keep_shape(file: _File, name: str, messages: list[_Message]) -> None:
    """Remember a dataset's dimensions."""
    space = next((message.data for message in messages if message.kind == _DATASPACE), b"")
    if len(space) < 4 or space[0] not in {1, 2}:
        return
    at, rank = 8 if space[0] == 1 else 4, space[1]
    if name and at + rank * _ADDRESS_BYTES <= len(space):
        file.headers.keep_shape(
            name, [_number(space, at + _ADDRESS_BYTES * number) for number in range(rank)]
        )


def _number(data: bytes, at: int) -> int:
    """Read an address or a length."""
    if at + _ADDRESS_BYTES > len(data):
        raise NoLayoutError("a record that is cut short")
    return int.from_bytes(data[at : at + _ADDRESS_BYTES], "little")

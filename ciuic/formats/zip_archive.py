"""ZIP archives of tensors, stored without compression: ``torch.save``, ``np.savez`` and Keras.

Specification: PKWARE's APPNOTE 6.3.9, with ZIP64. The names of the members identify the program.
Torch has ``<stem>/data.pkl``, and tensors in ``<stem>/data/<number>``. Numpy has only ``.npy``
members. Keras has ``model.weights.h5``. The parts of a distributed checkpoint (``.distcp``) are
concatenated archives of torch. They are found from the end, where an archive states its length.

A tensor's name is ``data/<number>``, or ``<number of the archive>/data/<number>`` if there are
several archives. An array has the name of its member. Stems are left out: they come from file names
and differ from save to save.

If a member is compressed, encrypted or not where the directory says, the layout of the file is
unknown. ``spans`` does not read the pickle.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from ciuic.formats import hdf5, npy
from ciuic.formats.headers import SPANS_MAX, Headers, NoLayoutError, Span, named

__all__ = ["MAGIC", "begins", "kind_of", "pickles", "spans"]

MAGIC: Final = b"PK\x03\x04"

_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END: Final = struct.Struct("<4sHHHHIIH")
_END64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR: Final = struct.Struct("<4sIQI")
_EXTRA: Final = struct.Struct("<HH")
_ZIP64: Final = 1
_U32_MAX: Final = 0xFFFF_FFFF
_ENCRYPTED: Final = 0x0001 | 0x0040
_NEAR_BYTES: Final = 1024
"""Bytes read at an archive's end: most directories of one tensor take 700. With more bytes, a part
of a distributed checkpoint with a few thousand tensors would exceed the maximum for a file."""
_SMALL_BYTES: Final = 64 * 1024
"""The span of a shorter member includes its local header, which is then not read."""
_AHEAD_BYTES: Final = 256
"""Bytes read after a local header: they contain an array's header."""
_TENSOR: Final = re.compile(rb"/(data/[0-9]+)\Z")
_PICKLE: Final = b"/data.pkl"
_ARRAY: Final = b".npy"
_BYTE_ORDER: Final = b"byteorder"
_LITTLE: Final = b"little"
_WEIGHTS: Final = b"model.weights.h5"
_METADATA: Final = b"metadata.json"
_KERAS: Final = b'"keras_version"'


class _Member(NamedTuple):
    """A member in the central directory; the offset counts from the start of the file."""

    offset_bytes: int
    size_bytes: int
    name: bytes


_Placed = tuple[_Member, int]
_Reader = Callable[[Headers, _Member, int], list[Span]]


def begins(magic: bytes) -> bool:
    """Return whether the magic of a first member matches."""
    return magic.startswith(MAGIC)


def kind_of(head: bytes) -> str:
    """Return the kind of an archive, from the name of its first member."""
    if len(head) < _LOCAL.size:
        return ""
    name_bytes = _LOCAL.unpack_from(head)[-2]
    name = head[_LOCAL.size : _LOCAL.size + name_bytes]
    if name.endswith(_PICKLE):
        return "torch.save"
    if name == _METADATA and _KERAS in head:
        return "keras"
    return "npz" if name.endswith(_ARRAY) else ""


def spans(headers: Headers) -> list[Span]:
    """Return the tensors of a file in this format."""
    found = [
        [span for member in members for span in reader(headers, *member)]
        for reader, members in _archives(headers)
    ]
    if len(found) == 1:
        return found[0]
    return [
        span._replace(name=named(b"%d/" % place + span.name.encode()))
        for place, archive in enumerate(reversed(found))
        for span in archive
    ]


def pickles(headers: Headers) -> list[tuple[str, bytes]]:
    """Return the pickles of ``torch.save``, each with the prefix of its tensors' names.

    Archives from big-endian machines are left out.
    """
    found = [
        _pickle(headers, members) if reader is _tensor else None
        for reader, members in _archives(headers)
    ]
    return [
        ("data/" if len(found) == 1 else f"{place}/data/", pickle)
        for place, pickle in enumerate(reversed(found))
        if pickle is not None
    ]


def _pickle(headers: Headers, members: Iterable[_Placed]) -> bytes | None:
    found = {member.name.rpartition(b"/")[2]: (member, end) for member, end in members}
    order = found.get(_BYTE_ORDER)
    if order is not None and order[0].size_bytes != len(_LITTLE):
        return None
    if order is not None and _content(headers, *order) != _LITTLE:
        return None
    return _content(headers, *found[_PICKLE[1:]])


def _content(headers: Headers, member: _Member, record_end: int) -> bytes:
    start, end = _data(headers, member, record_end)
    return headers.at(start, end - start)


def _archives(headers: Headers) -> Iterator[tuple[_Reader, list[_Placed]]]:
    """Yield a reader for each archive, with its members and their ends; the last archive first."""
    count = 0
    end = headers.size_bytes
    while end > 0:
        start, directory, members = _archive(headers, end)
        is_torch = any(member.name.endswith(_PICKLE) for member in members)
        is_numpy = start == 0 and end == headers.size_bytes
        is_numpy &= all(member.name.endswith(_ARRAY) for member in members)
        count += 1 + len(members)
        if count > SPANS_MAX:
            raise NoLayoutError("too many members")
        if start == 0 and end == headers.size_bytes:
            weights = [member for member in members if member.name == _WEIGHTS]
            if weights:
                yield _weights, [(weights[0], directory)]
                return
        if not (is_torch or is_numpy):
            raise NoLayoutError("not an archive of tensors")
        ends = [member.offset_bytes for member in members[1:]]
        yield _array if is_numpy else _tensor, list(zip(members, [*ends, directory], strict=True))
        end = start


def _weights(headers: Headers, member: _Member, _record_end: int) -> list[Span]:
    """Return the datasets of a member in HDF5."""
    return hdf5.spans_within(headers, _data_start(headers, member), member.size_bytes)


def _tensor(headers: Headers, member: _Member, record_end: int) -> list[Span]:
    """Return the span of a member of torch's archive, if it is a tensor."""
    match = _TENSOR.search(member.name)
    if match is None:
        return []
    name = named(match[1])
    if member.size_bytes < _SMALL_BYTES and not headers.closely:
        return [Span(member.offset_bytes, record_end - member.offset_bytes, name=name)]
    start, _ = _data(headers, member, record_end)
    return [Span(start, member.size_bytes, name=name)]


def _array(headers: Headers, member: _Member, record_end: int) -> list[Span]:
    """Return the span of a member of numpy's archive."""
    name = named(member.name.removesuffix(_ARRAY))
    if member.size_bytes < _SMALL_BYTES and not headers.closely:
        return [Span(member.offset_bytes, record_end - member.offset_bytes, name=name)]
    place = _data(headers, member, record_end, ahead_bytes=_AHEAD_BYTES)
    return [npy.array_span(headers, *place, name)]


def _data(
    headers: Headers, member: _Member, record_end: int, *, ahead_bytes: int = 0
) -> tuple[int, int]:
    """Return where a member's data begins and ends."""
    start = _data_start(headers, member, ahead_bytes)
    end = start + member.size_bytes
    if end > record_end:
        raise NoLayoutError("members overlap")
    return start, end


def _data_start(headers: Headers, member: _Member, ahead_bytes: int = 0) -> int:
    """Return the end of a member's local header; the central directory lacks its padding.

    ``ahead_bytes`` after the header are read together with it if the caller needs them. Other
    callers do not read ahead: in a stored file that would decode the first chunk of a tensor.
    """
    needed = _LOCAL.size + len(member.name) + ahead_bytes
    raw = headers.at(member.offset_bytes, min(needed, headers.size_bytes - member.offset_bytes))
    magic, _, flags, method, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(raw)
    at = member.offset_bytes + _LOCAL.size
    if magic != MAGIC or flags & _ENCRYPTED or method or name_bytes != len(member.name):
        raise NoLayoutError("a member is not what the directory says")
    if headers.at(at, name_bytes) != member.name:
        raise NoLayoutError("a member has two names")
    return at + int(name_bytes + extra_bytes)


def _archive(headers: Headers, end: int) -> tuple[int, int, list[_Member]]:
    """Return start, directory's start and members of the archive that ends at ``end``."""
    directory, directory_bytes, offset, count = _directory(headers, end)
    start = directory - offset
    if start < 0 or not 0 < count <= SPANS_MAX or directory_bytes < count * _CENTRAL.size:
        raise NoLayoutError("an impossible directory")
    raw = headers.near(directory, directory_bytes, _NEAR_BYTES)
    members = []
    at = 0
    for _ in range(count):
        member, at = _member(raw, at, start)
        members.append(member)
    members.sort()
    bounds = [*[member.offset_bytes for member in members], directory]
    if at != len(raw) or bounds[0] != start:
        raise NoLayoutError("a directory that is not all of the archive")
    if any(start_at + _LOCAL.size > next_at for start_at, next_at in pairwise(bounds)):
        raise NoLayoutError("members overlap")
    return start, directory, members


def _directory(headers: Headers, end: int) -> tuple[int, int, int, int]:
    """Return start and length of the directory, its offset in the archive, and its member count."""
    at = end - _END.size
    raw = headers.near(at, _END.size, min(end, _NEAR_BYTES))
    magic, _, _, _, count, length, offset, comment_bytes = _END.unpack(raw)
    if magic != b"PK\x05\x06" or comment_bytes:
        raise NoLayoutError("no end of an archive")
    before = at - _LOCATOR.size - _END64.size
    if before >= 0:
        raw = headers.at(before, _END64.size + _LOCATOR.size)
        locator, _, place, _ = _LOCATOR.unpack_from(raw, _END64.size)
        if locator == b"PK\x06\x07":
            magic, _, _, _, _, _, _, count, length, offset = _END64.unpack_from(raw)
            if magic != b"PK\x06\x06" or place != offset + length:
                raise NoLayoutError("no end of a ZIP64 archive")
            at = before
    return at - length, length, offset, count


def _member(raw: bytes, at: int, start: int) -> tuple[_Member, int]:
    """Read the directory's record at ``at``; returns also where the next record begins."""
    if at + _CENTRAL.size > len(raw):
        raise NoLayoutError("the directory is cut short")
    fields = _CENTRAL.unpack_from(raw, at)
    magic, flags, method = fields[0], fields[3], fields[4]
    stored_bytes, size_bytes, name_bytes, extra_bytes, comment_bytes = fields[8:13]
    offset = fields[16]
    at += _CENTRAL.size
    name = raw[at : at + name_bytes]
    extra = raw[at + name_bytes : at + name_bytes + extra_bytes]
    size_bytes, stored_bytes, offset = _widened(extra, (size_bytes, stored_bytes, offset))
    if magic != b"PK\x01\x02" or method or flags & _ENCRYPTED or stored_bytes != size_bytes:
        raise NoLayoutError("a member is not stored plainly")
    next_at = at + name_bytes + extra_bytes + comment_bytes
    return _Member(start + offset, size_bytes, name), next_at


def _widened(extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return size, stored size and offset; values above 32 bits come from the extra field."""
    if _U32_MAX not in values:
        return values
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == _ZIP64:
            wide = [extra[begin : begin + 8] for begin in range(at, at + length, 8)]
            numbers = iter([int.from_bytes(number, "little") for number in wide])
            found = [next(numbers, value) if value == _U32_MAX else value for value in values]
            return found[0], found[1], found[2]
        at += length
    return values

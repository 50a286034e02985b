"""ZIP archives of tensors, stored without compression: ``torch.save``, ``np.savez`` and Keras.

PKWARE's APPNOTE 6.3.9, with ZIP64. Whose archive it is tell the names of its members: torch's has
``<stem>/data.pkl`` and tensors in ``<stem>/data/<number>``; numpy's has ``.npy`` members and
nothing else; that of Keras has ``model.weights.h5``. The parts of a distributed checkpoint
(``.distcp``) are archives of torch's one behind the other; they are found from the last one's end,
where an archive says how long it is.

A tensor is called ``data/<number>``, in one of several archives ``<its place>/data/<number>``,
and an array by its member's name: a stem is that of a file, and differs from save to save.

A member that is compressed, encrypted or not where the directory says makes the file one of
unknown layout. For where tensors lie, the pickle is a member like any other: it is not read.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from ciuic.chunking.tensors import hdf5, npy
from ciuic.chunking.tensors.headers import SPANS_MAX, Headers, NoLayoutError, Span, named

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
"""Read at an archive's end: most directories of one tensor take 700 bytes. With more, the parts of
a distributed checkpoint of some thousand tensors would be beyond what is read of a file."""
_SMALL_BYTES: Final = 64 * 1024
"""A shorter member counts with its local header, which then need not be read."""
_AHEAD_BYTES: Final = 256
"""Read with a local header: what is behind it is then an array's header."""
_TENSOR: Final = re.compile(rb"/(data/[0-9]+)\Z")
_PICKLE: Final = b"/data.pkl"
_ARRAY: Final = b".npy"
_BYTE_ORDER: Final = b"byteorder"
_LITTLE: Final = b"little"
_WEIGHTS: Final = b"model.weights.h5"
_METADATA: Final = b"metadata.json"
_KERAS: Final = b'"keras_version"'


class _Member(NamedTuple):
    """A member as the central directory has it; offsets count from the file's start."""

    offset_bytes: int
    size_bytes: int
    name: bytes


_Placed = tuple[_Member, int]
_Reader = Callable[[Headers, _Member, int], list[Span]]


def begins(magic: bytes) -> bool:
    """The first member's header is there."""
    return magic.startswith(MAGIC)


def kind_of(head: bytes) -> str:
    """Whose archive a file that ``begins`` like one is, by its first member's name."""
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
    """The tensors of a file that ``begins`` like this one."""
    found = [
        [span for one in members for span in reader(headers, *one)]
        for reader, members in _archives(headers)
    ]
    if len(found) == 1:
        return found[0]
    return [
        one._replace(name=named(b"%d/" % place + one.name.encode()))
        for place, archive in enumerate(reversed(found))
        for one in archive
    ]


def pickles(headers: Headers) -> list[tuple[str, bytes]]:
    """What ``torch.save`` has pickled, and how the names of the tensors of its archive begin.

    Archives from machines whose numbers begin with their highest byte are left out.
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
    """What reads the members of each archive, and these with where they end; the last one first."""
    count = 0
    end = headers.size_bytes
    while end > 0:
        start, directory, members = _archive(headers, end)
        is_torch = any(one.name.endswith(_PICKLE) for one in members)
        is_numpy = start == 0 and end == headers.size_bytes
        is_numpy &= all(one.name.endswith(_ARRAY) for one in members)
        count += 1 + len(members)
        if count > SPANS_MAX:
            raise NoLayoutError("too many members")
        if start == 0 and end == headers.size_bytes:
            weights = [one for one in members if one.name == _WEIGHTS]
            if weights:
                yield _weights, [(weights[0], directory)]
                return
        if not (is_torch or is_numpy):
            raise NoLayoutError("not an archive of tensors")
        ends = [one.offset_bytes for one in members[1:]]
        yield _array if is_numpy else _tensor, list(zip(members, [*ends, directory], strict=True))
        end = start


def _weights(headers: Headers, member: _Member, _record_end: int) -> list[Span]:
    """What lies in a file of HDF5 that is a member."""
    return hdf5.spans_within(headers, _data_start(headers, member), member.size_bytes)


def _tensor(headers: Headers, member: _Member, record_end: int) -> list[Span]:
    """A member of an archive of torch's, if it is a tensor."""
    match = _TENSOR.search(member.name)
    if match is None:
        return []
    name = named(match[1])
    if member.size_bytes < _SMALL_BYTES and not headers.closely:
        return [Span(member.offset_bytes, record_end - member.offset_bytes, name=name)]
    start, _ = _data(headers, member, record_end)
    return [Span(start, member.size_bytes, name=name)]


def _array(headers: Headers, member: _Member, record_end: int) -> list[Span]:
    """A member of an archive of numpy's."""
    name = named(member.name.removesuffix(_ARRAY))
    if member.size_bytes < _SMALL_BYTES and not headers.closely:
        return [Span(member.offset_bytes, record_end - member.offset_bytes, name=name)]
    place = _data(headers, member, record_end, ahead_bytes=_AHEAD_BYTES)
    return [npy.array_span(headers, *place, name)]


def _data(
    headers: Headers, member: _Member, record_end: int, *, ahead_bytes: int = 0
) -> tuple[int, int]:
    """Where a member's data begins and ends."""
    start = _data_start(headers, member, ahead_bytes)
    end = start + member.size_bytes
    if end > record_end:
        raise NoLayoutError("members overlap")
    return start, end


def _data_start(headers: Headers, member: _Member, ahead_bytes: int = 0) -> int:
    """Behind the local header, whose padding the central directory doesn't know.

    What lies ahead is read in the same go where somebody asks for it next. Else it is not: of a
    file in the store it would be the first chunk of a tensor, to be decoded for nothing.
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
    """The archive that ends at ``end``: where it begins, where its directory does, its members."""
    directory, directory_bytes, offset, count = _directory(headers, end)
    start = directory - offset
    if start < 0 or not 0 < count <= SPANS_MAX or directory_bytes < count * _CENTRAL.size:
        raise NoLayoutError("a directory that can't be")
    raw = headers.near(directory, directory_bytes, _NEAR_BYTES)
    members = []
    at = 0
    for _ in range(count):
        member, at = _member(raw, at, start)
        members.append(member)
    members.sort()
    bounds = [*[one.offset_bytes for one in members], directory]
    if at != len(raw) or bounds[0] != start:
        raise NoLayoutError("a directory that is not all of the archive")
    if any(one + _LOCAL.size > other for one, other in pairwise(bounds)):
        raise NoLayoutError("members overlap")
    return start, directory, members


def _directory(headers: Headers, end: int) -> tuple[int, int, int, int]:
    """Where the central directory lies, its length, its offset in the archive, its members."""
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
    """The directory's record at ``at``, and where the next one begins."""
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
        raise NoLayoutError("a member is not simply stored")
    next_at = at + name_bytes + extra_bytes + comment_bytes
    return _Member(start + offset, size_bytes, name), next_at


def _widened(extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Size, stored size and offset, with those from the extra field that don't fit 32 bits."""
    if _U32_MAX not in values:
        return values
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == _ZIP64:
            wide = [extra[one : one + 8] for one in range(at, at + length, 8)]
            numbers = iter([int.from_bytes(one, "little") for one in wide])
            found = [next(numbers, one) if one == _U32_MAX else one for one in values]
            return found[0], found[1], found[2]
        at += length
    return values

"""Headers of a tar stream: POSIX pax (IEEE 1003.1, "pax")."""

import stat
import tarfile
from typing import Final

from ciuic.model import Entry

__all__ = ["DEVICE_MAX", "SPECIAL_KINDS", "device", "header"]

_NAME_BYTES_MAX: Final = 99
_ID_MAX: Final = 0o7777777
_NUMBER_MAX: Final = 0o77777777777
DEVICE_MAX: Final = 0o7777777
_SECOND_NS: Final = 10**9

SPECIAL_KINDS: Final = {
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}
"""The tar types of special files."""


def device(entry: Entry) -> tuple[int, int]:
    """Return the major and minor number of a device node."""
    return entry.rdev >> 32, entry.rdev & 0xFFFFFFFF


def header(
    name: bytes, entry: Entry, kind: bytes, *, size_bytes: int = 0, link: bytes = b""
) -> bytes:
    """Return the blocks of a member that come before its content.

    The module ``tarfile`` makes the blocks, but not the pax records: if an attribute is not text,
    it marks all records as binary, and GNU tar warns.
    """
    records = _pax_records(name, entry, size_bytes, link)
    info = tarfile.TarInfo(_short(name))
    info.type = kind
    info.linkname = _short(link)
    info.mode = stat.S_IMODE(entry.mode)
    info.uid = _fitting(entry.uid, _ID_MAX)
    info.gid = _fitting(entry.gid, _ID_MAX)
    info.size = _fitting(size_bytes, _NUMBER_MAX)
    info.mtime = _fitting(entry.mtime_ns // _SECOND_NS, _NUMBER_MAX)
    if kind in {tarfile.CHRTYPE, tarfile.BLKTYPE}:
        info.devmajor, info.devminor = device(entry)
    return _extended(records) + _block(info)


def _pax_records(name: bytes, entry: Entry, size_bytes: int, link: bytes) -> bytes:
    """Return the values that do not fit into a plain header."""
    records = []
    if not _is_plain(name):
        records.append((b"path", name))
    if link and not _is_plain(link):
        records.append((b"linkpath", link))
    for key, number, number_max in (
        (b"uid", entry.uid, _ID_MAX),
        (b"gid", entry.gid, _ID_MAX),
        (b"size", size_bytes, _NUMBER_MAX),
    ):
        if number != _fitting(number, number_max):
            records.append((key, b"%d" % number))
    seconds, rest = divmod(entry.mtime_ns, _SECOND_NS)
    if rest or seconds != _fitting(seconds, _NUMBER_MAX):
        records.append((b"mtime", _decimal(entry.mtime_ns)))
    for key, value in entry.xattrs:
        escaped = key.replace(b"%", b"%25").replace(b"=", b"%3D")
        records.append((b"SCHILY.xattr." + escaped, value))
    return b"".join([_record(key, value) for key, value in records])


def _record(key: bytes, value: bytes) -> bytes:
    """Return a pax record. It begins with its own length in decimal."""
    bare = len(key) + len(value) + 3
    length = bare + len(b"%d" % bare)
    length = bare + len(b"%d" % length)
    return b"%d %s=%s\n" % (length, key, value)


def _extended(records: bytes) -> bytes:
    if not records:
        return b""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type = tarfile.XHDTYPE
    info.size = len(records)
    return _block(info) + records + bytes(-len(records) % tarfile.BLOCKSIZE)


def _block(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")


def _short(name: bytes) -> str:
    return name[:_NAME_BYTES_MAX].decode("utf-8", "surrogateescape")


def _is_plain(name: bytes) -> bool:
    """Return whether a name needs no pax record: it is short, and ASCII or no UTF-8."""
    if len(name) > _NAME_BYTES_MAX:
        return False
    try:
        return name.decode().isascii()
    except UnicodeDecodeError:
        return True


def _fitting(number: int, number_max: int) -> int:
    return number if 0 <= number <= number_max else 0


def _decimal(time_ns: int) -> bytes:
    seconds, rest = divmod(abs(time_ns), _SECOND_NS)
    return b"%s%d.%09d" % (b"-" if time_ns < 0 else b"", seconds, rest)

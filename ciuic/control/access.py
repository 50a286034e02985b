"""POSIX access control lists: a further group's rights on a path.

The owner of a path may change them; ``chown`` to a group would need that the owner is a member, or
CAP_CHOWN. Source: acl(5), and linux/posix_acl_xattr.h for the form of the attribute.
"""

import errno
import os
import stat
import struct
from typing import Final

from ciuic.system import nofollow

__all__ = ["give_group"]

_NAME: Final = "system.posix_acl_access"
_VERSION: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
_USER, _GROUP, _MASK, _OTHER = 0x01, 0x04, 0x10, 0x20
_NAMED_USER, _NAMED_GROUP = 0x02, 0x08
_NOBODY: Final = 0xFFFF_FFFF


def give_group(path: str, gid: int, rights: int) -> None:
    """Give a group rights (read 4, write 2, execute 1) on a path, besides those that others have.

    Raises:
        OSError: The path is another user's, or its file system has no access control lists.
    """
    with nofollow.opened_parent(path) as (directory, name):
        place = f"/proc/self/fd/{directory}/{name}"
        mode = os.lstat(place).st_mode
        entries = _entries(place, mode)
        entries[_NAMED_GROUP, gid] = rights
        classes = (_GROUP, _NAMED_USER, _NAMED_GROUP)
        mask = 0
        for (kind, _), bits in entries.items():
            mask |= bits if kind in classes else 0
        entries[_MASK, _NOBODY] = mask
        data = _VERSION.pack(2) + b"".join(
            _ENTRY.pack(kind, bits, who) for (kind, who), bits in sorted(entries.items())
        )
        os.setxattr(place, _NAME, data, follow_symlinks=False)


def _entries(place: str, mode: int) -> dict[tuple[int, int], int]:
    try:
        data = os.getxattr(place, _NAME, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        bits = stat.S_IMODE(mode)
        return {
            (_USER, _NOBODY): bits >> 6 & 7,
            (_GROUP, _NOBODY): bits >> 3 & 7,
            (_OTHER, _NOBODY): bits & 7,
        }
    return {(kind, who): bits for kind, bits, who in _ENTRY.iter_unpack(data[_VERSION.size :])}

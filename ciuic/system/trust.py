"""Which files this process obeys: those of its own user and of root that no other user can write.

The process that reads a configuration or a store acts on it with its own rights. Any user who could
write these files would have the same rights, so ciuic refuses files that others can write.
"""

import contextlib
import os
import stat
from typing import Final

__all__ = ["is_trusted_owner", "others_can_write", "user_text"]

_ALL_USERS: Final = 2**32 - 1
_OVERFLOW: Final = "/proc/sys/kernel/overflowuid"


def is_trusted_owner(uid: int) -> bool:
    """Return whether this process obeys files of this user.

    In a user namespace, users who are not mapped into it appear as the overflow user. In a
    namespace the overflow user is trusted: the machine's root is one of these users, and the
    process has no rights over its files.
    """
    return uid in {0, os.geteuid()} or (uid == _number_in(_OVERFLOW) and not _sees_all_users())


def others_can_write(status: os.stat_result) -> bool:
    """Return whether the mode lets a user other than the owner and root write.

    A group counts as other users, even a group like ``adm``. The exception is the private group of
    an ordinary user: it has the user's name and no other member.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status)


def user_text(uid: int) -> str:
    """Return a user's name and number for a message."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"{uid}"


def _is_private_group(status: os.stat_result) -> bool:
    import grp
    import pwd

    if status.st_uid == 0 or status.st_gid != os.getegid():
        return False
    with contextlib.suppress(KeyError):
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid).pw_name
        return group.gr_name == user and not set(group.gr_mem) - {user}
    return False


def _sees_all_users() -> bool:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/uid_map", "rb") as file:
        return any(int(line.split()[2]) >= _ALL_USERS for line in file)
    return True


def _number_in(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        return int(file.read())
    return -1

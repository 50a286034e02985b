"""Reading a configuration file that no other user can change.

The daemon runs the file's hooks as its own user, so another user who can write to the file, or
replace it, could run commands as that user.
"""

import os
import stat
from typing import Final

from ciuic.errors import ConfigError
from ciuic.system.trust import is_trusted_owner, others_can_write, user_text

__all__ = ["read_trusted_text"]

# A real file is 2 KB. The bound keeps a core dump given by mistake out of memory.
_SIZE_BYTES_MAX: Final = 1024 * 1024


def read_trusted_text(path: str) -> str:
    """Return the file's text; bytes that are not UTF-8 become surrogates.

    Raises:
        ConfigError: The file cannot be read, is too large, or another user can change it.
    """
    try:
        # Without O_NONBLOCK a named pipe given by mistake would hang the command for good.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise ConfigError(f"{path}: is a directory, not a configuration file")
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is not a regular file")
            _refuse_untrusted(path, status)
            data = os.read(fd, _SIZE_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        hint = "Copy etc/ciuic.conf there and name your directories in it, or use --config FILE."
        raise ConfigError(f"{path}: there is no such file", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        hint = "Make the file readable, or use --config FILE."
        raise ConfigError(f"{path}: cannot be read: {reason}", hint=hint) from error
    if len(data) > _SIZE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than 1 MiB, so it is not a configuration file")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _refuse_untrusted(path: str, status: os.stat_result) -> None:
    """Refuse a file that another user can write to, or can replace."""
    _check_rights(path, "it", path, status)
    for place in _directories_above(path):
        above = os.stat(place)
        # In a directory such as /tmp, only a file's owner can rename or remove it.
        is_sticky = above.st_mode & stat.S_ISVTX and is_trusted_owner(above.st_uid)
        if not is_sticky:
            _check_rights(path, f"its directory {place}", place, above)


def _directories_above(path: str) -> list[str]:
    """Return every directory where a renamed entry could make ``path`` lead to another file."""
    found: dict[str, None] = {}
    for start in (os.path.abspath(path), os.path.realpath(path)):
        place = os.path.dirname(start)
        while place not in found:
            found[place] = None
            place = os.path.dirname(place)
    return list(found)


def _check_rights(path: str, what: str, place: str, status: os.stat_result) -> None:
    if not is_trusted_owner(status.st_uid):
        owner, runner = user_text(status.st_uid), user_text(os.geteuid())
        raise ConfigError(
            f"{path}: {what} belongs to user {owner}, and ciuic runs as {runner}",
            hint=f"Check what is in the file, then run 'chown {os.geteuid()} {place}'; or run ciuic"
            " as that user.",
        )
    is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY  # as containers get it: with mode 0777
    if others_can_write(status) and not is_read_only:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"{path}: other users can write to {what}: mode {mode:04o}",
            hint=f"Check what is in the file, then run 'chmod go-w {place}'.",
        )

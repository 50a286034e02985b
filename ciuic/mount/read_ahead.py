"""How far the kernel reads ahead in a mounted file system.

Without a word it asks for 128 KiB at a time, and answering takes longer than handing that over.
Only root may tell it: for other users, it stays as it is.
"""

import contextlib
import os
from typing import Final

from ciuic.source.mounts import mounts

__all__ = ["read_far_ahead"]

_AHEAD_KIB: Final = 1024
"""The longest request of the kernel's FUSE."""


def read_far_ahead(point: bytes) -> None:
    """Let the kernel ask for a megabyte at a time, if this user may say so.

    Args:
        point: The mount point, resolved. It is not looked up: the process that asks for that may be
            the one that has to answer.
    """
    device = next((mount.device for mount in reversed(mounts()) if mount.point == point), None)
    if device is None:
        return
    name = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    # Another user, or a container: less ahead is slower, and nothing else.
    with contextlib.suppress(OSError), open(name, "w") as file:
        file.write(f"{_AHEAD_KIB}\n")

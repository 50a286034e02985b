"""The address of a store's control socket.

Addresses go through ``/proc/self/fd``: an address holds 107 bytes, and the path of a store may be
longer.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ciuic.store.records.layout import CONTROL_SOCKET
from ciuic.system import nofollow

__all__ = ["existing_socket_address", "socket_address"]


@contextlib.contextmanager
def socket_address(store_path: str) -> Iterator[str]:
    """Yield the address to bind the control socket to, valid inside the block.

    It goes through a descriptor of the directory, so no symlink can lead it elsewhere.

    Raises:
        OSError: The directory is missing.
    """
    address = os.path.join(nofollow.resolved(store_path), CONTROL_SOCKET)
    with nofollow.opened_parent(address) as (directory, name):
        yield f"/proc/self/fd/{directory}/{name}"


@contextlib.contextmanager
def existing_socket_address(store_path: str) -> Iterator[str]:
    """Yield the address of the existing socket, valid inside the block; never a symlink's target.

    Raises:
        OSError: The socket is missing.
    """
    address = os.path.join(nofollow.resolved(store_path), CONTROL_SOCKET)
    fd = nofollow.open_file(address, os.O_PATH)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "not a socket", address)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)

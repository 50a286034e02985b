"""Since when this machine has seen each lease with its present content."""

import contextlib
from typing import Final

import msgspec

from ciuic.errors import StoreError
from ciuic.store.directory.folder import Folder
from ciuic.store.place.sessions.leases import Lease

__all__ = ["SeenLeases"]

_NAME: Final = "leases.seen"
_BYTES_MAX: Final = 64 * 1024 * 1024
_Seen = dict[str, tuple[bytes, int]]
_decoder: Final = msgspec.msgpack.Decoder(_Seen)
_encoder: Final = msgspec.msgpack.Encoder()


class SeenLeases:
    """A file in the cache directory. Without it, every lease counts as new.

    Args:
        path: The cache directory.
    """

    def __init__(self, path: str) -> None:
        self._folder = Folder(path)

    def unchanged_ns(self, lease: Lease, now_ns: int) -> int:
        """Return for how long, in nanoseconds, a lease has had its content, and remember that.

        Args:
            lease: The lease.
            now_ns: The time, by the clock of this machine.
        """
        seen = self._read()
        content, since_ns = seen.get(lease.key, (b"", now_ns))
        if content != lease.content or since_ns > now_ns:
            since_ns = now_ns
            seen[lease.key] = lease.content, now_ns
            self._write(seen)
        return now_ns - since_ns

    def keep(self, keys: set[str]) -> None:
        """Forget the leases that are gone.

        Args:
            keys: Those that are there.
        """
        seen = self._read()
        if not seen.keys() <= keys:
            self._write({key: seen[key] for key in seen.keys() & keys})

    def _read(self) -> _Seen:
        try:
            return _decoder.decode(self._folder.read(_NAME, _BYTES_MAX))
        except (StoreError, msgspec.MsgspecError):
            return {}

    def _write(self, seen: _Seen) -> None:
        with contextlib.suppress(StoreError):  # then they count as new the next time
            self._folder.replace(_NAME, _encoder.encode(seen))
